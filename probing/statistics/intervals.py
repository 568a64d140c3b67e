"""Intervals over sentences in closed form, which also hold for few sentences and for accuracies near 0 and 1.

The tokens of a sentence are not independent, so the sampling unit is the sentence, or another cluster of tokens such as
a document. Each function takes the sums over the tokens of every cluster and the numbers of its tokens. It estimates a
ratio of sums. The variance comes from the jackknife that leaves out one cluster at a time (Bell & McCaffrey 2002), the
quantile from Student's t with one degree of freedom less than there are clusters. `docs/notes/intervals.md` has the
formulas and their simulated coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, stdtr, stdtrit

LEVEL = 0.95
# Quantiles of the lower and the upper end of an interval.
ENDS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)
# With fewer clusters the variance between clusters is too uncertain, and no interval is given.
MIN_SENTENCES = 20
# Correlation between the tokens of a sentence in being predicted rightly, assumed where the data cannot show it because
# nearly all tokens are right or nearly all are wrong. It is above the measured values: .003 to .06 for positions, on
# the built-in model's layers.
INTRA_SENTENCE_CORRELATION = 0.1

NO_INTERVAL = (math.nan, math.nan)
# What is said where there are fewer clusters.
FEW = "There are no 95% intervals: {found} too few; at least {least} are needed."

Sums = NDArray[np.float64] | NDArray[np.int64]


def accuracy_interval(correct: Sums, n_tokens: NDArray[np.int64], level: float = LEVEL) -> tuple[float, float]:
    """Return the interval of an accuracy, by default of 95%: Wilson's interval (1927) at the effective sample size.

    The effective sample size is the number of tokens over the design effect (Korn & Graubard 1998; Franco et al. 2019).
    Wilson's interval is equivalent to adding t^2 tokens, half of them right. Here, the added tokens have the design
    effect that `INTRA_SENTENCE_CORRELATION` implies. So the interval has a positive width even if the accuracy is 0 or
    1, where the data show no variance.

    Args:
        correct: Number of tokens predicted rightly in each sentence, shape (n_sentences,).
        n_tokens: Number of tokens of each sentence, shape (n_sentences,); sentences without tokens do not count.
        level: Confidence level of the interval.

    Returns:
        Both ends, within 0 to 1; NaN below `MIN_SENTENCES` sentences.
    """
    if (found := _Ratio.of(correct, n_tokens)) is None:
        return NO_INTERVAL
    share, n, t = found.value, found.n_tokens, found.t(level)
    # Variances of the number of right tokens: the estimated one, and the one that independent tokens would have.
    clustered, independent = (n * found.standard_error) ** 2, n * share * (1 - share)
    design_effect = (clustered + t**2 * found.assumed_design_effect) / (independent + t**2)
    pull = t**2 * design_effect / n  # t^2 over the effective sample size
    centre = (share + pull / 2) / (1 + pull)
    reach = math.sqrt(pull * (share * (1 - share) + pull / 4)) / (1 + pull)
    # Where nothing or everything is right, rounding must not put the accuracy outside its interval.
    return min(max(centre - reach, 0.0), share), max(min(centre + reach, 1.0), share)


def binomial_interval(n_right: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval of a share of independent items (Clopper & Pearson 1934), however few they are.

    Args:
        n_right: Number of items that count.
        n: Number of all items.
        level: Confidence level of the interval.

    Returns:
        Both ends, within 0 to 1; NaN without items.
    """
    if not n:
        return NO_INTERVAL
    tail = (1 - level) / 2
    low = float(betaincinv(n_right, n - n_right + 1, tail)) if n_right else 0.0
    high = float(betaincinv(n_right + 1, n - n_right, 1 - tail)) if n_right < n else 1.0
    return low, high


def difference_interval(difference: Sums, n_tokens: NDArray[np.int64], level: float = LEVEL) -> tuple[float, float]:
    """Return the interval, by default of 95%, of the difference of two accuracies on the same tokens, by sentence.

    It is `mean_interval` with a lower bound on the variance, in the manner of Bonett & Price (2012): the variance if
    the first probe alone were right on one effective token, and the second probe alone on another. The bound is needed
    because two probes that agree on every test token may disagree on other tokens.

    Args:
        difference: Number of tokens that the first predicts rightly minus that of the second, shape (n_sentences,).
        n_tokens: Number of tokens of each sentence, shape (n_sentences,); sentences without tokens do not count.
        level: Confidence level of the interval.

    Returns:
        Both ends, within -1 to 1; NaN below `MIN_SENTENCES` sentences.
    """
    if (found := _Ratio.of(difference, n_tokens)) is None:
        return NO_INTERVAL
    low, high = found.interval(found.least_error, found.t(level))
    return max(low, -1.0), min(high, 1.0)


