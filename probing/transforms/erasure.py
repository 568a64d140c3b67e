"""Linear erasure (LEACE), and examples whose activations are erased or restricted to some neurons.

An eraser makes the means of all classes equal with the least mean squared change, under every positive definite inner
product (Belrose et al. 2023, arXiv 2306.03819, theorems 3.1 and 4.2, 4.3). On the tokens it was fitted on, no probe
with an intercept then has a lower convex loss than the best constant prediction. This also holds for a bias-free probe:
with equal means, Jensen's inequality gives E[loss(W r(x), y)] >= E[loss(W mu, y)], and W mu is a constant prediction.
An intercept only allows the probe to reach the bound. A bias-free probe can only use the common mean as an intercept,
and the noise around that mean then adds to its loss. The bound holds for the loss, not for accuracy: classes with equal
means may differ in their spread, although the probe of least loss does not use that. On other sentences all of this
holds up to sampling error.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from probing.cache.plan import Plan, Shard
from probing.cache.tokens import Tokens
from probing.data.examples import Activations, Examples, Sides, read
from probing.statistics.moments import CovarianceAccumulator
from probing.statistics.running_mean import ROWS

# Eigenvalues of the neurons' correlation matrix below this share of the largest are rounding errors. The relative
# rounding error of float32 states is 6e-8, so that a direction without variance, which every LayerNorm leaves, has an
# eigenvalue of about 1e-14.
EIGENVALUE_CUT = 1e-10
# A neuron's standard deviation below this share of its mean is a rounding error too.
VARIES = 6e-8
# Canonical correlations between states and classes below this are rounding errors of the float64 sums.
CORRELATION_CUT = 1e-10


@dataclass(frozen=True)
class Eraser:
    """The map r(x) = x - W^+ P W (x - mean), with W^+ P W = left @ right of rank at most n_classes - 1.

    Args:
        mean: Mean of the tokens that it was fitted on, which the map preserves, shape (d_model,), float64.
        left: First factor, shape (d_model, rank), float64.
        right: Second factor, shape (rank, d_model), float64; right @ left is the identity.
    """

    mean: Tensor
    left: Tensor
    right: Tensor

    @property
    def rank(self) -> int:
        """Number of directions that are removed."""
        return self.left.shape[1]

    def apply(self, hidden_states: Tensor) -> Tensor:
        """Return the states without the linear information about the class.

        Args:
            hidden_states: The states, shape (..., d_model).

        Returns:
            Of the same shape and dtype; computed in float64.
        """
        centred = hidden_states.double() - self.mean
        return (hidden_states.double() - (centred @ self.right.T) @ self.left.T).to(hidden_states.dtype)


class ErasureAccumulator:
    """Takes batches of one layer and returns their eraser; sums are taken in float64.

    Args:
        d_model: Number of neurons.
        n_classes: Number of classes.
    """

    def __init__(self, d_model: int, n_classes: int) -> None:
        self.moments = CovarianceAccumulator(d_model)
        self.counts = torch.zeros(n_classes, dtype=torch.float64)
        # Origin of the class sums: the mean of the first batch, which keeps the sums precise enough to tell classes
        # apart.
        self.origin: Tensor | None = None
        self.class_sums = torch.zeros(n_classes, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens and their labels, shapes (n, d_model) and (n,); n may be 0, and the label -1 is ignored."""
        kept = labels >= 0
        states, classes = hidden_states[kept], labels[kept]
        if not len(states):
            return
        if self.origin is None:
            self.origin = states.mean(0, dtype=torch.float64)
        self.moments.update(states)
        self.counts += classes.bincount(minlength=len(self.counts))
        for rows, own in zip(states.split(ROWS), classes.split(ROWS), strict=True):
            self.class_sums.index_add_(0, own, rows.double() - self.origin)

    def result(self) -> Eraser:
        """Return the eraser fitted on all tokens added.

        Neurons are divided by their standard deviations before the eigenvectors are computed. This only changes the
        scale of the threshold for small eigenvalues. Directions below the threshold, and neurons that do not vary, are
        left unchanged.

        Raises:
            ValueError: If nothing was added.
        """
        moments = self.moments.result()
        mean, n_tokens, sd = moments.mean, moments.n_tokens, moments.sd
        inverse_sd = torch.where(sd > VARIES * mean.abs(), 1 / sd, 0.0)
        values, vectors = torch.linalg.eigh(inverse_sd[:, None] * moments.covariance * inverse_sd)
        kept = values > EIGENVALUE_CUT * values[-1]
        values, vectors = values[kept], vectors[:, kept]
        whiten = (vectors / values.sqrt()).T * inverse_sd
        # Class indicators divided by their standard deviations, so that singular values are canonical correlations.
        seen = self.counts > 0
        counts = self.counts[seen]
        centred = self.class_sums[seen] - counts[:, None] * (self.class_sums.sum(0) / n_tokens)
        cross = centred / (n_tokens * counts).sqrt()[:, None]
        directions, correlations, _ = torch.linalg.svd(whiten @ cross.T, full_matrices=False)
        directions = directions[:, correlations > CORRELATION_CUT][:, : len(counts) - 1]
        unwhiten = sd[:, None] * vectors * values.sqrt()
        return Eraser(mean, unwhiten @ directions, directions.T @ whiten)


