"""Intervals by bootstrap over sentences, never tokens: the tokens of a sentence are not independent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
LEVEL = 0.95


def accuracy_interval(
    correct: NDArray[np.int64], n_tokens: NDArray[np.int64], seed: int, n_draws: int = DRAWS
) -> tuple[float, float]:
    """Return the percentile interval of an accuracy when test sentences are drawn anew.

    Args:
        correct: Tokens rightly predicted in each sentence, shape (n_sentences,).
        n_tokens: Tokens of each sentence, shape (n_sentences,).
        seed: Of the generator; the same sentences are drawn for every layer, so layers compare.
        n_draws: Bootstrap draws.
    """
    generator = np.random.default_rng(seed)
    n = len(n_tokens)
    accuracy = np.empty(n_draws)
    for draw in range(n_draws):
        times = np.bincount(generator.integers(n, size=n), minlength=n)
        accuracy[draw] = (times @ correct) / (times @ n_tokens)
    low, high = np.quantile(accuracy, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def redraw(
    sums: NDArray[np.float64], n_tokens: NDArray[np.int64], seed: int, n_draws: int = DRAWS
) -> NDArray[np.float64]:
    """Return means over tokens when sentences are drawn anew, shape (n_draws, n).

    Args:
        sums: Over the tokens of each sentence, shape (n_sentences, n).
        n_tokens: Tokens of each sentence, shape (n_sentences,).
        seed: Of the generator; with as many sentences, the same ones are drawn.
        n_draws: Bootstrap draws.
    """
    generator = np.random.default_rng(seed)
    n = len(n_tokens)
    times = np.stack([np.bincount(generator.integers(n, size=n), minlength=n) for _ in range(n_draws)])
    return (times @ sums) / (times @ n_tokens)[:, None]
