"""How alike two rankings of the same neurons are: one against one or many others at a time, arrays in and out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Ranks = NDArray[np.int64]


def neuron_ranks(scores: Array) -> Ranks:
    """Return each neuron's place in the ranking from 1, ties by lower index; n + 1, no place, where the score is 0.

    Args:
        scores: Higher is better, shape (..., n).
    """
    n, dead = scores.shape[-1], scores == 0
    order = np.argsort(np.where(dead, np.inf, -scores), axis=-1, kind="stable")
    place = np.empty(scores.shape, dtype=np.int64)
    np.put_along_axis(place, order, np.broadcast_to(np.arange(1, n + 1), scores.shape), axis=-1)
    return np.where(dead, n + 1, place)


def top_overlap(ranks_a: Ranks, ranks_b: Ranks, k: int) -> Array:
    """Return the number that both have in their top k, as a share of k.

    Args:
        ranks_a: Shape (n,).
        ranks_b: Shape (..., n).
        k: Size of the top.
    """
    # Where fewer neurons than k are compared, n + 1 is still no place.
    return (np.maximum(ranks_a, ranks_b) <= min(k, len(ranks_a))).sum(-1) / k


def rank_biased_overlap(ranks_a: Ranks, ranks_b: Ranks, p: float) -> Array:
    """Return the extrapolated rank-biased overlap of two lists (Webber, Moffat & Zobel 2010, RBO_ext, equation 32).

    X_d, the overlap at depth d, counts the neurons whose deeper place is at most d, and the measure is linear in X:
    it is the sum of what each neuron is worth from its deeper place on. Two full rankings share everything at
    depth n, so where n is not large against 1 / (1 - p) even unrelated ones come near 1: read it beside its chance.

    Args:
        ranks_a: Shape (n,). Those with a place are the list, so the two may differ in length.
        ranks_b: Shape (..., n), as many with a place in each row.
        p: Persistence, in 0..1 exclusively.

    Returns:
        Shape (...); NaN where a list is empty.
    """
    n = ranks_a.shape[-1]
    short, long = sorted((int((ranks_a <= n).sum()), int((ranks_b.reshape(-1, n)[0] <= n).sum())))
    if short == 0:
        return np.full(ranks_b.shape[:-1], np.nan)
    depth = np.arange(1, long + 1)
    weight = (1 - p) * p ** (depth - 1.0)
    worth = np.zeros(n + 2)
    worth[1 : long + 1] = np.cumsum((weight / depth)[::-1])[::-1] + p**long / long
    # Below the end of the shorter list its agreement there, X_short / short, is taken to go on.
    below = depth[short:]
    worth[1 : short + 1] += (weight[short:] * (below - short) / (short * below)).sum()
    worth[1 : short + 1] += p**long * (1 / short - 1 / long)
    return worth[np.maximum(ranks_a, ranks_b)].sum(-1)


def spearman(ranks_a: Array, ranks_b: Array) -> Array:
    """Return the correlation of ranks.

    Args:
        ranks_a: Tied neurons have their mean rank, shape (n,).
        ranks_b: Shape (..., n).

    Returns:
        Shape (...); NaN where all neurons are tied.
    """
    x, y = ranks_a - ranks_a.mean(), ranks_b - ranks_b.mean(-1, keepdims=True)
    return _ratio(y @ x, np.sqrt(np.square(x).sum() * np.square(y).sum(-1)))


def kendall(ranks_a: Array, ranks_b: Array) -> Array:
    """Return tau-b: pairs of neurons in the same order less pairs in opposite order, ties set aside (Kendall 1945).

    Args:
        ranks_a: Tied neurons have their mean rank, shape (n,).
        ranks_b: Shape (..., n).

    Returns:
        Shape (...); NaN where all neurons are tied.
    """
    n, order = len(ranks_a), np.argsort(ranks_a, kind="stable")
    x = ranks_a[order]
    # Twice a mean rank is whole. Small integers, laid out with the many rankings side by side, are fastest.
    whole = np.int16 if n < 2**13 else np.int32
    y = np.ascontiguousarray((2 * ranks_b.reshape(-1, n)[:, order]).T.astype(whole))
    agreeing = np.zeros(y.shape[1])
    for i, above in enumerate(np.searchsorted(x, x, side="right")):
        agreeing += np.sign(y[above:] - y[i]).sum(0, dtype=whole)
    pairs = n * (n - 1) / 2
    untied_a, untied_b = pairs - _tied_pairs(x[:, None]), pairs - _tied_pairs(y)
    return _ratio(agreeing, np.sqrt(untied_a * untied_b)).reshape(ranks_b.shape[:-1])


def _tied_pairs(columns: NDArray[Any]) -> Array:
    """Return how many pairs are equal in each column of an array of shape (n, m)."""
    ordered, index = np.sort(columns, axis=0, kind="stable"), np.arange(len(columns))[:, None]
    new = np.ones(columns.shape, dtype=bool)
    new[1:] = ordered[1:] != ordered[:-1]
    # Each is tied with those since its value was new.
    return (index - np.maximum.accumulate(np.where(new, index, 0), axis=0)).sum(0).astype(np.float64)


def _ratio(value: Array, scale: Array) -> Array:
    return np.divide(value, scale, out=np.full(np.shape(value), np.nan), where=scale > 0)
