import numpy as np
import pytest

from probing.intervals import accuracy_interval, redraw


def clustered(generator, n_sentences, spread):
    """Return counts of sentences whose accuracies differ: Beta distributed around .6."""
    n_tokens = generator.integers(5, 30, n_sentences)
    accuracy = generator.beta(0.6 * spread, 0.4 * spread, n_sentences)
    return generator.binomial(n_tokens, accuracy), n_tokens


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        low, high = accuracy_interval(*clustered(generator, 60, 4.0), seed=trial, n_draws=300)
        covered += low <= 0.6 <= high
    # 95% of 300 with a standard error of 1.3%; percentile bootstraps of 60 clusters cover a little less.
    assert 0.90 <= covered / 300 <= 0.985


def test_it_is_an_interval_of_95_percent():
    right = np.repeat([1, 0], [1200, 800])
    low, high = accuracy_interval(right, np.ones_like(right), seed=0, n_draws=4000)
    # Sentences of one token: a binomial share. A 2.5% quantile of 4000 draws is known to 4% of the width.
    width = 2 * 1.96 * np.sqrt(0.6 * 0.4 / 2000)
    assert high - low == pytest.approx(width, rel=0.08)


def test_long_sentences_weigh_as_much_as_their_tokens():
    n_tokens = np.repeat([1, 19], 100)
    low, high = accuracy_interval(n_tokens * (n_tokens > 1), n_tokens, seed=0)
    assert 0.9 < low < 0.95 < high < 1.0  # of 2000 tokens 1900 are right, though half of the sentences are wrong


def test_sentences_are_drawn_and_not_tokens():
    correct, n_tokens = clustered(np.random.default_rng(1), 100, 1.0)
    by_sentence = accuracy_interval(correct, n_tokens, seed=0)
    tokens = np.repeat([1, 0], [correct.sum(), (n_tokens - correct).sum()])
    by_token = accuracy_interval(tokens, np.ones_like(tokens), seed=0)
    # Tokens of a sentence correlate at 1 / (1 + spread) = .5: about 1 + 16 x .5 = 9 times the variance.
    assert by_sentence[1] - by_sentence[0] > 2 * (by_token[1] - by_token[0])


def test_the_same_seed_gives_the_same_interval():
    counts = clustered(np.random.default_rng(2), 50, 4.0)
    assert accuracy_interval(*counts, seed=3) == accuracy_interval(*counts, seed=3)
    assert accuracy_interval(*counts, seed=3) != accuracy_interval(*counts, seed=4)


def test_the_interval_holds_the_accuracy_and_lies_between_zero_and_one():
    correct, n_tokens = clustered(np.random.default_rng(3), 50, 4.0)
    low, high = accuracy_interval(correct, n_tokens, seed=0)
    assert 0 <= low < correct.sum() / n_tokens.sum() < high <= 1


@pytest.mark.parametrize("right", [0, 1])
def test_where_all_or_nothing_is_right_the_interval_is_a_point(right):
    n_tokens = np.array([3, 5, 8])
    assert accuracy_interval(right * n_tokens, n_tokens, seed=0) == (right, right)


def test_layers_are_compared_on_the_same_draws():
    generator = np.random.default_rng(4)
    correct, n_tokens = clustered(generator, 50, 4.0)
    better = np.minimum(correct + 1, n_tokens)
    one, other = accuracy_interval(correct, n_tokens, seed=0), accuracy_interval(better, n_tokens, seed=0)
    # Right on at least as many tokens in every draw, so at least as high at both ends.
    assert one[0] <= other[0]
    assert one[1] <= other[1]


def test_redrawn_means_are_those_of_the_sentences_drawn():
    generator = np.random.default_rng(5)
    sums, n_tokens = generator.normal(size=(30, 4)), generator.integers(1, 9, 30)
    means = redraw(sums, n_tokens, seed=0, n_draws=20)
    again = np.random.default_rng(0)
    for mean in means:
        drawn = again.integers(30, size=30)
        np.testing.assert_allclose(mean, sums[drawn].sum(0) / n_tokens[drawn].sum(), rtol=1e-12)


def test_runs_on_the_same_sentences_are_redrawn_together():
    sums, n_tokens = np.random.default_rng(6).normal(size=(30, 4)), np.ones(30, dtype=np.int64)
    np.testing.assert_allclose(redraw(2 * sums, n_tokens, seed=1), 2 * redraw(sums, n_tokens, seed=1), rtol=1e-12)
