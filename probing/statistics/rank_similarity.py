"""Similarity of rankings of the same neurons, computed on arrays: one ranking against one or many others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ranks = NDArray[np.int64]

# Size of the top whose overlap is measured, between bootstraps and between penalties.
TOP_OF_BOOTSTRAPS, TOP_OF_PENALTIES = 20, 10


def neuron_ranks(scores: Array) -> Ranks:
    """Return each neuron's rank, from 1, ties by lower index; n + 1, unranked, where the score is 0 or undefined (NaN).

    Args:
        scores: Higher is better, shape (..., n).
    """
    n, dead = scores.shape[-1], (scores == 0) | np.isnan(scores)
    order = np.argsort(np.where(dead, np.inf, -scores), axis=-1, kind="stable")
    rank = np.empty(scores.shape, dtype=np.int64)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(1, n + 1), scores.shape), axis=-1)
    return np.where(dead, n + 1, rank)


# Scores are equal that differ by at most this share of themselves, or by `ROUNDING` of the highest one. Contributions
# of copies of a column in other units, from probes trained in float32, differed by up to a quarter of either.
EQUAL, ROUNDING = 1e-5, 2e-6


def shared_ranks(scores: Array) -> Ranks:
    """Return ranks from 1, in which equal scores share the best rank of theirs, and the next rank is skipped.

    Args:
        scores: Higher is better, none NaN, shape (..., n).
    """
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
    """Return the rank and the index of each score of shape (n,), the best first; equal ones share a rank, by index."""
    return sorted(zip(shared_ranks(scores).tolist(), range(len(scores)), strict=True))


def top_overlap(ranks_a: Ranks, ranks_b: Ranks, k: int) -> Array:
    """Return the number of neurons that are in the top k of both rankings, as a share of k.

    Args:
        ranks_a: Ranks from `neuron_ranks`, shape (n,).
        ranks_b: Ranks of one or more other rankings, shape (..., n).
        k: Number of neurons at the top.
    """
    # If there are fewer than k neurons, rank n + 1 must not count as being in the top, since it means unranked.
    return (np.maximum(ranks_a, ranks_b) <= min(k, len(ranks_a))).sum(-1) / k


def rank_biased_overlap(ranks_a: Ranks, ranks_b: Ranks, p: float) -> Array:
    """Return the extrapolated rank-biased overlap of two lists (Webber, Moffat & Zobel 2010, RBO_ext, equation 32).

    X_d, the overlap at depth d, counts the neurons whose larger rank is at most d. The measure is linear in X: it is a
    sum over neurons of a value that depends on the larger rank alone. Two complete rankings share all neurons at depth
    n. So, unless n is much larger than 1 / (1 - p), even unrelated rankings have a value near 1: compare it with the
    value under chance.

    Args:
        ranks_a: Ranks from `neuron_ranks`, shape (n,). The ranked neurons are the list, so lists may differ in length.
        ranks_b: Ranks of one or more other lists, shape (..., n), with equally many ranked neurons in each row.
        p: Persistence, between 0 and 1, both excluded.

    Returns:
        Shape (...); NaN where a list is empty.
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
    """Return Spearman's rank correlation.

    Args:
        ranks_a: Ranks in which tied neurons have their mean rank, shape (n,).
        ranks_b: Ranks of one or more other rankings, shape (..., n).

    Returns:
        Shape (...); NaN where all neurons are tied.
    """
    x, y = ranks_a - ranks_a.mean(), ranks_b - ranks_b.mean(-1, keepdims=True)
    return _ratio(y @ x, np.sqrt(np.square(x).sum() * np.square(y).sum(-1)))


def kendall(ranks_a: Array, ranks_b: Array) -> Array:
    """Return Kendall's tau-b (1945): concordant minus discordant pairs of neurons, normalised by the untied pairs.

    Args:
        ranks_a: Ranks in which tied neurons have their mean rank, shape (n,).
        ranks_b: Ranks of one or more other rankings, shape (..., n).

    Returns:
        Shape (...); NaN where all neurons are tied, or a rank is NaN.
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
    found = _ratio(agreeing, np.sqrt(untied_a * untied_b)).reshape(ranks_b.shape[:-1])
    return np.where(undefined, np.nan, found)


def _tied_pairs(columns: NDArray[Any]) -> Array:
    """Return how many pairs are equal in each column of an array of shape (n, m)."""
    ordered, index = np.sort(columns, axis=0, kind="stable"), np.arange(len(columns))[:, None]
    new = np.ones(columns.shape, dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    # Each value is tied with the equal values before it.
    return (index - np.maximum.accumulate(np.where(new, index, 0), axis=0)).sum(0).astype(np.float64)


def _ratio(value: Array, scale: Array) -> Array:
    return np.divide(value, scale, out=np.full(np.shape(value), np.nan), where=scale > 0)
