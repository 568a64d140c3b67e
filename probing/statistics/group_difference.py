"""Whether two groups of trainings differ by more than their seeds do, and how much all trainings of one have in common.

A training counts as one draw: what is measured of it is on a fixed text, so that only seeds vary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from probing.statistics.intervals import LEVEL

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GroupDifference:
    """The mean of one group less that of another, or over it.

    Args:
        value: The difference, or the ratio.
        low: Lower end of its 95% interval; NaN if a group has fewer than two draws.
        high: Its upper end.
        p: p-value of no difference, or of one that is not above 0; NaN if a group has fewer than two draws. It is 1 if
            neither group varies, because such groups do not tell how far draws differ.
    """

    value: float
    low: float
    high: float
    p: float


def welch(first: Sequence[float], second: Sequence[float], *, is_above: bool) -> GroupDifference:
    """Compare two independent groups of draws whose variances may differ (Welch 1947).

    Args:
        first: Draws of the one group.
        second: Draws of the other.
        is_above: Whether the first is asked to be above the second, and not only to differ.
    """
    a, b = (np.asarray(group, dtype=np.float64) for group in (first, second))
    value = float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2:
        return GroupDifference(value, math.nan, math.nan, math.nan)
    parts = [float(group.var(ddof=1)) / len(group) for group in (a, b)]
    variance = sum(parts)
    if not variance > 0:
        return GroupDifference(value, value, value, 1.0)
    freedom = variance**2 / sum(part**2 / (len(group) - 1) for part, group in zip(parts, (a, b), strict=True))
    error = math.sqrt(variance)
    reach = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    t = value / error
    p = float(stdtr(freedom, -t)) if is_above else 2 * float(stdtr(freedom, -abs(t)))
    return GroupDifference(value, value - reach, value + reach, p)


def times(first: Sequence[float], second: Sequence[float]) -> GroupDifference:
    """Return how many times as large the draws of one group are as those of another, by the means of their logarithms.

    Distances vary in proportion to their size, so that logarithms of two groups vary alike where the groups do not, and
    seeds tell more (Welch's test has more degrees of freedom, and the larger group does not hide the difference). Where
    a draw is 0, there is no ratio, and the p-value is that of the difference.

    Args:
        first: Draws of the group that is asked to be the larger one, at least 0.
        second: Draws of the other.
    """
    if min(*first, *second) > 0:
        found = welch(np.log(first).tolist(), np.log(second).tolist(), is_above=True)
        return GroupDifference(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.p)
    return GroupDifference(math.nan, math.nan, math.nan, welch(first, second, is_above=True).p)


def common_share(from_start: Sequence[float], between: Sequence[float]) -> float:
    """Return which share of their squared distance from a common start trainings have in common; NaN if they are there.

    If training (i) moves the start by c + e_i, where all e_i are independent of c and of each other, and have mean 0,
    its squared distance from the start is |c|^2 + |e|^2 in the mean, and that of two trainings 2 |e|^2. The share of c
    is 1 less half the ratio of the second to the first. One less the cosine is half the squared distance of unit
    vectors, so that it may stand for it; so may one less linear CKA (of centred Gram matrices with norm 1), and the
    Jensen-Shannon divergence, which is the square of a distance in a Hilbert space (Fuglede & Topsoe 2004).

    Args:
        from_start: Squared distance of each training from the start.
        between: Squared distance of pairs of trainings; NaN is returned without any.
    """
    moved = float(np.mean(from_start))
    return math.nan if not len(between) or not moved > 0 else 1 - float(np.mean(between)) / (2 * moved)