def difference_p_value(difference: Sums, n_tokens: NDArray[np.int64]) -> float:
    """Return the two-sided p-value of the difference of two accuracies on the same tokens, paired by sentence.

    It is 1 minus the highest confidence level at which the interval of `difference_interval` leaves out 0, so that the
    two never contradict each other.

    Args:
        difference: Number of tokens that the first predicts rightly minus that of the second, shape (n_sentences,).
        n_tokens: Number of tokens of each sentence, shape (n_sentences,); sentences without tokens do not count.

    Returns:
        The p-value; NaN below `MIN_SENTENCES` sentences.
    """
    found = _Ratio.of(difference, n_tokens)
    return math.nan if found is None else _p_value(found, found.least_error)


def mean_p_value(sums: Sums, n_tokens: NDArray[np.int64]) -> float:
    """Return the two-sided p-value of a mean over tokens, such as a paired difference: is it 0?

    It is 1 minus the highest confidence level at which the interval of `mean_interval` leaves out 0.

    Args:
        sums: Sum over the tokens of each sentence, shape (n_sentences,).
        n_tokens: Number of tokens of each sentence, shape (n_sentences,); sentences without tokens do not count.

    Returns:
        The p-value; NaN below `MIN_SENTENCES` sentences.
    """
    found = _Ratio.of(sums, n_tokens)
    return math.nan if found is None else _p_value(found, 0.0)


def _p_value(found: _Estimate, least: float) -> float:
    if not max(found.standard_error, least):
        return float(found.value == 0)
    # Both ends move outwards as the quantile grows, so that the quantile at which 0 is reached is found by halving.
    below, above = 0.0, 1.0
    while not _holds_0(found, least, above):
        below, above = above, 2 * above
    for _ in range(60):
        middle = (below + above) / 2
        below, above = (below, middle) if _holds_0(found, least, middle) else (middle, above)
    return float(2 * stdtr(found.n_clusters - 1, -above))


def _holds_0(found: _Estimate, least: float, t: float) -> bool:
    low, high = found.interval(least, t)
    return low <= 0 <= high


def mean_interval(sums: Sums, n_tokens: NDArray[np.int64]) -> tuple[float, float]:
    """Return the 95% interval of a mean over tokens, such as a cross-entropy or the paired difference of two.

    It is Student's t interval. If the skewness over sentences requires it, an end is moved outwards (the cubic
    transformation of Hall 1992). No end is moved inwards, because the skewness of few sentences is itself uncertain.

    Args:
        sums: Sum over the tokens of each sentence, shape (n_sentences,); for a paired difference, the difference of
            sums.
        n_tokens: Number of tokens of each sentence, shape (n_sentences,); sentences without tokens do not count.

    Returns:
        Both ends; NaN below `MIN_SENTENCES` sentences.
    """
    found = _Ratio.of(sums, n_tokens)
    return NO_INTERVAL if found is None else found.interval()


def ratio_interval(*ratios: tuple[Sums, Sums]) -> tuple[float, float]:
    """Return the 95% interval of a ratio of sums over sentences, such as R², or of the first of two less the second.

    It is that of `mean_interval`, with the jackknife of the ratio, or of the difference of the ratios.

    Args:
        ratios: One or two, each as what its numerator and its denominator have of each sentence, shape (n_sentences,).

    Returns:
        Both ends; NaN below `MIN_SENTENCES` sentences, or where a denominator is 0 without one of them.
    """
    found = _ratios(*ratios)
    return NO_INTERVAL if found is None else found.interval()


def ratio_p_value(*ratios: tuple[Sums, Sums]) -> float:
    """Return the two-sided p-value of a ratio of sums, or of the difference of two: is it 0?

    It is 1 minus the highest confidence level at which the interval of `ratio_interval` leaves out 0.

    Args:
        ratios: As of `ratio_interval`.

    Returns:
        The p-value; NaN where there is no interval.
    """
    found = _ratios(*ratios)
    return math.nan if found is None else _p_value(found, 0.0)


def _ratios(*ratios: tuple[Sums, Sums]) -> _Estimate | None:
    if len(ratios[0][0]) < MIN_SENTENCES:
        return None
    value, pseudo = 0.0, np.zeros(len(ratios[0][0]))
    for sign, (numerator, denominator) in zip((1, -1), ratios, strict=False):
        with np.errstate(invalid="ignore", divide="ignore"):
            value += sign * float(numerator.sum() / denominator.sum())
            pseudo += sign * _pseudo_values(numerator.astype(np.float64), denominator.astype(np.float64))
    return _Estimate(value, *_moments(pseudo)) if np.isfinite(pseudo).all() else None


