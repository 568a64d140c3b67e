"""Correlation of each neuron with a number, compared with numbers permuted within sentences or among them.

Under permutation within a block, the sum of products of a neuron and the numbers has a mean, a variance and a third
central moment in closed form; blocks are independent, so the moments of all blocks add up. Let a and b be the
deviations of the neuron and of the numbers from their means in a block of n examples. Then the variance is
`sum a^2 sum b^2 / (n - 1)`, and the third moment is `n sum a^3 sum b^3 / ((n - 1) (n - 2))`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from scipy.special import stdtr
from torch import Tensor

from probing.statistics.permutation_moments import power_sums
from probing.statistics.separation import ROUNDING, SMALLEST_P, Separation, upper_tail

# A distribution with a smaller skewness is treated as symmetric: Student's t alone then gives the p-value.
SYMMETRIC = 1e-2


@dataclass
class CorrelationSums:
    """Sums over blocks of examples, among which numbers are permuted.

    Args:
        product: Sum of products of deviations from the means of all examples, shape (d_model,), float64.
        expected: Its mean under permutation, shape (d_model,).
        variance: Its variance under permutation, shape (d_model,).
        third: Its third central moment under permutation, shape (d_model,).
        freedom: Degrees of freedom: the sum of (size - 1) over the blocks in which the numbers are not all equal.
        log_permutations: Log of the number of permutations.
    """

    product: Tensor
    expected: Tensor
    variance: Tensor
    third: Tensor
    freedom: Tensor
    log_permutations: Tensor

    @classmethod
    def empty(cls, d_model: int) -> CorrelationSums:
        """Return sums over nothing."""
        rows = (torch.zeros(d_model, dtype=torch.float64) for _ in range(4))
        return cls(*rows, *(torch.zeros((), dtype=torch.float64) for _ in range(2)))

    def update(self, states: Tensor, numbers: Tensor, lengths: Tensor, mean: Tensor) -> None:
        """Add whole blocks.

        Args:
            states: Hidden states, block by block, shape (n, d_model).
            numbers: Number of each, less the mean of all, shape (n,), float64.
            lengths: Size of each block, shape (n_blocks,), int64.
            mean: Mean of each neuron over all examples, shape (d_model,), float64.
        """
        a, b = power_sums(states, mean, lengths), power_sums(numbers[:, None], numbers.new_zeros(1), lengths)
        n = lengths.double()[:, None]
        self.product += (states.double() - mean).T @ numbers
        self.expected += (n * a.mean * b.mean).sum(0)
        self.variance += (a.squares * b.squares / (n - 1).clamp(min=1)).sum(0)
        # In blocks of fewer than three examples the cubes of the deviations sum to 0.
        self.third += (a.cubes * b.cubes * n / ((n - 1) * (n - 2)).clamp(min=1)).sum(0)
        differ = b.squares[:, 0] > 0
        self.freedom += (n[differ] - 1).sum()
        self.log_permutations += torch.lgamma(n[differ] + 1).sum()

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        for name, value in list(vars(self).items()):
            setattr(self, name, sum_over_ranks(value))

    def separation(self, total: Tensor) -> Separation:
        """Return the squared correlation beyond chance, its z and its p-value.

        z is the absolute distance of the correlation from its mean under permutation, in standard deviations under
        permutation. The p-value is two-sided and the larger one of two: that of Student's t, which is nearly exact for
        one block of values without outliers, and that of a gamma distribution with the exact skewness, which is needed
        for values with outliers.

        Args:
            total: Sum of squares of the neuron's deviations times that of the numbers', shape (d_model,).
        """
        spread = self.variance.clamp(min=0).sqrt()
        varies = (spread > ROUNDING * total.sqrt()) & (self.freedom > 1)
        z = torch.where(varies, (self.product - self.expected) / spread, 0.0)
        excess = self.product.square() - self.expected.square() - self.variance
        skewness = torch.where(varies, self.third / spread**3, 0.0) * z.sign()
        p = torch.maximum(self._of_t(z.abs()), _of_gamma(z.abs(), skewness)).clamp(max=1)
        least = torch.exp(-self.log_permutations).clamp(min=SMALLEST_P)
        return Separation(
            torch.where(varies & (total > 0), excess / total, 0.0),
            z.abs(),
            torch.where(varies, p.clamp(min=least), 1.0),
        )

    def _of_t(self, z: Tensor) -> Tensor:
        # z^2 is at most the degrees of freedom, since no correlation within blocks is above 1.
        rest = (self.freedom - z.square()).clamp(min=1e-12)
        t = z * ((self.freedom - 1).clamp(min=1) / rest).sqrt()
        return 2 * torch.from_numpy(stdtr(max(float(self.freedom) - 1, 1), -t.numpy()))


def _of_gamma(z: Tensor, skewness: Tensor) -> Tensor:
    """Return twice the tail of the gamma distribution on the side to which the sums are skewed, 0 on the other."""
    skewed = skewness > SYMMETRIC
    return torch.where(skewed, 2 * upper_tail(z, torch.where(skewed, skewness, 1.0)), 0.0)
