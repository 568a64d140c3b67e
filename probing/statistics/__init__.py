"""Confidence intervals over clusters of tokens, sample sizes of covariances, and the similarity of rankings.

The tokens of a sentence are not independent, so the sampling unit is the sentence, or another cluster such as a
document. Each function estimates a ratio of sums from the sums over the tokens of every cluster and the numbers of
tokens. The variance comes from the jackknife that leaves out one cluster at a time (Bell & McCaffrey 2002), the
quantile from Student's t with one degree of freedom less than there are clusters. `docs/notes/intervals.md` has the
formulas and their simulated coverage.

Whitening d directions by the covariance of n independent Gaussian vectors gives new vectors an average variance of n /
(n - d - 2) instead of 1 (mean of an inverse Wishart matrix). The ratio of the largest variance to the smallest is about
((1 + sqrt(d / n)) / (1 - sqrt(d / n)))^2 (Marchenko & Pastur 1967). With ten vectors per dimension they are 1.1 and 4,
with two 2 and 34, and as n approaches d they are unbounded. Dependent tokens count for less; `docs/notes/whitening.md`
has the measurements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

Array = NDArray[np.float64]

Ranks = NDArray[np.int64]

# In standard deviations; Luo, Kulmizev & Mao choose from the profile by eye.
MEAN_DEVIATIONS = 5.0

# Size of the top whose overlap is measured, between bootstraps and between penalties.
TOP_OF_BOOTSTRAPS, TOP_OF_PENALTIES = 20, 10


def neuron_ranks(scores: Array) -> Ranks:
    """Return ranks from 1, shape (..., n), best score first, ties by lower index; n + 1 for scores of 0 or NaN."""
    n, dead = scores.shape[-1], (scores == 0) | np.isnan(scores)
    order = np.argsort(np.where(dead, np.inf, -scores), axis=-1, kind="stable")
    rank = np.empty(scores.shape, dtype=np.int64)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(1, n + 1), scores.shape), axis=-1)
    return np.where(dead, n + 1, rank)


# Scores are equal that differ by at most this share of themselves, or by `ROUNDING` of the highest one. Contributions
# of copies of a column in other units, from probes trained in float32, differed by up to a quarter of either.
EQUAL, ROUNDING = 1e-5, 2e-6


def shared_ranks(scores: Array) -> Ranks:
    """Return ranks from 1, shape (..., n), best score first; equal scores share the best rank (1, 1, 3); no NaN."""
    order = np.argsort(-scores, axis=-1, kind="stable")
    descending = np.take_along_axis(scores, order, axis=-1)
    is_new = np.ones(scores.shape, dtype=bool)
    tolerance = np.maximum(EQUAL * np.abs(descending[..., :-1]), ROUNDING * np.abs(scores).max(-1, keepdims=True))
    is_new[..., 1:] = descending[..., :-1] - descending[..., 1:] > tolerance
    first = np.maximum.accumulate(np.where(is_new, np.arange(scores.shape[-1]), 0), axis=-1)
    rank = np.empty(scores.shape, dtype=np.int64)
    np.put_along_axis(rank, order, first + 1, axis=-1)
    return rank


def ranked(scores: Array) -> list[tuple[int, int]]:
    """Return the rank and index of each score, shape (n,), best first; equal scores share a rank, ordered by index."""
    return sorted(zip(shared_ranks(scores).tolist(), range(len(scores)), strict=True))


def top_overlap(ranks_a: Ranks, ranks_b: Ranks, k: int) -> Array:
    """Return the share of the top k that ranks (n,) have in common with each of (..., n); see `neuron_ranks`."""
    # If there are fewer than k neurons, rank n + 1 must not count as being in the top, since it means unranked.
    return (np.maximum(ranks_a, ranks_b) <= min(k, len(ranks_a))).sum(-1) / k


def rank_biased_overlap(ranks_a: Ranks, ranks_b: Ranks, p: float) -> Array:
    """Return the extrapolated rank-biased overlap of two lists (Webber, Moffat & Zobel 2010, RBO_ext, equation 32).

    X_d, the overlap at depth d, counts the neurons whose larger rank is at most d. The measure is linear in X: a sum
    over neurons of a value that depends only on the larger rank. Two complete rankings share all neurons at depth n, so
    unless n is much larger than 1 / (1 - p), even unrelated rankings have a value near 1: compare it with the value
    under chance. It is NaN if a list is empty.

    Args:
        ranks_a: Ranks from `neuron_ranks`, shape (n,). The ranked neurons are the list, so lists may differ in length.
        ranks_b: Ranks of one or more other lists, shape (..., n), with equally many ranked neurons in each row.
        p: Persistence, between 0 and 1, both excluded.
    """
    n = ranks_a.shape[-1]
    short, long = sorted((int((ranks_a <= n).sum()), int((ranks_b.reshape(-1, n)[0] <= n).sum())))
    if short == 0:
        return np.full(ranks_b.shape[:-1], np.nan)
    depth = np.arange(1, long + 1)
    weight = (1 - p) * p ** (depth - 1.0)
    value = np.zeros(n + 2)
    value[1 : long + 1] = np.cumsum((weight / depth)[::-1])[::-1] + p**long / long
    # Beyond the end of the shorter list its agreement is extrapolated as X_short / short.
    below = depth[short:]
    value[1 : short + 1] += (weight[short:] * (below - short) / (short * below)).sum()
    value[1 : short + 1] += p**long * (1 / short - 1 / long)
    return value[np.maximum(ranks_a, ranks_b)].sum(-1)


def spearman(ranks_a: Array, ranks_b: Array) -> Array:
    """Return Spearman's correlation of (mean) ranks (n,) with each of (..., n); NaN if all neurons are tied."""
    x, y = ranks_a - ranks_a.mean(), ranks_b - ranks_b.mean(-1, keepdims=True)
    return _ratio(y @ x, np.sqrt(np.square(x).sum() * np.square(y).sum(-1)))


