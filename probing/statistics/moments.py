"""Moments of a layer's neurons, streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from probing.statistics.running_mean import ROWS, RunningMean

# A neuron is dead whose sd is at most this fraction of its size: ten times the rounding error of a float32 constant. So
# is one whose sd is at most this fraction of the median, which is lost where it is added to others in float32.
ROUNDING = 1e-6


class PrincipalAxes(NamedTuple):
    """Eigenvalues, ascending, shape (d_model,), and eigenvectors, shape (d_model, d_model), of a symmetric matrix."""

    values: Tensor
    vectors: Tensor

    @classmethod
    def of(cls, matrix: Tensor) -> PrincipalAxes:
        """Return those of a matrix without negative eigenvalues, in float64 on the processor.

        Rounding makes small negative eigenvalues of zeros; they are set to 0.
        """
        values, vectors = torch.linalg.eigh(matrix.cpu().double())
        return cls(values.clamp(min=0), vectors)


@dataclass(frozen=True)
class Moments:
    """Moments of the neurons of one layer over its training tokens.

    Args:
        n_tokens: Number of tokens.
        mean: Mean of each neuron, shape (d_model,), float64.
        sd: Population standard deviation of each neuron, shape (d_model,), float64.
        covariance: Sum of products divided by `n_tokens`, shape (d_model, d_model), float64; the products are float32.
        axes: Principal axes of the second moment of scaled neurons, by the name of the scale, once they were asked for:
            with thousands of neurons they take longer than the training, and many probes share them.
    """

    n_tokens: int
    mean: Tensor
    sd: Tensor
    covariance: Tensor
    axes: dict[str, PrincipalAxes] = field(default_factory=dict, repr=False, compare=False)

    @property
    def second_moment(self) -> Tensor:
        """Uncentred second moment, the mean over tokens of h h', shape (d_model, d_model)."""
        return self.covariance + torch.outer(self.mean, self.mean)

    @property
    def rms(self) -> Tensor:
        """Root mean square of each neuron, shape (d_model,)."""
        return torch.hypot(self.sd, self.mean)

    @property
    def dead(self) -> Tensor:
        """Whether each neuron hardly varies, shape (d_model,), bool."""
        return hardly_vary(self.sd, self.rms)


class MomentsAccumulator:
    """Takes batches of hidden states and returns their moments. Products are float32, everything else is float64.

    Args:
        d_model: Number of neurons.
    """

    def __init__(self, d_model: int) -> None:
        self.mean = RunningMean(d_model)
        self.squares = torch.zeros(d_model, dtype=torch.float64)
        self.products = torch.zeros(d_model, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor) -> None:
        """Add tokens, shape (n, d_model); n may be 0."""
        for states in hidden_states.split(ROWS):
            deviations = self.mean.update(states)
            self.squares += deviations.square().sum(0, dtype=torch.float64)
            self.products += deviations.T @ deviations

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        apart = self.mean.all_reduce(sum_over_ranks)
        self.squares = sum_over_ranks(self.squares + apart.square().sum(0))
        self.products = sum_over_ranks(self.products + apart.T @ apart)

    def result(self) -> Moments:
        """Return the moments of all tokens added.

        Raises:
            ValueError: If no tokens were added.
        """
        n = self.mean.n
        if not n:
            raise ValueError("no tokens to take moments of")
        return Moments(n, self.mean.mean, (self.squares / n).sqrt(), self.products / n)


@dataclass(frozen=True)
class Covariance:
    """Mean and covariance of the neurons of one layer, in float64 throughout.

    Args:
        n_tokens: Number of tokens.
        mean: Mean of each neuron, shape (d_model,).
        covariance: Sum of products divided by `n_tokens`, shape (d_model, d_model).
    """

    n_tokens: int
    mean: Tensor
    covariance: Tensor

    @property
    def sd(self) -> Tensor:
        """Standard deviation of each neuron, shape (d_model,)."""
        return self.covariance.diagonal().clamp(min=0).sqrt()

    @property
    def dead(self) -> Tensor:
        """Whether each neuron hardly varies, shape (d_model,), bool."""
        return hardly_vary(self.sd, self.mean.abs())

    @property
    def varies(self) -> bool:
        """Whether any neuron varies."""
        return not bool(self.dead.all())


class CovarianceAccumulator:
    """Takes batches of hidden states and returns their mean and covariance; everything is summed in float64.

    Args:
        d_model: Number of neurons.
    """

    def __init__(self, d_model: int) -> None:
        self.mean = RunningMean(d_model)
        self.products = torch.zeros(d_model, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor) -> None:
        """Add tokens, shape (n, d_model); n may be 0."""
        for states in hidden_states.split(ROWS):
            deviations = self.mean.update(states.double())
            self.products.addmm_(deviations.T, deviations)

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        apart = self.mean.all_reduce(sum_over_ranks)
        self.products = sum_over_ranks(self.products.addmm(apart.T, apart))

    def result(self) -> Covariance:
        """Return the moments of all tokens added.

        Raises:
            ValueError: If no tokens were added.
        """
        n = self.mean.n
        if not n:
            raise ValueError("no tokens to take moments of")
        return Covariance(n, self.mean.mean, self.products / n)


def hardly_vary(sd: Tensor, size: Tensor) -> Tensor:
    """Return whether each neuron varies by no more than rounding errors, of its own or of most neurons.

    Args:
        sd: Standard deviation of each neuron, shape (d_model,).
        size: Its root mean square or absolute mean, shape (d_model,).
    """
    return sd <= ROUNDING * torch.maximum(sd.median(), size)
