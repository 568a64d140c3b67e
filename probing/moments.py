"""Moments of a layer's neurons, streamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

PenaltySpace = Literal["sd", "rms", "raw"]

# A neuron whose sd is below this fraction of the median is dead: divided by its sd it would stand in for the intercept.
DEAD = 1e-3
# Dead is also one whose sd is below this fraction of its size: ten times what rounding to float32 leaves of a constant.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Moments:
    """Moments of the neurons of one layer over its training tokens.

    Args:
        n_tokens: Tokens seen.
        mean: Shape (d_model,), float64.
        sd: Population standard deviation, shape (d_model,), float64.
        second_moment: Uncentred, mean over tokens of h h', shape (d_model, d_model), float64.
    """

    n_tokens: int
    mean: Tensor
    sd: Tensor
    second_moment: Tensor

    @property
    def dead(self) -> Tensor:
        """Which neurons hardly vary, shape (d_model,), bool."""
        return _hardly_vary(self.sd, self.second_moment.diagonal().clamp(min=0).sqrt())

    def inverse_scale(self, space: PenaltySpace) -> Tensor:
        """Return what takes neurons to the space where weights are penalised: 1 / scale, and 0 for dead neurons.

        Args:
            space: `sd` divides by the standard deviation, `rms` by the root mean square, `raw` by nothing.
        """
        scale = {"sd": self.sd, "rms": self.second_moment.diagonal().sqrt(), "raw": torch.ones_like(self.sd)}[space]
        return torch.where(self.dead, 0.0, 1 / scale)


class MomentsAccumulator:
    """Takes batches of hidden states and returns their moments.

    Mean and variance are merged by the pairwise update of Chan, Golub & LeVeque (1979), so that
    a neuron that hardly varies around a large mean keeps its digits.

    Args:
        d_model: Number of neurons.
    """

    def __init__(self, d_model: int) -> None:
        self.n_tokens = 0
        self.mean = torch.zeros(d_model, dtype=torch.float64)
        self.squares = torch.zeros(d_model, dtype=torch.float64)
        self.products = torch.zeros(d_model, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor) -> None:
        """Add tokens, shape (n, d_model); none is fine."""
        n = len(hidden_states)
        if n == 0:
            return
        mean = hidden_states.mean(0, dtype=torch.float64)
        # Around a float32 mean: exact differences, so squares lose nothing to the mean's size.
        centred = hidden_states - mean.to(hidden_states.dtype)
        offset = mean - mean.to(hidden_states.dtype).double()
        squares = centred.square().sum(0, dtype=torch.float64) - n * offset.square()
        difference, total = mean - self.mean, self.n_tokens + n
        self.squares += squares + difference.square() * (self.n_tokens * n / total)
        self.mean += difference * (n / total)
        self.products += (hidden_states.T @ hidden_states).double()
        self.n_tokens = total

    def gather(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Take together what several processes have added.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all of them.
        """
        n = self.n_tokens
        self.n_tokens = int(sum_over_ranks(torch.tensor(n)))
        mean = sum_over_ranks(n * self.mean) / max(self.n_tokens, 1)
        self.squares = sum_over_ranks(self.squares + n * (self.mean - mean).square())
        self.mean, self.products = mean, sum_over_ranks(self.products)

    def result(self) -> Moments:
        """Return the moments of what was added.

        Raises:
            ValueError: If nothing was.
        """
        if not self.n_tokens:
            raise ValueError("no tokens to take moments of")
        sd = (self.squares / self.n_tokens).clamp(min=0).sqrt()
        return Moments(self.n_tokens, self.mean, sd, self.products / self.n_tokens)


@dataclass(frozen=True)
class Covariance:
    """Mean and covariance of the neurons of one layer, in float64 throughout.

    Args:
        n_tokens: Tokens seen.
        mean: Shape (d_model,).
        covariance: Divided by `n_tokens`, shape (d_model, d_model).
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
        """Which neurons hardly vary, shape (d_model,), bool."""
        return _hardly_vary(self.sd, self.mean.abs())


class CovarianceAccumulator:
    """Takes batches of hidden states and returns their mean and covariance; everything is summed in float64.

    All sums are around the first batch's mean, so that large means cost no digits.

    Args:
        d_model: Number of neurons.
    """

    def __init__(self, d_model: int) -> None:
        self.n_tokens = 0
        self.origin: Tensor | None = None
        self.sums = torch.zeros(d_model, dtype=torch.float64)
        self.products = torch.zeros(d_model, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor) -> Tensor:
        """Add tokens, shape (n, d_model), none is fine; return them in float64 around the origin of the sums."""
        states = hidden_states.double()
        if not len(states):
            return states
        if self.origin is None:
            self.origin = states.mean(0)
        states = states - self.origin
        self.n_tokens += len(states)
        self.sums += states.sum(0)
        self.products.addmm_(states.T, states)
        return states

    def gather(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """Take together what several processes have added.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all of them.
        """
        n, own = self.n_tokens, torch.zeros_like(self.sums) if self.origin is None else self.origin
        self.n_tokens = int(sum_over_ranks(torch.tensor(n)))
        # Any point among the tokens will do for an origin: the mean of the processes' own.
        origin = sum_over_ranks(n * own) / max(self.n_tokens, 1)
        shift, sums = own - origin, self.sums
        self.sums = sum_over_ranks(sums + n * shift)
        moved = torch.outer(sums, shift) + torch.outer(shift, sums) + n * torch.outer(shift, shift)
        self.products = sum_over_ranks(self.products + moved)
        self.origin = origin if self.n_tokens else None

    def result(self) -> Covariance:
        """Return the moments of what was added.

        Raises:
            ValueError: If nothing was.
        """
        if self.origin is None:
            raise ValueError("no tokens to take moments of")
        mean = self.sums / self.n_tokens
        covariance = self.products / self.n_tokens - torch.outer(mean, mean)
        return Covariance(self.n_tokens, self.origin + mean, covariance)


def _hardly_vary(sd: Tensor, size: Tensor) -> Tensor:
    """Return which neurons vary no more than rounding does, or next to nothing beside the others; shape (d_model,)."""
    return sd <= torch.maximum(DEAD * sd.median(), ROUNDING * size)
