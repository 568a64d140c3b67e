"""The mean cosine over all pairs of vectors, and what each neuron adds to it, from sums alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

# Mean cosines closer to 0 have no shares.
NO_COSINE = 1e-6


def normalise(vectors: Tensor) -> Tensor:
    """Divide vectors, shape (..., d), by their lengths; vectors of length 0, which have no cosine, become 0."""
    lengths = vectors.norm(dim=-1, keepdim=True)
    return vectors * torch.where(lengths > torch.finfo(lengths.dtype).tiny, 1 / lengths, 0.0)


class CosineSums:
    """Takes unit vectors and returns what each neuron contributes to the mean cosine of two different ones.

    With u_i = x_i / |x_i|, the mean cosine is (|sum_i u_i|^2 - N) / (N (N - 1)), so that no pairs need be drawn. The
    contribution of neuron k is cc_k = ((sum_i u_ik)^2 - sum_i u_ik^2) / (N (N - 1)), the closed form of Timkey & van
    Schijndel's (2021).

    Args:
        d: Width of the vectors.
    """

    def __init__(self, d: int) -> None:
        self.n = 0
        self.total = torch.zeros(d, dtype=torch.float64)
        self.squares = torch.zeros(d, dtype=torch.float64)

    def update(self, units: Tensor, sums: Tensor) -> None:
        """Add unit vectors, shape (n, d), and sums of them, shape (m, d), such as those of sentences or themselves."""
        self.n += len(units)
        self.total += sums.double().sum(0)
        rows = units.numpy()
        # This is thirty times as fast as a norm along the first axis.
        self.squares += torch.from_numpy(np.einsum("nd,nd->d", rows, rows)).double()

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        self.n = int(sum_over_ranks(torch.tensor(self.n)))
        self.total, self.squares = sum_over_ranks(self.total), sum_over_ranks(self.squares)

    def by_neuron(self) -> Tensor:
        """Return each neuron's contribution, shape (d,), whose sum is the mean cosine; NaN below two vectors."""
        n_pairs = self.n * (self.n - 1)
        return (self.total.square() - self.squares) / n_pairs if n_pairs else torch.full_like(self.total, torch.nan)


def shares_of(by_neuron: Tensor, mean_cosine: float) -> Tensor:
    """Return the share of each neuron, shape (d,); it can be above 1 or below 0, as contributions have both signs.

    NaN where the mean cosine is within `NO_COSINE` of 0, so that a share of it has no meaning.
    """
    return by_neuron / mean_cosine if abs(mean_cosine) > NO_COSINE else by_neuron * torch.nan
