"""How much a score varies with the seed of a training, with the order of its data, and with the test sample.

Trainings are crossed: each seed is trained with each order. A score is a ratio of sums over clusters of the test part,
such as an accuracy over sentences. `docs/notes/finetune.md` derives what is computed here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, fdtri, stdtrit

from probing.statistics.intervals import LEVEL, MIN_SENTENCES

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """The mean score of trainings, and the variance of a single one by its sources.

    Args:
        mean: Mean score of all trainings.
        low: Lower end of the interval of the mean, over other seeds, orders and test clusters; NaN if there are
            fewer than two trainings or too few clusters.
        high: Its upper end.
        variances: Variance that each source gives to the score of a single training: `seed` and `order` alone, and
            `rest`, what they do together beyond the sum of both, each on a test part without end; and `test`, the
            choice of test clusters. A source that was not varied is NaN.
        ends: Ends of the interval of each of these variances; few trainings leave it wide.
    """

    mean: float
    low: float
    high: float
    variances: Mapping[str, float]
    ends: Mapping[str, tuple[float, float]]

    @property
    def sds(self) -> dict[str, float]:
        """Standard deviation that each source gives to the score of a single training."""
        return {name: math.sqrt(value) for name, value in self.variances.items()}

    @property
    def shares(self) -> dict[str, float]:
        """Share of each source in the sum of their variances; NaN where the sum is 0."""
        total = sum(value for value in self.variances.values() if value == value)
        return {name: value / total if total else math.nan for name, value in self.variances.items()}

    @property
    def share_ends(self) -> dict[str, tuple[float, float]]:
        """Interval of each share: the least of a source beside the most of the others, and the other way round."""
        known = {name: ends for name, ends in self.ends.items() if not math.isnan(ends[0])}
        found = dict.fromkeys(self.ends, (math.nan, math.nan))
        for name, own in known.items():
            others = [sum(ends[side] for other, ends in known.items() if other != name) for side in (1, 0)]
            wholes = [end + other for end, other in zip(own, others, strict=True)]
            found[name] = (own[0] / wholes[0] if wholes[0] else 0.0, own[1] / wholes[1] if wholes[1] else 1.0)
        return found


def spread(numerators: Floats, denominators: Floats, level: float = LEVEL) -> Spread:
    """Return the mean score and what its variance consists of, by analysis of variance with random effects.

    With one order, what seed and order do together belongs to the seed; with one seed, to the order.

    Args:
        numerators: What each training has in each cluster, such as tokens that are right; of a comparison, the
            difference of two. Shape (n_seeds, n_orders, n_clusters).
        denominators: What a score is a share of, such as tokens, shape (n_clusters,).
        level: Confidence level of the interval.
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
    """Return the interval of Williams (1962) and Tukey (1951) of each source's variance; NaN where it did not vary.

    What else is in a source's mean square, of the residual and of the test clusters, is its noise.
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
        max(free * (square - float(fdtri(free, free_of_noise, 1 - p)) * noise) / (size * float(chdtri(free, p))), 0.0)
        for p in (tail, 1 - tail)
    )
    return low, high


def _mean_squares(scores: Floats) -> tuple[float, float, float]:
    """Return the mean squares of rows, of columns and of the residual; NaN for one of a single level."""
    n_seeds, n_orders = scores.shape
    mean, rows, columns = scores.mean(), scores.mean(1, keepdims=True), scores.mean(0, keepdims=True)
    rest = scores - rows - columns + mean
    squares = (
        (n_orders * ((rows - mean) ** 2).sum(), n_seeds - 1),
        (n_seeds * ((columns - mean) ** 2).sum(), n_orders - 1),
        ((rest**2).sum(), (n_seeds - 1) * (n_orders - 1)),
    )
    of_rows, of_columns, of_rest = (float(square) / free if free else math.nan for square, free in squares)
    return of_rows, of_columns, of_rest


def _of_trainings(rows: float, columns: float, rest: float, n_seeds: int, n_orders: int) -> dict[str, float]:
    """Return the variances of seed, of order and of both together, given their mean squares; none is cut off at 0."""
    if n_orders == 1 or n_seeds == 1:
        return {"seed": rows, "order": columns, "rest": math.nan}
    return {"seed": (rows - rest) / n_orders, "order": (columns - rest) / n_seeds, "rest": rest}


def _of_clusters(pseudo: Floats) -> dict[str, float]:
    """Return the variances over clusters: of what all trainings share, and of what they differ by.

    `trainings` is what the latter give to the variance of the mean of all of them.

    Args:
        pseudo: How far each cluster moves each score, with mean 0 over clusters, shape (n_seeds, n_orders, n_clusters).
    """
    n_seeds, n_orders, n = pseudo.shape
    free = max(n - 1, 1)
    mean, of_seed, of_order = pseudo.mean((0, 1)), pseudo.mean(1), pseudo.mean(0)
    square = float(n_seeds * n_orders * (mean**2).sum() / free)
    rest = pseudo - of_seed[:, None] - of_order[None] + mean
    squares = (
        (n_orders * ((of_seed - mean) ** 2).sum(), n_seeds - 1),
        (n_seeds * ((of_order - mean) ** 2).sum(), n_orders - 1),
        ((rest**2).sum(), (n_seeds - 1) * (n_orders - 1)),
    )
    rows, columns, both = (float(one) / levels / free if levels else math.nan for one, levels in squares)
    known = [one for one in (rows, columns) if one == one]
    of_trainings = (sum(known) - (both if len(known) == 2 else 0.0)) / (n_seeds * n_orders)
    of_mean = square / (n_seeds * n_orders) - of_trainings
    return {"mean": of_mean, "trainings": of_trainings, **_of_trainings(rows, columns, both, n_seeds, n_orders)}


# A part of the variance of a mean, and the degrees of freedom of its estimate.
Part = tuple[float, int]


def _interval(scores: Floats, of_clusters: Mapping[str, float], n: int, level: float) -> tuple[float, float]:
    """Return the interval of the mean: Student's t with the degrees of freedom of Satterthwaite (1946)."""
    if scores.size < 2 or n < MIN_SENTENCES:
        return math.nan, math.nan
    parts = [(max(of_clusters["mean"], 0.0) / n, n - 1), *_parts_of_trainings(scores, of_clusters["trainings"], n)]
    return _around(float(scores.mean()), parts, level)


