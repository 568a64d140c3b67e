"""Differences of groups of trainings against scipy, and the share that they have in common against planted ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import ttest_1samp, ttest_ind

from probing.statistics.chance import holm
from probing.statistics.intervals import common_share, times, welch

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (3, 7)])
@pytest.mark.parametrize("is_above", [True, False])
def test_two_groups_are_compared_as_scipy_compares_them(sizes: tuple[int, int], is_above: bool) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(0.3, 1, sizes[0]), generator.normal(0, 3, sizes[1])
    found = welch(a.tolist(), b.tolist(), is_above=is_above)
    oracle = ttest_ind(a, b, equal_var=False, alternative="greater" if is_above else "two-sided")
    low, high = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found.value == pytest.approx(a.mean() - b.mean())
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


def test_against_a_group_that_is_0_it_is_the_test_of_one_group() -> None:
    a = [0.2, 0.5, 0.1]
    found, oracle = welch(a, [0.0, 0.0], is_above=False), ttest_1samp(a, 0)
    assert found.p == pytest.approx(oracle.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(oracle.confidence_interval(0.95)))


def test_a_ratio_is_that_of_geometric_means() -> None:
    a, b = [0.2, 0.5, 0.3], [0.05, 0.02, 0.03]
    found, oracle = times(a, b), ttest_ind(np.log(a), np.log(b), equal_var=False, alternative="greater")
    assert found.value == pytest.approx((0.2 * 0.5 * 0.3 / (0.05 * 0.02 * 0.03)) ** (1 / 3))
    assert found.p == pytest.approx(oracle.pvalue)
    low, high = ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_of_what_is_not_changed_there_is_no_ratio() -> None:
    assert times([0.0, 0.0], [0.0, 0.0]).p == 1.0
    found = times([0.1, 0.2, 0.15], [0.0, 0.0, 0.0])
    assert math.isnan(found.value)
    assert found.p == welch([0.1, 0.2, 0.15], [0.0, 0.0, 0.0], is_above=True).p < 0.05


def test_groups_that_do_not_vary_or_are_single_show_nothing() -> None:
    assert welch([0.5, 0.5], [0.1, 0.1], is_above=True).p == 1.0
    single = welch([0.5], [0.1, 0.2], is_above=True)
    assert single.value == pytest.approx(0.35)
    assert math.isnan(single.p)
    assert math.isnan(single.low)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_the_planted_share_in_common_is_found(share: float) -> None:
    generator = np.random.default_rng(1)
    common = generator.normal(size=20_000) * math.sqrt(share)
    moves = [common + generator.normal(size=20_000) * math.sqrt(1 - share) for _ in range(3)]
    from_start = [float((move**2).sum()) for move in moves]
    between = [float(((moves[i] - moves[j]) ** 2).sum()) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert common_share(from_start, between) == pytest.approx(share, abs=0.02)


def test_without_a_change_or_a_pair_nothing_is_known_of_a_share() -> None:
    assert math.isnan(common_share([0.0, 0.0], [0.0]))
    assert math.isnan(common_share([0.5], []))


@pytest.mark.parametrize(("n", "scale"), [(2, 1), (3, 1), (3, 3), (5, 1)])
def test_seeds_alone_are_claimed_in_few_families_of_measures(n: int, scale: float) -> None:
    """60 skewed measures that vary together; at most 1 in 20 families is expected, and 27 of 400 is its 95% bound."""
    generator, claimed = np.random.default_rng(2), 0
    for _ in range(400):
        shared, own = generator.normal(size=(2 * n, 1)), generator.normal(size=(2 * n, 60))
        changes = (1 + 0.1 * (0.7 * shared + 0.7 * own)) ** 2
        changes[n:] = 1 + (changes[n:] - 1) / scale
        groups = [(changes[:n, k].tolist(), changes[n:, k].tolist()) for k in range(60)]
        p = [times(*pair).p if k % 2 else welch(*pair, is_above=True).p for k, pair in enumerate(groups)]
        claimed += min(holm(p)) <= 0.05
    assert claimed <= 27
