"""Linear erasure (LEACE), and what a probe knows without it or with few neurons.

An eraser makes the means of all classes equal, with the least change in mean square, whatever positive definite form
measures it (Belrose et al. 2023, arXiv 2306.03819, theorems 3.1 and 4.2, 4.3). On the tokens it was fitted on, no probe
with an intercept then has a lower convex loss than the best constant answer. Nor has one without: with equal means,
Jensen's inequality gives E[loss(W r(x), y)] >= E[loss(W mu, y)], and W mu is a constant answer. What an intercept adds
is only that the bound is reached; a bias-free probe has but the common mean to make one of, and pays for it with the
noise around that mean. The bound is one on the loss. Accuracy has none: classes of one mean may differ in their
spread, though the probe of least loss does not look there. On other sentences all of this holds up to sampling.
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

# Eigenvalues of the neurons' correlations below this share of the largest are rounding: states in float32 are rounded
# by 6e-8 of their size, so that a direction without variance, as every LayerNorm leaves one, shows some 1e-14.
EIGENVALUE_CUT = 1e-10
# A neuron's standard deviation below this share of its mean is rounding too.
VARIES = 6e-8
# Canonical correlations between states and classes below this are rounding of the float64 sums.
CORRELATION_CUT = 1e-10


@dataclass(frozen=True)
class Eraser:
    """The map r(x) = x - W^+ P W (x - mean), with W^+ P W = left @ right of rank at most n_classes - 1.

    Args:
        mean: Of the tokens it was fitted on, which it keeps, shape (d_model,), float64.
        left: Shape (d_model, rank), float64.
        right: Shape (rank, d_model), float64; right @ left is the identity.
    """

    mean: Tensor
    left: Tensor
    right: Tensor

    @property
    def rank(self) -> int:
        """Number of directions that are removed."""
        return self.left.shape[1]

    def apply(self, hidden_states: Tensor) -> Tensor:
        """Return the states without what they tell linearly of the class.

        Args:
            hidden_states: Shape (..., d_model).

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
        # Of the sums of classes: the mean of the first batch, so that they keep the digits that tell classes apart.
        self.origin: Tensor | None = None
        self.class_sums = torch.zeros(n_classes, d_model, dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor) -> None:
        """Add tokens, shapes (n, d_model) and (n,); those labelled -1 do not count, and none is fine."""
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
        """Return the eraser of what was added.

        Neurons are divided by their standard deviations before the eigenvectors are taken, which changes nothing but
        what the cut of small eigenvalues is relative to. A direction that is cut, or a neuron that does not vary, is
        left as it is.

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
        # Classes divided by their own standard deviations, so that singular values are canonical correlations.
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
    """Reads like a store whose hidden states are changed, each layer's in its own way.

    Means over the pieces of a word, where the task takes them, come after the change: an affine one, which all here
    are, is the same before and after.

    Args:
        store: What is read.
        changes: Of each layer, takes shape (n, d_model of the store) to (n, d_model).
        d_model: Number of neurons after the change, of the store if None.
    """

    def __init__(
        self, store: Activations, changes: Mapping[int, Callable[[Tensor], Tensor]], d_model: int | None = None
    ) -> None:
        self.store, self.changes = store, changes
        self.tokens: Tokens = store.tokens
        self.plan: Plan = replace(store.plan, d_model=d_model or store.plan.d_model)

    def shard_tokens(self, shard: Shard) -> slice:
        """Return which rows of the table of tokens are in the shard."""
        return self.store.shard_tokens(shard)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the changed hidden states of a shard, shape (n, d_model), float32 at least."""
        return self.changes[layer](self.store.read(layer, shard).float())


def erased(sides: Sides, layers: Sequence[int], fitted_on: Examples | None = None) -> Sides:
    """Return the sides with activations from which the class is linearly erased.

    Args:
        sides: With the true activations.
        layers: Layer numbers that will be read.
        fitted_on: What the erasers are fitted on; `sides.train` if None, or the same tokens with other labels.
    """
    return without(sides, fit_erasers(fitted_on or sides.train, layers, len(sides.classes)))


def without(sides: Sides, erasers: Mapping[int, Eraser]) -> Sides:
    """Return the sides with activations that have passed through each layer's eraser."""
    changes = {layer: eraser.apply for layer, eraser in erasers.items()}
    return sides.each(lambda examples: replace(examples, store=Changed(examples.store, changes)))


def with_neurons(sides: Sides, neurons: Mapping[int, Sequence[int]]) -> Sides:
    """Return the sides with activations of some neurons alone, equally many of each layer.

    Raises:
        ValueError: If it is not equally many.
    """
    d_model, *others = {len(kept) for kept in neurons.values()}
    if others:
        raise ValueError(f"layers are read together with equally many neurons, not {d_model} and {others[0]}")

    def pick(kept: Sequence[int]) -> Callable[[Tensor], Tensor]:
        columns = torch.as_tensor(kept)
        return lambda hidden_states: hidden_states[:, columns]

    changes = {layer: pick(kept) for layer, kept in neurons.items()}
    return sides.each(lambda examples: replace(examples, store=Changed(examples.store, changes, d_model)))