def kendall(ranks_a: Array, ranks_b: Array) -> Array:
    """Return Kendall's tau-b (1945) of (mean) ranks (n,) with each of (..., n); NaN if a rank is, or all are tied.

    It is concordant minus discordant pairs of neurons, normalised by the untied pairs.
    """
    undefined = np.isnan(ranks_b).any(-1) | np.isnan(ranks_a).any()
    ranks_a, ranks_b = np.nan_to_num(ranks_a), np.nan_to_num(ranks_b)
    n, order = len(ranks_a), np.argsort(ranks_a, kind="stable")
    x = ranks_a[order]
    # Twice a mean rank is an integer. Small integers, with the rankings side by side in memory, are fastest.
    whole = np.int16 if n < 2**13 else np.int32
    y = np.ascontiguousarray((2 * ranks_b.reshape(-1, n)[:, order]).T.astype(whole))
    agreeing = np.zeros(y.shape[1])
    for i, above in enumerate(np.searchsorted(x, x, side="right")):
        agreeing += np.sign(y[above:] - y[i]).sum(0, dtype=whole)
    pairs = n * (n - 1) / 2
    untied_a, untied_b = pairs - _tied_pairs(x[:, None]), pairs - _tied_pairs(y)
    tau_b = _ratio(agreeing, np.sqrt(untied_a * untied_b)).reshape(ranks_b.shape[:-1])
    return np.where(undefined, np.nan, tau_b)


