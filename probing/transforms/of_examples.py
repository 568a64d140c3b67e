"""Transforms fitted on training examples, and examples with transformed activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from probing.data.examples import Examples, Sides, read_share
from probing.runtime.distributed import sum_over_ranks
from probing.statistics.moments import Covariance, CovarianceAccumulator
from probing.statistics.outliers import by_mean_profile
from probing.transforms.affine import Fitting, Kind, Transform, clip, fit_transform, random_neurons
from probing.transforms.erasure import Changed

# With zca, every layer keeps its width, and each whitened coordinate still belongs to a neuron.
HOW = Fitting(whitening="zca")


def moments_of(train: Examples, layers: Sequence[int]) -> dict[int, Covariance]:
    """Return mean and covariance of each layer's examples, in one streamed pass divided among ranks."""
    accumulators = {layer: CovarianceAccumulator(train.store.plan.d_model) for layer in layers}
    for batch in read_share(train, layers):
        for accumulator, states in zip(accumulators.values(), batch.hidden_states, strict=True):
            accumulator.update(states)
    for accumulator in accumulators.values():
        accumulator.all_reduce(sum_over_ranks)
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
