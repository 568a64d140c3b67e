"""What a statistic of two rankings gives when one side's scores are dealt to the neurons anew, at random."""

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
# These ask which neurons were chosen, the others in which order all of them stand.
CHOICE: tuple[Statistic, ...] = ("overlap", "rbo")
# Equal values may differ by rounding, as they are summed in another order.
ROUNDING = 1e-12


class Settings(NamedTuple):
    """What a statistic and its chance depend on beside the scores; see `probing.comparison.agreement.agreement`."""

    k: int
    persistence: float
    permutations: int
    seed: int


class Chance(NamedTuple):
    """What chance gives.

    Args:
        mean: Of the statistic.
        low: Lower end of the interval in which 95 of 100 chances lie.
        high: Upper end.
        p_value: Share of the dealings that agree at least as much as the true one, itself among them.
    """

    mean: float
    low: float
    high: float
    p_value: float


def compared(name: Statistic, a: Array, b: Array) -> NDArray[np.bool_]:
    """Return which neurons a statistic compares: those dead on neither side, or for `CHOICE` those not dead on both."""
    return (a != 0) | (b != 0) if name in CHOICE else (a != 0) & (b != 0)


def similarities(name: Statistic, a: Array, others: Array, settings: Settings) -> Array:
    """Return a statistic of one scoring with each of several; NaN where one of the two ranks nothing.

    Args:
        name: Which statistic.
        a: Scores, shape (n,).
        others: Scores of the same neurons, shape (n_others, n).
        settings: Of the statistic.
    """
    found = np.full(len(others), np.nan)
    live = others != 0
    # Nearly always the same neurons are dead in all of them, and they are compared at once.
    alike = [np.arange(len(others))] if (live == live[0]).all() else [np.array([i]) for i in range(len(others))]
    for rows in alike:
        kept = compared(name, a, others[rows[0]])
        if kept.any() and np.ptp(a):
            found[rows] = _compare(name, _ranked(name, a[kept]), _ranked(name, others[rows][:, kept]), settings)
    found[np.ptp(others, axis=1) == 0] = np.nan
    return found


def chance(
    name: Statistic,
    value: float,
    a: Array,
    b: Array,
    group: NDArray[Any],
    strangers: Sequence[float],
    settings: Settings,
) -> Chance:
    """Return what chance gives for two scorings of the neurons compared.

    Args:
        name: Which statistic.
        value: Its true value.
        a: Scores, shape (n,).
        b: Scores that are dealt, shape (n,).
        group: Neurons of the same group share a score of b in every dealing, shape (n,).
        strangers: The statistic of rankings that agree by chance though they were not dealt; dealings that agree less
            on average are moved up to their mean, but for the interval's lower end.
        settings: Of the statistic and the dealings.
    """
    shared = len(np.unique(group)) < len(group)
    if name == "overlap" and not shared:
        return _exact_overlap(value, a, b, strangers, settings.k)
    null = _blocks_dealt(name, a, b, group, settings) if shared else _dealt(name, a, b, settings)
    (low, high), moved = percentiles(null), excess(strangers, float(null.mean()))
    p_value = (1 + (null + moved >= value - ROUNDING).sum()) / (1 + len(null))
    return Chance(float(null.mean()) + moved, low, high + moved, float(p_value))


def excess(strangers: Sequence[float], dealt: float) -> float:
    """Return by how much strangers agree more on average than dealings do, 0 where they do not."""
    return max(float(np.mean(strangers)) - dealt, 0.0) if len(strangers) else 0.0


def _ranked(name: Statistic, scores: Array) -> NDArray[Any]:
    """Return what a statistic takes: places, or ranks where ties share their mean rank; shape (..., n)."""
    return neuron_ranks(scores) if name in CHOICE else rankdata(scores, axis=-1)


def _compare(name: Statistic, x: NDArray[Any], y: NDArray[Any], settings: Settings) -> Array:
    """Return a statistic of one ranking, shape (n,), against others, shape (..., n)."""
    if name == "overlap":
        return top_overlap(x, y, settings.k)
    if name == "rbo":
        return rank_biased_overlap(x, y, settings.persistence)
    return spearman(x, y) if name == "spearman" else kendall(x, y)


def _exact_overlap(value: float, a: Array, b: Array, strangers: Sequence[float], k: int) -> Chance:
    """Return what all dealings there are give together: k / n on average where none is dead."""
    tops = [min(k, int((scores != 0).sum())) for scores in (a, b)]
    overlap = hypergeom(len(a), *tops)
    mean = tops[0] * tops[1] / len(a) / k
    moved = excess(strangers, mean)
    low, high = overlap.ppf(ENDS) / k
    p_value = overlap.sf(math.ceil((value - moved) * k - ROUNDING) - 1)
    return Chance(mean + moved, float(low), float(high + moved), float(p_value))


def _dealt(name: Statistic, a: Array, b: Array, settings: Settings) -> Array:
    """Return a statistic under chance, shape (permutations,).

    It depends on which ranks there are and not on whose they are, so that pairs of layers share it.
    """
    x, y = np.sort(_ranked(name, a)), np.sort(_ranked(name, b))
    return _dealt_ranks(name, x.dtype.str, x.tobytes(), y.tobytes(), settings)


@lru_cache(maxsize=256)
def _dealt_ranks(name: Statistic, dtype: str, x: bytes, y: bytes, settings: Settings) -> Array:
    ranks = np.frombuffer(y, dtype=dtype)
    rows = np.broadcast_to(ranks, (settings.permutations, len(ranks)))
    dealt = np.random.default_rng(settings.seed).permuted(rows, axis=1)
    return _compare(name, np.frombuffer(x, dtype=dtype), dealt, settings)


def _blocks_dealt(name: Statistic, a: Array, b: Array, group: NDArray[Any], settings: Settings) -> Array:
    """Return a statistic under chance where the neurons of a group share a score, shape (permutations,)."""
    _, first, block = np.unique(group, return_index=True, return_inverse=True)
    dealt = _blocks_ranked(name in CHOICE, b[first].tobytes(), block.tobytes(), settings.permutations, settings.seed)
    return _compare(name, _ranked(name, a), dealt, settings)


# Two statistics take the same ranks, and ranking costs as much as comparing.
@lru_cache(maxsize=1)
def _blocks_ranked(choice: bool, scores: bytes, block: bytes, permutations: int, seed: int) -> NDArray[Any]:
    of_blocks: NDArray[Any] = np.frombuffer(scores)
    if not choice:  # small integers rank three times as fast
        of_blocks = rankdata(of_blocks, method="dense").astype(np.min_scalar_type(len(of_blocks)))
    rows = np.broadcast_to(of_blocks, (permutations, len(of_blocks)))
    dealt = np.random.default_rng(seed).permuted(rows, axis=1)[:, np.frombuffer(block, dtype=np.intp)]
    return neuron_ranks(dealt) if choice else rankdata(dealt, axis=-1)
