"""The distribution of a statistic of two rankings when one side's scores are permuted among the neurons at random."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import hypergeom, rankdata

from probing.statistics.bootstrap import percentiles
from probing.statistics.intervals import ENDS
from probing.statistics.rank_similarity import Array, kendall, neuron_ranks, rank_biased_overlap, spearman, top_overlap

Statistic = Literal["overlap", "rbo", "spearman", "kendall"]
STATISTICS: tuple[Statistic, ...] = ("overlap", "rbo", "spearman", "kendall")
# These statistics ask which neurons were chosen; the others ask for the order of all neurons.
CHOICE: tuple[Statistic, ...] = ("overlap", "rbo")
# Equal values may differ by rounding, because they are summed in another order.
ROUNDING = 1e-12


class Settings(NamedTuple):
    """Arguments of a statistic and of its null beside the scores; see `probing.comparison.agreement.agreement`."""

    k: int
    persistence: float
    permutations: int
    seed: int


class Chance(NamedTuple):
    """A statistic under chance.

    Args:
        mean: Mean of the statistic under chance.
        low: Lower end of the interval that holds 95 of 100 values under chance.
        high: Upper end of that interval.
        p_value: Share of the permutations that agree at least as much as the true ranking, itself included.
    """

    mean: float
    low: float
    high: float
    p_value: float


def compared(name: Statistic, a: Array, b: Array) -> NDArray[np.bool_]:
    """Return which neurons a statistic compares: those live in both, or for `CHOICE` those live in either."""
    return (a != 0) | (b != 0) if name in CHOICE else (a != 0) & (b != 0)


def similarities(name: Statistic, a: Array, others: Array, settings: Settings) -> Array:
    """Return a statistic of one scoring with each of several; NaN where one of the two is constant and ranks nothing.

    Args:
        name: Name of the statistic.
        a: Scores, shape (n,).
        others: Scores of the same neurons, shape (n_others, n).
        settings: Arguments of the statistic.
    """
    found = np.full(len(others), np.nan)
    live = others != 0
    # Nearly always the same neurons are dead in all of them, so that all are compared at once.
    alike = [np.arange(len(others))] if (live == live[0]).all() else [np.array([i]) for i in range(len(others))]
    for rows in alike:
        kept = compared(name, a, others[rows[0]])
        if kept.any() and np.ptp(a):
            found[rows] = _compare(name, _ranked(name, a[kept]), _ranked(name, others[rows][:, kept]), settings)
    found[np.ptp(others, axis=1) == 0] = np.nan
    return found


def paired_similarities(name: Statistic, ones: Array, others: Array, settings: Settings) -> Array:
    """Return a statistic of each scoring with that in the same row of `others`, as `similarities` does.

    Args:
        name: Name of the statistic.
        ones: Scores, shape (n_draws, n).
        others: Scores of the same neurons, shape (n_draws, n).
        settings: Arguments of the statistic.
    """
    kept = compared(name, ones, others)
    # Nearly always the same neurons are dead in all rows, which are then ranked at once.
    if not kept.any() or (kept != kept[0]).any():
        rows = zip(ones, others, strict=True)
        return np.array([similarities(name, one, other[None], settings)[0] for one, other in rows])
    ranked = (_ranked(name, side[:, kept[0]]) for side in (ones, others))
    found = np.array([_compare(name, one, other[None], settings)[0] for one, other in zip(*ranked, strict=True)])
    found[(np.ptp(ones, axis=1) == 0) | (np.ptp(others, axis=1) == 0)] = np.nan
    return found


def chance(
    name: Statistic,
    value: float,
    a: Array,
    b: Array,
    group: NDArray[Any],
    rotated: Sequence[float],
    settings: Settings,
) -> Chance:
    """Return the null of two scorings of the neurons that are compared.

    Args:
        name: Name of the statistic.
        value: Its value for the two scorings.
        a: Scores, shape (n,).
        b: Scores that are permuted, shape (n,).
        group: Neurons of the same group share a score of b in every permutation, shape (n,).
        rotated: Values of the statistic for unrelated rankings, such as those of random bases. If their mean is above
            that of the permutations, chance is moved up to it, except for the interval's lower end.
        settings: Arguments of the statistic and of the permutations.
    """
    shared = len(np.unique(group)) < len(group)
    if name == "overlap" and not shared:
        return _exact_overlap(value, a, b, rotated, settings.k)
    null = _permuted_blocks(name, a, b, group, settings) if shared else _permuted(name, a, b, settings)
    (low, high), moved = percentiles(null), excess(rotated, float(null.mean()))
    p_value = (1 + (null + moved >= value - ROUNDING).sum()) / (1 + len(null))
    return Chance(float(null.mean()) + moved, low, high + moved, float(p_value))


def excess(rotated: Sequence[float], permuted_mean: float) -> float:
    """Return by how much the mean of `rotated` exceeds that of the permutations; 0 where it does not."""
    return max(float(np.mean(rotated)) - permuted_mean, 0.0) if len(rotated) else 0.0


def _ranked(name: Statistic, scores: Array) -> NDArray[Any]:
    """Return the ranks that a statistic uses: distinct ranks for `CHOICE`, else mean ranks of ties; shape (..., n)."""
    return neuron_ranks(scores) if name in CHOICE else rankdata(scores, axis=-1)


def _compare(name: Statistic, x: NDArray[Any], y: NDArray[Any], settings: Settings) -> Array:
    """Return a statistic of one ranking, shape (n,), against others, shape (..., n)."""
    if name == "overlap":
        return top_overlap(x, y, settings.k)
    if name == "rbo":
        return rank_biased_overlap(x, y, settings.persistence)
    return spearman(x, y) if name == "spearman" else kendall(x, y)


def _exact_overlap(value: float, a: Array, b: Array, rotated: Sequence[float], k: int) -> Chance:
    """Return the null over all permutations, in closed form: its mean is k / n where no neuron is dead."""
    tops = [min(k, int((scores != 0).sum())) for scores in (a, b)]
    overlap = hypergeom(len(a), *tops)
    mean = tops[0] * tops[1] / len(a) / k
    moved = excess(rotated, mean)
    low, high = overlap.ppf(ENDS) / k
    p_value = overlap.sf(math.ceil((value - moved) * k - ROUNDING) - 1)
    return Chance(mean + moved, float(low), float(high + moved), float(p_value))


def _permuted(name: Statistic, a: Array, b: Array, settings: Settings) -> Array:
    """Return a statistic under permutation, shape (permutations,).

    It depends only on the multiset of ranks, not on their order, so that pairs of layers share the result.
    """
    x, y = np.sort(_ranked(name, a)), np.sort(_ranked(name, b))
    return _permuted_ranks(name, x.dtype.str, x.tobytes(), y.tobytes(), settings)


@lru_cache(maxsize=256)
def _permuted_ranks(name: Statistic, dtype: str, x: bytes, y: bytes, settings: Settings) -> Array:
    ranks = np.frombuffer(y, dtype=dtype)
    rows = np.broadcast_to(ranks, (settings.permutations, len(ranks)))
    permuted = np.random.default_rng(settings.seed).permuted(rows, axis=1)
    return _compare(name, np.frombuffer(x, dtype=dtype), permuted, settings)


def _permuted_blocks(name: Statistic, a: Array, b: Array, group: NDArray[Any], settings: Settings) -> Array:
    """Return a statistic under permutation where the neurons of a group share a score, shape (permutations,)."""
    _, first, block = np.unique(group, return_index=True, return_inverse=True)
    permuted = _blocks_ranked(name in CHOICE, b[first].tobytes(), block.tobytes(), settings.permutations, settings.seed)
    return _compare(name, _ranked(name, a), permuted, settings)


# Two statistics in turn use the same ranks, and ranking costs as much as comparing.
@lru_cache(maxsize=1)
def _blocks_ranked(choice: bool, scores: bytes, block: bytes, permutations: int, seed: int) -> NDArray[Any]:
    of_blocks: NDArray[Any] = np.frombuffer(scores)
    if not choice:  # small integers rank three times as fast
        of_blocks = rankdata(of_blocks, method="dense").astype(np.min_scalar_type(len(of_blocks)))
    rows = np.broadcast_to(of_blocks, (permutations, len(of_blocks)))
    permuted = np.random.default_rng(seed).permuted(rows, axis=1)[:, np.frombuffer(block, dtype=np.intp)]
    return neuron_ranks(permuted) if choice else rankdata(permuted, axis=-1)
