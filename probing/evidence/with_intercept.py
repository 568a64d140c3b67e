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
from probing.probes.erasure import Changed
from probing.statistics.moments import Moments, Scaling
from probing.tables.columns import FAR

# The constant feature. Its weights are penalised like all others, so that the bound on the distance to the optimum
# holds; at this size the intercept is penalised by only a 10,000th of that and is nearly free.
CONSTANT = 100.0


def is_far(moments: Moments) -> Tensor:
    """Return which live neurons have a mean far from 0 (more than `FAR` sd), shape (d_model,), bool."""
    return (moments.mean.abs() > FAR * moments.sd) & ~moments.dead


def with_constants(sides: Sides, scalings: Mapping[int, Scaling]) -> Sides:
    """Return the sides with centred neurons and a constant, shape (n, d_model + 1), in place of the activations.

    Args:
        sides: Examples with their activations.
        scalings: The scaling of each layer's neurons, by layer number.
    """
    changes = {layer: with_constant(scaling) for layer, scaling in scalings.items()}
    width = sides.train.store.plan.d_model + 1
    return sides.each(lambda examples: replace(examples, store=Changed(examples.store, changes, width)))


def with_constant(scaling: Scaling) -> Callable[[Tensor], Tensor]:
    """Return a function that centres and scales hidden states and appends the constant.

    Args:
        scaling: The scaling of the layer's neurons.

    Returns:
        A function from shape (n, d_model) to (n, d_model + 1).
    """
    mean, inverse = scaling.moments.mean, scaling.inverse

    def change(hidden_states: Tensor) -> Tensor:
        n, d_model = hidden_states.shape
        dtype = torch.promote_types(hidden_states.dtype, torch.float32)
        changed = hidden_states.new_full((n, d_model + 1), CONSTANT, dtype=dtype)
        # In place, because new pages of memory take longer than the arithmetic.
        changed[:, :d_model].copy_(hidden_states).sub_(mean.to(changed)).mul_(inverse.to(changed))
        return changed

    return change


def moments_with_constant(scaling: Scaling) -> Moments:
    """Return the moments of the features of `with_constant`; the constant is given sd 1, so that it counts as live."""
    moments = scaling.moments
    # The constant has covariance 0.
    covariance = torch.nn.functional.pad(scaling.products(moments.covariance), (0, 1, 0, 1))
    sd = torch.cat([scaling.features(moments.sd), torch.ones(1)])
    mean = torch.cat([torch.zeros_like(moments.mean), torch.tensor([CONSTANT])])
    return Moments(moments.n_tokens, mean.double(), sd.double(), covariance)


def start_with_intercept(weight: Tensor, scaling: Scaling) -> Tensor:
    """Return an initial weight of the probe with an intercept, with the logits of the probe without one.

    Only neurons with a mean far from 0 differ: they start at 0, and their means go into the intercept.

    Args:
        weight: Weight of the probe without intercept on raw hidden states, shape (n_classes, d_model).
        scaling: The scaling of the layer's neurons.

    Returns:
        Weight on the features of `with_constant`, shape (n_classes, d_model + 1).
    """
    intercept = weight.double() @ scaling.moments.mean / CONSTANT
    scaled = torch.where(is_far(scaling.moments), 0.0, scaling.scaled_weight(weight.double()))
    return torch.cat([scaled, intercept[:, None]], 1).float()


def on_hidden_states(weight: Tensor, scaling: Scaling) -> Tensor:
    """Convert a weight on the features of `with_constant` to raw hidden states, without the intercept.

    Returns:
        Shape (n_classes, d_model).
    """
    return scaling.raw_weight(weight[:, :-1])