def fit_erasers(train: Examples, layers: Sequence[int], n_classes: int) -> dict[int, Eraser]:
    """Return an eraser for each layer, fitted in one streamed pass.

    Args:
        train: Training examples.
        layers: Layer numbers.
        n_classes: Number of classes.
    """
    accumulators = {layer: ErasureAccumulator(train.store.plan.d_model, n_classes) for layer in layers}
    for batch in read(train, layers):
        for accumulator, states in zip(accumulators.values(), batch.hidden_states, strict=True):
            accumulator.update(states, batch.labels)
    return {layer: accumulator.result() for layer, accumulator in accumulators.items()}


class Changed:
    """Behaves like a store, but maps each layer's hidden states by a function.

    If the task averages the pieces of a word, it does so after the map. All maps used here are affine, so the order
    makes no difference.

    Args:
        store: The store to read.
        changes: Function of each layer, from shape (n, d_model of the store) to (n, d_model).
        d_model: Number of neurons after the map; None if unchanged.
    """

    def __init__(
        self, store: Activations, changes: Mapping[int, Callable[[Tensor], Tensor]], d_model: int | None = None
    ) -> None:
        self.store, self.changes = store, changes
        self.tokens: Tokens = store.tokens
        self.plan: Plan = replace(store.plan, d_model=d_model or store.plan.d_model)

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.store.shard_tokens(shard)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the mapped hidden states of a shard, shape (n, d_model), in float32 or wider."""
        return self.changes[layer](self.store.read(layer, shard).float())


def erased(sides: Sides, layers: Sequence[int], fitted_on: Examples | None = None) -> Sides:
    """Return the sides with activations from which the class is linearly erased.

    Args:
        sides: The sides with the original activations.
        layers: Layer numbers that will be read.
        fitted_on: Examples that the erasers are fitted on, such as the same tokens with other labels; `sides.train` if
            None.
    """
    return without(sides, fit_erasers(fitted_on or sides.train, layers, len(sides.classes)))


def without(sides: Sides, erasers: Mapping[int, Eraser]) -> Sides:
    """Return the sides with activations mapped by each layer's eraser."""
    changes = {layer: eraser.apply for layer, eraser in erasers.items()}
    return sides.each(lambda examples: replace(examples, store=Changed(examples.store, changes)))


def with_neurons(sides: Sides, neurons: Mapping[int, Sequence[int]]) -> Sides:
    """Return the sides with the activations of some neurons only, equally many in each layer.

    Raises:
        ValueError: If the numbers of neurons differ between layers.
    """
    d_model, *others = {len(kept) for kept in neurons.values()}
    if others:
        raise ValueError(f"all layers must have the same number of neurons, not {d_model} and {others[0]}")

    def pick(kept: Sequence[int]) -> Callable[[Tensor], Tensor]:
        columns = torch.as_tensor(kept)
        return lambda hidden_states: hidden_states[:, columns]

    changes = {layer: pick(kept) for layer, kept in neurons.items()}
    return sides.each(lambda examples: replace(examples, store=Changed(examples.store, changes, d_model)))
