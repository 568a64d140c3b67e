"""What a probe loses without one of its neurons: estimated for all, measured by retraining for some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.probes.class_curvature import ClassCurvature
from probing.rankings.contributions import centre_over_classes
from probing.statistics.intervals import mean_interval
from probing.statistics.moments import Moments, PenaltySpace
from probing.tables.columns import NEGLIGIBLE_NATS

# Neurons at the top that are removed one by one, and as many others beside them.
REMOVED = 10


def _inverse_curvature(moments: Moments, space: PenaltySpace, l2: float, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return the inverse of C + 2 l2 K, C being the scaled features' second moment, and 1 / scale, both float64."""
    inverse_scale = moments.inverse_scale(space)
    values, vectors = torch.linalg.eigh(inverse_scale[:, None] * moments.second_moment * inverse_scale)
    # No second moment has an eigenvalue below 0, but rounding makes one where neurons repeat each other, and beside a
    # small penalty an inverse that is positive no more.
    curvature = values.clamp(min=0) + 2 * l2 * n_classes
    return (vectors / curvature) @ vectors.T, inverse_scale


def unique(weight: Tensor, moments: Moments, space: PenaltySpace, l2: float) -> Tensor:
    """Estimate for every neuron the rise of the objective without it, up to a factor, from the curvature alone.

    |U_i|^2 / (2 K [(C + 2 l2 K)^-1]_ii), U being the scaled weights centred over the K classes: the second-order
    estimate of LeCun et al. (1990) and Hassibi & Stork (1993) in which every class has the curvature 1 / K of a
    uniform guess. It orders neurons nearly as retraining does, and is several times too large: a rank, not a size.

    Args:
        weight: On raw hidden states, shape (n_classes, d_model).
        moments: Of the training tokens.
        space: Where weights are penalised.
        l2: Strength of that penalty.

    Returns:
        Shape (d_model,), float64; 0 for dead neurons.
    """
    inverse, inverse_scale = _inverse_curvature(moments, space, l2, len(weight))
    scaled = torch.where(inverse_scale > 0, centre_over_classes(weight.double()) / inverse_scale, 0.0)
    return scaled.square().sum(0) / (2 * len(weight) * inverse.diagonal())


def without(weight: Tensor, neurons: Sequence[int], moments: Moments, space: PenaltySpace, l2: float) -> list[Tensor]:
    """Return for each neuron weights that do without it, near to the best ones.

    What the other neurons predict of it linearly is read off them instead: where v_i is about the sum of b_j v_j,
    their weights grow by W_i b_j. Only a start for the training, and a third less of it.

    Args:
        weight: On raw hidden states, shape (n_classes, d_model).
        neurons: Which are removed, one at a time.
        moments: Of the training tokens.
        space: Where weights are penalised.
        l2: Strength of that penalty.

    Returns:
        For each neuron, shape (n_classes, d_model), float32.
    """
    inverse, inverse_scale = _inverse_curvature(moments, space, l2, len(weight))
    scaled = torch.where(inverse_scale > 0, weight.double() / inverse_scale, 0.0)
    starts = []
    for i in neurons:
        start = scaled - scaled[:, i, None] * (inverse[i] / inverse[i, i])
        start[:, i] = 0
        starts.append((start * inverse_scale).float())
    return starts


def without_by_class(
    weight: Tensor, neurons: Sequence[int], moments: Moments, space: PenaltySpace, curvature: ClassCurvature
) -> list[Tensor]:
    """Return for each neuron weights that do without it, nearer to the best ones: what others predict of it by class.

    Args:
        weight: On raw hidden states, shape (n_classes, d_model).
        neurons: Which are removed, one at a time.
        moments: Of the training tokens.
        space: Where weights are penalised.
        curvature: Of the finished probe.

    Returns:
        For each neuron, shape (n_classes, d_model), float32.
    """
    inverse_scale = moments.inverse_scale(space).float()
    scaled = torch.where(inverse_scale > 0, weight / inverse_scale, 0.0)
    others = torch.arange(weight.shape[1])
    return [curvature.within(others != i).without(scaled) * inverse_scale for i in neurons]


def matched(top: Sequence[int], others: Sequence[int], sd: Tensor, seed: int) -> list[int]:
    """Return for each of the top neurons another one that varies about as much, drawn from the ten nearest in sd.

    Args:
        top: Neurons at the top.
        others: Those to draw from; each is drawn once at most.
        sd: Standard deviations, shape (d_model,).
        seed: Of the draw.
    """
    generator, left, drawn = np.random.default_rng(seed), list(others), []
    for neuron in top[: len(left)]:
        near = sorted(left, key=lambda i: (abs(float(sd[i] - sd[neuron])), i))[:10]
        drawn.append(int(generator.choice(near)))
        left.remove(drawn[-1])
    return drawn


Outcome = Literal["seen", "negligible", "unresolved"]


@dataclass(frozen=True)
class Rise:
    """How much worse the test tokens are predicted by the probe retrained without a neuron.

    Args:
        value: Rise of the mean test cross-entropy, in nats; negative where the probe does better without.
        low: Lower end of its 95% interval over test sentences, paired, and widened by what both probes may be away from
            their optima; NaN where there are too few sentences.
        high: Upper end.
    """

    value: float
    low: float
    high: float

    @property
    def outcome(self) -> Outcome:
        """What the interval says: a rise or a fall, that it is less than `NEGLIGIBLE_NATS` either way, or neither."""
        if self.low > 0 or self.high < 0:
            return "seen"
        return "negligible" if max(-self.low, self.high) < NEGLIGIBLE_NATS else "unresolved"


def rise(
    with_it: NDArray[np.float64], without_it: NDArray[np.float64], n_tokens: NDArray[np.int64], shift: float
) -> Rise:
    """Return the rise of the cross-entropy, paired by sentence.

    Args:
        with_it: Cross-entropy of each test sentence, or document, summed over its tokens, in nats, shape (n,).
        without_it: The same of the probe without the neuron.
        n_tokens: Test tokens of each, shape (n,); those without any do not count.
        shift: How far both probes' mean test cross-entropies may be from those at their optima, taken together.
    """
    difference = without_it - with_it
    low, high = mean_interval(difference, n_tokens)
    return Rise(float(difference.sum() / n_tokens.sum()), low - shift, high + shift)
