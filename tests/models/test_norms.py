"""LayerNorms and RMS norms as formulas: what they compute is told by their outputs, whatever they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from probing.models.residual_stream import is_norm, norm_of

D = 24


class RootMeanSquare(nn.Module):
    """As in Llama, or with `added` = 1 as in Gemma."""

    def __init__(self, added: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon, self.added = nn.Parameter(torch.randn(D)), 1e-3, added

    def forward(self, x: Tensor) -> Tensor:
        return (self.added + self.weight) * x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()


def layer_norm_module() -> nn.LayerNorm:
    norm = nn.LayerNorm(D, eps=0.1)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def test_a_layer_norm_is_split_into_terms_that_add_up_to_its_output() -> None:
    torch.manual_seed(0)
    module, given = layer_norm_module(), 3 + 2 * torch.randn(5, D)
    norm = norm_of(module, given, module(given))
    assert norm is not None
    assert (norm.centres, norm.epsilon) == (True, 0.1)
    scaled, mean = norm.parts(given.double())
    naive = torch.tensor([
        [(x - row.mean()) / (row.var(unbiased=False) + 0.1).sqrt() for x in row] for row in given.double()
    ])  # fmt: skip
    assert torch.allclose(scaled - mean, naive)
    weight, bias = (parameter.detach().double() for parameter in (module.weight, module.bias))
    assert torch.allclose(norm(given.double()), layer_norm(given.double(), (D,), weight, bias, 0.1))


@pytest.mark.parametrize("added", [0.0, 1.0])
def test_an_rms_norm_subtracts_no_mean_and_may_add_1_to_its_weight(added: float) -> None:
    torch.manual_seed(0)
    module, given = RootMeanSquare(added), 3 + torch.randn(5, D)
    norm = norm_of(module, given, module(given))
    assert norm is not None
    assert not norm.centres
    assert torch.equal(norm.gain, (module.weight.detach().double() + added))
    assert not norm.bias.any()
    scaled, mean = norm.parts(given.double())
    assert not mean.any()
    assert torch.allclose((norm.gain * scaled).float(), module(given), atol=1e-5)


def test_what_computes_something_else_is_none() -> None:
    torch.manual_seed(0)
    module, given = layer_norm_module(), torch.randn(5, D)
    assert norm_of(module, given, module(given) + 0.01) is None
    assert norm_of(module, given, module(given).tanh()) is None


@pytest.mark.parametrize(
    ("module", "expected"),
    [(nn.LayerNorm(D), True), (RootMeanSquare(0), True), (nn.LayerNorm(D - 1), False), (nn.Linear(D, D), False)],
)
def test_a_norm_has_a_gain_and_at_most_a_bias_over_the_neurons(module: Any, expected: bool) -> None:
    assert is_norm(module, D) == expected
