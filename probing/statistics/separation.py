"""How far apart the classes lie along one neuron, against what labels permuted within sentences give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from probing.statistics.permutation_moments import ROWS, PowerSums, label_moments, log_relabellings, power_sums

# Shares of a variance that differ by less differ by the rounding of float64 sums alone: the null of even a hundred
# million tokens is ten thousand times as wide.
ROUNDING = 1e-12
# No p-value is below this, so that none is 0.
SMALLEST_P = 1e-300
# Numbers that covariances, and what they are made from, may have at a time.
COVARIANCES, PRODUCTS = 2**23, 2**20


@dataclass(frozen=True)
class Separation:
    """Share of a neuron's variance explained by the class, beyond chance.

    Chance is that each sentence's labels are permuted among its tokens, every permutation being as likely.

    Args:
        eta_squared: The share minus its mean under chance, shape (d_model,).
        z: That difference in standard deviations of chance, shape (d_model,).
        p: How probable a share as high is under chance, shape (d_model,).
    """

    eta_squared: Tensor
    z: Tensor
    p: Tensor

    @classmethod
    def of_all(cls, parts: list[Separation]) -> Separation:
        """Return that of the neurons of several parts, one after the other."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("eta_squared", "z", "p")))


def neurons_at_a_time(n_classes: int) -> int:
    """Return of how many neurons the covariances fit into memory at once."""
    return max(COVARIANCES // n_classes**2, 1)


class SeparationAccumulator:
    """Takes batches of whole sentences of one layer and returns how its neurons separate the classes.

    Mean and variance of the null are exact. Its upper tail is that of the Pearson type III distribution, a shifted
    gamma, with this mean and variance and with the skewness that Gaussian sums over classes would give (as Imhof 1961
    for quadratic forms in Gaussians), increased as much as the exact variance is above theirs. `docs/eta_squared.md`
    says how well that holds.

    Args:
        mean: Of the training tokens, shape (d_model,), float64; subtracted first, which changes
            nothing but the rounding.
        sd: Of the training tokens, shape (d_model,), float64.
        sizes: Training tokens of each class, over all ranks, shape (n_classes,).
    """

    def __init__(self, mean: Tensor, sd: Tensor, sizes: Tensor) -> None:
        self.mean, self.sd, self.sizes = mean, sd, sizes.double()
        shape = (len(mean), len(sizes))
        # Sums over classes divided by the root of the class's size: of the true labels, and their mean and covariance.
        self.true, self.expected, self.third = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
        self.covariance = torch.zeros(*shape, len(sizes), dtype=torch.float64)
        self.excess = torch.zeros(len(mean), dtype=torch.float64)
        self.log_relabellings = torch.zeros((), dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor, sentences: Tensor) -> None:
        """Add tokens, those of a sentence side by side and in one batch.

        Args:
            hidden_states: Shape (n, d_model).
            labels: Class of each token, -1 for tokens that do not count, shape (n,).
            sentences: Sentence of each token, shape (n,).
        """
        rows = (labels >= 0).nonzero().squeeze(1)
        if not len(rows):
            return
        states, labels = hidden_states[rows], labels[rows]
        _, sentence, lengths = sentences[rows].unique_consecutive(return_inverse=True, return_counts=True)
        counts = torch.zeros(len(lengths), len(self.sizes), dtype=torch.float64)
        counts.index_put_((sentence, labels), torch.ones((), dtype=torch.float64), accumulate=True)
        sums = power_sums(states, self.mean, lengths)
        self._add_true(states, labels)
        self.expected += sums.mean.T @ (counts * _inverse_root(self.sizes))
        self.log_relabellings += log_relabellings(counts)
        # In the other sentences all tokens are of one class, and permuting does nothing.
        several = counts.amax(1) < lengths
        self._add_null(PowerSums(*(part[several] for part in sums)), counts[several])

    def _add_null(self, sums: PowerSums, counts: Tensor) -> None:
        of_labels, n = label_moments(counts, self.sizes), counts.sum(1, keepdim=True)
        self.third += sums.cubes.T @ of_labels.cubes
        self.excess += sums.fourths.T @ of_labels.fourths + sums.squares.square().T @ of_labels.squares
        variance = sums.squares / (n - 1)
        self.covariance.diagonal(dim1=1, dim2=2).add_(variance.T @ of_labels.variance)
        self._subtract_products(variance / n, of_labels.scaled)

    def _add_true(self, states: Tensor, labels: Tensor) -> None:
        sums = torch.zeros_like(self.true.T)
        for x, own in zip(states.split(ROWS), labels.split(ROWS), strict=True):
            sums.index_add_(0, own, x.double() - self.mean)
        self.true += sums.T * _inverse_root(self.sizes)

    def _subtract_products(self, factor: Tensor, scaled: Tensor) -> None:
        """Subtract the sum over sentences of factor scaled scaled', for each neuron."""
        n_sentences, n_classes = scaled.shape
        n = max(PRODUCTS // max(n_sentences * n_classes, 1), 1)
        for covariance, own in zip(self.covariance.split(n), factor.split(n, 1), strict=True):
            weighted = (own[:, :, None] * scaled[:, None]).flatten(1)
            covariance.view(-1, n_classes).addmm_(weighted.T, scaled, alpha=-1)

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Take together what several processes have added.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all of them.
        """
        for name in ("true", "expected", "third", "covariance", "excess", "log_relabellings"):
            setattr(self, name, sum_over_ranks(getattr(self, name)))

    def result(self) -> Separation:
        """Return eta squared, its z and its p-value for what was added.

        A neuron that does not vary has 0, 0 and 1; one whose share is the same however labels are permuted, such as
        one that knows the sentence and nothing else, has a z of 0 and a p-value of 1.
        """
        mean, variance, skewness = self._null()
        total, spread = self.sizes.sum() * self.sd.square(), variance.clamp(min=0).sqrt()
        excess = self._centred(self.true).square().sum(1) - mean
        varies = spread > ROUNDING * total
        z = torch.where(varies, excess / spread, 0.0)
        p = torch.where(varies, upper_tail(z, torch.where(varies, skewness, 1.0)), 1.0)
        # The true labels are one of the permutations.
        least = torch.exp(-self.log_relabellings).clamp(min=SMALLEST_P)
        return Separation(torch.where(total > 0, excess / total, 0.0), z, p.clamp(min=least))

    def _null(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean, variance and skewness of the between-class sum of squares, each of shape (d_model,)."""
        covariance, expected = self.covariance, self._centred(self.expected)
        squared = covariance @ covariance
        along = (covariance @ expected[:, :, None]).squeeze(2)
        mean = covariance.diagonal(dim1=1, dim2=2).sum(1) + expected.square().sum(1)
        # Of Gaussian sums over classes; then what theirs have beyond a Gaussian's.
        gaussian = 2 * squared.diagonal(dim1=1, dim2=2).sum(1) + 4 * (expected * along).sum(1)
        third = 8 * (squared * covariance).sum((1, 2)) + 24 * along.square().sum(1)
        variance = gaussian + self.excess + 4 * (expected * self.third).sum(1)
        return mean, variance, third / gaussian**1.5 * (variance / gaussian).clamp(min=1)

    def _centred(self, sums: Tensor) -> Tensor:
        """Return sums as they would be had the mean over all tokens been subtracted."""
        root = self.sizes.sqrt()
        return sums - torch.outer(sums @ root, root) / self.sizes.sum()


def _inverse_root(sizes: Tensor) -> Tensor:
    """Return what sums over classes are multiplied by; anything will do for a class without tokens."""
    return sizes.clamp(min=1).rsqrt()


def upper_tail(z: Tensor, skewness: Tensor) -> Tensor:
    """Return the probability that a standardised Pearson type III variable is at least z.

    Args:
        z: Float64.
        skewness: Positive, of the same shape.
    """
    shape = 4 / skewness.square()
    return torch.special.gammaincc(shape, (shape + z * shape.sqrt()).clamp(min=0))
