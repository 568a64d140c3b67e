"""Intervals by sentence, draws with replacement and among random draws, permuted labels, and tests of many."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binomtest, skew, t, ttest_1samp

from probing.statistics import (
    INTRA_SENTENCE_CORRELATION,
    MIN_SENTENCES,
    accuracy_interval,
    binomial_interval,
    difference_interval,
    difference_p_value,
    few_sentences,
    kendall,
    mean_interval,
    mean_p_value,
    neuron_ranks,
    ratio_interval,
    ratio_p_value,
    spearman,
    widened,
)
from probing.statistics.chance import (
    discovery_rates,
    holm,
    percentile_interval,
    percentile_of,
    percentiles,
    permute_within_sentences,
    rank_p,
    resampled_means,
)
from probing.statistics.moments import deviations_of

pytestmark = pytest.mark.numeric

Counts = NDArray[np.int64]


def clustered(generator: np.random.Generator, n_sentences: int, accuracy: float, alike: float) -> tuple[Counts, Counts]:
    """Return right tokens and tokens of sentences; `alike` is the correlation of the tokens of one."""
    n_tokens = generator.integers(5, 30, n_sentences)
    of_sentence = generator.beta(accuracy * (1 / alike - 1), (1 - accuracy) * (1 / alike - 1), n_sentences)
    return generator.binomial(n_tokens, of_sentence), n_tokens


def covered(interval: tuple[float, float], truth: float) -> bool:
    return interval[0] <= truth <= interval[1]


# --- ratios of sums ---


def test_a_ratio_to_numbers_of_tokens_has_the_interval_of_a_mean() -> None:
    right, n_tokens = clustered(np.random.default_rng(3), 40, 0.6, 0.1)
    assert ratio_interval((right, n_tokens)) == pytest.approx(mean_interval(right, n_tokens), rel=1e-12)
    nothing = ratio_interval((right, n_tokens), (right, n_tokens))
    assert nothing == pytest.approx((0, 0), abs=1e-12)
    assert all(math.isnan(end) for end in ratio_interval((right[:19], n_tokens[:19])))
    assert all(math.isnan(end) for end in ratio_interval((right, np.zeros(40))))


@pytest.mark.parametrize("n_groups", [20, 25, 60])
def test_intervals_of_r2_and_of_its_differences_contain_the_truth(n_groups: int) -> None:
    """Groups of several rows that share an error; what is predicted is predicted by two columns of known worth."""
    generator = np.random.default_rng(n_groups)
    inside = np.zeros(3)
    for _ in range(600):
        x = generator.normal(size=(n_groups, 6))
        shared = generator.normal(size=(n_groups, 1)) * 0.7
        y = x + shared + generator.normal(size=x.shape) * 0.5
        deviations = (y**2).sum(1)
        good, poor = deviations - ((y - x) ** 2).sum(1), deviations - ((y - 0.3 * x) ** 2).sum(1)
        truth = 1 - 0.74 / 1.74, 1 - (0.74 + 0.49) / 1.74
        inside[0] += covered(ratio_interval((good, deviations)), truth[0])
        inside[1] += covered(ratio_interval((poor, deviations)), truth[1])
        inside[2] += covered(ratio_interval((good, deviations), (poor, deviations)), truth[0] - truth[1])
    assert (inside / 600 > 0.92).all()
    assert (inside / 600 < 0.99).all()


# --- coverage; 2.5% are three standard errors of 95% in 600 trials ---


@pytest.mark.parametrize(("n_sentences", "accuracy"), [(20, 0.37), (20, 0.9), (100, 0.04), (100, 0.37)])
def test_accuracies_are_covered_as_often_as_it_says(n_sentences: int, accuracy: float) -> None:
    generator = np.random.default_rng(0)
    trials = [clustered(generator, n_sentences, accuracy, 0.05) for _ in range(600)]
    assert 0.925 <= np.mean([covered(accuracy_interval(*trial), accuracy) for trial in trials]) <= 0.985


def test_an_accuracy_near_one_is_covered_where_most_test_sets_have_hardly_an_error() -> None:
    generator = np.random.default_rng(1)
    trials = [clustered(generator, 20, 0.998, 0.05) for _ in range(600)]
    assert np.mean([(correct == n_tokens).all() for correct, n_tokens in trials]) > 0.4
    # Redrawing sentences cannot show an error that none of them has: such an interval is the point 1.
    assert np.mean([covered(accuracy_interval(*trial), 0.998) for trial in trials]) >= 0.925


@pytest.mark.parametrize("n_sentences", [20, 100])
def test_differences_are_covered_where_the_two_are_nearly_alike_and_where_they_are_not(n_sentences: int) -> None:
    generator = np.random.default_rng(2)
    for discordant, least in ((0.4, 0.925), (0.02, 0.925), (0.001, 0.99)):
        hits = 0
        for _ in range(600):
            differing, n_tokens = clustered(generator, n_sentences, discordant, 0.05)
            won = generator.binomial(differing, 0.8)
            hits += covered(difference_interval(2 * won - differing, n_tokens), 0.6 * discordant)
        assert hits / 600 >= least


def test_means_of_skewed_numbers_are_covered_better_than_by_students_interval() -> None:
    generator = np.random.default_rng(3)
    n_tokens, truth, reach = np.full(20, 9), math.exp(0.32), t(19).ppf(0.975)
    means = generator.lognormal(0, 0.8, (600, 20))  # their skewness is 3.7
    hits = sum(covered(mean_interval(9 * row, n_tokens), truth) for row in means)
    students = np.abs(means.mean(1) - truth) <= reach * means.std(1, ddof=1) / 20**0.5
    assert hits / 600 >= 0.925
    assert hits > students.sum() + 12


# --- closed forms ---


@pytest.mark.parametrize("level", [0.95, 0.998])
def test_of_single_tokens_it_is_wilsons_interval_with_students_quantile(level: float) -> None:
    correct, ones = np.repeat([1, 0], [450, 50]), np.ones(500, dtype=np.int64)
    low, high = accuracy_interval(correct, ones, level)
    wilson = binomtest(450, 500).proportion_ci(level, method="wilson")
    # Student's t with 499 degrees of freedom is .3 to .5% above the normal quantile, the jackknife's variance .2%.
    assert (low, high) == pytest.approx((wilson.low, wilson.high), abs=6e-4 if level > 0.95 else 3e-4)


def test_equal_sentences_of_unskewed_means_give_students_interval() -> None:
    half = np.random.default_rng(4).normal(size=15)
    means = 3 + np.concatenate([half, -half])
    expected = ttest_1samp(means, 0).confidence_interval()
    assert mean_interval(7 * means, np.full(30, 7)) == pytest.approx((expected.low, expected.high), rel=1e-9)


def test_a_skewed_mean_has_the_end_that_halls_transformation_puts_farther_out() -> None:
    means = np.random.default_rng(5).exponential(size=40)
    low, high = mean_interval(means, np.ones(40, dtype=np.int64))
    error, a = means.std(ddof=1) / 40**0.5, skew(means, bias=False) / 40**0.5
    quantile = t(39).ppf(0.975)

    def transformed(end: float) -> float:
        studentised = (means.mean() - end) / error
        return studentised + a / 3 * studentised**2 + a**2 / 27 * studentised**3 + a / 6

    assert transformed(high) == pytest.approx(-quantile)
    assert low == pytest.approx(means.mean() - quantile * error)  # Hall's would be nearer: never shortened


def test_long_sentences_weigh_as_much_as_their_tokens() -> None:
    n_tokens = np.repeat([1, 19], 100)
    low, high = accuracy_interval(n_tokens * (n_tokens > 1), n_tokens)
    assert 0.9 < low < 0.95 < high < 1.0  # of 2000 tokens 1900 are right, though half of the sentences are wrong


def test_the_sentence_is_the_unit_and_not_the_token() -> None:
    correct, n_tokens = clustered(np.random.default_rng(6), 100, 0.6, 0.5)
    tokens = np.repeat([1, 0], [correct.sum(), (n_tokens - correct).sum()])
    for interval in (accuracy_interval, difference_interval, mean_interval):
        low, high = interval(correct, n_tokens)
        by_token = interval(tokens, np.ones_like(tokens))
        # Tokens of a sentence correlate at .5: about 1 + 16 x .5 = 9 times the variance.
        assert high - low > 2 * (by_token[1] - by_token[0])


# --- the ends ---


@pytest.mark.parametrize("n_sentences", [20, 200])
def test_a_perfect_score_leaves_room_for_errors_that_so_many_effective_tokens_may_miss(n_sentences: int) -> None:
    n_tokens = np.random.default_rng(7).integers(5, 30, n_sentences)
    low, high = accuracy_interval(n_tokens, n_tokens)
    length = (n_tokens**2).sum() / n_tokens.sum()
    effective = n_tokens.sum() / (1 + (length - 1) * INTRA_SENTENCE_CORRELATION)
    quantile = t(n_sentences - 1).ppf(0.975)
    assert high == 1
    assert low == pytest.approx(effective / (effective + quantile**2))
    # No less than the exact bound of independent tokens, no more than that of one token a sentence.
    assert (
        binomtest(n_sentences, n_sentences).proportion_ci().low
        < low
        < binomtest(n := int(n_tokens.sum()), n).proportion_ci().low
    )
    mirrored = accuracy_interval(0 * n_tokens, n_tokens)
    assert mirrored[0] == 0
    assert mirrored[1] == pytest.approx(1 - low)


def test_probes_that_agree_on_every_test_token_may_differ_on_others() -> None:
    n_tokens = np.full(50, 20)
    low, high = difference_interval(np.zeros_like(n_tokens), n_tokens)
    assert low == -high
    assert 2 / 1000 < high < 15 / 1000
    assert difference_interval(n_tokens, n_tokens)[1] == 1  # and none is better by more than all


def test_intervals_hold_the_estimate() -> None:
    generator = np.random.default_rng(8)
    for accuracy in (0.002, 0.3, 0.998):
        correct, n_tokens = clustered(generator, 25, accuracy, 0.2)
        for interval in (accuracy_interval, difference_interval, mean_interval):
            assert covered(interval(correct, n_tokens), correct.sum() / n_tokens.sum())


def test_means_of_sentences_that_all_say_the_same_are_certain() -> None:
    n_tokens = np.random.default_rng(9).integers(1, 30, 40)
    sums = n_tokens.astype(np.float64)
    assert mean_interval(0.1 * sums, n_tokens) == pytest.approx((0.1, 0.1))
    assert mean_interval(0.0 * sums, n_tokens) == (0, 0)


# --- few sentences ---


@pytest.mark.parametrize("interval", [accuracy_interval, difference_interval, mean_interval])
def test_too_few_sentences_have_no_interval(interval: Callable[[Counts, Counts], tuple[float, float]]) -> None:
    correct, n_tokens = clustered(np.random.default_rng(10), MIN_SENTENCES, 0.5, 0.2)
    assert np.isfinite(interval(correct, n_tokens)).all()
    assert np.isnan(interval(correct[1:], n_tokens[1:])).all()
    assert np.isnan(interval(np.array([], dtype=np.int64), np.array([], dtype=np.int64))).all()


@pytest.mark.parametrize("interval", [accuracy_interval, difference_interval, mean_interval])
def test_sentences_without_tokens_do_not_count(interval: Callable[[Counts, Counts], tuple[float, float]]) -> None:
    correct, n_tokens = clustered(np.random.default_rng(11), 30, 0.5, 0.2)
    wider = [np.insert(counts, [0, 7, 30], 0) for counts in (correct, n_tokens)]
    assert interval(*wider) == interval(correct, n_tokens)
    n_tokens[: 30 - MIN_SENTENCES + 1] = 0
    assert np.isnan(interval(correct, n_tokens)).all()


def test_the_reason_for_no_interval_says_how_many_sentences_there_are() -> None:
    assert few_sentences(MIN_SENTENCES) is None
    assert few_sentences(1) == ("There are no 95% intervals: 1 test sentence is too few; at least 20 are needed.")
    assert "19 pairs are too few" in (few_sentences(19, "pair") or "")


# --- p-values ---


@pytest.mark.parametrize("shift", [0.0, 0.02, 0.08, 0.5])
def test_the_p_value_of_a_difference_is_where_its_interval_reaches_0(shift: float) -> None:
    generator = np.random.default_rng(5)
    below = []
    for _ in range(40):
        n_tokens = generator.integers(1, 8, 60)
        difference = generator.binomial(n_tokens, 0.1 + shift) - generator.binomial(n_tokens, 0.1)
        p = difference_p_value(difference, n_tokens)
        assert 0 <= p <= 1
        assert (p >= 0.05) == covered(difference_interval(difference, n_tokens), 0)
        assert p == pytest.approx(difference_p_value(-difference, n_tokens), abs=1e-12)
        below.append(p < 0.05)
    assert (np.mean(below) <= 0.1) if shift == 0 else (shift < 0.5 or all(below))
    assert math.isnan(difference_p_value(difference[:19], n_tokens[:19]))


def test_the_p_value_without_skewness_is_that_of_student() -> None:
    difference = np.tile([3, 1, 1, -1], 10)
    n_tokens = np.full(40, 4)
    expected = ttest_1samp(difference / 4, 0).pvalue
    assert difference_p_value(difference, n_tokens) == pytest.approx(expected, rel=1e-6)
    assert difference_p_value(np.tile([1, -1], 20), n_tokens) == pytest.approx(1)


def test_the_p_value_of_a_mean_is_below_5_percent_where_its_interval_leaves_out_0() -> None:
    generator = np.random.default_rng(0)
    for shift in np.repeat([0.0, 0.3], 20):
        n_tokens = generator.integers(1, 8, 60)
        sums = generator.gamma(0.5, 2, 60) - 1 + shift * n_tokens
        p = mean_p_value(sums, n_tokens)
        assert (p >= 0.05) == covered(mean_interval(sums, n_tokens), 0)
        assert p == pytest.approx(mean_p_value(-sums, n_tokens), abs=1e-12)
    symmetric = np.tile([3.0, 1.0, 1.0, -1.0], 10)
    n_tokens = np.full(40, 4)
    assert mean_p_value(symmetric, n_tokens) == pytest.approx(ttest_1samp(symmetric / 4, 0).pvalue, rel=1e-6)
    assert [mean_p_value(np.full(40, same), n_tokens) for same in (0.0, 2.0)] == [1, 0]
    assert math.isnan(mean_p_value(symmetric[:19], n_tokens[:19]))


@pytest.mark.parametrize(("n_right", "n"), [(0, 1), (1, 1), (0, 18), (18, 18), (7, 18), (400, 1000)])
def test_an_exact_interval_is_that_of_scipy(n_right: int, n: int) -> None:
    expected = binomtest(n_right, n).proportion_ci(0.95, method="exact")
    assert binomial_interval(n_right, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_an_exact_interval_needs_an_item() -> None:
    assert np.isnan(binomial_interval(0, 0)).all()


@pytest.mark.parametrize("shift", [0.0, 0.05, 0.2])
def test_the_p_value_of_a_ratio_is_that_of_its_interval(shift: float) -> None:
    generator = np.random.default_rng(0)
    lost, size = generator.standard_normal(40) + 3 * shift * np.arange(1, 41) ** 0.5, generator.random(40) + 1
    low, high = ratio_interval((lost, size))
    assert (ratio_p_value((lost, size)) <= 0.05) is not (low <= 0 <= high)
    # Multiples of the size are a mean over tokens.
    tokens = np.full(40, 7)
    assert ratio_p_value((lost, tokens.astype(float))) == pytest.approx(mean_p_value(lost, tokens))
    assert math.isnan(ratio_p_value((lost[:19], size[:19])))


def test_redrawn_means_are_those_of_the_sentences_drawn() -> None:
    generator = np.random.default_rng(5)
    sums, n_tokens = generator.normal(size=(30, 4)), generator.integers(1, 9, 30)
    means = resampled_means(sums, n_tokens, seed=0, n_draws=20)
    again = np.random.default_rng(0)
    for mean in means:
        drawn = again.integers(30, size=30)
        np.testing.assert_allclose(mean, sums[drawn].sum(0) / n_tokens[drawn].sum(), rtol=1e-12)


def test_runs_on_the_same_sentences_are_redrawn_together() -> None:
    sums, n_tokens = np.random.default_rng(6).normal(size=(30, 4)), np.ones(30, dtype=np.int64)
    np.testing.assert_allclose(
        resampled_means(2 * sums, n_tokens, seed=1), 2 * resampled_means(sums, n_tokens, seed=1), rtol=1e-12
    )


def test_ninety_five_of_a_hundred_draws_lie_between_the_percentiles() -> None:
    draws = np.random.default_rng(0).permutation(np.arange(1001.0))
    assert percentiles(draws) == pytest.approx((25, 975))
    assert percentiles(np.concatenate([draws, [np.nan, np.inf]])) == pytest.approx((25, 975))
    assert np.isnan(percentiles(np.full(5, np.nan))).all()


def test_too_few_clusters_have_no_interval() -> None:
    draws = np.arange(1001.0)
    assert percentile_interval(draws, MIN_SENTENCES) == percentiles(draws)
    assert np.isnan(percentile_interval(draws, MIN_SENTENCES - 1)).all()


def test_an_interval_of_no_width_becomes_students() -> None:
    draws = [0.1, 0.3, 0.2, 0.25]
    reach = t.ppf(0.975, 3) * np.std(draws, ddof=1) / 2
    low, high = widened(0.5, (0.5, 0.5), draws)
    assert (low, high) == pytest.approx((0.5 - reach, 0.5 + reach))


def test_distances_are_added_as_squares_at_each_end() -> None:
    draws = [0.1, 0.3, 0.2, 0.25]
    reach = t.ppf(0.975, 3) * np.std(draws, ddof=1) / 2
    low, high = widened(0.5, (0.4, 0.7), draws)
    assert (0.5 - low) ** 2 == pytest.approx(0.1**2 + reach**2)
    assert (high - 0.5) ** 2 == pytest.approx(0.2**2 + reach**2)


@pytest.mark.parametrize("draws", [[0.2], [0.2] * 5])
def test_what_does_not_show_how_draws_vary_leaves_the_interval_as_it_is(draws: list[float]) -> None:
    assert widened(0.5, (0.4, 0.7), draws) == pytest.approx((0.4, 0.7))


def test_where_there_is_no_interval_there_is_none() -> None:
    assert np.isnan(widened(0.5, (np.nan, np.nan), [0.1, 0.2])).all()


@pytest.mark.parametrize("of_draws", [0.0, 0.5, 1.0, 5.0])
def test_it_covers_the_truth_as_often_as_it_says_however_much_draws_vary(of_draws: float) -> None:
    """A value that errs by its sentences, by a standard error of 1, and by the mean over five draws."""
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(3000):
        draws = of_draws * 5**0.5 * generator.standard_normal(5)
        value = generator.standard_normal() + draws.mean()
        low, high = widened(value, (value - 1.96, value + 1.96), draws.tolist())
        covered += low <= 0 <= high
    # 95% with a standard error of .4%; Student's t for five draws is wide where sentences share the error.
    assert 0.935 < covered / 3000 < 0.985


def test_a_value_is_ranked_among_draws_with_ties_against_it() -> None:
    assert rank_p(3.0, [1.0, 2.0, 3.0, 4.0]) == 3 / 5
    assert percentile_of(3.0, [1.0, 2.0, 3.0, 4.0]) == 50
    # Without a relation, p-values are uniform.
    drawn = np.random.default_rng(0).random((2000, 20))
    p_values = [rank_p(one[0], one[1:]) for one in drawn]
    assert np.mean(np.array(p_values) <= 0.1) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(("value", "drawn"), [(math.nan, [1.0, 2.0]), (1.0, [1.0, math.nan]), (math.nan, [math.nan])])
def test_what_is_undefined_is_not_beyond_all_draws(value: float, drawn: list[float]) -> None:
    assert math.isnan(rank_p(value, drawn))
    assert math.isnan(percentile_of(value, drawn))


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_score_that_is_undefined_has_no_rank(at: int) -> None:
    scores = np.array([5.0, 4.0, 3.0, 2.0, 0.0])
    ranks = neuron_ranks(scores)
    scores[at] = np.nan
    assert neuron_ranks(scores)[at] == 6
    assert sorted(neuron_ranks(scores)[scores > 0]) == [*range(1, 1 + int((scores > 0).sum()))]
    undefined = np.where(np.isnan(scores), np.nan, ranks)
    for measure in (spearman, kendall):
        assert math.isnan(measure(undefined, ranks.astype(float)))
        found = measure(ranks.astype(float), np.stack([ranks.astype(float), undefined]))
        assert np.isnan(found).tolist() == [False, True]
    assert np.isnan(deviations_of(scores)).all()


def corpus(
    n_sentences: int, shortest: int = 5, longest: int = 15, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return labels (the place in the sentence), sentences and ids of random sentences."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(shortest, longest + 1, n_sentences)
    labels = np.concatenate([np.arange(length) for length in lengths])
    sentences = np.repeat(np.arange(n_sentences, dtype=np.int32), lengths)
    return labels, sentences, generator.integers(1000, size=len(labels)).astype(np.int32)


def test_labels_are_permuted_within_their_sentences() -> None:
    labels, sentences, ids = corpus(40)
    for draw in permute_within_sentences(labels, sentences, ids, 5, 0):
        assert (draw != labels).any()
        for sentence in range(40):
            here = sentences == sentence
            assert sorted(draw[here]) == sorted(labels[here])


def test_tokens_that_do_not_count_stay_apart() -> None:
    labels, sentences, ids = corpus(40)
    masked = np.where(labels % 3 == 0, -1, labels)
    draws = permute_within_sentences(masked, sentences, ids, 5, 0)
    assert ((draws < 0) == (masked < 0)).all()


def test_draws_differ_and_a_seed_repeats_them() -> None:
    labels, sentences, ids = corpus(40)
    draws = permute_within_sentences(labels, sentences, ids, 5, 0)
    assert len({draw.tobytes() for draw in draws}) == 5
    np.testing.assert_array_equal(draws, permute_within_sentences(labels, sentences, ids, 5, 0))
    assert (draws != permute_within_sentences(labels, sentences, ids, 5, 1)).any()


def test_permuting_leaves_the_labels_as_they_were() -> None:
    labels, sentences, ids = corpus(10)
    before = labels.copy()
    permute_within_sentences(labels, sentences, ids, 3, 0)
    np.testing.assert_array_equal(labels, before)


def test_the_permutation_of_a_sentence_does_not_depend_on_its_index_in_the_corpus() -> None:
    labels, sentences, ids = corpus(30)
    draws = permute_within_sentences(labels, sentences, ids, 4, 0)
    # The sentences in reverse order, each sentence's tokens still in order.
    order = np.concatenate([np.flatnonzero(sentences == s) for s in range(29, -1, -1)])
    reordered = permute_within_sentences(labels[order], 29 - sentences[order], ids[order], 4, 0)
    np.testing.assert_array_equal(reordered, draws[:, order])


def test_every_token_gets_every_label_equally_often() -> None:
    labels, sentences, ids = corpus(1000, shortest=4, longest=4)
    draws = permute_within_sentences(labels, sentences, ids, 20, 0)
    for place in range(4):
        shares = np.bincount(draws[:, place::4].ravel(), minlength=4) / (1000 * 20)
        # Standard error sqrt(3/16 / 20000) = .003; four of them.
        np.testing.assert_allclose(shares, 1 / 4, atol=0.012)


def test_sentences_that_differ_in_one_token_are_permuted_differently() -> None:
    labels, sentences, ids = corpus(200, shortest=8, longest=8)
    ids = np.where(labels == 0, sentences, 7).astype(np.int32)
    first = permute_within_sentences(labels, sentences, ids, 1, 0)[0].reshape(200, 8)
    assert len({tuple(draw) for draw in first.tolist()}) > 190


def by_definition(p: list[float]) -> list[float]:
    """Return for each p-value the least n p_(k) / k over all k such that it is among the first k (float64 loop)."""
    order = sorted(range(len(p)), key=p.__getitem__)
    rates = [1.0] * len(p)
    least = 1.0
    for k in range(len(p), 0, -1):
        least = min(least, len(p) * p[order[k - 1]] / k)
        rates[order[k - 1]] = least
    return rates


def test_rates_are_those_of_the_definition() -> None:
    p = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3
    p[:3] = p[3]  # equal ones have one rate
    rates = discovery_rates(p, torch.ones(200, dtype=torch.bool))
    torch.testing.assert_close(rates, torch.tensor(by_definition(p.tolist()), dtype=torch.float64))
    assert len(set(rates[:4].tolist())) == 1


def test_what_is_not_tested_has_rate_1_and_costs_the_others_nothing() -> None:
    p = torch.tensor([1e-4, 1e-9, 0.5, 0.02], dtype=torch.float64)
    tested = torch.tensor([True, False, True, True])
    rates = discovery_rates(p, tested)
    assert rates[1] == 1
    torch.testing.assert_close(rates[tested], torch.tensor(by_definition([1e-4, 0.5, 0.02]), dtype=torch.float64))
    assert discovery_rates(p, torch.zeros(4, dtype=torch.bool)).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("n", [1, 50])
def test_where_nothing_is_to_be_discovered_few_layers_have_any_discovery(n: int) -> None:
    every = torch.ones(n, dtype=torch.bool)
    draws = torch.rand(2000, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = sum(bool((discovery_rates(p, every) <= 0.05).any()) for p in draws)
    assert 60 <= found <= 140  # 100 expected; four standard deviations of a binomial are 39


def test_what_is_planted_is_discovered() -> None:
    p = torch.rand(100, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    p[:10] = 1e-5
    rates = discovery_rates(p, torch.ones(100, dtype=torch.bool))
    assert (rates[:10] <= 0.01).all()
    assert (rates[10:] > 0.01).all()


def test_holm_is_its_definition() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    corrected = holm([math.nan, 0.02, 0.01])
    assert math.isnan(corrected[0])
    assert corrected[1:] == [0.02, 0.02]


def test_holm_holds_for_all_together_however_p_values_depend() -> None:
    from scipy.stats import norm

    generator = np.random.default_rng(0)
    for shared in (0.0, 0.9):
        z = shared * generator.standard_normal((2000, 1)) + (1 - shared**2) ** 0.5 * generator.standard_normal(
            (2000, 20)
        )
        found = sum(min(holm(p)) <= 0.05 for p in (2 * norm.sf(abs(z))).tolist())
        assert found <= 140  # 100 of 2,000 at most; four standard deviations of a binomial are 39
