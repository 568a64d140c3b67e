"""Thresholds, areas and tests of two rules, against naive loops, scikit-learn and sums of binomial terms."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from scipy.stats import beta
from sklearn.metrics import roc_auc_score

from probing.downstream.wic import (
    Labels,
    Scores,
    accuracy,
    area_interval,
    area_under_curve,
    best_published_threshold,
    best_threshold,
    exact_interval,
    gain_interval,
    mcnemar,
)

pytestmark = pytest.mark.numeric


@pytest.fixture(params=[0, 1, 2])
def pairs(request: pytest.FixtureRequest) -> tuple[Scores, Labels]:
    """Scores with many ties, a little higher where the label is yes."""
    generator = np.random.default_rng(request.param)
    labels = generator.random(120) < 0.4
    return np.round(generator.random(120) + 0.2 * labels.astype(np.float64), 1), labels


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_neither_above_nor_below_a_threshold(pairs: tuple[Scores, Labels], value: float) -> None:
    scores, labels = pairs
    broken = scores.copy()
    broken[7] = value
    rule, published = best_threshold(broken, labels), best_published_threshold(broken, labels)
    assert np.isnan([rule.threshold, rule.accuracy, published.accuracy, accuracy(broken, labels, 0.5)]).all()
    areas = area_under_curve(np.stack([scores, broken]), np.stack([labels, labels]))
    assert np.isnan(areas).tolist() == [False, True]


def test_the_best_threshold_is_that_of_a_loop_over_all(pairs: tuple[Scores, Labels]) -> None:
    scores, labels = pairs
    best = best_threshold(scores, labels)
    tried = [np.mean((scores > t) == labels) for t in np.linspace(-0.55, 1.75, 2301)]
    assert best.accuracy == pytest.approx(max(tried))
    assert accuracy(scores, labels, best.threshold) == pytest.approx(best.accuracy)


def test_a_score_equal_to_the_threshold_says_no() -> None:
    assert accuracy(np.array([0.5, 0.7]), np.array([False, True]), 0.5) == 1
    rule = best_threshold(np.array([0.5, 0.5, np.nextafter(0.5, 1)]), np.array([False, False, True]))
    assert rule.accuracy == 1
    assert rule.threshold == 0.5  # no number lies between the two


@pytest.mark.parametrize(("label", "direction"), [(True, -1), (False, 1)])
def test_where_all_labels_are_the_same_the_threshold_is_beyond_all_scores(label: bool, direction: int) -> None:
    scores = np.array([0.1, 0.3, 0.2])
    rule = best_threshold(scores, np.full(3, label))
    assert rule.accuracy == 1
    assert ((rule.threshold - scores) * direction >= 0).all()


def test_the_published_protocol_tries_nine(pairs: tuple[Scores, Labels]) -> None:
    scores, labels = pairs
    rule = best_published_threshold(scores, labels)
    tried = {t: float(np.mean((scores > t) == labels)) for t in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)}
    assert rule.accuracy == max(tried.values())
    assert tried[rule.threshold] == rule.accuracy
    assert rule.accuracy <= best_threshold(scores, labels).accuracy


def test_the_area_is_that_of_scikit_learn_one_by_one_and_all_at_once(pairs: tuple[Scores, Labels]) -> None:
    scores, labels = pairs
    expected = roc_auc_score(labels, scores)
    assert area_under_curve(scores, labels) == pytest.approx(expected)
    both = area_under_curve(np.stack([scores, -scores]), np.stack([labels, labels]))
    np.testing.assert_allclose(both, [expected, 1 - expected])
    low, high = area_interval(scores, labels, seed=0)
    assert low < expected < high
    assert np.isnan(area_under_curve(scores, np.ones_like(labels)))


def test_mcnemar_is_the_sum_of_binomial_terms() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.random((2, 60)) < [[0.5], [0.7]]
    found = mcnemar(first, second)
    gained = sum(b and not a for a, b in zip(first, second, strict=True))
    lost = sum(a and not b for a, b in zip(first, second, strict=True))
    n, few = gained + lost, min(gained, lost)
    assert (found.gained, found.lost) == (gained, lost)
    assert found.p_value == pytest.approx(min(1, 2 * sum(comb(n, k) for k in range(few + 1)) / 2**n))
    assert mcnemar(first, first).p_value == 1


def test_the_exact_interval_is_that_of_the_beta_distribution() -> None:
    assert exact_interval(30, 80) == pytest.approx((beta.ppf(0.025, 30, 51), beta.ppf(0.975, 31, 50)))
    assert exact_interval(0, 20)[0] == 0
    assert np.isnan(exact_interval(0, 19)).all()


def test_the_interval_of_a_gain_is_as_wide_as_theory_says_and_narrow_for_one_rule_with_itself() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.random((2, 500)) < [[0.5], [0.7]]
    low, high = gain_interval(first, second)
    difference = second.astype(float) - first
    assert low < difference.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * difference.std() / np.sqrt(500), rel=0.02)
    low, high = gain_interval(first, first)
    assert low == -high
    assert 0 < high < 0.01  # rules that agree on 500 pairs may disagree on some that were not seen
    assert np.isnan(gain_interval(first[:19], second[:19])).all()
