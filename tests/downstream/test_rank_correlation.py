"""Spearman's correlation, aggregated and drawn anew, against scipy on lists written out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from probing.downstream.sentence_vectors import (
    AGGREGATIONS,
    Draws,
    aggregated,
    aggregated_draws,
    pseudo_values,
    spearman,
    weighted_spearman,
)
from probing.statistics.chance import percentiles

pytestmark = pytest.mark.numeric


@pytest.fixture
def values() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines, scores with ties, and three subsets of different sizes."""
    generator = np.random.default_rng(0)
    gold = np.round(generator.random(90) * 5)
    return generator.random(90) + 0.1 * gold, gold, np.repeat([0, 1, 2], [20, 30, 40])


def test_it_is_that_of_scipy(values: tuple[np.ndarray, ...]) -> None:
    a, b, _ = values
    assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
    assert spearman(a, 3 - b) == pytest.approx(-spearman(a, b))
    assert np.isnan(spearman(a, np.ones_like(a)))


@pytest.mark.parametrize("at", [0, 45, 89])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_has_no_rank(values: tuple[np.ndarray, ...], at: int, value: float) -> None:
    a, b, subset = values
    broken = b.copy()
    broken[at] = value
    for one, other in ((a, broken), (broken, a)):
        assert np.isnan(aggregated(one, other, subset)["all"])
        assert np.isnan(aggregated_draws(one, other, subset, Draws.of(subset, 0, 3))["all"]).all()
        assert np.isnan(pseudo_values(one, other)).all()


def test_numbers_of_any_size_have_ranks(values: tuple[np.ndarray, ...]) -> None:
    a, b, _ = values
    for times in (1e300, 1e-300, 5e-324):
        scaled = b * times
        assert np.isfinite(scaled).all()
        assert spearman(a, scaled) == pytest.approx(spearman(a, b))


def test_drawn_pairs_have_the_correlation_of_the_list_that_they_make(values: tuple[np.ndarray, ...]) -> None:
    a, b, subset = values
    draws = Draws.of(subset, seed=3, n_draws=5)
    found = weighted_spearman(a, b, draws.times)
    for times, value in zip(draws.times.astype(int), found, strict=True):
        assert value == pytest.approx(spearmanr(np.repeat(a, times), np.repeat(b, times)).statistic)
        assert [times[subset == one].sum() for one in range(3)] == [20, 30, 40]


def test_where_subsets_differ_in_level_all_is_not_mean() -> None:
    # Within each subset cosines go with scores; between them they go against each other.
    cosines = np.array([0.7, 0.8, 0.9, 0.1, 0.2, 0.3, 0.4])
    gold = np.array([1.0, 2.0, 3.0, 5.0, 4.0, 5.5, 6.0])
    subset = np.array([0, 0, 0, 1, 1, 1, 1])
    found = aggregated(cosines, gold, subset)
    assert found["all"] == pytest.approx(spearmanr(cosines, gold).statistic)
    assert found["all"] < 0
    each = 1.0, spearmanr(cosines[3:], gold[3:]).statistic
    assert found["mean"] == pytest.approx(np.mean(each))
    assert found["wmean"] == pytest.approx((3 * each[0] + 4 * each[1]) / 7)
    assert found["mean"] > found["wmean"] > 0.8


def test_a_set_of_one_subset_has_one_value(values: tuple[np.ndarray, ...]) -> None:
    a, b, _ = values
    found = aggregated(a, b, np.zeros(90, dtype=int))
    assert {found[how] for how in AGGREGATIONS} == {spearman(a, b)}


def test_the_interval_holds_the_value_and_narrows_with_more_pairs(values: tuple[np.ndarray, ...]) -> None:
    a, b, subset = values
    widths = []
    for times in (1, 9):
        more_a, more_b, more_subset = (np.tile(x, times) for x in (a, b, subset))
        drawn = aggregated_draws(more_a, more_b, more_subset, Draws.of(more_subset, seed=0))
        for how, value in aggregated(more_a, more_b, more_subset).items():
            low, high = percentiles(drawn[how])
            assert low < value < high
        widths.append(high - low)
    # Nine times as many pairs, a third of the width; 1,000 draws know it to a few hundredths.
    assert widths[0] / widths[1] == pytest.approx(3, rel=0.2)


def test_pseudo_values_are_those_of_leaving_out_each_pair_and_their_mean_is_the_correlation() -> None:
    generator = np.random.default_rng(0)
    a = generator.integers(0, 8, 300).astype(np.float64)  # with ties, and more than are left out at once
    b = a + generator.normal(0, 3, 300)
    found = pseudo_values(a, b)
    whole = spearmanr(a, b).statistic
    assert found.mean() == pytest.approx(whole, abs=1e-12)
    naive = np.array([spearmanr(np.delete(a, i), np.delete(b, i)).statistic for i in (0, 7, 255, 256, 299)])
    differences = found[[0, 7, 255, 256, 299]] - found[0]
    assert differences == pytest.approx(-299 * (naive - naive[0]), abs=1e-9)
    # Their standard error is that of the bootstrap.
    draws = Draws.of(np.zeros(300, dtype=np.int64), 0, 400)
    spread = weighted_spearman(a, b, draws.times).std()
    assert found.std() / np.sqrt(300) == pytest.approx(spread, rel=0.15)
    assert pseudo_values(np.ones(30), b[:30]).tolist() == [0] * 30


def test_many_lists_are_ranked_in_blocks_as_each_by_itself(values: tuple[np.ndarray, ...]) -> None:
    a, b, subset = values
    times = Draws.of(subset, 0, 300).times
    found = weighted_spearman(a, b, times)
    assert found.shape == (300,)
    for draw in (0, 127, 128, 299):
        written_out = np.repeat(np.arange(len(a)), times[draw].astype(int))
        assert found[draw] == pytest.approx(spearmanr(a[written_out], b[written_out]).statistic, abs=1e-9)
