"""A probe with an intercept, for neurons whose mean makes their centred contribution unreliable.

The usual probe has no intercept, so the weight of a neuron that stays far from 0 is a compromise: it replaces the
intercept and tells classes apart. Subtracting the mean afterwards does not separate the two. The probe with an
intercept has the same penalty in the same space but reads centred neurons and a constant, so that the weights of its
neurons only tell classes apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from probing.data.examples import Sides
from probing.statistics.moments import Moments, PenaltySpace
from probing.tables.columns import FAR
from probing.transforms.erasure import Changed

# The constant feature. Its weights are penalised like all others, so that the bound on the distance to the optimum
# holds; at this size the intercept is penalised by only a 10,000th of that and is nearly free.
CONSTANT = 100.0


def is_far(moments: Moments) -> Tensor:
    """Return which live neurons have a mean far from 0 (more than `FAR` sd), shape (d_model,), bool."""
    return (moments.mean.abs() > FAR * moments.sd) & ~moments.dead


def with_constants(sides: Sides, moments: Mapping[int, Moments], space: PenaltySpace) -> Sides:
    """Return the sides with centred neurons and a constant, shape (n, d_model + 1), in place of the activations.

    Args:
        sides: Examples with their activations.
        moments: Moments of the training tokens, by layer number.
        space: Space in which weights are penalised.
    """
    changes = {layer: with_constant(own, space) for layer, own in moments.items()}
    width = sides.train.store.plan.d_model + 1
    return sides.each(lambda examples: replace(examples, store=Changed(examples.store, changes, width)))


def with_constant(moments: Moments, space: PenaltySpace) -> Callable[[Tensor], Tensor]:
    """Return a function that centres and scales hidden states and appends the constant.

    Args:
        moments: Moments of the training tokens.
        space: Space in which weights are penalised.

    Returns:
        A function from shape (n, d_model) to (n, d_model + 1).
    """
    mean, inverse_scale = moments.mean.float(), moments.inverse_scale(space).float()

    def change(hidden_states: Tensor) -> Tensor:
        scaled = (hidden_states - mean) * inverse_scale
        return torch.nn.functional.pad(scaled, (0, 1), value=CONSTANT)

    return change


def moments_with_constant(moments: Moments, space: PenaltySpace) -> Moments:
    """Return the moments of the features of `with_constant`; the constant is given sd 1, so that it counts as live."""
    inverse_scale = moments.inverse_scale(space)
    scaled = inverse_scale[:, None] * moments.covariance * inverse_scale
    covariance = torch.nn.functional.pad(scaled, (0, 1, 0, 1))  # the constant has covariance 0
    sd = torch.cat([moments.sd * inverse_scale, torch.ones(1)])
    mean = torch.cat([torch.zeros_like(moments.mean), torch.tensor([CONSTANT])])
    return Moments(moments.n_tokens, mean.double(), sd.double(), covariance)


def start_with_intercept(weight: Tensor, moments: Moments, space: PenaltySpace) -> Tensor:
    """Return an initial weight of the probe with an intercept, with the logits of the probe without one.

    Only neurons with a mean far from 0 differ: they start at 0, and their means go into the intercept.

    Args:
        weight: Weight of the probe without intercept on raw hidden states, shape (n_classes, d_model).
        moments: Moments of the training tokens.
        space: Space in which weights are penalised.

    Returns:
        Weight on the features of `with_constant`, shape (n_classes, d_model + 1).
    """
    inverse_scale = moments.inverse_scale(space)
    intercept = weight.double() @ moments.mean / CONSTANT
    kept = (inverse_scale > 0) & ~is_far(moments)
    scaled = torch.where(kept, weight.double() / inverse_scale, 0.0)
    return torch.cat([scaled, intercept[:, None]], 1).float()


def on_hidden_states(weight: Tensor, moments: Moments, space: PenaltySpace) -> Tensor:
    """Convert a weight on the features of `with_constant` to raw hidden states, without the intercept.

    Returns:
        Shape (n_classes, d_model).
    """
    return weight[:, :-1] * moments.inverse_scale(space).to(weight)
