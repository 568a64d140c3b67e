from __future__ import annotations

import numpy as np
import pytest
import torch

from probing.statistics.moments import Moments, MomentsAccumulator, Scaling

pytestmark = pytest.mark.numeric


def moments(hidden_states: torch.Tensor, *cuts: int) -> Moments:
    accumulator = MomentsAccumulator(hidden_states.shape[1])
    for batch in torch.tensor_split(hidden_states, list(cuts)):
        accumulator.update(batch)
    return accumulator.result()


@pytest.fixture
def states() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(500, 6, generator=generator) * torch.tensor([1, 2, 3, 1, 1, 1.0]) + torch.arange(6.0)


def test_moments_equal_those_of_numpy_in_float64(states: torch.Tensor) -> None:
    found, wide = moments(states), states.double().numpy()
    assert found.n_tokens == 500
    # Squares and products are taken in float32.
    np.testing.assert_allclose(found.mean, wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.sd, wide.std(0), rtol=1e-6)
    np.testing.assert_allclose(found.second_moment, wide.T @ wide / 500, rtol=1e-5, atol=1e-5)


def test_many_batches_give_what_one_gives(states: torch.Tensor) -> None:
    whole, parts = moments(states), moments(states, 1, 10, 10, 300, 499)
    assert parts.n_tokens == whole.n_tokens
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.sd, whole.sd, rtol=1e-6, atol=0)  # squares in float32
    torch.testing.assert_close(parts.second_moment, whole.second_moment, rtol=1e-5, atol=1e-5)


def test_the_order_of_batches_does_not_matter(states: torch.Tensor) -> None:
    forwards, backwards = moments(states, 100, 250), moments(states.flip(0), 100, 250)
    torch.testing.assert_close(forwards.mean, backwards.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(forwards.sd, backwards.sd, rtol=1e-6, atol=0)


def test_a_neuron_that_hardly_varies_around_a_large_mean_keeps_its_sd() -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(2000, 1, generator=generator, dtype=torch.float64)
    states = (1e3 + 1e-3 * noise).float()
    found = moments(states, 7, 500, 1999)
    # Against what float32 could store; naive sums of squares would be wrong in every digit.
    assert float(found.sd[0]) == pytest.approx(float(states.double().numpy().std()), rel=1e-6)
    assert float(found.mean[0]) == pytest.approx(float(states.double().mean()), rel=1e-12)


def test_an_empty_batch_changes_nothing(states: torch.Tensor) -> None:
    accumulator = MomentsAccumulator(6)
    accumulator.update(states[:0])
    accumulator.update(states)
    accumulator.update(states[:0])
    assert torch.equal(accumulator.result().second_moment, moments(states).second_moment)


def test_moments_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        MomentsAccumulator(3).result()


def test_inputs_stay_as_they_were(states: torch.Tensor) -> None:
    before = states.clone()
    moments(states, 100)
    assert torch.equal(states, before)


@pytest.mark.parametrize(("sd", "dead"), [(0.0, True), (1e-8, True), (9e-7, True), (1.1e-6, False), (1.0, False)])
def test_neurons_below_a_millionth_of_the_median_sd_are_dead(sd: float, dead: bool) -> None:
    alternating = torch.tensor([1.0, -1.0]).repeat(50)[:, None]  # sd exactly 1
    found = moments(torch.cat([alternating * sd, alternating.expand(-1, 4)], 1))
    assert found.dead.tolist() == [dead] + 4 * [False]


def test_where_most_neurons_are_constant_they_are_dead_and_no_scale_is_infinite() -> None:
    states = torch.zeros(10, 5)
    states[:, 1] = 3.0
    states[::2, 4] = 1.0
    found = moments(states)
    assert found.dead.tolist() == [True, True, True, True, False]
    for space in ("sd", "rms", "raw"):
        scale = Scaling(found, space).inverse
        assert torch.isfinite(scale).all()
        assert not scale[:4].any()


def test_neurons_that_vary_by_rounding_alone_are_dead_even_where_most_are_so() -> None:
    generator = torch.Generator().manual_seed(0)
    states = -0.25 + 3e-8 * torch.randint(0, 2, (500, 5), generator=generator)
    states[:, 3] = 1e-4 * torch.randn(500, generator=generator)
    states[:, 4] = 1e5 + torch.randn(500, generator=generator)  # 100 roundings
    assert (states[:, :3].std(0) > 0).all()
    assert moments(states).dead.tolist() == [True, True, True, False, False]
