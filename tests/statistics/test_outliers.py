"""Outlier dimensions: planted ones are found by the definitions that should, and by no other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probing.statistics import moments
from probing.statistics.moments import Outlier, Profile, ProfileAccumulator

pytestmark = pytest.mark.numeric

D = 100


def profile(states: torch.Tensor, *cuts: int) -> Profile:
    accumulator = ProfileAccumulator(states.shape[1])
    for batch in torch.tensor_split(states, list(cuts)):
        accumulator.update(batch)
    return accumulator.result()


def noise(n: int = 2000, d: int = D, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed))


def found(states: torch.Tensor) -> dict[str, list[int]]:
    named: dict[str, list[int]] = {name: [] for name in moments.DEFINITIONS}
    for outlier in moments.outliers_of(profile(states)):
        named[outlier.definition].append(outlier.neuron)
    return named


def test_a_profile_is_what_numpy_says_in_batches_or_not() -> None:
    states = noise(300, 7) + torch.arange(7)
    x = states.double().numpy()
    for got in (profile(states), profile(states, 1, 1, 200)):
        np.testing.assert_allclose(got.mean, x.mean(0), rtol=1e-12)
        np.testing.assert_allclose(got.variance, x.var(0), rtol=1e-10)
        np.testing.assert_allclose(got.argmin_share, [(x.argmin(1) == k).mean() for k in range(7)])
        np.testing.assert_allclose(got.argmax_share, [(x.argmax(1) == k).mean() for k in range(7)])


def test_tokens_are_counted_in_which_a_neuron_is_far_from_that_tokens_own_mean() -> None:
    states = noise(300, 40) + 5
    states[:120, 3] -= 9
    states[200:, 4] += torch.linspace(0, 9, 100)
    beyond = [[abs(value - token.mean()) > 3 * token.std() for value in token] for token in states.double().numpy()]
    for got in (profile(states), profile(states, 1, 1, 200)):
        np.testing.assert_allclose(got.beyond_share, np.mean(beyond, axis=0))
    assert profile(states).beyond_share[3] > 0.35
    assert 0.1 < profile(states).beyond_share[4] < 0.3
    assert profile(states).beyond_share[5:].max() < 0.05


def test_pooled_profiles_are_that_of_all_tokens() -> None:
    states = noise(300, 7) * torch.arange(1, 8)
    got, expected = moments.pooled([profile(states[:40]), profile(states[40:])]), profile(states)
    assert got.n_tokens == 300
    for name in ("mean", "variance", "argmin_share", "argmax_share", "beyond_share"):
        np.testing.assert_allclose(getattr(got, name), getattr(expected, name), rtol=1e-10)


def test_in_noise_there_is_none() -> None:
    assert found(noise()) == {name: [] for name in moments.DEFINITIONS}


def test_a_large_constant_neuron_is_an_outlier_of_the_mean_and_not_of_the_variance() -> None:
    states = noise()
    states[:, 31] = -10 + 0.5 * states[:, 31]
    assert found(states) == {
        "argmin_share": [31], "argmax_share": [], "mean_profile": [31], "variance": [], "layer_norm": [],
    }  # fmt: skip
    (by_mean,) = moments.by_mean_profile(profile(states).mean)
    assert by_mean.value == pytest.approx(-np.sqrt(D - 1), rel=0.01)  # one of d neurons is never further


def test_a_neuron_that_varies_much_is_an_outlier_of_the_variance_and_not_of_the_mean() -> None:
    states = noise()
    states[:, 5] *= 4
    # It is the smallest of some two tokens in five and the largest of as many: of most, neither.
    assert found(states) == {
        "argmin_share": [], "argmax_share": [], "mean_profile": [], "variance": [5], "layer_norm": [],
    }  # fmt: skip


def test_special_tokens_may_hide_what_the_others_show() -> None:
    states = noise()
    states[:, 8] += 12
    special = noise(2500, seed=1)
    special[:, 9] += 15
    assert found(states)["argmax_share"] == [8]
    assert [o.neuron for o in moments.by_share("argmax_share", moments.pooled([profile(states), profile(special)]))] \
        == [9]  # fmt: skip


def test_those_further_away_come_first() -> None:
    states = noise()
    states[:, [3, 60]] += torch.tensor([7.0, -12.0])
    assert found(states)["mean_profile"] == [60, 3]


def norms(n_layers: int, planted: dict[int, int], seed: int = 0) -> list[torch.Tensor]:
    """Gains near 1; each planted neuron is at 5 in that many layers, from the first on."""
    gains = [1 + 0.01 * noise(1, D, seed + layer)[0] for layer in range(n_layers)]
    for neuron, n in planted.items():
        for gain in gains[:n]:
            gain[neuron] = 5
    return gains


def test_layer_norm_names_those_that_deviate_in_more_than_three_layers_gains_and_biases_in_turn() -> None:
    gains, biases = norms(12, {10: 12, 11: 5, 12: 3}), norms(12, {20: 4, 10: 6}, seed=50)
    # Gains: 10 (12 layers), 11 (5). Biases: 10 (6), 20 (4). In turn: 10, 10, 11, 20.
    assert moments.by_layer_norm(gains, biases) == [
        Outlier("layer_norm", 10, 12.0), Outlier("layer_norm", 11, 5.0), Outlier("layer_norm", 20, 4.0),
    ]  # fmt: skip


def test_layer_norm_takes_the_first_six_entries_and_does_without_biases() -> None:
    # Seven at once would hide each other: an sd counts them all.
    gains = norms(20, {30: 20, 31: 19, 32: 18, 33: 17, 34: 16})
    biases = norms(20, {40: 20, 41: 19, 42: 18, 43: 17}, seed=50)
    assert [o.neuron for o in moments.by_layer_norm(gains, biases)] == [30, 40, 31, 41, 32, 42]
    assert [o.neuron for o in moments.by_layer_norm(gains, [])] == [30, 31, 32, 33, 34]
    assert moments.by_layer_norm([], []) == []


def test_layers_that_do_not_vary_have_none() -> None:
    assert moments.outliers_of(profile(torch.ones(10, 50))) == [
        Outlier("argmin_share", 0, 1.0), Outlier("argmax_share", 0, 1.0),  # of equal neurons the first
    ]  # fmt: skip
    with pytest.raises(ValueError, match="no tokens"):
        profile(torch.ones(0, 5))
