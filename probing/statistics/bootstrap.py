"""Bootstrap over sentences, of statistics in memory and of streamed ones, where no closed form has an interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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


# Fewer draws than if the sentences were in memory, because here each draw needs d_model sums for every layer and
# transform.
N_DRAWS = 400


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Args:
        value: The number; NaN where it is not defined.
        low: Lower end of the 95% percentile interval over resampled sentences; NaN where there is none.
        high: Upper end.
        n: Number of tokens, sentences or words that the number is taken over.
    """

    value: float
    low: float
    high: float
    n: int


def undefined(n: int) -> Estimate:
    """Return an estimate whose value and interval are NaN."""
    return Estimate(float("nan"), float("nan"), float("nan"), n)


def estimate(value: float, draws: Tensor, n: int, n_clusters: int) -> Estimate:
    """Return a number with the percentile interval of its draws; draws that are not finite are left out.

    Args:
        value: The number.
        draws: The number in each bootstrap draw, shape (n_draws,).
        n: Number of tokens, sentences or words that the number is taken over.
        n_clusters: Number of sentences or words that are resampled.
    """
    return Estimate(value, *percentile_interval(draws.double().numpy(), n_clusters), n)


def weights(first_sentence: int, n_sentences: int, seed: int, n_draws: int = N_DRAWS) -> Tensor:
    """Return how often each of some consecutive sentences counts in each draw, shape (n_draws, n_sentences), float32.

    Poisson numbers of mean 1 replace drawing with replacement, so that a sentence's weight does not depend on the other
    sentences (the Poisson bootstrap: Chamandy et al. 2012). The weights are the same for every layer and transform, so
    that these can be compared.

    Args:
        first_sentence: Index of the first sentence in the corpus. The weights depend on it, so a corpus must always be
            read in the same blocks.
        n_sentences: Number of sentences.
        seed: Seed of all draws.
        n_draws: Number of draws.
    """
    generator = np.random.default_rng([seed, first_sentence])
    return torch.from_numpy(generator.poisson(1.0, (n_draws, n_sentences)).astype(np.float32))


class MeanOverSentences:
    """Takes one number per sentence and returns their mean with its interval; NaN is ignored."""

    def __init__(self, n_draws: int = N_DRAWS) -> None:
        self.n = 0
        self.total = torch.zeros((), dtype=torch.float64)
        self.drawn = torch.zeros(2, n_draws, dtype=torch.float64)

    def update(self, values: Tensor, weights: Tensor) -> None:
        """Add sentences: their numbers, shape (n,), NaN where undefined, and their weights, shape (n_draws, n)."""
        defined = ~values.isnan()
        kept = values[defined].double()
        self.n += len(kept)
        self.total += kept.sum()
        counts = weights[:, defined].double()
        self.drawn += torch.stack([counts @ kept, counts.sum(1)])

    def result(self) -> Estimate:
        """Return the mean; NaN if no sentence has the number."""
        value = float(self.total / self.n) if self.n else float("nan")
        return estimate(value, self.drawn[0] / self.drawn[1], self.n, self.n)
