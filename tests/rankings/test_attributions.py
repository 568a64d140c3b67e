"""Contributions are attributions that other libraries compute for the same logits: of `shap`, and of `captum`."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from probing.probes.objective import centre_over_classes
from probing.rankings.methods import MagnitudeAccumulator, mean_contribution

N_CLASSES, D_MODEL = 4, 6


@pytest.fixture
def layer() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A probe's weights, training tokens that are far from 0, and other tokens with their classes."""
    generator = torch.Generator().manual_seed(0)
    weight, train, test = (
        torch.randn(n, D_MODEL, generator=generator, dtype=torch.float64) for n in (N_CLASSES, 80, 50)
    )
    return weight, 2 * train + 3, test - 1, torch.randint(N_CLASSES, (50,), generator=generator)


def contributions(layer: tuple[Tensor, Tensor, Tensor, Tensor], centred: bool) -> Tensor:
    weight, train, test, classes = layer
    sums = MagnitudeAccumulator(train.mean(0), N_CLASSES)
    sums.update(test, classes)
    return mean_contribution(weight, sums.result(), centred)


# shap 0.51 changes matplotlib's colour maps in a way that matplotlib 3.11 calls deprecated.
@pytest.mark.filterwarnings("ignore:The set_(bad|over|under) function:PendingDeprecationWarning")
def test_the_centred_contribution_is_the_mean_size_of_the_linear_shap_value(
    layer: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    import shap

    weight, train, test, classes = layer
    # By default the background is a sample of 100; its mean would then not be that of all training tokens.
    background = shap.maskers.Independent(train.numpy(), max_samples=len(train))
    probe = centre_over_classes(weight).numpy(), torch.zeros(N_CLASSES).double().numpy()
    values = torch.from_numpy(shap.LinearExplainer(probe, background).shap_values(test.numpy()))
    assert values.shape == (50, D_MODEL, N_CLASSES)
    of_the_class = values[torch.arange(50), :, classes]
    assert_close(of_the_class.abs().mean(0), contributions(layer, centred=True), rtol=1e-10, atol=0)
    # The values of the other classes, or the neuron's own mean in place of that of training, are others.
    assert (values.mean(-1).abs().mean(0) - contributions(layer, centred=True)).abs().min() > 0.01
    assert (contributions(layer, centred=False) - contributions(layer, centred=True)).abs().min() > 0.01


def test_the_contribution_is_the_mean_size_of_input_times_gradient(
    layer: tuple[Tensor, Tensor, Tensor, Tensor],
) -> None:
    from captum.attr import InputXGradient

    weight, _, test, classes = layer
    probe = nn.Linear(D_MODEL, N_CLASSES, bias=False, dtype=torch.float64)
    probe.weight.data = centre_over_classes(weight)
    found = InputXGradient(probe).attribute(test.clone().requires_grad_(), target=classes)
    assert_close(found.detach().abs().mean(0), contributions(layer, centred=False), rtol=1e-10, atol=0)
