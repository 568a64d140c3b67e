"""A value among those of random draws: how many are below it, and its p-value by rank.

Comparisons with NaN are false, so that an undefined value would be beyond all draws: it is undefined here too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Drawn = Sequence[float] | NDArray[np.float64]


def rank_p(value: float, drawn: Drawn) -> float:
    """Return the share of values, this one among them, that are at least as large: a one-sided p-value by rank.

    It is NaN if the value or one of the others is.
    """
    others = np.asarray(drawn, dtype=np.float64)
    if math.isnan(value) or np.isnan(others).any():
        return math.nan
    return (1 + int((others >= value).sum())) / (1 + len(others))


def percentile_of(value: float, drawn: Drawn) -> float:
    """Return the percentage of the others that are below a value; NaN without others, or where one of all is NaN."""
    others = np.asarray(drawn, dtype=np.float64)
    if not len(others) or math.isnan(value) or np.isnan(others).any():
        return math.nan
    return 100 * int((others < value).sum()) / len(others)
