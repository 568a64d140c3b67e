"""Means over queries or sentences, with intervals by a bootstrap of the sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.statistics.bootstrap import percentiles, sentence_counts
from probing.statistics.intervals import ENDS, MIN_SENTENCES

# Columns of a matrix whose draws are in memory at a time.
_COLUMNS = 4096


@dataclass(frozen=True)
class Means:
    """Ratios of sums over sentences.

    Args:
        values: The ratios, of any shape; NaN where nothing is counted.
        low: Lower ends of their 95% intervals; NaN where fewer than `MIN_SENTENCES` sentences count.
        high: Upper ends.
        n: Number of sentences that count.
    """

    values: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n: int

    def row(self, *index: int) -> dict[str, Any]:
        """Return one ratio as the columns `value, low, high, n` of a table."""
        value, low, high = (float(values[index]) for values in (self.values, self.low, self.high))
        return {"value": value, "low": low, "high": high, "n": self.n}


class Sentences:
    """The sentences of a corpus, drawn with replacement: every mean of a survey has the same draws.

    Args:
        n_sentences: Number of sentences.
        seed: Seed of the draws.
    """

    def __init__(self, n_sentences: int, seed: int) -> None:
        self.times = sentence_counts(n_sentences, seed).astype(np.float64)

    def means(self, sums: NDArray[np.float64], counts: NDArray[Any]) -> Means:
        """Return sums over all sentences divided by counts over all sentences.

        Args:
            sums: Sum of each sentence, shape (n_sentences, ...).
            counts: What is counted in each sentence, such as its queries, shape (n_sentences,), or (n_sentences, k) if
                that differs along the first of the other axes of the sums.
        """
        shape, flat = sums.shape[1:], sums.reshape(len(sums), -1)
        by_column = counts.reshape(len(counts), -1).astype(np.float64)
        n = int((by_column > 0).any(1).sum())
        index = np.arange(flat.shape[1]) * by_column.shape[1] // max(flat.shape[1], 1)
        with np.errstate(invalid="ignore", divide="ignore"):
            values = flat.sum(0) / by_column.sum(0)[index]
            drawn_counts = self.times @ by_column
            ends = np.full((2, flat.shape[1]), np.nan)
            for first in range(0, flat.shape[1] if n >= MIN_SENTENCES else 0, _COLUMNS):
                here = slice(first, first + _COLUMNS)
                ends[:, here] = _percentiles(self.times @ flat[:, here] / drawn_counts[:, index[here]])
        low, high = ends.reshape(2, *shape)
        return Means(values.reshape(shape), low, high, n)


def _percentiles(draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the ends of the percentile interval of each column, shape (2, n), over the draws that are finite."""
    if np.isfinite(draws).all():
        return np.quantile(draws, ENDS, axis=0)
    return np.array([percentiles(column) for column in draws.T]).T
