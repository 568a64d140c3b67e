"""Yes or no by a threshold on a score: the best threshold, the area under the curve, and one rule against another.

A score above the threshold says yes; one equal to it says no.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.statistics.bootstrap import DRAWS, percentile_interval
from probing.statistics.intervals import LEVEL, MIN_SENTENCES, NO_INTERVAL, difference_interval

# Of Luo, Kulmizev & Mao (2021), who took the best of these and of all layers on the training set.
PUBLISHED_THRESHOLDS = tuple(round(0.1 * k, 1) for k in range(1, 10))

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """A threshold and the share of labels that it gets right.

    Args:
        threshold: What a score has to exceed.
        accuracy: On the pairs that it was chosen on, and so too high.
    """

    threshold: float
    accuracy: float


def best_threshold(scores: Scores, labels: Labels) -> Rule:
    """Return the threshold that gets most labels right, of all there are: between any two scores and beyond both ends.

    Of equally good thresholds the lowest.

    Args:
        scores: Shape (n,).
        labels: Shape (n,).
    """
    values, group = np.unique(scores, return_inverse=True)
    yes = np.bincount(group, weights=labels, minlength=len(values))
    no = np.bincount(group, weights=~labels, minlength=len(values))
    # With the threshold below the k lowest values: of those at most that are no, of the others those that are yes.
    right = np.concatenate([[0.0], np.cumsum(no)]) + np.concatenate([[0.0], np.cumsum(yes[::-1])])[::-1]
    best = int(right.argmax())
    # Halfway, but below the upper one where no number lies between.
    halfway = np.minimum((values[:-1] + values[1:]) / 2, np.nextafter(values[1:], -np.inf))
    thresholds = np.concatenate([[values[0] - 1], halfway, [values[-1]]])
    return Rule(float(thresholds[best]), float(right[best] / len(labels)))


def best_published_threshold(scores: Scores, labels: Labels) -> Rule:
    """Return the best of nine thresholds, .1 to .9, the lowest of equally good ones.

    So few favour whichever space spreads its cosines over them.
    """
    accuracies = [accuracy(scores, labels, threshold) for threshold in PUBLISHED_THRESHOLDS]
    best = int(np.argmax(accuracies))
    return Rule(PUBLISHED_THRESHOLDS[best], accuracies[best])


def accuracy(scores: Scores, labels: Labels, threshold: float) -> float:
    """Return the share of labels that a threshold gets right."""
    return float(((scores > threshold) == labels).mean())


def exact_interval(n_right: int, n: int) -> tuple[float, float]:
    """Return the exact interval of a share (Clopper & Pearson 1934); NaN where pairs are too few for other intervals.

    It takes pairs to be independent; some share a sentence or a word, so the true one is a little wider.
    """
    from scipy.stats import binomtest

    if n < MIN_SENTENCES:
        return NO_INTERVAL
    interval = binomtest(n_right, n).proportion_ci(LEVEL, method="exact")
    return float(interval.low), float(interval.high)


@dataclass(frozen=True)
class McNemar:
    """Two rules on the same pairs.

    Args:
        gained: Pairs that only the second gets right.
        lost: Pairs that only the first gets right.
        p_value: Two-sided and exact.
    """

    gained: int
    lost: int
    p_value: float


def mcnemar(first: Labels, second: Labels) -> McNemar:
    """Return the exact test of McNemar (1947): do two rules differ on the pairs that only one of them gets right?

    Args:
        first: Whether the first rule is right about each pair, shape (n,).
        second: The second.
    """
    from scipy.stats import binomtest

    gained, lost = int((second & ~first).sum()), int((first & ~second).sum())
    p_value = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return McNemar(gained, lost, p_value)


def area_under_curve(scores: Scores, labels: Labels) -> Scores:
    """Return the area under the ROC curve, the chance that a yes scores higher than a no, equal ones counting half.

    From the ranks (Mann & Whitney 1947); NaN where all labels are the same. It needs no threshold.

    Args:
        scores: Shape (..., n).
        labels: Shape (..., n).

    Returns:
        Shape (...).
    """
    from scipy.stats import rankdata

    n_yes = labels.sum(-1)
    n_no = labels.shape[-1] - n_yes
    above = (rankdata(scores, axis=-1) * labels).sum(-1) - n_yes * (n_yes + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(above / (n_yes * n_no))


def area_interval(scores: Scores, labels: Labels, seed: int, n_draws: int = DRAWS) -> tuple[float, float]:
    """Return the percentile interval of the area under the curve over redrawn pairs; NaN where they are too few.

    Args:
        scores: Shape (n,).
        labels: Shape (n,).
        seed: Of the draws; the same pairs are drawn for every layer and transform, so these compare.
        n_draws: Bootstrap draws.
    """
    drawn = np.random.default_rng(seed).integers(len(labels), size=(n_draws, len(labels)))
    return percentile_interval(area_under_curve(scores[drawn], labels[drawn]), len(labels))


def gain_interval(first: Labels, second: Labels) -> tuple[float, float]:
    """Return the interval of the second rule's accuracy minus the first's; NaN where pairs are too few.

    Args:
        first: Whether the first rule is right about each pair, shape (n,).
        second: The second.
    """
    difference = second.astype(np.int64) - first
    return difference_interval(difference, np.ones_like(difference))
