"""Moments, running means, scales, outliers and similarity of neurons, and what a covariance was fitted on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata, spearmanr
from torch import Tensor

from conftest import BARE
from probing import fit, sts, wic
from probing.page.charts import read_sources
from probing.page.run import answer
from probing.probes.transforms import whiten
from probing.runs import SectionPlace
from probing.statistics import (
    ENOUGH,
    SampleSize,
    kendall,
    label,
    moments,
    neuron_ranks,
    rank_biased_overlap,
    ranked,
    shared_ranks,
    size_columns,
    size_lines,
    size_of,
    spearman,
    top_overlap,
)
from probing.statistics.moments import (
    CovarianceAccumulator,
    Moments,
    MomentsAccumulator,
    Outlier,
    PenaltySpace,
    Profile,
    ProfileAccumulator,
    RunningMean,
    Scaling,
)
from probing.studies.geometry import geometry
from probing.studies.geometry.tables import conclusions
from probing.studies.similarity import STS_STUDY
from probing.tables.probes import transform_lines
from small_data import word_pairs, write_sts, write_wic
from written import read_csv

pytestmark = pytest.mark.numeric


def moments_of_rows(hidden_states: torch.Tensor, *cuts: int) -> Moments:
    accumulator = MomentsAccumulator(hidden_states.shape[1])
    for batch in torch.tensor_split(hidden_states, list(cuts)):
        accumulator.update(batch)
    return accumulator.result()


@pytest.fixture
def states() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(500, 6, generator=generator) * torch.tensor([1, 2, 3, 1, 1, 1.0]) + torch.arange(6.0)


def test_moments_equal_those_of_numpy_in_float64(states: torch.Tensor) -> None:
    found, wide = moments_of_rows(states), states.double().numpy()
    assert found.n_tokens == 500
    # Squares and products are taken in float32.
    np.testing.assert_allclose(found.mean, wide.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.sd, wide.std(0), rtol=1e-6)
    np.testing.assert_allclose(found.second_moment, wide.T @ wide / 500, rtol=1e-5, atol=1e-5)


def test_many_batches_give_what_one_gives(states: torch.Tensor) -> None:
    whole, parts = moments_of_rows(states), moments_of_rows(states, 1, 10, 10, 300, 499)
    assert parts.n_tokens == whole.n_tokens
    torch.testing.assert_close(parts.mean, whole.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(parts.sd, whole.sd, rtol=1e-6, atol=0)  # squares in float32
    torch.testing.assert_close(parts.second_moment, whole.second_moment, rtol=1e-5, atol=1e-5)


def test_the_order_of_batches_does_not_matter(states: torch.Tensor) -> None:
    forwards, backwards = moments_of_rows(states, 100, 250), moments_of_rows(states.flip(0), 100, 250)
    torch.testing.assert_close(forwards.mean, backwards.mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(forwards.sd, backwards.sd, rtol=1e-6, atol=0)


def test_a_neuron_that_hardly_varies_around_a_large_mean_keeps_its_sd() -> None:
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(2000, 1, generator=generator, dtype=torch.float64)
    states = (1e3 + 1e-3 * noise).float()
    found = moments_of_rows(states, 7, 500, 1999)
    # Against what float32 could store; naive sums of squares would be wrong in every digit.
    assert float(found.sd[0]) == pytest.approx(float(states.double().numpy().std()), rel=1e-6)
    assert float(found.mean[0]) == pytest.approx(float(states.double().mean()), rel=1e-12)


def test_an_empty_batch_changes_nothing(states: torch.Tensor) -> None:
    accumulator = MomentsAccumulator(6)
    accumulator.update(states[:0])
    accumulator.update(states)
    accumulator.update(states[:0])
    assert torch.equal(accumulator.result().second_moment, moments_of_rows(states).second_moment)


def test_moments_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        MomentsAccumulator(3).result()


def test_inputs_stay_as_they_were(states: torch.Tensor) -> None:
    before = states.clone()
    moments_of_rows(states, 100)
    assert torch.equal(states, before)


@pytest.mark.parametrize(("sd", "dead"), [(0.0, True), (1e-8, True), (9e-7, True), (1.1e-6, False), (1.0, False)])
def test_neurons_below_a_millionth_of_the_median_sd_are_dead(sd: float, dead: bool) -> None:
    alternating = torch.tensor([1.0, -1.0]).repeat(50)[:, None]  # sd exactly 1
    found = moments_of_rows(torch.cat([alternating * sd, alternating.expand(-1, 4)], 1))
    assert found.dead.tolist() == [dead] + 4 * [False]


def test_where_most_neurons_are_constant_they_are_dead_and_no_scale_is_infinite() -> None:
    states = torch.zeros(10, 5)
    states[:, 1] = 3.0
    states[::2, 4] = 1.0
    found = moments_of_rows(states)
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
    assert moments_of_rows(states).dead.tolist() == [True, True, True, False, False]


CUTS = [(), (1,), (0, 1, 7, 7, 299), (150, 151, 152)]


def scatter(vectors: Tensor, cuts: tuple[int, ...] = ()) -> tuple[RunningMean, Tensor]:
    """Feed vectors, shape (..., n, d), in batches that end at these and sum the products of what comes back."""
    mean = RunningMean(*vectors.shape[:-2], vectors.shape[-1])
    total = torch.zeros(*vectors.shape[:-2], vectors.shape[-1], vectors.shape[-1], dtype=torch.float64)
    for start, end in itertools.pairwise([0, *cuts, vectors.shape[-2]]):
        deviations = mean.update(vectors[..., start:end, :])
        assert deviations.dtype == vectors.dtype
        total += (deviations.mT @ deviations).double()
    return mean, total


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("cuts", CUTS)
def test_products_of_the_rows_are_numpys_scatter(cuts: tuple[int, ...]) -> None:
    vectors = normal(300, 5) @ normal(5, 5, seed=1) + torch.linspace(0, 9, 300)[:, None]
    mean, found = scatter(vectors, cuts)
    np.testing.assert_allclose(mean.mean, vectors.mean(0), rtol=1e-13)
    np.testing.assert_allclose(found, np.cov(vectors.numpy().T, bias=True) * 300, rtol=1e-11)
    assert mean.n == 300


def test_axes_before_the_vectors_are_apart_from_each_other() -> None:
    vectors = normal(3, 40, 4) + torch.arange(3.0)[:, None, None]
    mean, found = scatter(vectors, (9,))
    for i in range(3):
        alone, expected = scatter(vectors[i], (9,))
        torch.testing.assert_close(mean.mean[i], alone.mean)
        torch.testing.assert_close(found[i], expected)


@pytest.mark.parametrize("cuts", CUTS)
def test_what_never_varies_has_nothing_left(cuts: tuple[int, ...]) -> None:
    # 2000 values of all sizes that float32 has, each constant over the vectors.
    values = (normal(2000, seed=2).sign() * torch.exp2(30 * normal(2000))).float()
    mean, found = scatter(values.expand(300, -1), cuts)
    assert torch.equal(mean.mean, values.double())
    assert not found.any()


@pytest.mark.parametrize("cuts", CUTS)
def test_a_small_spread_around_a_large_mean_keeps_its_digits_in_float32(cuts: tuple[int, ...]) -> None:
    vectors = (1e4 + 1e-2 * normal(300, 3)).float()
    expected = np.cov(vectors.double().numpy().T, bias=True) * 300
    np.testing.assert_allclose(scatter(vectors, cuts)[1], expected, rtol=1e-5, atol=1e-5 * expected.max())


def test_a_first_batch_far_from_the_others_takes_no_digits_from_them() -> None:
    vectors = normal(20_000, 2).float()
    vectors[0] = 300
    expected = np.cov(vectors.double().numpy().T, bias=True) * 20_000
    np.testing.assert_allclose(scatter(vectors, (1, 10_000))[1], expected, rtol=1e-5)


def test_no_vectors_are_no_rows_and_change_nothing() -> None:
    mean = RunningMean(4)
    assert mean.update(torch.empty(0, 4)).shape == (0, 4)
    assert mean.n == 0
    mean.update(torch.ones(2, 4))
    assert mean.update(torch.empty(0, 4)).shape == (0, 4)
    assert torch.equal(mean.mean, torch.ones(4).double())


def test_processes_together_have_the_scatter_of_all_vectors_and_one_may_have_none() -> None:
    vectors = normal(300, 4) + torch.linspace(0, 50, 300)[:, None]
    vectors[:, 3] = float(np.float32(0.1))  # with digits to spare, as what float32 has
    parts = [scatter(part) for part in (vectors[:110], vectors[:0], vectors[110:])]
    sums = [sum(mean.n * mean.mean for mean, _ in parts)] * len(parts)
    total = torch.zeros(4, 4, dtype=torch.float64)
    for (mean, own), weighted in zip(parts, sums, strict=True):
        answers = iter([torch.tensor(300), weighted])
        apart = mean.all_reduce(lambda _, answers=answers: next(answers))  # type: ignore[misc]
        assert mean.n == 300
        total += own + apart.T @ apart
    np.testing.assert_allclose(total, np.cov(vectors.numpy().T, bias=True) * 300, rtol=1e-11, atol=0)
    np.testing.assert_allclose(parts[0][0].mean, vectors.mean(0), rtol=1e-13)


def test_the_vectors_stay_as_they_were() -> None:
    vectors = normal(20, 3)
    before = vectors.clone()
    RunningMean(3).update(vectors)
    assert torch.equal(vectors, before)


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


# Sums of some hundred terms near 1, in another order.
EXACT: dict[str, Any] = {"rel": 1e-12, "abs": 1e-12}


def ranks(scores: NDArray[Any]) -> NDArray[Any]:
    return rankdata(scores, axis=-1)


def both(n: int, low: int = 0) -> st.SearchStrategy[tuple[NDArray[Any], ...]]:
    """Two scorings by few whole numbers, so that there are ties."""
    return st.tuples(*(2 * [st.lists(st.integers(low, 6), min_size=n, max_size=n).map(np.array)]))


def listed(scores: NDArray[Any]) -> list[int]:
    """Neurons from the highest score to the lowest, by sorting, without the dead ones."""
    return [i for _, i in sorted((-s, i) for i, s in enumerate(scores.tolist()) if s != 0)]


def naive_rbo(one: list[int], other: list[int], p: float) -> float:
    """Equation 32 of Webber, Moffat & Zobel (2010), as it stands there."""
    shorter, longer = sorted([one, other], key=len)
    s, n = len(shorter), len(longer)

    def x(d: int) -> int:
        return len(set(shorter[:d]) & set(longer[:d]))

    seen = sum(x(d) / d * p**d for d in range(1, n + 1))
    goes_on = sum(x(s) * (d - s) / (s * d) * p**d for d in range(s + 1, n + 1))
    return (1 - p) / p * (seen + goes_on) + ((x(n) - x(s)) / n + x(s) / s) * p**n


def test_places_go_from_the_highest_ties_by_lower_index_and_leave_dead_neurons_out() -> None:
    assert neuron_ranks(np.array([2.0, 0.0, 5.0, 2.0, -1.0])).tolist() == [2, 6, 1, 3, 4]
    assert neuron_ranks(np.array([[1.0, 2.0], [0.0, -0.0]])).tolist() == [[2, 1], [3, 3]]


@given(st.integers(2, 9).flatmap(both), st.sampled_from([0.1, 0.5, 0.9, 0.98]))
def test_rank_biased_overlap_is_equation_32_for_lists_of_any_length(scores: NDArray[Any], p: float) -> None:
    one, other = scores
    found = rank_biased_overlap(neuron_ranks(one), neuron_ranks(other), p)
    if one.any() and other.any():
        assert float(found) == pytest.approx(naive_rbo(listed(one), listed(other), p), **EXACT)
    else:
        assert np.isnan(found)


def test_rank_biased_overlap_of_a_known_pair() -> None:
    # X = 0, 1, 2, 3, 5 and p = .9: (1 - p) sum X_d / d p^(d-1) + p^5, worked by hand.
    one, other = neuron_ranks(np.array([5.0, 4, 3, 2, 1])), neuron_ranks(np.array([2.0, 5, 4, 3, 1]))
    by_hand = 0.1 * (0 + 1 / 2 * 0.9 + 2 / 3 * 0.81 + 4 / 4 * 0.729 + 5 / 5 * 0.6561) + 0.59049
    assert float(rank_biased_overlap(one, other, 0.9)) == pytest.approx(by_hand, **EXACT)


@pytest.mark.parametrize(("p", "n"), [(0.9, 10), (0.98, 50)])
def test_the_weight_of_the_top_is_what_the_choice_of_p_says(p: float, n: int) -> None:
    # Lists that agree on their first n and on nothing below: what equation 21 says the first n weigh, and the
    # share n / d of what is below, which lies between. Here: the former, from the series itself.
    d = np.arange(1, 200_000)
    weight = 1 - p ** (n - 1) + (1 - p) / p * n * (np.log(1 / (1 - p)) - (p ** d[: n - 1] / d[: n - 1]).sum())
    assert weight == pytest.approx(0.85, abs=0.01)
    ranks_above = ((1 - p) * p ** (d - 1) * np.minimum(d, n) / d).sum()
    assert weight == pytest.approx(ranks_above, abs=1e-9)


@given(st.integers(2, 12).flatmap(lambda n: both(n, low=1)))
def test_spearman_and_kendall_are_those_of_scipy_with_ties(scores: NDArray[Any]) -> None:
    one, other = scores
    if np.ptp(one) and np.ptp(other):
        assert float(spearman(ranks(one), ranks(other))) == pytest.approx(spearmanr(one, other)[0], **EXACT)
        assert float(kendall(ranks(one), ranks(other))) == pytest.approx(kendalltau(one, other)[0], **EXACT)
    else:
        assert np.isnan(spearman(ranks(one), ranks(other)))
        assert np.isnan(kendall(ranks(one), ranks(other)))


def test_many_rankings_at_a_time_give_what_each_gives() -> None:
    generator = np.random.default_rng(0)
    one, many = generator.integers(0, 30, 60) * 1.0, generator.integers(1, 30, (5, 60)) * 1.0
    cases: list[tuple[Callable[..., NDArray[Any]], Callable[..., NDArray[Any]], tuple[float, ...]]] = [
        (top_overlap, neuron_ranks, (7,)),
        (rank_biased_overlap, neuron_ranks, (0.9,)),
        (spearman, ranks, ()),
        (kendall, ranks, ()),
    ]
    for function, rank, rest in cases:
        together = function(rank(one), rank(many), *rest)
        alone = [float(function(rank(one), rank(row), *rest)) for row in many]
        assert together.shape == (5,)
        np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_kendall_of_more_neurons_than_small_integers_hold() -> None:
    generator = np.random.default_rng(0)
    one, other = generator.normal(size=(2, 2**13 + 1))
    assert float(kendall(ranks(one), ranks(other))) == pytest.approx(kendalltau(one, other)[0], **EXACT)


def test_the_overlap_of_tops_is_a_share_of_k() -> None:
    one, other = neuron_ranks(np.array([9.0, 8, 7, 1, 2, 3])), neuron_ranks(np.array([9.0, 1, 7, 8, 2, 3]))
    assert [float(top_overlap(one, other, k)) for k in (1, 2, 3, 6)] == [1, 1 / 2, 2 / 3, 1]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    values=st.lists(st.integers(0, 6), min_size=1, max_size=12),
    jitter=st.lists(st.floats(-4e-6, 4e-6), min_size=12, max_size=12),
    order=st.randoms(use_true_random=False),
)
def test_equal_scores_share_the_best_rank_whatever_the_order(
    values: list[int], jitter: list[float], order: random.Random
) -> None:
    scores = np.array([value * (1 + part) for value, part in zip(values, jitter, strict=False)])
    expected = [1 + sum(other > value for other in values) for value in values]
    assert shared_ranks(scores).tolist() == expected
    assert shared_ranks(np.stack([scores, -np.arange(len(values))]))[0].tolist() == expected
    places = list(range(len(values)))
    order.shuffle(places)
    assert shared_ranks(scores[places]).tolist() == [expected[place] for place in places]
    assert ranked(scores) == sorted((rank, i) for i, rank in enumerate(expected))


D_MODEL = 16  # of the tiny models


# --- the number ---


@pytest.mark.parametrize("per_dimension", [1.5, 2, ENOUGH, 50])
def test_whitening_leaves_other_vectors_the_variance_that_the_size_tells(per_dimension: float) -> None:
    d, generator = 40, torch.Generator().manual_seed(0)
    n = int(per_dimension * d)
    mixing = torch.randn(d, d, generator=generator, dtype=torch.float64)
    variances = []
    for _ in range(30):
        moments = CovarianceAccumulator(d)
        moments.update(torch.randn(n, d, generator=generator, dtype=torch.float64) @ mixing)
        # Of other vectors the covariance is known: what whitening makes of it is exact.
        matrix = whiten(moments.result()).linear
        after = torch.linalg.eigvalsh(matrix.T @ mixing.T @ mixing @ matrix)
        variances.append(after)
    found = torch.stack(variances)
    # n / (n - d - 2) on average, the mean of an inverse Wishart matrix; 30 draws of 40 directions leave a few percent.
    assert found.mean().item() == pytest.approx(n / (n - d - 2), rel=0.15)
    # Where there is enough, all directions come out within a factor of some 5; with 2 vectors each, they do not.
    assert (found.amax(1) / found.amin(1)).median() < 5 or per_dimension < ENOUGH
    assert (found.amax(1) / found.amin(1)).median() > 15 or per_dimension > 2


def test_the_size_of_a_fit_survives_a_row() -> None:
    columns = size_columns("whiten", 900, 50, 384)
    assert columns == {
        "n_fitted_sentences": 50, "n_fitted_vectors": 900, "n_fitted_dimensions": 384,
        "vectors_per_dimension": 900 / 384,
    }  # fmt: skip
    assert size_of(columns) == SampleSize(900, 50, 384)
    assert size_columns("whiten", 900, 50, 384, components=20)["n_fitted_dimensions"] == 20
    assert size_columns("whiten", 900, 50, 384, components=500)["n_fitted_dimensions"] == 384
    # Its first directions are found among all of them.
    assert size_columns("all_but_the_top", 900, 50, 384, components=20)["n_fitted_dimensions"] == 384
    for kind in ("none", "clip", "clip_random", "center", "standardise", ""):
        assert size_columns(kind, 900, 50, 384) == {}
    assert size_of({}) is None
    assert size_of({"n_fitted_vectors": "", "n_fitted_sentences": "", "n_fitted_dimensions": ""}) is None


def row(transform: str, n_vectors: int, n_sentences: int, d_model: int = 384) -> dict[str, Any]:
    return {"transform": transform, **size_columns(transform, n_vectors, n_sentences, d_model)}


def test_a_reader_is_warned_below_ten_for_each_dimension_and_told_above() -> None:
    few, enough = row("whiten", 3839, 3839), row("whiten", 3840, 3840)
    assert label("whitened", [few]) == "whitened (from 9.9 sentences per dimension)"
    assert label("whitened", [enough]) == "whitened"
    (warning,), (line,) = size_lines([few], "Take more."), size_lines([enough], "Take more.")
    assert warning.startswith("Warning: Whitening of 384 dimensions is fitted on 3,839 sentences, 9.9 per dimension, ")
    assert warning.endswith(" Take more.")
    assert line == "Whitening of 384 dimensions is fitted on 3,840 sentences, 10 per dimension."
    assert size_lines([{"transform": "clip"}, {"protocol": "constant_true"}], "") == []
    assert label("clipped", [{"transform": "clip"}]) == "clipped"


def test_tokens_and_sentences_are_both_told_and_of_several_fits_the_least() -> None:
    (line,) = size_lines([row("whiten", 9719, 500, 768), row("whiten", 9719, 500, 768)], "")
    assert line == (
        "Whitening of 768 dimensions is fitted on 9,719 tokens of 500 sentences, 13 tokens and 0.65 sentences per "
        "dimension."
    )
    sets = [row("whiten", 436, 436), row("whiten", 9000, 9000), row("all_but_the_top", 436, 436)]
    assert label("whitened", sets[:2]) == "whitened (from 1.1 sentences per dimension)"
    first, second = size_lines(sets, "")
    assert "Whitening of 384 dimensions is fitted on as few as 436 sentences, 1.1 per dimension" in first
    assert "All-but-the-top of 384 dimensions is fitted on 436 sentences" in second


# --- where it is given ---


@pytest.fixture
def options(tmp_path: Path, checkpoints: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    cache = tmp_path_factory.getbasetemp() / "size-cache"
    return {
        "model": str(checkpoints["bert"]), "runs": str(tmp_path / "runs"), "cache": str(cache), "layer": [2],
        "wandb": {"mode": "disabled"}, "quiet": True,
    }  # fmt: skip


@pytest.mark.slow
def test_sts_says_on_how_many_sentences_it_whitened(
    tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = tmp_path / "vectors.txt"
    words.write_text(
        "".join(f"{word} {i} {i % 3} 1\n" for i, word in enumerate(("probe", "layer", "neuron"), 1)), encoding="utf-8"
    )
    data = write_sts(tmp_path / "sts", n=20)
    found = sts([str(data)], transforms="clip,whiten,all_but_the_top", static=str(words), **options)
    said = capsys.readouterr().out
    rows = read_csv(found.folder / "sts.csv")
    for row in rows:
        width = 3 if row["pooling"] == "static" else D_MODEL
        size = size_of(row)
        assert (size is None) == (row["transform"] in ("none", "clip"))
        if size:
            assert size.n_vectors == size.n_sentences < ENOUGH * D_MODEL
            assert size.n_dimensions == width
            assert row["vectors_per_dimension"] == size.n_vectors / width
    whitened = [row for row in rows if row["transform"] == "whiten"]
    size, static = size_of(whitened[0]), size_of(whitened[-1])
    assert f"Warning: Whitening of 16 dimensions is fitted on {size}, fewer than 10" in said
    assert f"Whitening of 3 dimensions is fitted on {static}." in said
    name = label("mean, whitened", whitened[:1])
    assert name != "mean, whitened"
    assert f"STS12, {name}: Spearman" in said
    assert "STS12, static, whitened: Spearman" in said
    title = f"Spearman x 100: {name}"
    assert title in " ".join(repr(found).split())
    section = STS_STUDY.section(found, SectionPlace("sts-0", 0, 1000))
    assert title in section
    assert "Warning: Whitening of 16 dimensions is fitted on" in section


def test_wic_says_on_how_many_tokens_it_whitened(
    tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for part, n, seed in (("train", 6, 0), ("dev", 40, 1)):
        write_wic(tmp_path / "wic", part, word_pairs(n, seed))
    found = wic(str(tmp_path / "wic"), **options)
    said = capsys.readouterr().out
    whitened = next(row for row in read_csv(found.folder / "wic.csv") if row["transform"] == "whiten")
    size = size_of(whitened)
    assert size is not None
    assert (size.n_sentences, size.n_dimensions) == (12, D_MODEL)
    assert size.n_vectors >= 12 * 5  # a token for each of 5 words at least, without special ones
    assert size.is_small == ("Warning: Whitening" in said) == ("Whitened (from" in said)
    assert str(size) in said
    assert [size_of(row) for row in found.chosen if row.get("transform") == "whiten"] == [size, size]
    assert not [row for row in found.chosen if size_of(row) and row["transform"] != "whiten"]


@pytest.mark.slow
def test_geometry_says_on_how_many_tokens_it_whitened_in_the_report_too(
    tmp_path: Path, options: dict[str, Any], sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    short = [" ".join(sentence.split()[:3]) for sentence in sentences[:4]]
    (tmp_path / "few.txt").write_text("".join(f"{sentence}\n" for sentence in short), encoding="utf-8")
    (tmp_path / "text.txt").write_text("".join(f"{sentence}\n" for sentence in sentences[4:60]), encoding="utf-8")
    found = geometry(
        corpus=str(tmp_path / "text.txt"), fit_corpus=str(tmp_path / "few.txt"), transforms="center,whiten", **options
    )
    said = capsys.readouterr().out
    rows = read_csv(found.folder / "geometry.csv")
    (size,) = {size_of(row) for row in rows if row["transform"] == "whiten"}
    assert size is not None
    assert (size.n_sentences, size.n_dimensions, size.is_small) == (4, D_MODEL, True)
    # What is measured is another corpus, of more tokens.
    assert size.n_vectors < next(row for row in rows if row["measure"] == "mean_cosine")["n_tokens"]
    assert f"Warning: Whitening of 16 dimensions is fitted on {size}, fewer than 10" in said
    assert "whitened (from" in repr(found)
    assert conclusions(found, {2: []})[-1] in said
    # Two components are another matter.
    geometry(
        corpus=str(tmp_path / "text.txt"), fit_corpus=str(tmp_path / "few.txt"), transforms="whiten", components=2,
        **options,
    )  # fmt: skip
    assert "Warning" not in capsys.readouterr().out
    section = found.study.section(found, SectionPlace("geometry-0", 0, 0))
    assert f"Whitening of 16 dimensions is fitted on {size}, fewer than 10" in section
    assert "Measures of each layer, whitened (from" in section


def test_fit_says_on_how_many_tokens_it_whitened_in_the_report_too(
    tmp_path: Path, options: dict[str, Any], sentences: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    short = [" ".join(sentence.split()[:4]) for sentence in sentences]
    (tmp_path / "text.txt").write_text("".join(f"{sentence}\n" for sentence in dict.fromkeys(short)), encoding="utf-8")
    roughly = {**BARE, "probe": {"tolerance": 1e-2}}
    run = fit(corpus=str(tmp_path / "text.txt"), transform="whiten", **roughly, **options)
    said = capsys.readouterr().out
    (line,) = transform_lines(run.transform, run.accuracy)[1:]
    assert line in said
    assert line.startswith(("Whitening of 16 dimensions is fitted on", "Warning: Whitening"))
    (row,) = run.accuracy
    assert row["n_fitted_vectors"] == row["n_train_tokens"]
    assert row["n_fitted_sentences"] == run.results["n_sentences"]["train"]
    assert run.results["layers"][0]["vectors_per_dimension"] == row["n_train_tokens"] / 16
    (subject,) = read_sources([run.folder]).views
    assert line in answer(subject).details
    assert "Whitening of 16 dimensions is fitted on" in (run.folder / "report.html").read_text(encoding="utf-8")
