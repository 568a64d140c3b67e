"""Running mean of batches, and the rows that each batch adds to the scatter matrix around it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Number of vectors to multiply at a time: intermediate results then stay in the processor's cache, and no sum of
# float32 products is longer.
ROWS = 2048


class RunningMean:
    """Takes batches of vectors and returns rows whose outer products add up to the scatter matrix of all vectors.

    Two sets of vectors, of n and m members, together have the scatter S + T + n m / (n + m) d d', where S and T are
    their scatters and d is the difference of their means (Chan, Golub & LeVeque 1979, equation 1.5). The last term is
    the outer product of one more row. A scatter is thus a sum of outer products, and nothing is ever subtracted from
    it. So no sum of squares is negative, a neuron that never varies has exactly 0 if its value is a float32 number, and
    a neuron that hardly varies around a large mean keeps its precision.

    Args:
        shape: Shape of the mean, such as (d_model,) or (n_layers, d_model).
    """

    def __init__(self, *shape: int) -> None:
        self.n = 0
        self.mean = torch.zeros(shape, dtype=torch.float64)

    def update(self, vectors: Tensor) -> Tensor:
        """Add vectors and return their deviations.

        Args:
            vectors: Shape (..., n, d_model), float32 or float64; n may be 0.

        Returns:
            Shape (..., n + 1, d_model), of the same dtype: each vector minus the mean of the batch, and one row for the
            distance of that mean from the mean of all earlier batches. Without vectors there are no rows.
        """
        n, dtype = vectors.shape[-2], vectors.dtype
        if n == 0:
            return vectors
        mean = vectors.mean(-2, dtype=torch.float64)
        difference, total = mean - self.mean, self.n + n
        deviations = vectors.new_empty(*mean.shape[:-1], n + 1, mean.shape[-1])
        own, rounded = deviations[..., :n, :], mean.to(dtype)
        # In two steps: the first is exact where a neuron hardly varies, the second corrects the rounding of the mean.
        torch.sub(vectors, rounded.unsqueeze(-2), out=own)
        own -= (mean - rounded).to(dtype).unsqueeze(-2)
        deviations[..., n, :] = difference * (self.n * n / total) ** 0.5
        self.mean += difference * (n / total)
        self.n = total
        return deviations

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> Tensor:
        """All-reduce number and mean of the vectors of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.

        Returns:
            A row, shape (..., 1, d_model), float64. Each process adds its outer product to its own scatter before the
            scatters of all processes are summed.
        """
        n, own = self.n, self.mean
        self.n = int(sum_over_ranks(torch.tensor(n)))
        self.mean = sum_over_ranks(n * own) / max(self.n, 1)
        return (own - self.mean).unsqueeze(-2) * n**0.5
