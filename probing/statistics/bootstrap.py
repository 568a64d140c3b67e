"""Bootstrap over sentences, for statistics that are not means and have no interval in closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probing.statistics.intervals import ENDS, MIN_SENTENCES, NO_INTERVAL

DRAWS = 1000


def resampled_means(
    sums: NDArray[np.float64], n_tokens: NDArray[np.int64] | NDArray[np.float64], seed: int, n_draws: int = DRAWS
) -> NDArray[np.float64]:
    """Return means over tokens in bootstrap draws of the sentences, shape (n_draws, n).

    Args:
        sums: Sums over the tokens of each sentence, shape (n_sentences, n).
        n_tokens: Number of tokens of each sentence, or whatever else sums are divided by, shape (n_sentences,).
        seed: Seed of the generator; equal seeds and numbers of sentences give the same draws.
        n_draws: Number of bootstrap draws.
    """
    times = sentence_counts(len(n_tokens), seed, n_draws)
    return (times @ sums) / (times @ n_tokens)[:, None]


def sentence_counts(n_sentences: int, seed: int, n_draws: int = DRAWS) -> NDArray[np.int64]:
    """Return how often each sentence is in each bootstrap draw, shape (n_draws, n_sentences).

    Args:
        n_sentences: Number of sentences.
        seed: Seed of the generator; equal seeds and numbers of sentences give the same draws.
        n_draws: Number of bootstrap draws.
    """
    generator = np.random.default_rng(seed)
    draws = (generator.integers(n_sentences, size=n_sentences) for _ in range(n_draws))
    return np.stack([np.bincount(draw, minlength=n_sentences) for draw in draws])


def percentiles(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 2.5% and 97.5% quantiles of the draws that are finite; NaN if none is finite.

    Args:
        draws: The statistic of each draw, shape (n_draws,).
    """
    finite = draws[np.isfinite(draws)]
    if not len(finite):
        return NO_INTERVAL
    low, high = np.quantile(finite, ENDS)
    return float(low), float(high)


def percentile_interval(draws: NDArray[np.float64], n_clusters: int) -> tuple[float, float]:
    """Return the percentile interval (Efron 1979) of a bootstrapped statistic; NaN below `MIN_SENTENCES` clusters.

    Args:
        draws: The statistic of each draw, shape (n_draws,).
        n_clusters: Number of sentences, or of pairs of sentences, that were resampled.
    """
    return percentiles(draws) if n_clusters >= MIN_SENTENCES else NO_INTERVAL
