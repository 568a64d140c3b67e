"""The mean of what was added so far, and what each batch adds to the sums of products around it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Vectors that are best multiplied at a time: what is made of them stays in a processor's cache, and where products are
# taken in float32 no sum of them is longer.
ROWS = 2048


class RunningMean:
    """Takes batches of vectors and returns rows whose products with themselves add up to the scatter of all of them.

    Two sets of vectors, of n and m members, together have the scatter S + T + n m / (n + m) d d', where S and T are
    their own scatters and d is the difference of their means (Chan, Golub & LeVeque 1979, equation 1.5). The last term
    is the product of one more row. So a scatter is a sum of products of rows around a mean, and nothing is ever
    subtracted from it, whatever the order in which a processor adds: no sum of squares is below 0, a neuron that never
    varies has 0 exactly where its value is one that float32 has, and one that hardly varies around a large mean keeps
    its digits.

    Args:
        shape: Shape of the mean, such as (d_model,) or (n_layers, d_model).
    """

    def __init__(self, *shape: int) -> None:
        self.n = 0
        self.mean = torch.zeros(shape, dtype=torch.float64)

    def update(self, vectors: Tensor) -> Tensor:
        """Add vectors and return their deviations.

        Args:
            vectors: Shape (..., n, d_model), float32 or float64; none is fine.

        Returns:
            Shape (..., n + 1, d_model), of the same dtype: each vector less the mean of the batch, and the row that
            stands for the distance of that mean from the mean of the batches before. No rows for no vectors.
        """
        n, dtype = vectors.shape[-2], vectors.dtype
        if n == 0:
            return vectors
        mean = vectors.mean(-2, dtype=torch.float64)
        difference, total = mean - self.mean, self.n + n
        deviations = vectors.new_empty(*mean.shape[:-1], n + 1, mean.shape[-1])
        own, rounded = deviations[..., :n, :], mean.to(dtype)
        # In two steps: the first is exact where a neuron hardly varies, the second takes off what rounding left.
        torch.sub(vectors, rounded.unsqueeze(-2), out=own)
        own -= (mean - rounded).to(dtype).unsqueeze(-2)
        deviations[..., n, :] = difference * (self.n * n / total) ** 0.5
        self.mean += difference * (n / total)
        self.n = total
        return deviations

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> Tensor:
        """Take together what several processes have added.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all of them.

        Returns:
            The row, shape (..., 1, d_model), float64, whose products this process adds to its own scatter before
            the scatters of all processes are summed.
        """
        n, own = self.n, self.mean
        self.n = int(sum_over_ranks(torch.tensor(n)))
        self.mean = sum_over_ranks(n * own) / max(self.n, 1)
        return (own - self.mean).unsqueeze(-2) * n**0.5
