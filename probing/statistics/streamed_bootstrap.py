"""Intervals over sentences for what is streamed: how often each sentence counts in each draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from probing.statistics.bootstrap import percentile_interval

# Fewer than where sentences are in memory: each draw is a vector of d_model sums for each layer and transform.
N_DRAWS = 400


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Args:
        value: The number; NaN where it is not defined.
        low: Lower end of the 95% percentile interval over redrawn sentences; NaN where there is none.
        high: Upper end.
        n: Tokens, or sentences, or words, that it is taken over.
    """

    value: float
    low: float
    high: float
    n: int


def undefined(n: int) -> Estimate:
    """Return what stands for a number that is not defined."""
    return Estimate(float("nan"), float("nan"), float("nan"), n)


def estimate(value: float, draws: Tensor, n: int, n_clusters: int) -> Estimate:
    """Return a number with the interval of its draws, those not defined left out.

    Args:
        value: The number.
        draws: The same of redrawn sentences or words, shape (n_draws,).
        n: What it is taken over.
        n_clusters: Sentences or words that are redrawn.
    """
    return Estimate(value, *percentile_interval(draws.double().numpy(), n_clusters), n)


def weights(first_sentence: int, n_sentences: int, seed: int, n_draws: int = N_DRAWS) -> Tensor:
    """Return how often each of some consecutive sentences counts in each draw, shape (n_draws, n_sentences), float32.

    Poisson numbers of mean 1 stand for drawing with replacement, so that no sentence need know of the others (the
    Poisson bootstrap: Chamandy et al. 2012). The same ones come for every layer and transform, so that these compare.

    Args:
        first_sentence: Number of the first in the corpus; the blocks in which a corpus is read must be the same.
        n_sentences: How many.
        seed: Of all draws.
        n_draws: How many draws.
    """
    generator = np.random.default_rng([seed, first_sentence])
    return torch.from_numpy(generator.poisson(1.0, (n_draws, n_sentences)).astype(np.float32))


class MeanOverSentences:
    """Takes a number of each sentence and returns their mean with its interval; sentences without one do not count."""

    def __init__(self, n_draws: int = N_DRAWS) -> None:
        self.n = 0
        self.total = torch.zeros((), dtype=torch.float64)
        self.drawn = torch.zeros(2, n_draws, dtype=torch.float64)

    def update(self, values: Tensor, weights: Tensor) -> None:
        """Add sentences: their numbers, NaN where not defined, shape (n,), and weights, shape (n_draws, n)."""
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