def _pseudo_values(x: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the jackknife pseudo-values of a ratio of sums over clusters, shape (n_clusters,)."""
    n, total, all_of_it = len(x), x.sum(), size.sum()
    return np.asarray(n * total / all_of_it - (n - 1) * (total - x) / (all_of_it - size))


def _moments(pseudo: NDArray[np.float64]) -> tuple[float, float, float, int]:
    """Return the mean of pseudo-values, its standard error, their skewness and their number."""
    n, sd = len(pseudo), float(pseudo.std(ddof=1))
    skewness = float(((pseudo - pseudo.mean()) ** 3).sum() * n / (n - 1) / (n - 2) / sd**3) if sd else 0.0
    return float(pseudo.mean()), sd / math.sqrt(n), skewness, n


@dataclass(frozen=True)
class _Estimate:
    """A function of sums over clusters, and how it varies.

    Args:
        value: What is estimated.
        unbiased: Mean of the jackknife pseudo-values.
        standard_error: Standard deviation of the pseudo-values over the root of their number.
        skewness: Skewness of the pseudo-values, as the adjusted Fisher-Pearson coefficient.
        n_clusters: Number of clusters with tokens.
    """

    value: float
    unbiased: float
    standard_error: float
    skewness: float
    n_clusters: int

    def t(self, level: float = LEVEL) -> float:
        """Return the quantile of Student's t at the upper end of an interval of this level."""
        return float(stdtrit(self.n_clusters - 1, (1 + level) / 2))

    def interval(self, least: float = 0.0, t: float | None = None) -> tuple[float, float]:
        """Return Student's interval, widened for skewness, with a standard error of at least `least`.

        Args:
            least: The least standard error.
            t: Quantile of Student's t at the upper end; that of a 95% interval if None.
        """
        t = self.t() if t is None else t
        reach = t * max(self.standard_error, least)
        low = self.unbiased - self._studentised(t) * self.standard_error
        high = self.unbiased - self._studentised(-t) * self.standard_error
        return min(self.value - reach, low), max(self.value + reach, high)

    def _studentised(self, quantile: float) -> float:
        """Return the quantile of the studentised mean that Hall's transformation maps to this quantile of Student's t.

        The transformation takes T to T + a T^2 / 3 + a^2 T^3 / 27 + a / 6, where a is the skewness over the root of the
        sample size. It is monotone, and is inverted here.
        """
        a = self.skewness / math.sqrt(self.n_clusters)
        if abs(a) < 1e-6:  # the limit for a = 0: below, the difference from 1 is lost to rounding
            return quantile
        return float(3 / a * (np.cbrt(1 + a * (quantile - a / 6)) - 1))


@dataclass(frozen=True)
class _Ratio(_Estimate):
    """The ratio of a sum over clusters to their number of tokens.

    Args:
        n_tokens: Number of tokens of all clusters.
        assumed_design_effect: 1 + (m - 1) `INTRA_SENTENCE_CORRELATION`, where m is the mean over tokens of their
            cluster's size.
    """

    n_tokens: int
    assumed_design_effect: float

    @classmethod
    def of(cls, sums: Sums, n_tokens: NDArray[np.int64]) -> _Ratio | None:
        """Return the ratio with its moments, or None below `MIN_SENTENCES` clusters."""
        kept = n_tokens > 0
        if int(kept.sum()) < MIN_SENTENCES:
            return None
        x, tokens = sums[kept].astype(np.float64), n_tokens[kept].astype(np.float64)
        size = tokens.sum()
        assumed = 1 + ((tokens**2).sum() / size - 1) * INTRA_SENTENCE_CORRELATION
        return cls(float(x.sum() / size), *_moments(_pseudo_values(x, tokens)), int(size), float(assumed))

    @property
    def least_error(self) -> float:
        """The least standard error of a difference of accuracies; see `difference_interval`."""
        return math.sqrt(2) * self.assumed_design_effect / self.n_tokens


def few_sentences(n: int, what: str = "test sentence") -> str | None:
    """Return a sentence that tells the reader why there is no interval; None where there is one.

    Args:
        n: Number of sentences, or of other clusters of tokens.
        what: Name of one of them.
    """
    if n >= MIN_SENTENCES:
        return None
    found = f"1 {what} is" if n == 1 else f"{n} {what}s are"
    return FEW.format(found=found, least=MIN_SENTENCES)


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
