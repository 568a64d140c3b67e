"""Bootstrap over sentences, for what is no mean and so has no interval in closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probing.statistics.intervals import ENDS, MIN_SENTENCES, NO_INTERVAL

DRAWS = 1000


def resampled_means(
    sums: NDArray[np.float64], n_tokens: NDArray[np.int64], seed: int, n_draws: int = DRAWS
) -> NDArray[np.float64]:
    """Return means over tokens when sentences are drawn with replacement, shape (n_draws, n).

    Args:
        sums: Sums over the tokens of each sentence, shape (n_sentences, n).
        n_tokens: Tokens of each sentence, shape (n_sentences,).
        seed: Seed of the generator; with as many sentences, the same ones are drawn.
        n_draws: Bootstrap draws.
    """
    generator = np.random.default_rng(seed)
    n = len(n_tokens)
    times = np.stack([np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(n_draws)])
    return (times @ sums) / (times @ n_tokens)[:, None]


def percentiles(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return between which values 95 of 100 draws lie, those that are not finite left out; NaN if none is finite.

    Args:
        draws: Shape (n_draws,).
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
        n_clusters: Sentences, or pairs of them, that were drawn from.
    """
    return percentiles(draws) if n_clusters >= MIN_SENTENCES else NO_INTERVAL
