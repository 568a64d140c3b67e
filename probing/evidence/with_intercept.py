"""A companion probe with an intercept, for neurons whose mean makes their centred contribution unreliable.

The probe has no intercept, so the weights of a neuron that stays far from 0 are a compromise: they serve as one, and
they tell classes apart. Taking the mean off afterwards does not undo that. The companion has the same penalty in the
same space, but reads centred neurons beside a constant: its weights tell classes apart and do nothing else.
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

# The constant that the companion reads. Its weights are penalised like all others, so that the bound on the distance to
# the optimum holds, and the intercept thereby by a 10,000th of that: nearly free.
CONSTANT = 100.0


def is_far(moments: Moments) -> Tensor:
    """Return which live neurons have a mean far from 0, shape (d_model,), bool."""
    return (moments.mean.abs() > FAR * moments.sd) & ~moments.dead


def with_constants(sides: Sides, moments: Mapping[int, Moments], space: PenaltySpace) -> Sides:
    """Return the sides with the companion's features, shape (n, d_model + 1), in place of the layers' activations.

    Args:
        sides: With the true activations.
        moments: Of the training tokens, by layer number.
        space: Where weights are penalised.
    """
    changes = {layer: with_constant(own, space) for layer, own in moments.items()}
    width = sides.train.store.plan.d_model + 1
    return sides.each(lambda examples: replace(examples, store=Changed(examples.store, changes, width)))


def with_constant(moments: Moments, space: PenaltySpace) -> Callable[[Tensor], Tensor]:
    """Return what takes hidden states to the companion's features: centred, scaled, and the constant behind them.

    Args:
        moments: Of the training tokens.
        space: Where weights are penalised.

    Returns:
        A map from shape (n, d_model) to (n, d_model + 1).
    """
    mean, inverse_scale = moments.mean.float(), moments.inverse_scale(space).float()

    def change(hidden_states: Tensor) -> Tensor:
        scaled = (hidden_states - mean) * inverse_scale
        return torch.nn.functional.pad(scaled, (0, 1), value=CONSTANT)

    return change


def companion_moments(moments: Moments, space: PenaltySpace) -> Moments:
    """Return the moments of the companion's features; the constant counts as live."""
    inverse_scale = moments.inverse_scale(space)
    scaled = inverse_scale[:, None] * moments.covariance * inverse_scale
    covariance = torch.nn.functional.pad(scaled, (0, 1, 0, 1))  # of the constant 0
    sd = torch.cat([moments.sd * inverse_scale, torch.ones(1)])
    mean = torch.cat([torch.zeros_like(moments.mean), torch.tensor([CONSTANT])])
    return Moments(moments.n_tokens, mean.double(), sd.double(), covariance)


def companion_start(weight: Tensor, moments: Moments, space: PenaltySpace) -> Tensor:
    """Return the companion that has the probe's logits, but for what far neurons say: their means become intercept.

    Args:
        weight: Of the probe on raw hidden states, shape (n_classes, d_model).
        moments: Of the training tokens.
        space: Where weights are penalised.

    Returns:
        On the companion's features, shape (n_classes, d_model + 1).
    """
    inverse_scale = moments.inverse_scale(space)
    intercept = weight.double() @ moments.mean / CONSTANT
    kept = (inverse_scale > 0) & ~is_far(moments)
    scaled = torch.where(kept, weight.double() / inverse_scale, 0.0)
    return torch.cat([scaled, intercept[:, None]], 1).float()


def on_hidden_states(weight: Tensor, moments: Moments, space: PenaltySpace) -> Tensor:
    """Return the companion's weights on raw hidden states, without the intercept, shape (n_classes, d_model)."""
    return weight[:, :-1] * moments.inverse_scale(space).to(weight)
