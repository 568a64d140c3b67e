"""Probes with an intercept: they read centred neurons and a constant, whose weights are the intercept.

The usual probe has no intercept, so the weight of a neuron that stays far from 0 is a compromise: it replaces the
intercept and tells classes apart. Subtracting the mean afterwards does not separate the two. A probe with an intercept
has the same penalty in the same space but reads centred neurons and a constant, so that the weights of its neurons only
tell classes apart. With `--probe.bias` it is the run's own probe; otherwise it is trained for the neurons whose mean
makes their centred contribution unreliable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from probing.data.examples import Activations, Examples, Sides
from probing.probes.erasure import Changed, moments_of
from probing.probes.training import LayerFit
from probing.probes.transforms import Transform, center
from probing.statistics.moments import Moments, Scaling, subtract_

# The constant feature. Its weights are penalised like all others, so that the bound on the distance to the optimum
# holds; at this size the intercept is penalised by only a 10,000th of that and is nearly free.
CONSTANT = 100.0


class WithConstant(Changed):
    """Behaves like a store, but maps hidden states by a transform that centres them, and appends the constant.

    Args:
        store: The store to read.
        transforms: The transform of each layer, without offset.
    """

    n_constants = 1

    def __init__(self, store: Activations, transforms: Mapping[int, Transform]) -> None:
        width = store.plan.d_model + 1
        super().__init__(store, {layer: _and_constant(own) for layer, own in transforms.items()}, width)


def _and_constant(transform: Transform) -> Callable[[Tensor], Tensor]:
    """Return a function from hidden states of shape (n, d_model) to images and the constant, (n, n_out + 1)."""

    def change(hidden_states: Tensor) -> Tensor:
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        changed = hidden_states.new_full((len(hidden_states), transform.n_out + 1), CONSTANT, dtype=dtype)
        images = changed[:, :-1]
        if transform.linear.ndim == 1:  # in place, because new pages of memory take longer than the arithmetic
            subtract_(images.copy_(hidden_states), transform.shift).mul_(transform.linear.to(changed))
        else:
            images.copy_(transform(hidden_states))
        return changed

    return change


def centred(
    sides: Sides, controls: Mapping[str, Sequence[Sides]], layers: Sequence[int]
) -> tuple[Sides, dict[str, list[Sides]], dict[int, Transform]]:
    """Return sides and controls whose neurons have the mean 0 on training examples, and the transforms of the sides.

    Activations that are transformed already are centred by one transform of the original ones.

    Args:
        sides: The sides of the run.
        controls: One or several draws of each control; those with other activations have their own means.
        layers: Layer numbers; the control `token` has only one.
    """
    fitted: dict[int, dict[int, Transform]] = {}
    stores = ChangedOnce()

    def centre(own: Sides, of_layers: Sequence[int]) -> Sides:
        key = id(own.train.store)
        if key not in fitted:
            fitted[key] = _centring(own.train, of_layers)
        return stores.change(own, lambda store: Changed(_original(store), fitted[key]))

    changed = centre(sides, layers)
    others = {
        name: [centre(draw, layers[:1] if name == "token" else layers) for draw in draws]
        for name, draws in controls.items()
    }
    return changed, others, fitted[id(sides.train.store)]


def with_constant(sides: Sides, controls: Mapping[str, Sequence[Sides]]) -> tuple[Sides, dict[str, list[Sides]]]:
    """Return sides and controls that `centred` returned, with the constant beside their neurons."""
    stores = ChangedOnce()

    def add(own: Sides) -> Sides:
        return stores.change(own, lambda store: WithConstant(_original(store), _transforms(store)))

    return add(sides), {name: [add(draw) for draw in draws] for name, draws in controls.items()}


class ChangedOnce:
    """Changes the activations of sides; those that had the same ones have the same ones afterwards.

    The sides must live as long as this object.
    """

    def __init__(self) -> None:
        self._changed: dict[int, Changed] = {}

    def change(self, sides: Sides, change: Callable[[Activations], Changed]) -> Sides:
        """Return the sides with each store changed, by `change` where it has not been changed before."""

        def of(examples: Examples) -> Examples:
            key = id(examples.store)
            if key not in self._changed:
                self._changed[key] = change(examples.store)
            return replace(examples, store=self._changed[key])

        return sides.each(of)


def _centring(train: Examples, layers: Sequence[int]) -> dict[int, Transform]:
    """Return for each layer the transform of the original activations that centres them, also if it does more."""
    moments, before = moments_of(replace(train, store=_original(train.store)), layers), _transforms(train.store)
    return {
        layer: before[layer].centred_on(own.mean) if layer in before else center(own) for layer, own in moments.items()
    }


def _transforms(store: Activations) -> dict[int, Transform]:
    """Return the transform of each layer; empty if the activations are not transformed."""
    changes = store.changes if isinstance(store, Changed) else {}
    return {layer: own for layer, own in changes.items() if isinstance(own, Transform)}


def _original(store: Activations) -> Activations:
    """Return the activations before they were transformed."""
    return store.store if isinstance(store, Changed) and _transforms(store) else store


def moments_with_constant(moments: Moments, scaling: Scaling | None = None) -> Moments:
    """Return the moments of centred neurons and the constant, which is given sd 1, so that it counts as live.

    Args:
        moments: Moments of the neurons.
        scaling: How the neurons are scaled, if they are.
    """
    covariance, sd = moments.covariance, moments.sd
    if scaling is not None:
        covariance, sd = scaling.products(covariance), scaling.features(sd)
    mean = torch.cat([torch.zeros_like(moments.mean), torch.tensor([CONSTANT], dtype=torch.float64)])
    sd = torch.cat([sd, torch.ones(1, dtype=torch.float64)])
    constant = moments.constant
    if constant is not None:
        constant = torch.cat([constant, torch.zeros(1, dtype=torch.bool)])
    # The constant has covariance 0.
    return Moments(moments.n_tokens, mean, sd, torch.nn.functional.pad(covariance, (0, 1, 0, 1)), constant)


def scaled_transform(scaling: Scaling) -> Transform:
    """Return the map that centres neurons and scales them."""
    mean, inverse = scaling.moments.mean, scaling.inverse
    return Transform("standardise", mean, inverse, torch.zeros_like(mean), int(inverse.count_nonzero()))


def of_neurons(fit: LayerFit) -> LayerFit:
    """Return a probe of neurons and the constant, weights (n_classes, d_model + 1), as one of neurons and intercept."""
    moments = fit.moments
    return replace(
        fit,
        weight=fit.weight[:, :-1].clone(),
        moments=Moments(
            moments.n_tokens,
            moments.mean[:-1],
            moments.sd[:-1],
            moments.covariance[:-1, :-1],
            None if moments.constant is None else moments.constant[:-1],
        ),
        intercept=CONSTANT * fit.weight[:, -1],
    )
