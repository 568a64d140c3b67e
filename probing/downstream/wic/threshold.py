"""Classification by a threshold on a score: the best threshold, the area under the curve, and tests between two rules.

A score above the threshold means yes, a score equal to it means no.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.statistics.bootstrap import DRAWS, percentile_interval
from probing.statistics.intervals import MIN_SENTENCES, NO_INTERVAL, binomial_interval, difference_interval

# The thresholds of Luo, Kulmizev & Mao (2021), who took the best of these and of all layers on the training set.
PUBLISHED_THRESHOLDS = tuple(round(0.1 * k, 1) for k in range(1, 10))

Scores = NDArray[np.float64]
Labels = NDArray[np.bool_]


@dataclass(frozen=True)
class Rule:
    """A threshold and its accuracy.

    Args:
        threshold: A score above it means yes.
        accuracy: Share of correct labels on the pairs that it was chosen on, and therefore too high.
    """

    threshold: float
    accuracy: float


def best_threshold(scores: Scores, labels: Labels) -> Rule:
    """Return the threshold with the most correct labels, among those between any two scores and beyond both ends.

    If several thresholds are equally good, the lowest is returned; NaN if a score is not finite.

    Args:
        scores: Score of each pair, shape (n,).
        labels: Label of each pair, shape (n,).
    """
    if not np.isfinite(scores).all():  # sorted, NaN would be the largest score
        return Rule(float("nan"), float("nan"))
    values, group = np.unique(scores, return_inverse=True)
    yes = np.bincount(group, weights=labels, minlength=len(values))
    no = np.bincount(group, weights=~labels, minlength=len(values))
    # Number of correct labels if the threshold is above the k lowest values: the noes among these and the yeses among
    # the other values.
    right = np.concatenate([[0.0], np.cumsum(no)]) + np.concatenate([[0.0], np.cumsum(yes[::-1])])[::-1]
    best = int(right.argmax())
    # Halfway between neighbouring values; the lower value if no floating-point number lies between them.
    halfway = np.minimum((values[:-1] + values[1:]) / 2, np.nextafter(values[1:], -np.inf))
    thresholds = np.concatenate([[values[0] - 1], halfway, [values[-1]]])
    return Rule(float(thresholds[best]), float(right[best] / len(labels)))


def best_published_threshold(scores: Scores, labels: Labels) -> Rule:
    """Return the best of the nine thresholds .1 to .9, the lowest of equally good ones.

    Such a coarse grid favours spaces whose cosines spread over the range of the thresholds.
    """
    accuracies = [accuracy(scores, labels, threshold) for threshold in PUBLISHED_THRESHOLDS]
    best = int(np.argmax(accuracies))
    return Rule(PUBLISHED_THRESHOLDS[best], accuracies[best])


def accuracy(scores: Scores, labels: Labels, threshold: float) -> float:
    """Return the share of correct labels under a threshold; NaN if a score is not finite."""
    return float(((scores > threshold) == labels).mean()) if np.isfinite(scores).all() else float("nan")


def exact_interval(n_right: int, n: int) -> tuple[float, float]:
    """Return the exact interval of a share (Clopper & Pearson 1934); NaN where there are too few pairs.

    It takes pairs to be independent; some share a sentence or a word, so the correct interval is slightly wider.
    """
    return NO_INTERVAL if n < MIN_SENTENCES else binomial_interval(n_right, n)


@dataclass(frozen=True)
class McNemar:
    """McNemar's test of two rules on the same pairs.

    Args:
        gained: Number of pairs that only the second rule gets right.
        lost: Number of pairs that only the first rule gets right.
        p_value: Two-sided exact p-value.
    """

    gained: int
    lost: int
    p_value: float


def mcnemar(first: Labels, second: Labels) -> McNemar:
    """Return the exact test of McNemar (1947), which compares two rules on the pairs that only one of them gets right.

    Args:
        first: Whether the first rule is right about each pair, shape (n,).
        second: Whether the second rule is right about each pair, shape (n,).
    """
    from scipy.stats import binomtest

    gained, lost = int((second & ~first).sum()), int((first & ~second).sum())
    p_value = float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
    return McNemar(gained, lost, p_value)


def area_under_curve(scores: Scores, labels: Labels) -> Scores:
    """Return the area under the ROC curve: the probability that a yes scores higher than a no, ties counting half.

    It is computed from ranks (Mann & Whitney 1947) and needs no threshold; NaN where all labels are equal, or a score
    is not finite.

    Args:
        scores: Scores of the pairs, shape (..., n).
        labels: Labels of the pairs, shape (..., n).

    Returns:
        Shape (...).
    """
    from scipy.stats import rankdata

    n_yes = labels.sum(-1)
    n_no = labels.shape[-1] - n_yes
    above = (rankdata(scores, axis=-1) * labels).sum(-1) - n_yes * (n_yes + 1) / 2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(np.isfinite(scores).all(-1), above / (n_yes * n_no), np.nan)


def area_interval(scores: Scores, labels: Labels, seed: int, n_draws: int = DRAWS) -> tuple[float, float]:
    """Return the percentile interval of the area under the curve over resampled pairs; NaN for too few pairs.

    Args:
        scores: Score of each pair, shape (n,).
        labels: Label of each pair, shape (n,).
        seed: Seed of the draws; every layer and transform resamples the same pairs, so that they compare.
        n_draws: Number of bootstrap draws.
    """
    drawn = np.random.default_rng(seed).integers(len(labels), size=(n_draws, len(labels)))
    return percentile_interval(area_under_curve(scores[drawn], labels[drawn]), len(labels))


def gain_interval(first: Labels, second: Labels) -> tuple[float, float]:
    """Return the interval of the second rule's accuracy minus the first's; NaN for too few pairs.

    Args:
        first: Whether the first rule is right about each pair, shape (n,).
        second: Whether the second rule is right about each pair, shape (n,).
    """
    difference = second.astype(np.int64) - first
    return difference_interval(difference, np.ones_like(difference))
