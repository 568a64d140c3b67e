"""Where float32 is not enough to solve a probe: neurons whose mean is far from 0.

Weights that are multiplied by large means cancel in the logits. With r the distance of the mean from 0, in standard
deviations of all neurons together, rounding then leaves a gradient of about e r^2 along the mean, where e is a share of
float32's rounding. The bound on the distance to the optimum, |gradient|^2 / (4 l2), stays at e^2 r^4 / (4 l2) or above,
although the objective itself is far nearer to its minimum: with an offset of 10,000 standard deviations and an l2 of
1e-3 it was hundreds of nats. In float64 the same solver reaches the tolerance in a dozen passes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from probing.statistics.moments import Moments

# e^2 / 4: where L-BFGS in float32 came to a stand with 3 and 30 classes and 8 to 384 shifted neurons, it was 1e-18 to
# 7e-17 at r = 10 and 100; at a tenth of that, passes multiply.
FLOAT32_NOISE = 5e-18


def dtype_that_solves(moments: Sequence[Moments], l2: float, tolerance: float) -> torch.dtype:
    """Return the dtype in which probes reach a tolerance: float64 where the mean of their neurons is too far from 0.

    Args:
        moments: Moments of the training tokens of each layer.
        l2: The weakest penalty of the probes, in units of standard deviations.
        tolerance: Distance to the optimum that is to be reached, in nats.
    """
    reached = max((FLOAT32_NOISE * distance(own) ** 4 / l2 for own in moments), default=0.0)
    return torch.float64 if reached > tolerance else torch.float32


def distance(moments: Moments) -> float:
    """Return the distance between the mean of a layer's live neurons and 0, each in its standard deviations."""
    return float(torch.where(moments.dead, 0.0, moments.mean / moments.sd).norm())
