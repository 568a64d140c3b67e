"""Linear erasure (LEACE), and examples whose activations are transformed, erased or restricted to some neurons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from probing.cache.store import Plan, Shard
from probing.cache.tokens import Tokens
from probing.data.examples import Activations, Examples, Sides, read, read_share
from probing.data.module import are_columns
from probing.probes.transforms import Fitting, Kind, Transform, clip, fit_transform, random_neurons
from probing.runtime.processes import most_over_ranks, sum_over_ranks
from probing.statistics.moments import ROWS, Covariance, CovarianceAccumulator
from probing.statistics.outliers import by_mean_profile

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

    n_constants = 0

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


# With zca, every layer keeps its width, and each whitened coordinate still belongs to a neuron.
HOW = Fitting(whitening="zca")


def moments_of(train: Examples, layers: Sequence[int]) -> dict[int, Covariance]:
    """Return mean and covariance of each layer's examples, in one streamed pass divided among ranks."""
    width, columns = train.store.plan.d_model, are_columns(train.store)
    accumulators = {layer: CovarianceAccumulator(width, columns) for layer in layers}
    for batch in read_share(train, layers):
        for accumulator, states in zip(accumulators.values(), batch.hidden_states, strict=True):
            accumulator.update(states)
    for accumulator in accumulators.values():
        accumulator.all_reduce(sum_over_ranks)
        accumulator.mean.limits = most_over_ranks(accumulator.mean.limits)
    return {layer: accumulator.result() for layer, accumulator in accumulators.items()}


def fit_each(kind: Kind, moments: Mapping[int, Covariance]) -> dict[int, Transform]:
    """Fit a transform for each layer; `clip` sets the outliers of the mean, if there are any."""
    return {
        layer: fit_transform(kind, of_layer, [o.neuron for o in by_mean_profile(of_layer.mean.numpy())], HOW)
        for layer, of_layer in moments.items()
    }


def clip_others(
    moments: Mapping[int, Covariance], transforms: Mapping[int, Transform], seed: int
) -> dict[int, Transform]:
    """Return for each layer a clip of the same number of other neurons, drawn at random, or of all others if too few.

    Args:
        moments: Moments of each layer.
        transforms: The transforms that clip the outliers, by layer.
        seed: Seed of the draws; the draw of a layer does not depend on the other layers.
    """
    found = {}
    for layer, transform in transforms.items():
        outliers = transform.clipped
        n, generator = min(len(outliers), transform.n_out - len(outliers)), np.random.default_rng([seed, layer])
        found[layer] = clip(moments[layer], random_neurons(transform.n_out, n, outliers, generator))
    return found


def transformed(sides: Sides, transforms: Mapping[int, Transform]) -> Sides:
    """Return the sides with activations mapped by each layer's transform."""
    return sides.each(lambda examples: replace(examples, store=Changed(examples.store, transforms)))


def transform_all(
    kind: Kind, sides: Sides, controls: Mapping[str, Sequence[Sides]], layers: Sequence[int], seed: int
) -> tuple[Sides, dict[str, list[Sides]], dict[int, Transform]]:
    """Return sides and controls transformed, and the transforms of the sides.

    Two controls are added: the untransformed sides, and for `clip` the same number of other neurons clipped. Controls
    with other activations have their own transforms, fitted on their training examples; the control `token` is not
    transformed.

    Args:
        kind: Kind of the transform.
        sides: The sides of the run.
        controls: One or several draws of each control; those with the sides' activations have the same transforms.
        layers: Layer numbers.
        seed: Seed of the draw of other neurons.
    """
    moments = moments_of(sides.train, layers)
    fitted = fit_each(kind, moments)

    def change(name: str, other: Sides) -> Sides:
        if name == "token":
            return other
        is_same = other.train.store is sides.train.store
        return transformed(other, fitted if is_same else fit_each(kind, moments_of(other.train, layers)))

    changed = {name: [change(name, draw) for draw in draws] for name, draws in controls.items()}
    changed["untransformed"] = [sides]
    if kind == "clip":
        changed["others_clipped"] = [transformed(sides, clip_others(moments, fitted, seed))]
    return transformed(sides, fitted), changed, fitted
