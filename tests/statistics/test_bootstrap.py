"""What is drawn from sentences with replacement."""

from __future__ import annotations

import numpy as np
import pytest

from probing.statistics.chance import percentile_interval, percentiles, resampled_means
from probing.statistics.intervals import MIN_SENTENCES

pytestmark = pytest.mark.numeric


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
