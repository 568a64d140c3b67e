"""Separation of the classes along each neuron, compared with labels permuted within sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from probing.statistics.permutation_moments import ROWS, PowerSums, label_moments, log_relabellings, power_sums

# Smaller differences between shares of a variance are rounding errors of float64 sums. Even with a hundred million
# tokens the null distribution is ten thousand times as wide.
ROUNDING = 1e-12
# Lower bound of p-values, so that none is 0.
SMALLEST_P = 1e-300
# How many numbers the covariances, and the products they are summed from, may hold at a time.
COVARIANCES, PRODUCTS = 2**23, 2**20


@dataclass(frozen=True)
class Separation:
    """Share of a neuron's variance explained by the class, beyond chance.

    Under the null, each sentence's labels are permuted among its tokens, and all permutations are equally likely.

    Args:
        eta_squared: The share minus its mean under the null, shape (d_model,).
        z: That difference in standard deviations of the null, shape (d_model,).
        p: Probability of at least this share under the null, shape (d_model,).
    """

    eta_squared: Tensor
    z: Tensor
    p: Tensor

    @classmethod
    def of_all(cls, parts: list[Separation]) -> Separation:
        """Concatenate the neurons of several parts."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("eta_squared", "z", "p")))


def neurons_at_a_time(n_classes: int) -> int:
    """Return the number of neurons whose covariances fit into memory at once."""
    return max(COVARIANCES // n_classes**2, 1)


class SeparationAccumulator:
    """Takes batches of whole sentences of one layer and returns how its neurons separate the classes.

    Mean and variance of the null are exact. Its upper tail is approximated by the Pearson type III distribution, a
    shifted gamma, with the same mean and variance. The skewness is computed as if the sums over classes were Gaussian
    (as Imhof 1961 does for quadratic forms in Gaussians), and multiplied by the ratio of the exact variance to the
    Gaussian one if this ratio is above 1. `docs/eta_squared.md` says how good the approximation is.

    Args:
        mean: Mean of the training tokens, shape (d_model,), float64; it is subtracted first, which only reduces
            rounding errors.
        sd: Standard deviation of the training tokens, shape (d_model,), float64.
        sizes: Number of training tokens of each class, over all ranks, shape (n_classes,).
    """

    def __init__(self, mean: Tensor, sd: Tensor, sizes: Tensor) -> None:
        self.mean, self.sd, self.sizes = mean, sd, sizes.double()
        shape = (len(mean), len(sizes))
        # Sums over classes, divided by the root of the class's size: for the true labels, and mean and covariance under
        # the null.
        self.true, self.expected, self.third = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
        self.covariance = torch.zeros(*shape, len(sizes), dtype=torch.float64)
        self.excess = torch.zeros(len(mean), dtype=torch.float64)
        self.log_relabellings = torch.zeros((), dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor, sentences: Tensor) -> None:
        """Add tokens. The tokens of a sentence must be adjacent and in one batch.

        Args:
            hidden_states: Hidden states of the tokens, shape (n, d_model).
            labels: Class of each token, shape (n,); tokens labelled -1 are ignored.
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
        self.add_classes(states, labels)
        self.expected += sums.mean.T @ (counts * _inverse_root(self.sizes))
        self.log_relabellings += log_relabellings(counts)
        # In the other sentences all tokens are of one class, and permuting changes nothing.
        several = counts.amax(1) < lengths
        self.add_null(PowerSums(*(part[several] for part in sums)), counts[several])

    def add_null(self, sums: PowerSums, counts: Tensor) -> None:
        """Add blocks of tokens among which labels are permuted: their power sums and numbers of tokens by class."""
        of_labels, n = label_moments(counts, self.sizes), counts.sum(1, keepdim=True)
        self.third += sums.cubes.T @ of_labels.cubes
        self.excess += sums.fourths.T @ of_labels.fourths + sums.squares.square().T @ of_labels.squares
        variance = sums.squares / (n - 1)
        self.covariance.diagonal(dim1=1, dim2=2).add_(variance.T @ of_labels.variance)
        self._subtract_products(variance / n, of_labels.scaled)

    def add_classes(self, states: Tensor, labels: Tensor) -> None:
        """Add tokens to the sums over their true classes."""
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
        """All-reduce the sums of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        for name in ("true", "expected", "third", "covariance", "excess", "log_relabellings"):
            setattr(self, name, sum_over_ranks(getattr(self, name)))

    def result(self) -> Separation:
        """Return eta squared, its z and its p-value for all tokens added.

        A neuron that does not vary has 0, 0 and 1. A neuron whose share is the same under all permutations, such as
        one that is constant within each sentence, has a z of 0 and a p-value of 1.
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
        # Variance and third moment of Gaussian sums over classes; then the exact variance.
        gaussian = 2 * squared.diagonal(dim1=1, dim2=2).sum(1) + 4 * (expected * along).sum(1)
        third = 8 * (squared * covariance).sum((1, 2)) + 24 * along.square().sum(1)
        variance = gaussian + self.excess + 4 * (expected * self.third).sum(1)
        return mean, variance, third / gaussian**1.5 * (variance / gaussian).clamp(min=1)

    def _centred(self, sums: Tensor) -> Tensor:
        """Return the sums after subtracting the mean over all tokens."""
        root = self.sizes.sqrt()
        return sums - torch.outer(sums @ root, root) / self.sizes.sum()


def _inverse_root(sizes: Tensor) -> Tensor:
    """Return 1 / sqrt(size), which multiplies the sums over classes; a size of 0 counts as 1, since that sum is 0."""
    return sizes.clamp(min=1).rsqrt()


def upper_tail(z: Tensor, skewness: Tensor) -> Tensor:
    """Return the probability that a standardised Pearson type III variable is at least z.

    Args:
        z: Value of the standardised variable, float64.
        skewness: Skewness of the distribution, positive, of the same shape as z.
    """
    shape = 4 / skewness.square()
    return torch.special.gammaincc(shape, (shape + z * shape.sqrt()).clamp(min=0))
