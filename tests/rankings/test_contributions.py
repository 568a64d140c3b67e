from __future__ import annotations

from typing import Any

import pytest
import torch

from probing.rankings.methods import (
    ClassMagnitudes,
    MagnitudeAccumulator,
    centre_over_classes,
    class_contributions,
    mean_contribution,
    neuron_contributions,
)

pytestmark = pytest.mark.numeric

# Sums of at most 60 float64 terms near 1, in another order.
EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
N_CLASSES, D_MODEL = 4, 5


@pytest.fixture
def data() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(N_CLASSES, D_MODEL, generator=generator, dtype=torch.float64)
    states = torch.randn(60, D_MODEL, generator=generator, dtype=torch.float64) + 2
    # Class 3 has no token, and some tokens are of no class.
    return weight, states, torch.randint(-1, 3, (60,), generator=generator)


def magnitudes(states: torch.Tensor, labels: torch.Tensor, mean: torch.Tensor, *cuts: int) -> ClassMagnitudes:
    accumulator = MagnitudeAccumulator(mean, N_CLASSES)
    for at in torch.tensor_split(torch.arange(len(labels)), list(cuts)):
        accumulator.update(states[at], labels[at])
    return accumulator.result()


def tables(
    weight: torch.Tensor, states: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    sums = magnitudes(states, labels, states.mean(0))
    return (
        class_contributions(weight, sums),
        mean_contribution(weight, sums),
        mean_contribution(weight, sums, centred=True),
    )


def test_contributions_sum_to_the_centred_logits(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, _ = data
    logits = states @ weight.T
    contributions = neuron_contributions(weight, states)
    assert contributions.shape == (60, N_CLASSES, D_MODEL)
    torch.testing.assert_close(contributions.sum(-1), logits - logits.mean(-1, keepdim=True), **EXACT)


def test_centred_weights_give_the_same_probabilities(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, _ = data
    centred = states @ centre_over_classes(weight).T
    torch.testing.assert_close(centred.softmax(-1), (states @ weight.T).softmax(-1), **EXACT)


def test_a_vector_added_to_every_class_changes_no_table(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, labels = data
    shift = 100 * torch.randn(D_MODEL, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for one, other in zip(tables(weight, states, labels), tables(weight + shift, states, labels), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)  # a hundred times the size is cancelled


def test_permuted_neurons_permute_the_tables(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, labels = data
    order = torch.tensor([3, 0, 4, 2, 1])
    permuted = tables(weight[:, order], states[:, order], labels)
    for one, other in zip(tables(weight, states, labels), permuted, strict=True):
        torch.testing.assert_close(one[..., order], other, **EXACT)


def test_permuted_classes_change_no_mean_contribution(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, labels = data
    order = torch.tensor([2, 0, 3, 1])
    relabelled = torch.where(labels >= 0, order[labels.clamp(min=0)], -1)
    permuted = torch.empty_like(weight)
    permuted[order] = weight
    for one, other in zip(tables(weight, states, labels)[1:], tables(permuted, states, relabelled)[1:], strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_contributions_equal_a_loop_over_tokens(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    weight, states, labels = data
    mean = torch.arange(D_MODEL, dtype=torch.float64)
    sums = magnitudes(states, labels, mean)
    centred_weight = weight - weight.mean(0)
    by_class = torch.zeros(N_CLASSES, D_MODEL, dtype=torch.float64)
    true, deviating, counts = torch.zeros(D_MODEL), torch.zeros(D_MODEL), torch.zeros(N_CLASSES)
    for state, label in zip(states, labels.tolist(), strict=True):
        if label >= 0:
            counts[label] += 1
            by_class[label] += (centred_weight[label] * state).abs()
            true = true + (centred_weight[label] * state).abs()
            deviating = deviating + (centred_weight[label] * (state - mean)).abs()
    assert counts[3] == 0
    torch.testing.assert_close(class_contributions(weight, sums), by_class / counts.clamp(min=1)[:, None], **EXACT)
    torch.testing.assert_close(mean_contribution(weight, sums), true / counts.sum(), **EXACT)
    torch.testing.assert_close(mean_contribution(weight, sums, centred=True), deviating / counts.sum(), **EXACT)


def test_a_class_without_tokens_contributes_nothing(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    assert not tables(*data)[0][3].any()


def test_batches_give_what_one_gives(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    _, states, labels = data
    mean = states.mean(0)
    whole, parts = magnitudes(states, labels, mean), magnitudes(states, labels, mean, 0, 7, 59)
    for name in ("counts", "magnitude", "deviation"):
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name), **EXACT)


def test_scaling_a_neuron_against_its_weight_changes_nothing(
    data: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    weight, states, labels = data
    scale = torch.tensor([1e-3, 1.0, -5.0, 1e3, 2.0], dtype=torch.float64)
    for one, other in zip(tables(weight, states, labels), tables(weight / scale, states * scale, labels), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_shapes_that_do_not_fit_are_both_shown() -> None:
    with pytest.raises(ValueError, match=r"\(3, 4\).*\(7, 5\).*d_model"):
        neuron_contributions(torch.zeros(3, 4), torch.zeros(7, 5))


def test_inputs_stay_as_they_were(data: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    before = [tensor.clone() for tensor in data]
    tables(*data)
    neuron_contributions(*data[:2])
    assert all(torch.equal(one, other) for one, other in zip(before, data, strict=True))