def _tied_pairs(columns: NDArray[Any]) -> Array:
    """Return the number of equal pairs in each column of an array of shape (n, m)."""
    ordered, index = np.sort(columns, axis=0, kind="stable"), np.arange(len(columns))[:, None]
    new = np.ones(columns.shape, dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    # Each value is tied with the equal values before it.
    return (index - np.maximum.accumulate(np.where(new, index, 0), axis=0)).sum(0).astype(np.float64)


def _ratio(value: Array, scale: Array) -> Array:
    return np.divide(value, scale, out=np.full(np.shape(value), np.nan), where=scale > 0)


# Transforms that use directions of the whole covariance, with their names in a sentence.
OF_COVARIANCE = {"whiten": "Whitening", "all_but_the_top": "All-but-the-top"}

# With fewer vectors per dimension the reader is warned.
ENOUGH = 10

SIZE_COLUMNS = ("n_fitted_sentences", "n_fitted_vectors", "n_fitted_dimensions", "vectors_per_dimension")

Row = Mapping[str, Any]


@dataclass(frozen=True, order=True)
class SampleSize:
    """The sample that a covariance was fitted on: numbers of vectors, of their sentences, and of used directions."""

    n_vectors: int
    n_sentences: int
    n_dimensions: int

    @property
    def is_small(self) -> bool:
        """Whether the reader should be warned."""
        return self.n_vectors < ENOUGH * self.n_dimensions

    @property
    def unit(self) -> str:
        """The unit of a vector: a sentence if there is a vector per sentence, else a token."""
        return "sentences" if self.n_vectors == self.n_sentences else "tokens"

    def __str__(self) -> str:
        sentences, vectors = (_short(n / self.n_dimensions) for n in (self.n_sentences, self.n_vectors))
        if self.unit == "sentences":
            return f"{self.n_sentences:,} sentences, {sentences} per dimension"
        return (
            f"{self.n_vectors:,} tokens of {self.n_sentences:,} sentences, {vectors} tokens and {sentences} sentences "
            "per dimension"
        )


def size_columns(
    transform: str, n_vectors: int, n_sentences: int, d_model: int, components: int | None = None
) -> dict[str, int | float]:
    """Return the columns on the text that a transform was fitted on; empty if it uses no covariance."""
    if transform not in OF_COVARIANCE:
        return {}
    # All-but-the-top finds the first directions from the whole covariance.
    n_dimensions = min(components or d_model, d_model) if transform == "whiten" else d_model
    values = (n_sentences, n_vectors, n_dimensions, n_vectors / n_dimensions)
    return dict(zip(SIZE_COLUMNS, values, strict=True))


def size_of(row: Row) -> SampleSize | None:
    """Return the sample that a row's transform was fitted on; None if the row does not record it."""
    values = [row.get(name) for name in ("n_fitted_vectors", "n_fitted_sentences", "n_fitted_dimensions")]
    return None if None in values or "" in values else SampleSize(*map(int, values))  # type: ignore[arg-type]


def label(words: str, rows: Iterable[Row]) -> str:
    """Return the label `words` of a transform, with the smallest sample size of its rows if that is too small."""
    smallest = min((size for row in rows if (size := size_of(row))), default=None)
    if smallest is None or not smallest.is_small:
        return words
    return f"{words} (from {_short(smallest.n_vectors / smallest.n_dimensions)} {smallest.unit} per dimension)"


def size_lines(rows: Iterable[Row], remedy: str) -> list[str]:
    """Return a sentence on the smallest sample of each covariance transform, with a warning and `remedy` if small."""
    return [_line(name, n_dimensions, sizes, remedy) for (name, n_dimensions), sizes in _by_transform(rows).items()]


def _line(name: str, n_dimensions: int, sizes: set[SampleSize], remedy: str) -> str:
    least = min(sizes)
    fitted = (
        f"{OF_COVARIANCE[name]} of {n_dimensions:,} dimensions is fitted on {'as few as ' * (len(sizes) > 1)}{least}"
    )
    if not least.is_small:
        return f"{fitted}."
    return (
        f"Warning: {fitted}, fewer than {ENOUGH}: its effect on other vectors is mostly sampling error of the "
        f"covariance. {remedy}"
    )


def _by_transform(rows: Iterable[Row]) -> dict[tuple[str, int], set[SampleSize]]:
    """Return the different sizes of each transform and number of dimensions."""
    sizes_by_transform: dict[tuple[str, int], set[SampleSize]] = {}
    for row in rows:
        if row.get("transform") in OF_COVARIANCE and (size := size_of(row)):
            sizes_by_transform.setdefault((row["transform"], size.n_dimensions), set()).add(size)
    return sizes_by_transform


def _short(number: float) -> str:
    """Format a number with about two digits, rounded down so that a value below the limit never looks like enough."""
    if number < 1:
        return f"{number:.2g}"
    return f"{floor(10 * number) / 10:g}" if number < ENOUGH else f"{number:,.0f}"


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
    """Return the confidence interval of an accuracy: Wilson's interval (1927) at the effective sample size.

    The effective sample size is the number of tokens over the design effect (Korn & Graubard 1998; Franco et al. 2019).
    Wilson's interval is equivalent to adding t^2 tokens, half of them correct. Here, the added tokens have the design
    effect that `INTRA_SENTENCE_CORRELATION` implies, so the interval has a positive width even if the accuracy is 0 or
    1. `correct` and `n_tokens` have shape (n_sentences,); sentences without tokens do not count. Both ends are within 0
    to 1; NaN below `MIN_SENTENCES` sentences.
    """
    if (ratio := _Ratio.of(correct, n_tokens)) is None:
        return NO_INTERVAL
    share, n, t = ratio.value, ratio.n_tokens, ratio.t(level)
    # Variances of the number of right tokens: the estimated one, and the one that independent tokens would have.
    clustered, independent = (n * ratio.standard_error) ** 2, n * share * (1 - share)
    design_effect = (clustered + t**2 * ratio.assumed_design_effect) / (independent + t**2)
    pull = t**2 * design_effect / n  # t^2 over the effective sample size
    centre = (share + pull / 2) / (1 + pull)
    reach = math.sqrt(pull * (share * (1 - share) + pull / 4)) / (1 + pull)
    # Where nothing or everything is right, rounding must not put the accuracy outside its interval.
    return min(max(centre - reach, 0.0), share), max(min(centre + reach, 1.0), share)


def binomial_interval(n_right: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Return the exact interval of a share of independent items (Clopper & Pearson 1934); NaN without items."""
    if not n:
        return NO_INTERVAL
    tail = (1 - level) / 2
    low = float(scipy.special.betaincinv(n_right, n - n_right + 1, tail)) if n_right else 0.0
    high = float(scipy.special.betaincinv(n_right + 1, n - n_right, 1 - tail)) if n_right < n else 1.0
    return low, high


def difference_interval(difference: Sums, n_tokens: NDArray[np.int64], level: float = LEVEL) -> tuple[float, float]:
    """Return the confidence interval of the difference of two accuracies on the same tokens, paired by sentence.

    It is `mean_interval` with a lower bound on the variance, in the manner of Bonett & Price (2012): the variance if
    only the first probe were correct on one effective token, and only the second on another. The bound is required
    because two probes that agree on every test token may disagree on other tokens. `difference` is the number of
    correct tokens of the first minus that of the second, shape (n_sentences,). Both ends are within -1 to 1; NaN below
    `MIN_SENTENCES` sentences.
    """
    if (ratio := _Ratio.of(difference, n_tokens)) is None:
        return NO_INTERVAL
    low, high = ratio.interval(ratio.least_error, ratio.t(level))
    return max(low, -1.0), min(high, 1.0)


def difference_p_value(difference: Sums, n_tokens: NDArray[np.int64]) -> float:
    """Return the two-sided p-value of a difference of accuracies; NaN below `MIN_SENTENCES` sentences.

    It is 1 minus the highest level at which `difference_interval` excludes 0, so the two never contradict each other.
    """
    ratio = _Ratio.of(difference, n_tokens)
    return math.nan if ratio is None else _p_value(ratio, ratio.least_error)


def mean_p_value(sums: Sums, n_tokens: NDArray[np.int64]) -> float:
    """Return the two-sided p-value of a mean over tokens being 0; NaN below `MIN_SENTENCES` sentences.

    It is 1 minus the highest confidence level at which the interval of `mean_interval` excludes 0.
    """
    ratio = _Ratio.of(sums, n_tokens)
    return math.nan if ratio is None else _p_value(ratio, 0.0)


def _p_value(estimate: _Estimate, least: float) -> float:
    if not max(estimate.standard_error, least):
        return float(estimate.value == 0)
    # Both ends move outwards as the quantile grows, so that the quantile at which 0 is reached is found by halving.
    below, above = 0.0, 1.0
    while not _holds_0(estimate, least, above):
        below, above = above, 2 * above
    for _ in range(60):
        middle = (below + above) / 2
        below, above = (below, middle) if _holds_0(estimate, least, middle) else (middle, above)
    return float(2 * scipy.special.stdtr(estimate.n_clusters - 1, -above))


def _holds_0(estimate: _Estimate, least: float, t: float) -> bool:
    low, high = estimate.interval(least, t)
    return low <= 0 <= high


def mean_interval(sums: Sums, n_tokens: NDArray[np.int64]) -> tuple[float, float]:
    """Return the 95% confidence interval of a mean over tokens; NaN below `MIN_SENTENCES` sentences.

    It is Student's t interval. If the skewness over sentences requires it, an end is moved outwards (the cubic
    transformation of Hall 1992). No end is moved inwards, because the skewness of few sentences is uncertain.
    `sums` has the sum over the tokens of each sentence (for a paired difference, the difference of sums), shape
    (n_sentences,); sentences without tokens do not count.
    """
    ratio = _Ratio.of(sums, n_tokens)
    return NO_INTERVAL if ratio is None else ratio.interval()


def ratio_estimate(
    sums: Sums, n: NDArray[np.int64] | None = None, interval: Callable[..., tuple[float, float]] = mean_interval
) -> tuple[float, tuple[float, float]]:
    """Return the sum over all sentences divided by their number n of tokens, NaN without any, and its interval.

    `n` has the shape of the sums, and is 1 by default; `interval` is `mean_interval`, `accuracy_interval` or
    `difference_interval`.
    """
    n = np.ones(len(sums), dtype=np.int64) if n is None else n
    total = n.sum()
    return float(sums.sum() / total) if total else math.nan, interval(sums, n)


def ratio_interval(*ratios: tuple[Sums, Sums]) -> tuple[float, float]:
    """Return the 95% confidence interval of a ratio of sums over sentences, such as R², or of two ratios' difference.

    It is as `mean_interval`, with the jackknife of the ratio, or of the difference. Each ratio is given by the
    numerators and denominators of the sentences, shape (n_sentences,). Both ends are NaN below `MIN_SENTENCES`
    sentences, or if a denominator is 0 without a sentence.
    """
    estimate = _ratios(*ratios)
    return NO_INTERVAL if estimate is None else estimate.interval()


def ratio_p_value(*ratios: tuple[Sums, Sums]) -> float:
    """Return the two-sided p-value of a ratio of sums, or of a difference of two ratios, being 0.

    It is 1 minus the highest confidence level at which `ratio_interval` excludes 0; NaN if there is no interval.
    """
    estimate = _ratios(*ratios)
    return math.nan if estimate is None else _p_value(estimate, 0.0)


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
    """A function of sums over clusters: value, mean of the jackknife pseudo-values, standard error, skewness, number.

    The standard error is their standard deviation over the root of their number, the skewness the adjusted
    Fisher-Pearson coefficient.
    """

    value: float
    unbiased: float
    standard_error: float
    skewness: float
    n_clusters: int

    def t(self, level: float = LEVEL) -> float:
        """Return the quantile of Student's t at the upper end of an interval of this level."""
        return float(scipy.special.stdtrit(self.n_clusters - 1, (1 + level) / 2))

    def interval(self, least: float = 0.0, t: float | None = None) -> tuple[float, float]:
        """Return Student's interval (95% if `t` is None), widened for skewness, with a standard error >= `least`."""
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

    `assumed_design_effect` is 1 + (m - 1) `INTRA_SENTENCE_CORRELATION`, m the mean over tokens of their cluster's size.
    """

    n_tokens: int
    assumed_design_effect: float

    @classmethod
    def of(cls, sums: Sums, n_tokens: NDArray[np.int64]) -> _Ratio | None:
        """Return the ratio with its moments, or None below `MIN_SENTENCES` clusters."""
        has_tokens = n_tokens > 0
        if int(has_tokens.sum()) < MIN_SENTENCES:
            return None
        x, tokens = sums[has_tokens].astype(np.float64), n_tokens[has_tokens].astype(np.float64)
        size = tokens.sum()
        assumed = 1 + ((tokens**2).sum() / size - 1) * INTRA_SENTENCE_CORRELATION
        return cls(float(x.sum() / size), *_moments(_pseudo_values(x, tokens)), int(size), float(assumed))

    @property
    def least_error(self) -> float:
        """The least standard error of a difference of accuracies; see `difference_interval`."""
        return math.sqrt(2) * self.assumed_design_effect / self.n_tokens


def few_sentences(n: int, what: str = "test sentence") -> str | None:
    """Return a sentence that explains the missing interval for `n` clusters (`what`); None if there is an interval."""
    if n >= MIN_SENTENCES:
        return None
    n_in_words = f"1 {what} is" if n == 1 else f"{n} {what}s are"
    return FEW.format(found=n_in_words, least=MIN_SENTENCES)


def widened(value: float, interval: tuple[float, float], draws: Sequence[float]) -> tuple[float, float]:
    """Widen a confidence interval conditional on the given draws, so that it also covers the variation between draws.

    At each end, two distances from `value` are combined as the root of their sum of squares (Zou & Donner 2008): the
    distance of the given interval, and of Student's t interval for the mean over draws. A single draw leaves the
    interval unchanged.
    """
    if len(draws) < 2:
        return interval
    reach = scipy.special.stdtrit(len(draws) - 1, (1 + LEVEL) / 2) * np.std(draws, ddof=1) / math.sqrt(len(draws))
    low, high = interval
    return value - math.hypot(value - low, reach), value + math.hypot(high - value, reach)


Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GroupDifference:
    """The mean of a group minus, or divided by, the mean of another group, with its 95% confidence interval.

    `p` is the p-value of no difference, or of a difference not above 0. Interval and p are NaN if a group has fewer
    than two draws. p is 1 if neither group varies, because such groups do not show the variation between draws.
    """

    value: float
    low: float
    high: float
    p: float


def welch(first: Sequence[float], second: Sequence[float], *, is_above: bool) -> GroupDifference:
    """Compare two independent groups of draws whose variances may differ (Welch 1947), one-sided if `is_above`."""
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
    reach = float(scipy.special.stdtrit(freedom, (1 + LEVEL) / 2)) * error
    t = value / error
    p = float(scipy.special.stdtr(freedom, -t)) if is_above else 2 * float(scipy.special.stdtr(freedom, -abs(t)))
    return GroupDifference(value, value - reach, value + reach, p)


def times(first: Sequence[float], second: Sequence[float]) -> GroupDifference:
    """Return the ratio of the draws of two groups, by the means of their logarithms.

    Distances vary in proportion to their size, so logarithms of two groups vary alike where the groups do not, and
    seeds are more informative (Welch's test has more degrees of freedom, and the larger group does not hide the
    difference). The test is one-sided: whether `first` is larger. Draws must be at least 0; if a draw is 0, there is no
    ratio, and the p-value is that of the difference.
    """
    if min(*first, *second) > 0:
        log_difference = welch(np.log(first).tolist(), np.log(second).tolist(), is_above=True)
        return GroupDifference(
            math.exp(log_difference.value),
            math.exp(log_difference.low),
            math.exp(log_difference.high),
            log_difference.p,
        )
    return GroupDifference(math.nan, math.nan, math.nan, welch(first, second, is_above=True).p)


def common_share(from_start: Sequence[float], between: Sequence[float]) -> float:
    """Return the share of their squared distance from a common start that trainings have in common.

    If training (i) moves the start by c + e_i, where all e_i are independent of c and of each other with mean 0, its
    expected squared distance from the start is |c|^2 + |e|^2, and that between two trainings 2 |e|^2. The share of c is
    1 minus half the ratio of the second (`between`) to the first (`from_start`). 1 - cosine is half the squared
    distance of unit vectors, so it may replace the squared distance; so may 1 - linear CKA (of centred Gram matrices
    with norm 1), and the Jensen-Shannon divergence, the square of a distance in a Hilbert space (Fuglede & Topsoe
    2004). The share is NaN without pairs, or if the trainings have not moved.
    """
    moved = float(np.mean(from_start))
    return math.nan if not len(between) or not moved > 0 else 1 - float(np.mean(between)) / (2 * moved)


@dataclass(frozen=True)
class Spread:
    """The mean score of trainings, and the variance of a single training's score by source.

    Args:
        low: Lower end of the confidence interval of the mean, over other seeds, orders and test clusters; NaN if there
            are fewer than two trainings or too few clusters.
        variances: Variance of a single training's score due to `seed`, to `order`, and to `rest`, their joint effect
            beyond the sum of both, each on an infinite test part; and due to `test`, the choice of test clusters. A
            source that was not varied is NaN.
        ends: Confidence interval of each of these variances, wide for few trainings.
    """

    mean: float
    low: float
    high: float
    variances: Mapping[str, float]
    ends: Mapping[str, tuple[float, float]]

    @property
    def sds(self) -> dict[str, float]:
        """Standard deviation of a single training's score due to each source."""
        return {name: math.sqrt(value) for name, value in self.variances.items()}

    @property
    def shares(self) -> dict[str, float]:
        """Share of each source in the sum of the variances; NaN if the sum is 0."""
        total = sum(value for value in self.variances.values() if value == value)
        return {name: value / total if total else math.nan for name, value in self.variances.items()}

    @property
    def share_ends(self) -> dict[str, tuple[float, float]]:
        """Interval of each share: the least of a source with the most of the others, and vice versa."""
        known = {name: ends for name, ends in self.ends.items() if not math.isnan(ends[0])}
        intervals = dict.fromkeys(self.ends, (math.nan, math.nan))
        for name, source_ends in known.items():
            others = [sum(ends[side] for other, ends in known.items() if other != name) for side in (1, 0)]
            wholes = [end + other for end, other in zip(source_ends, others, strict=True)]
            intervals[name] = (
                source_ends[0] / wholes[0] if wholes[0] else 0.0,
                source_ends[1] / wholes[1] if wholes[1] else 1.0,
            )
        return intervals


def spread(numerators: Floats, denominators: Floats, level: float = LEVEL) -> Spread:
    """Return the mean score and its variance components, by analysis of variance with random effects.

    With one order, the joint effect of seed and order belongs to the seed; with one seed, to the order. `numerators`,
    such as correct tokens or a difference of two, have shape (n_seeds, n_orders, n_clusters), `denominators`
    (n_clusters,).
    """
    n, total = numerators.shape[2], denominators.sum()
    scores = numerators.sum(2) / total
    # How far each cluster moves each score: the mean over clusters is 0.
    pseudo = n * (numerators - scores[..., None] * denominators) / total
    of_clusters = _of_clusters(pseudo)
    seen = _of_trainings(*_mean_squares(scores), *scores.shape)
    # What trainings differ by on the same few clusters is in part the choice of these.
    variances = {name: max(value - of_clusters[name] / n, 0.0) for name, value in seen.items()}
    test = float((pseudo**2).sum(2).mean()) / max(n - 1, 1) / n
    test = test if n > 1 else math.nan
    low, high = _interval(scores, of_clusters, n, level)
    ends = {**_ends_of_variances(scores, of_clusters, n, level), "test": (test, test)}
    return Spread(float(scores.mean()), low, high, {**variances, "test": test}, ends)


def _ends_of_variances(
    scores: Floats, of_clusters: Mapping[str, float], n: int, level: float
) -> dict[str, tuple[float, float]]:
    """Return the interval of Williams (1962) and Tukey (1951) of each source's variance; NaN if it did not vary.

    The other parts of a source's mean square, of the residual and of the test clusters, are its noise.
    """
    n_seeds, n_orders = scores.shape
    rows, columns, rest = _mean_squares(scores)
    free_of_rest = (n_seeds - 1) * (n_orders - 1)
    of_rest, free_of_noise = (rest, free_of_rest) if free_of_rest else (0.0, n - 1)
    return {
        name: _ends_of_variance(
            square, free, size, max(noise + size * of_clusters[name] / n, 0.0), free_of_noise, (1 - level) / 2
        )
        for name, square, free, size, noise, free_of_noise in (
            ("seed", rows, n_seeds - 1, n_orders, of_rest, free_of_noise),
            ("order", columns, n_orders - 1, n_seeds, of_rest, free_of_noise),
            ("rest", rest, free_of_rest, 1, 0.0, n - 1),
        )
    }


def _ends_of_variance(
    square: float, free: int, size: int, noise: float, free_of_noise: int, tail: float
) -> tuple[float, float]:
    if not free or free_of_noise < 1:
        return math.nan, math.nan
    low, high = (
        max(
            free
            * (square - float(scipy.special.fdtri(free, free_of_noise, 1 - p)) * noise)
            / (size * float(scipy.special.chdtri(free, p))),
            0.0,
        )
        for p in (tail, 1 - tail)
    )
    return low, high


def _mean_squares(scores: Floats) -> tuple[float, float, float]:
    """Return the mean squares of rows, of columns and of the residual; NaN for a single level."""
    mean, rows, columns = scores.mean(), scores.mean(1, keepdims=True), scores.mean(0, keepdims=True)
    rest = scores - rows - columns + mean
    return _per_degree(scores, rows - mean, columns - mean, rest)


def _per_degree(effects: Floats, rows: Floats, columns: Floats, rest: Floats) -> tuple[float, float, float]:
    """Return the sums of squares of effects over their degrees of freedom; NaN for a single level.

    `effects`, and their parts of rows, of columns and of the residual, have shape (n_seeds, n_orders, ...), or 1.
    """
    n_seeds, n_orders = effects.shape[:2]
    squares = (
        (n_orders * (rows**2).sum(), n_seeds - 1), (n_seeds * (columns**2).sum(), n_orders - 1),
        ((rest**2).sum(), (n_seeds - 1) * (n_orders - 1)),
    )  # fmt: skip
    of_rows, of_columns, of_rest = (float(square) / free if free else math.nan for square, free in squares)
    return of_rows, of_columns, of_rest


def _of_trainings(rows: float, columns: float, rest: float, n_seeds: int, n_orders: int) -> dict[str, float]:
    """Return the variances of seed, of order and of both together, given their mean squares, not truncated at 0."""
    if n_orders == 1 or n_seeds == 1:
        return {"seed": rows, "order": columns, "rest": math.nan}
    return {"seed": (rows - rest) / n_orders, "order": (columns - rest) / n_seeds, "rest": rest}


def _of_clusters(pseudo: Floats) -> dict[str, float]:
    """Return the variances over clusters of the common part of all trainings, and of their differences.

    `trainings` is the contribution of the latter to the variance of the mean. `pseudo` has the effect of each cluster
    on each score, with mean 0 over clusters, shape (n_seeds, n_orders, n_clusters).
    """
    n_seeds, n_orders, n = pseudo.shape
    free = max(n - 1, 1)
    mean, of_seed, of_order = pseudo.mean((0, 1)), pseudo.mean(1), pseudo.mean(0)
    square = float(n_seeds * n_orders * (mean**2).sum() / free)
    rest = pseudo - of_seed[:, None] - of_order[None] + mean
    rows, columns, both = (part / free for part in _per_degree(pseudo, of_seed - mean, of_order - mean, rest))
    known = [mean_square for mean_square in (rows, columns) if mean_square == mean_square]
    of_trainings = (sum(known) - (both if len(known) == 2 else 0.0)) / (n_seeds * n_orders)
    of_mean = square / (n_seeds * n_orders) - of_trainings
    return {"mean": of_mean, "trainings": of_trainings, **_of_trainings(rows, columns, both, n_seeds, n_orders)}


# A part of the variance of a mean, and the degrees of freedom of its estimate.
Part = tuple[float, int]


def _interval(scores: Floats, of_clusters: Mapping[str, float], n: int, level: float) -> tuple[float, float]:
    """Return the confidence interval of the mean: Student's t with the degrees of freedom of Satterthwaite (1946)."""
    if scores.size < 2 or n < MIN_SENTENCES:
        return math.nan, math.nan
    parts = [(max(of_clusters["mean"], 0.0) / n, n - 1), *_parts_of_trainings(scores, of_clusters["trainings"], n)]
    return _around(float(scores.mean()), parts, level)


def _parts_of_trainings(scores: Floats, of_clusters: float, n: int) -> list[Part]:
    """Return the contributions of the trainings, at least two, to the variance of their mean score.

    Few trainings may have nearly the same score by chance though they are correct on other clusters. The contribution
    of that to the variance is known from the clusters (`of_clusters`), and is a lower bound.
    """
    n_seeds, n_orders = scores.shape
    rows, columns, rest = _mean_squares(scores)
    if n_orders == 1:
        parts = [(rows / n_seeds, n_seeds - 1)]
    elif n_seeds == 1:
        parts = [(columns / n_orders, n_orders - 1)]
    else:
        # The mean square of a source that seems to vary less than the rest is that of the rest.
        size, free = scores.size, (n_seeds - 1) * (n_orders - 1)
        parts = [
            (max(rows, rest) / size, n_seeds - 1), (max(columns, rest) / size, n_orders - 1), (-rest / size, free)
        ]  # fmt: skip
    return [*parts, (max(of_clusters / n - sum(part for part, _ in parts), 0.0), n - 1)]


def _around(mean: float, parts: Sequence[Part], level: float) -> tuple[float, float]:
    variance = sum(part for part, _ in parts)
    if not variance > 0:
        return mean, mean
    # What is subtracted must not leave fewer degrees of freedom than the least known of the parts has.
    least = min(free for part, free in parts if part > 0)
    freedom = max(variance**2 / sum(part**2 / free for part, free in parts), least)
    reach = float(scipy.special.stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance)
    return mean - reach, mean + reach


@dataclass(frozen=True)
class Difference:
    """The mean score of some trainings minus the mean score of others, on the same test clusters.

    The interval is over other seeds, orders and test clusters; NaN if there are too few of them.
    """

    mean: float
    low: float
    high: float


def paired_difference(a: Floats, b: Floats, denominators: Floats, level: float = LEVEL) -> Difference:
    """Return the difference of trainings at the same seeds and orders; arguments have shapes as for `spread`."""
    difference = spread(a - b, denominators, level)
    return Difference(difference.mean, difference.low, difference.high)


def independent_difference(a: Floats, b: Floats, denominators: Floats, level: float = LEVEL) -> Difference:
    """Return the difference of trainings with unrelated seeds and orders.

    The variances of both means due to their trainings are added, as by Welch (1938); the variance due to the shared
    test clusters is that of the difference. Arguments are as for `paired_difference`; numbers of seeds and orders may
    differ.
    """
    n, total = len(denominators), denominators.sum()
    scores = [of_group.sum(2) / total for of_group in (a, b)]
    mean = float(scores[0].mean() - scores[1].mean())
    if min(of_group.size for of_group in scores) < 2 or n < MIN_SENTENCES:
        return Difference(mean, math.nan, math.nan)
    pseudo = [
        n * (of_group - of[..., None] * denominators) / total for of_group, of in zip((a, b), scores, strict=True)
    ]
    of_difference = float(((pseudo[0].mean((0, 1)) - pseudo[1].mean((0, 1))) ** 2).sum()) / (n - 1)
    # What clusters do to single trainings is in the variances of these already.
    of_trainings = [_of_clusters(of_group)["trainings"] for of_group in pseudo]
    parts = [(max(of_difference - sum(of_trainings), 0.0) / n, n - 1)]
    for of_group, of_its_trainings in zip(scores, of_trainings, strict=True):
        parts += _parts_of_trainings(of_group, of_its_trainings, n)
    return Difference(mean, *_around(mean, parts, level))
