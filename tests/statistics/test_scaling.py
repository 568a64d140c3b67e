"""The scaled space in which weights are penalised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.statistics.moments import MomentsAccumulator, PenaltySpace, Scaling

pytestmark = pytest.mark.numeric

DEAD = 6


def make_states() -> Tensor:
    """Return 500 tokens with six neurons of unlike means and scales and a constant one."""
    generator = torch.Generator().manual_seed(0)
    live = torch.randn(500, 6, generator=generator) * torch.tensor([1, 2, 3, 1, 1, 1.0]) + torch.arange(6.0)
    return torch.cat([live, torch.full((500, 1), 2.0)], 1)


def scaling_of(states: Tensor, space: PenaltySpace) -> Scaling:
    accumulator = MomentsAccumulator(states.shape[1])
    accumulator.update(states)
    return Scaling(accumulator.result(), space)


@pytest.mark.parametrize("space", ["sd", "rms", "raw"])
def test_penalty_spaces_divide_by_what_they_name(space: PenaltySpace) -> None:
    states = make_states()
    wide = states.double().numpy()[:, :DEAD]
    expected = {"sd": wide.std(0), "rms": np.sqrt(np.square(wide).mean(0)), "raw": np.ones(DEAD)}[space]
    inverse = scaling_of(states, space).inverse
    # Products are taken in float32.
    np.testing.assert_allclose(inverse[:DEAD], 1 / expected, rtol=1e-5)
    assert inverse[DEAD] == 0


@pytest.mark.parametrize("space", ["sd", "rms", "raw"])
def test_a_scaled_weight_on_scaled_neurons_gives_the_logits_of_the_weight(space: PenaltySpace) -> None:
    states = make_states().double()
    weight = torch.randn(3, DEAD + 1, generator=torch.Generator().manual_seed(1)).double()
    scaling = scaling_of(states.float(), space)
    scaled = scaling.scaled_weight(weight)
    without_dead = torch.cat([weight[:, :DEAD], torch.zeros(3, 1)], 1)
    torch.testing.assert_close(scaling.features(states) @ scaled.T, states @ without_dead.T, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(scaling.raw_weight(scaled), without_dead, rtol=1e-12, atol=0)


@pytest.mark.parametrize("space", ["sd", "rms", "raw"])
def test_scaled_products_are_the_products_of_scaled_neurons(space: PenaltySpace) -> None:
    states = make_states().double()
    scaling = scaling_of(states.float(), space)
    features = scaling.features(states)
    expected = features.T @ features / len(states)
    torch.testing.assert_close(scaling.products(states.T @ states / len(states)), expected, rtol=1e-12, atol=1e-12)


def test_what_is_scaled_keeps_its_precision() -> None:
    scaling = scaling_of(make_states(), "sd")
    for dtype in (torch.float32, torch.float64):
        weight = torch.ones(2, DEAD + 1, dtype=dtype)
        for scale in (scaling.features, scaling.scaled_weight, scaling.raw_weight):
            assert scale(weight).dtype == dtype
        assert scaling.products(torch.eye(DEAD + 1, dtype=dtype)).dtype == dtype


def test_the_axes_of_a_layer_are_computed_once_for_each_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, eigh = [], torch.linalg.eigh

    def counted(matrix: Tensor) -> Any:
        sizes.append(len(matrix))
        return eigh(matrix)

    monkeypatch.setattr(torch.linalg, "eigh", counted)
    scaling = scaling_of(make_states(), "sd")
    values, vectors = scaling.axes
    assert Scaling(scaling.moments, "sd").axes is scaling.axes
    assert sizes == [DEAD + 1]
    products = scaling.products(scaling.moments.second_moment)
    # The two halves of a product of float32 differ by rounding; one of them is read.
    torch.testing.assert_close((vectors * values) @ vectors.T, products, rtol=1e-5, atol=1e-6)
    assert not torch.equal(Scaling(scaling.moments, "rms").axes.values, values)
