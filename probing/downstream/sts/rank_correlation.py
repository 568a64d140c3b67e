"""Spearman's rank correlation of similarities with scores: three aggregations over subsets, and intervals.

STS12 to STS16 consist of several subsets each. `all` takes the pairs of all subsets as one list, `mean` is the mean of
the subsets' correlations, and `wmean` is their mean weighted by the number of pairs. They differ by points, so a figure
is not comparable without its aggregation; for a set of one subset the three are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from probing.statistics.bootstrap import DRAWS

Aggregation = Literal["all", "mean", "wmean"]
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)

Array = NDArray[np.float64]
# Number of lists that are ranked at once.
_AT_ONCE = 128


@dataclass(frozen=True)
class Draws:
    """Bootstrap draws of pairs within each subset, shared by everything measured on them.

    Args:
        times: How often each draw contains each pair, shape (n_draws, n_pairs).
    """

    times: NDArray[np.float32]

    @classmethod
    def of(cls, subset: NDArray[np.int64], seed: int, n_draws: int = DRAWS) -> Draws:
        """Draw pairs with replacement, as many in each subset as it has.

        Args:
            subset: Subset of each pair, shape (n_pairs,).
            seed: Seed of the generator.
            n_draws: Number of bootstrap draws.
        """
        generator = np.random.default_rng(seed)
        times = np.zeros((n_draws, len(subset)), dtype=np.float32)
        for one in np.unique(subset):
            of_subset = np.flatnonzero(subset == one)
            n = len(of_subset)
            times[:, of_subset] = generator.multinomial(n, np.full(n, 1 / n), size=n_draws)
        return cls(times)


def spearman(a: Array, b: Array) -> float:
    """Return Spearman's correlation, with mean ranks for ties.

    It is NaN where all values of a side are equal, or one is not finite.

    Args:
        a: First values, shape (n,).
        b: Second values, shape (n,).
    """
    return float(weighted_spearman(a, b, np.ones((1, len(a)), dtype=np.float32))[0])


def weighted_spearman(a: Array, b: Array, times: NDArray[np.float32]) -> Array:
    """Return Spearman's correlation of lists in which each pair of values occurs several times.

    No list is sorted: the rank of a value follows from how often the list contains lower values.

    Args:
        a: First values, shape (n,).
        b: Second values, shape (n,).
        times: How often each list contains each pair, shape (n_lists, n).

    Returns:
        Shape (n_lists,); NaN where all values of a side are equal, and everywhere if a value is not finite.
    """
    if not _finite(a, b):  # sorted, NaN would be the largest value
        return np.full(len(times), np.nan)
    # In blocks: the ranks of all bootstrap draws of 10,000 pairs at once would take half a gigabyte.
    blocks = (times[first : first + _AT_ONCE] for first in range(0, len(times), _AT_ONCE))
    return np.concatenate([_weighted_spearman(a, b, block) for block in blocks])


def _finite(a: Array, b: Array) -> bool:
    return bool(np.isfinite(a).all() and np.isfinite(b).all())


def _weighted_spearman(a: Array, b: Array, times: NDArray[np.float32]) -> Array:
    ranks_a, ranks_b = _ranks(a, times), _ranks(b, times)
    n = times.sum(1, dtype=np.float64)
    # The mean rank is the same in both.
    for ranks in (ranks_a, ranks_b):
        ranks -= ((n + 1) / 2)[:, None]
    covariance, square_a, square_b = (
        np.einsum("ij,ij,ij->i", times, x, y) for x, y in ((ranks_a, ranks_b), (ranks_a, ranks_a), (ranks_b, ranks_b))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(covariance / np.sqrt(square_a * square_b))


def _ranks(values: Array, times: NDArray[np.float32]) -> Array:
    """Return the mean rank of each value in each list, shape (n_lists, n)."""
    _, group = np.unique(values, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    counts = np.add.reduceat(times[:, order], starts, axis=1, dtype=np.float64)
    ranks: Array = (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, group]
    return ranks


def pseudo_values(a: Array, b: Array) -> Array:
    """Return a number for each pair of values; their mean and standard error are those of Spearman's correlation.

    They are the jackknife's pseudo-values (Tukey 1958), n r - (n - 1) r_i, where r_i leaves out pair i, moved by a
    constant so that their mean is r itself. The standard error of the difference of two such lists is that of the
    difference of two correlations on the same pairs.

    Args:
        a: First values, shape (n,).
        b: Second values, shape (n,).

    Returns:
        Shape (n,); zeros where all values of a side are equal, since they then tell nothing of the other; NaN if a
        value is not finite.
    """
    n = len(a)
    if not _finite(a, b):
        return np.full(n, np.nan)
    whole = float(np.nan_to_num(spearman(a, b)))
    without = []
    for first in range(0, n, _AT_ONCE):
        times = np.ones((min(_AT_ONCE, n - first), n), dtype=np.float32)
        times[np.arange(len(times)), first + np.arange(len(times))] = 0
        without.append(np.nan_to_num(weighted_spearman(a, b, times)))
    left_out = np.concatenate(without)
    return whole - (n - 1) * (left_out - left_out.mean())


def aggregated(a: Array, b: Array, subset: NDArray[np.int64]) -> dict[Aggregation, float]:
    """Return Spearman's correlation in each aggregation.

    Args:
        a: First values, shape (n_pairs,).
        b: Second values, shape (n_pairs,).
        subset: Subset of each pair, shape (n_pairs,).
    """
    found = aggregated_draws(a, b, subset, Draws(np.ones((1, len(a)), dtype=np.float32)))
    return {how: float(values[0]) for how, values in found.items()}


def aggregated_draws(a: Array, b: Array, subset: NDArray[np.int64], draws: Draws) -> dict[Aggregation, Array]:
    """Return Spearman's correlation of each bootstrap draw, in each aggregation, each of shape (n_draws,).

    Args:
        a: First values, shape (n_pairs,).
        b: Second values, shape (n_pairs,).
        subset: Subset of each pair, shape (n_pairs,).
        draws: Bootstrap draws of the pairs.
    """
    everything = weighted_spearman(a, b, draws.times)
    subsets, sizes = np.unique(subset, return_counts=True)
    if len(subsets) == 1:
        return dict.fromkeys(AGGREGATIONS, everything)
    each = np.stack([weighted_spearman(a[at], b[at], draws.times[:, at]) for at in (subset == one for one in subsets)])
    return {"all": everything, "mean": each.mean(0), "wmean": sizes @ each / sizes.sum()}
