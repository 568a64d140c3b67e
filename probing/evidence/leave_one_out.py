"""The loss of a probe without one of its neurons: estimated for all neurons, measured by retraining for some."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.probes.class_curvature import ClassCurvature
from probing.probes.objective import centre_over_classes
from probing.statistics.intervals import mean_interval, mean_p_value
from probing.statistics.multiple_testing import holm
from probing.statistics.scaling import Scaling
from probing.tables.columns import NEGLIGIBLE_NATS

# Number of top neurons that are removed one by one; as many matched neurons are removed for comparison.
REMOVED = 10


def _inverse_curvature(scaling: Scaling, l2: float, n_classes: int) -> Tensor:
    """Return the inverse of C + 2 l2 K, where C is the second moment of the scaled neurons, float64."""
    values, vectors = scaling.axes
    curvature = values + 2 * l2 * n_classes
    return (vectors / curvature) @ vectors.T


def unique(weight: Tensor, scaling: Scaling, l2: float) -> Tensor:
    """Estimate, up to a factor, how much the objective increases without each neuron, from the curvature alone.

    |U_i|^2 / (2 K [(C + 2 l2 K)^-1]_ii), where U is the scaled weight centred over the K classes: the second-order
    estimate of LeCun et al. (1990) and Hassibi & Stork (1993) in which every class has the curvature 1 / K of a
    uniform guess. It orders neurons nearly as retraining does but is several times too large: use its rank, not its
    size.

    Args:
        weight: Probe weight on raw hidden states, shape (n_classes, d_model).
        scaling: The scaling of the layer's neurons.
        l2: Strength of the squared l2 penalty.

    Returns:
        Shape (d_model,), float64; 0 for dead neurons.
    """
    inverse = _inverse_curvature(scaling, l2, len(weight))
    scaled = scaling.scaled_weight(centre_over_classes(weight.double()))
    return scaled.square().sum(0) / (2 * len(weight) * inverse.diagonal())


def without(weight: Tensor, neurons: Sequence[int], scaling: Scaling, l2: float) -> list[Tensor]:
    """Return for each removed neuron an initial weight of the other neurons, close to their optimum.

    The other neurons take over what they predict linearly of the removed one: where v_i is about the sum of b_j v_j,
    their weights grow by W_i b_j. This is only a start for the training, which it shortens by a third.

    Args:
        weight: Probe weight on raw hidden states, shape (n_classes, d_model).
        neurons: Neurons that are removed, one at a time.
        scaling: The scaling of the layer's neurons.
        l2: Strength of the squared l2 penalty.

    Returns:
        A tensor for each removed neuron, shape (n_classes, d_model), float32; its column of that neuron is 0.
    """
    inverse = _inverse_curvature(scaling, l2, len(weight))
    scaled = scaling.scaled_weight(weight.double())
    starts = []
    for i in neurons:
        start = scaled - scaled[:, i, None] * (inverse[i] / inverse[i, i])
        start[:, i] = 0
        starts.append(scaling.raw_weight(start).float())
    return starts


def without_by_class(
    weight: Tensor, neurons: Sequence[int], scaling: Scaling, curvature: ClassCurvature
) -> list[Tensor]:
    """Return initial weights as `without` does, closer to the optimum: each class is adjusted by its own curvature.

    Args:
        weight: Probe weight on raw hidden states, shape (n_classes, d_model).
        neurons: Neurons that are removed, one at a time.
        scaling: The scaling of the layer's neurons.
        curvature: Curvature of the objective at the finished probe.

    Returns:
        A tensor for each removed neuron, shape (n_classes, d_model), float32; its column of that neuron is 0.
    """
    scaled, others = scaling.scaled_weight(weight.to(curvature.inverse)), torch.arange(weight.shape[1])
    return [scaling.raw_weight(curvature.within(others != i).without(scaled)).float() for i in neurons]


def matched(top: Sequence[int], others: Sequence[int], sd: Tensor, seed: int) -> list[int]:
    """Return for each top neuron another neuron of similar sd, drawn from the ten that are nearest in sd.

    Args:
        top: Neurons at the top.
        others: Neurons to draw from; each is drawn at most once.
        sd: Standard deviations of all neurons, shape (d_model,).
        seed: Seed of the draw.
    """
    generator, left, drawn = np.random.default_rng(seed), list(others), []
    for neuron in top[: len(left)]:
        near = sorted(left, key=lambda i: (abs(float(sd[i] - sd[neuron])), i))[:10]
        drawn.append(int(generator.choice(near)))
        left.remove(drawn[-1])
    return drawn


Outcome = Literal["seen", "negligible", "unresolved"]


@dataclass(frozen=True)
class AblationEffect:
    """How much the test cross-entropy increases when the probe is retrained without a neuron.

    Args:
        value: Increase of the mean test cross-entropy, in nats; negative where the probe improves without the neuron.
        low: Lower end of its 95% interval, from differences paired by test sentence, and widened by the distance that
            both probes may have from their optima; NaN where there are too few sentences.
        high: Upper end of that interval.
        p: Two-sided p-value of no effect: 1 minus the highest level at which the interval leaves out 0; NaN without it.
    """

    value: float
    low: float
    high: float
    p: float = math.nan

    @property
    def outcome(self) -> Outcome:
        """`seen` if the interval excludes 0, `negligible` if it is within `NEGLIGIBLE_NATS` of 0, else `unresolved`."""
        if self.low > 0 or self.high < 0:
            return "seen"
        return "negligible" if max(-self.low, self.high) < NEGLIGIBLE_NATS else "unresolved"


def ablation_effect(
    with_it: NDArray[np.float64], without_it: NDArray[np.float64], n_tokens: NDArray[np.int64], shift: float
) -> AblationEffect:
    """Return the increase of the test cross-entropy without a neuron, paired by sentence.

    Args:
        with_it: Cross-entropy of each test sentence or document under the probe with the neuron, summed over its
            tokens, in nats, shape (n,).
        without_it: The same under the probe without the neuron.
        n_tokens: Number of test tokens of each, shape (n,); those with none are ignored.
        shift: Bound on the error of the difference that comes from both probes' distances to their optima, in nats.
    """
    difference = without_it - with_it
    low, high = mean_interval(difference, n_tokens)
    value = float(difference.sum() / n_tokens.sum())
    # An effect that is nearer to 0 than the error may be none; a larger one is moved by the error towards 0.
    nearer = difference - math.copysign(shift, value) * n_tokens
    p = mean_p_value(nearer, n_tokens) if abs(value) > shift else math.nan if math.isnan(low) else 1.0
    return AblationEffect(value, low - shift, high + shift, p)


def corrected(effects: Mapping[int, AblationEffect]) -> dict[int, float]:
    """Return the p-value of each removed neuron, corrected for all that were removed in the layer."""
    return dict(zip(effects, holm([effect.p for effect in effects.values()]), strict=True))


def with_corrected(rows: Sequence[dict[str, Any]], effects: Mapping[int, AblationEffect]) -> list[dict[str, Any]]:
    """Add the column `removed_p` to the table of a layer; it is empty for neurons that were not removed.

    Args:
        rows: Rows of the table.
        effects: Effect of removing a neuron, by neuron.
    """
    p = corrected(effects)
    return [{**row, "removed_p": p.get(row["neuron"])} if effects else row for row in rows]
