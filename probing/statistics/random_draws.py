"""Intervals of means over random draws, such as draws of a control's labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


def widened(value: float, interval: tuple[float, float], draws: Sequence[float]) -> tuple[float, float]:
    """Widen an interval that holds for the given draws only, so that it also covers the variation between draws.

    At each end, the distances of two intervals from the value are combined as the root of their sum of squares (Zou &
    Donner 2008): the distance of the given interval, and that of Student's t interval for the mean over draws.

    Args:
        value: The estimate that the interval belongs to.
        interval: Lower and upper end.
        draws: Estimate of each draw. A single draw does not show how much draws vary, and leaves the interval as it is.
    """
    if len(draws) < 2:
        return interval
    reach = stdtrit(len(draws) - 1, (1 + LEVEL) / 2) * np.std(draws, ddof=1) / math.sqrt(len(draws))
    low, high = interval
    return value - math.hypot(value - low, reach), value + math.hypot(high - value, reach)
