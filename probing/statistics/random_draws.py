"""Intervals of means over random draws, such as draws of a control's labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


def widened(value: float, interval: tuple[float, float], draws: Sequence[float]) -> tuple[float, float]:
    """Widen an interval that takes the draws as given, so that it covers new draws too.

    At each end two distances from the value are added in squares (Zou & Donner 2008): that of the given interval, and
    that of Student's t interval for the mean over draws.

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
