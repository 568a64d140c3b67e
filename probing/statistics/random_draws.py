"""Intervals of what is a mean over random draws, such as those of a control's labels."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

LEVEL = 0.95


def widened(value: float, interval: tuple[float, float], draws: Sequence[float]) -> tuple[float, float]:
    """Return an interval for other draws too, from one that takes the draws as they are.

    At each end the distances from the value are added as squares (Zou & Donner 2008): that of the interval, and that of
    Student's t interval for the mean over draws.

    Args:
        value: What the interval is of.
        interval: Lower and upper end.
        draws: What each draw gave; of a single one, how far others would be cannot be told, and the interval stays.
    """
    if len(draws) < 2:
        return interval
    reach = stdtrit(len(draws) - 1, (1 + LEVEL) / 2) * np.std(draws, ddof=1) / math.sqrt(len(draws))
    low, high = interval
    return value - math.hypot(value - low, reach), value + math.hypot(high - value, reach)