def _parts_of_trainings(scores: Floats, of_clusters: float, n: int) -> list[Part]:
    """Return what the trainings give to the variance of their mean score; there are at least two.

    Few trainings may happen to have nearly the same score though they are right on other clusters. What that gives to
    the variance is known from the clusters, and the variance is not taken to be smaller.

    Args:
        scores: The score of each training, shape (n_seeds, n_orders).
        of_clusters: What trainings differ by on each cluster, as `trainings` of `_of_clusters`.
        n: Number of clusters.
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
    reach = float(stdtrit(freedom, (1 + level) / 2)) * math.sqrt(variance)
    return mean - reach, mean + reach


@dataclass(frozen=True)
class Difference:
    """The mean score of some trainings less that of others, on the same test clusters.

    Args:
        mean: The difference.
        low: Lower end of its interval over other seeds, orders and test clusters; NaN if there are too few of them.
        high: Its upper end.
    """

    mean: float
    low: float
    high: float


def paired_difference(a: Floats, b: Floats, denominators: Floats, level: float = LEVEL) -> Difference:
    """Return the difference of trainings at the same seeds and orders: the spread of what each pair differs by.

    Args:
        a: What each training has in each cluster, shape (n_seeds, n_orders, n_clusters).
        b: What the other one of the same seed and order has, of the same shape.
        denominators: What a score is a share of, shape (n_clusters,).
        level: Confidence level of the interval.
    """
    found = spread(a - b, denominators, level)
    return Difference(found.mean, found.low, found.high)


def independent_difference(a: Floats, b: Floats, denominators: Floats, level: float = LEVEL) -> Difference:
    """Return the difference of trainings whose seeds and orders have nothing to do with each other.

    The variances of both means by their trainings are added up, as by Welch (1938); of the test clusters, which both
    share, it is that of the difference.

    Args:
        a: What each training has in each cluster, shape (n_seeds, n_orders, n_clusters).
        b: What the others have, shape (n_seeds, n_orders, n_clusters) with other numbers of seeds and orders.
        denominators: What a score is a share of, shape (n_clusters,).
        level: Confidence level of the interval.
    """
    n, total = len(denominators), denominators.sum()
    scores = [one.sum(2) / total for one in (a, b)]
    mean = float(scores[0].mean() - scores[1].mean())
    if min(one.size for one in scores) < 2 or n < MIN_SENTENCES:
        return Difference(mean, math.nan, math.nan)
    pseudo = [n * (one - of[..., None] * denominators) / total for one, of in zip((a, b), scores, strict=True)]
    of_difference = float(((pseudo[0].mean((0, 1)) - pseudo[1].mean((0, 1))) ** 2).sum()) / (n - 1)
    # What clusters do to single trainings is in the variances of these already.
    of_trainings = [_of_clusters(one)["trainings"] for one in pseudo]
    parts = [(max(of_difference - sum(of_trainings), 0.0) / n, n - 1)]
    for one, of_one in zip(scores, of_trainings, strict=True):
        parts += _parts_of_trainings(one, of_one, n)
    return Difference(mean, *_around(mean, parts, level))
