"""Separation of the classes along each neuron where each unit has one label: labels are permuted among all units."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from probing.statistics.permutation_moments import PowerSums, log_relabellings
from probing.statistics.separation import Separation, SeparationAccumulator


class UnitSeparationAccumulator:
    """Takes batches of exchangeable units, such as sentences of one label each, and says how neurons separate them.

    Under the null, labels are permuted among all units, as `SeparationAccumulator` permutes them among the tokens of a
    sentence.

    Args:
        mean: Mean of the units, shape (d_model,), float64.
        sizes: Number of units of each class, over all ranks, shape (n_classes,).
    """

    def __init__(self, mean: Tensor, sizes: Tensor) -> None:
        self.mean, self.sizes = mean, sizes
        # Sums of squares, cubes and fourth powers of deviations from the mean, and the sums over classes.
        self.powers = torch.zeros(3, len(mean), dtype=torch.float64)
        self.sums = SeparationAccumulator(mean, torch.zeros_like(mean), sizes)

    def update(self, units: Tensor, labels: Tensor) -> None:
        """Add units: values of shape (n, d_model) and the class of each, shape (n,)."""
        deviations = units.double() - self.mean
        for power, total in enumerate(self.powers, start=2):
            total += deviations.pow(power).sum(0)
        self.sums.add_classes(units, labels)

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        self.powers = sum_over_ranks(self.powers)
        self.sums.all_reduce(sum_over_ranks)

    def result(self) -> Separation:
        """Return eta squared, its z and its p-value for all units added."""
        counts = self.sizes.double()[None]
        squares, cubes, fourths = self.powers[:, None]
        self.sums.sd = (squares[0] / counts.sum()).sqrt()
        self.sums.log_relabellings += log_relabellings(counts)
        # The mean is subtracted already, so that the block's mean deviation is 0.
        self.sums.add_null(PowerSums(torch.zeros_like(squares), squares, cubes, fourths), counts)
        return self.sums.result()
