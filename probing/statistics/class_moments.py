"""Means and scatters of the classes along the neurons of a layer, streamed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from probing.statistics.running_mean import RunningMean


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

    Everything is summed in float64: a scatter is inverted, and of neurons that nearly repeat each other rounding to
    float32 would leave one that has no inverse, or a negative one.

    Args:
        d_model: Number of neurons.
        n_classes: Number of classes.
    """

    def __init__(self, d_model: int, n_classes: int) -> None:
        self.means = [RunningMean(d_model) for _ in range(n_classes)]
        self.scatter = torch.zeros(n_classes, d_model, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens, shapes (n, d_model) and (n,); those labelled -1 do not count."""
        by_class = labels.argsort(stable=True)[int((labels < 0).sum()) :]
        counts = labels[by_class].bincount(minlength=len(self.means))
        parts = hidden_states[by_class].split(counts.tolist())
        for mean, scatter, states in zip(self.means, self.scatter, parts, strict=True):
            deviations = mean.update(states.double())
            scatter.addmm_(deviations.T, deviations)

    def result(self) -> ClassMoments:
        """Return the moments of what was added."""
        counts = torch.tensor([mean.n for mean in self.means], dtype=torch.float64)
        return ClassMoments(counts, torch.stack([mean.mean for mean in self.means]), self.scatter)
