"""How far apart the classes lie along one neuron, against what chance within sentences gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from probing.running_mean import ROWS

# Labellings permuted within sentences that make the null.
DRAWS = 20


@dataclass(frozen=True)
class Separation:
    """Share of a neuron's variance explained by the class, beyond chance.

    Args:
        eta_squared: Of the true labels minus its mean under permuted labels, shape (d_model,).
        z: That difference in standard deviations of the permuted ones, shape (d_model,).
    """

    eta_squared: Tensor
    z: Tensor


class SeparationAccumulator:
    """Takes batches of one layer and returns how its neurons separate the classes.

    Args:
        mean: Of the training tokens, shape (d_model,), float64; subtracted first, which changes
            nothing but the rounding.
        sd: Of the training tokens, shape (d_model,), float64.
        n_classes: Number of classes.
        n_draws: Permuted labellings.
    """

    def __init__(self, mean: Tensor, sd: Tensor, n_classes: int, n_draws: int = DRAWS) -> None:
        self.mean, self.sd = mean, sd
        self.counts = torch.zeros(n_classes, dtype=torch.float64)
        self.sums = torch.zeros(1 + n_draws, n_classes, len(mean), dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor, permuted: Tensor) -> None:
        """Add tokens: shapes (n, d_model), (n,) and (n_draws, n); those labelled -1 do not count."""
        kept = (labels >= 0).nonzero().squeeze(1)
        labellings = torch.cat([labels[None], permuted])
        self.counts += labels[kept].bincount(minlength=len(self.counts))
        for rows in kept.split(ROWS):
            states = hidden_states[rows].double() - self.mean
            for total, classes in zip(self.sums, labellings[:, rows], strict=True):
                total.index_add_(0, classes, states)

    def gather(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Take together what several processes have added.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all of them.
        """
        self.counts, self.sums = sum_over_ranks(self.counts), sum_over_ranks(self.sums)

    def result(self) -> Separation:
        """Return eta squared and its z for what was added; 0 for a neuron that does not vary."""
        n_tokens = self.counts.sum()
        # Class means are centred before they are squared, so that no sum of squares is below 0.
        apart = self.sums / self.counts.clamp(min=1)[:, None] - self.sums.sum(1, keepdim=True) / n_tokens
        between = (self.counts[:, None] * apart.square()).sum(1)
        variance = n_tokens * self.sd.square()
        eta_squared = torch.where(variance > 0, between / variance, 0.0)
        true, null = eta_squared[0], eta_squared[1:]
        excess = true - null.mean(0)
        spread = null.std(0)
        return Separation(excess, torch.where(spread > 0, excess / spread, 0.0))
