from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata, spearmanr

from probing.statistics.rank_similarity import (
    kendall,
    neuron_ranks,
    rank_biased_overlap,
    ranked,
    shared_ranks,
    spearman,
    top_overlap,
)

pytestmark = pytest.mark.numeric

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
