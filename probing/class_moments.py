"""Means and scatters of the classes along the neurons of a layer, streamed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassMoments:
    """Where the tokens of each class lie.

    Args:
        counts: Tokens of each class, shape (n_classes,), float64.
        mean: Shape (n_classes, d_model), float64; 0 for a class without tokens.
        scatter: Sum over the class's tokens of (v - mean)(v - mean)', shape (n_classes, d_model, d_model), float64.
    """

    counts: Tensor
    mean: Tensor
    scatter: Tensor

    @property
    def within(self) -> Tensor:
        """Sum of squares within classes, shape (d_model,)."""
        return self.scatter.diagonal(dim1=1, dim2=2).sum(0)

    @property
    def between(self) -> Tensor:
        """Sum of squares of the class means around the mean of all tokens, shape (d_model,)."""
        mean = (self.counts @ self.mean) / self.counts.sum()
        return self.counts @ (self.mean - mean).square()

    @cached_property
    def pooled(self) -> Tensor:
        """Covariance within classes, over all of them, shape (d_model, d_model)."""
        return self.scatter.sum(0) / self.counts.sum()


class ClassMomentsAccumulator:
    """Takes batches of one layer and returns the moments of its classes; holds n_classes x d_model^2 numbers.

    Args:
        mean: Of the training tokens, shape (d_model,), float64; subtracted first, which changes
            nothing but the rounding.
        n_classes: Number of classes.
    """

    def __init__(self, mean: Tensor, n_classes: int) -> None:
        self.mean = mean
        self.counts = torch.zeros(n_classes, dtype=torch.float64)
        self.sums = torch.zeros(n_classes, len(mean), dtype=torch.float64)
        self.products = torch.zeros(n_classes, len(mean), len(mean), dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens, shapes (n, d_model) and (n,); those labelled -1 do not count."""
        by_class = labels.argsort()[int((labels < 0).sum()) :]
        counts = labels[by_class].bincount(minlength=len(self.counts))
        states = hidden_states[by_class] - self.mean.to(hidden_states.dtype)
        for c, rows in enumerate(states.split(counts.tolist())):
            self.sums[c] += rows.sum(0, dtype=torch.float64)
            self.products[c] += rows.T @ rows
        self.counts += counts

    def result(self) -> ClassMoments:
        """Return the moments of what was added."""
        n = self.counts.clamp(min=1)[:, None]
        offset = self.sums / n
        scatter = self.products - n[:, :, None] * offset[:, :, None] * offset[:, None]
        return ClassMoments(self.counts, torch.where(self.counts[:, None] > 0, offset + self.mean, 0.0), scatter)
