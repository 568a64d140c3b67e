"""P-values of agreement against rankings under shuffled labels, of which only a few can be computed.

Two rankings of one model agree whatever their labels: large neurons contribute to any probe, and some replace the
intercept that it lacks. Permuting scores among neurons does not show this; rankings trained on shuffled labels do
(`probing.rankings.null_rankings`). The first ranking is compared with rankings under shuffled labels of the second
task, and the second ranking with those of the first task. If the labels of either task carry no information, its
ranking is exchangeable with its own draws, so that the test on that side is exact; the larger of the two p-values is
valid whichever task it is (an intersection-union test; Berger 1982).

With n draws no p-value is below 1 / (1 + n), so a correction that multiplies p-values by the number of pairs of layers
would leave none significant. A draw is one set of labels for all layers, so the largest standardised agreement of each
draw over all pairs is known, and a value that exceeds the largest of every draw has p = 1 / (1 + n) after the
correction too (Westfall & Young 1993, single-step maxT).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probing.comparison.permutation_null import ENDS, ROUNDING, Chance

Array = NDArray[np.float64]


def label_chance(value: float, null: Array) -> Chance:
    """Return chance under shuffled labels, for the side with the largest p-value; if they are equal, the largest mean.

    Args:
        value: Agreement of the true rankings.
        null: Agreement under shuffled labels of each task in turn, shape (n_sides, n_draws). A draw whose ranking is
            empty is NaN: it says nothing of chance, so it counts as one that agrees as much as the true rankings. It
            is 0 in the interval, and is left out of the mean.
    """
    p_values = (1 + (~(null < value - ROUNDING)).sum(1)) / (1 + null.shape[1])
    means = [float(np.mean(side[~np.isnan(side)])) if (~np.isnan(side)).any() else 0.0 for side in null]
    side = max(range(len(null)), key=lambda i: (p_values[i], means[i]))
    low, high = np.quantile(np.nan_to_num(null[side]), ENDS)
    return Chance(means[side], float(low), float(high), float(p_values[side]))


def max_p_values(values: Array, null: Array) -> Array:
    """Return p-values corrected for multiple tests: the probability that any of them is at most alpha is at most alpha.

    The values of a pair of layers, its draws and its true value, are standardised together, so that they stay
    exchangeable.

    Args:
        values: Agreement of the true rankings in each pair of layers, NaN where there is none, shape (n_pairs,).
        null: Agreement under shuffled labels of the first task, and of the second, shape (2, n_draws, n_pairs).

    Returns:
        The larger p-value of the two sides, shape (n_pairs,); NaN where there is no agreement.
    """
    tested = ~np.isnan(values)
    corrected = np.full(values.shape, np.nan)
    if tested.any():
        corrected[tested] = np.maximum(*(_max_p(values[tested], side[:, tested]) for side in null))
    return corrected


def _max_p(values: Array, null: Array) -> Array:
    """Return p-values corrected against one side's draws, shape (n_pairs,)."""
    both = np.concatenate([values[None], null])
    spread = np.nanstd(both, axis=0)
    standardised = (both - np.nanmean(both, axis=0)) / np.where(spread > ROUNDING, spread, np.inf)
    # An empty draw counts as one that agrees as much as the true rankings, in all pairs.
    largest = np.where(np.isnan(standardised[1:]), np.inf, standardised[1:]).max(axis=1)
    return np.asarray((1 + (largest[:, None] >= standardised[0] - ROUNDING).sum(0)) / len(both))
