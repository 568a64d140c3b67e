"""Whether labels of neighbouring units go together, so that the units are not independent."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probing.statistics.label_codes import LabelCodes

# Labels of neighbours go together from this correlation on, and this many standard errors, which 4 of a million
# orders of independent labels reach.
LEAST, STANDARD_ERRORS = 0.05, 4.5
# Labels that differ within units as much as between them say nothing of the order of units.
MOSTLY_BETWEEN = 0.5


def correlation_of_neighbours(labels: NDArray[np.int32], units: NDArray[np.int32], codes: LabelCodes) -> float | None:
    """Return the correlation of the labels of neighbouring units, where it is no chance; None elsewhere.

    It is the sum of v_i'v_(i+1) over the sum of |v_i|^2, with v the vector of a unit's label less the mean of all. In a
    random order it has a variance of at most 1 / n. A unit's label is that of its first token.

    Args:
        labels: Label of each token, shape (n_tokens,); tokens labelled -1 are ignored.
        units: Sentence of each token, or row, in their order, shape (n_tokens,).
        codes: The vectors of the labels.
    """
    if codes.excess_between(labels, units) < MOSTLY_BETWEEN:
        return None
    kept = np.flatnonzero(labels >= 0)
    first = labels[kept[np.unique(units[kept], return_index=True)[1]]]
    column, value, mean = codes.columns.numpy()[first], codes.values.numpy()[first], codes.mean.numpy()
    of_mean = mean[column] * value
    squares = value**2 - 2 * of_mean + (mean**2).sum()
    same = column[1:] == column[:-1]
    products = same * value[1:] * value[:-1] - of_mean[1:] - of_mean[:-1] + (mean**2).sum()
    correlation = float(products.sum() / squares.sum()) if squares.sum() > 0 else 0.0
    return correlation if correlation > max(LEAST, STANDARD_ERRORS / len(first) ** 0.5) else None
