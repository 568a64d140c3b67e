"""Means and scatters of the classes along the neurons of a layer, streamed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probing.statistics.running_mean import RunningMean


@dataclass(frozen=True)
class ClassMoments:
    """Mean and scatter matrix of the tokens of each class.

    Args:
        counts: Number of tokens of each class, shape (n_classes,), float64.
        mean: Mean of each class, shape (n_classes, d_model), float64; 0 for a class without tokens.
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
        """Covariance within classes, pooled over all classes, shape (d_model, d_model)."""
        return self.scatter.sum(0) / self.counts.sum()


class ClassMomentsAccumulator:
    """Takes batches of one layer and returns the moments of its classes; holds n_classes x d_model^2 numbers.

    Everything is summed in float64 because scatter matrices are inverted: where neurons nearly repeat each other,
    rounding to float32 can leave a matrix that is singular or not positive definite.

    Args:
        d_model: Number of neurons.
        n_classes: Number of classes.
    """

    def __init__(self, d_model: int, n_classes: int) -> None:
        self.means = [RunningMean(d_model) for _ in range(n_classes)]
        self.scatter = torch.zeros(n_classes, d_model, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens and their labels, shapes (n, d_model) and (n,); tokens labelled -1 are ignored."""
        by_class = labels.argsort(stable=True)[int((labels < 0).sum()) :]
        counts = labels[by_class].bincount(minlength=len(self.means))
        parts = hidden_states[by_class].split(counts.tolist())
        for mean, scatter, states in zip(self.means, self.scatter, parts, strict=True):
            deviations = mean.update(states.double())
            scatter.addmm_(deviations.T, deviations)

    def result(self) -> ClassMoments:
        """Return the moments of all tokens added."""
        counts = torch.tensor([mean.n for mean in self.means], dtype=torch.float64)
        return ClassMoments(counts, torch.stack([mean.mean for mean in self.means]), self.scatter)
