"""How well the cosine of two sentences' vectors agrees with human scores: rank correlations by set, layer and space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from probing.corpus.splits import compared
from probing.downstream.sts_dataset import STS_B, SentencePairs
from probing.statistics.bootstrap import DRAWS, percentile_interval

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


Row = dict[str, Any]


@dataclass(frozen=True)
class Similarities:
    """The cosines of all pairs in one layer and space.

    Args:
        pooling: Pooling of the sentence vectors.
        layer: Layer number; None for static vectors.
        transform: Name of the space.
        cosines: Cosines of the pairs of each set, by its label, shape (n_pairs,).
        clipped: Neurons that were set to 0 for each set, by its label.
    """

    pooling: str
    layer: int | None
    transform: str
    cosines: Mapping[str, Array]
    clipped: Mapping[str, Sequence[int]]

    @property
    def key(self) -> Row:
        """The columns that identify it in the tables."""
        return {"pooling": self.pooling, "layer": "" if self.layer is None else self.layer, "transform": self.transform}


@dataclass(frozen=True)
class Choice:
    """The pairs used to choose the layer for a set.

    Args:
        label: Label of the set that they are from.
        kept: Which of its pairs the other set does not have, shape (n_pairs,), bool.
        gold: Scores of all its pairs, shape (n_pairs,).
    """

    label: str
    kept: NDArray[np.bool_]
    gold: Array

    def score(self, found: Similarities) -> float:
        """Return the correlation on these pairs; -2, below all others, where it is undefined."""
        return float(np.nan_to_num(spearman(found.cosines[self.label][self.kept], self.gold[self.kept]), nan=-2))


def reported(sets: Sequence[SentencePairs]) -> list[SentencePairs]:
    """Return the sets to report on: test parts, and dev parts where there is no test part."""
    tested = {one.name for one in sets if one.part == "test"}
    return [one for one in sets if one.part == "test" or (one.part == "dev" and one.name not in tested)]


def choice(target: SentencePairs, sets: Sequence[SentencePairs]) -> Choice | None:
    """Return the pairs used to choose the layer for a set; None if there are fewer than three, as without STS-B."""
    part = "train" if (target.name, target.part) == (STS_B, "dev") else "dev"
    found = next((one for one in sets if (one.name, one.part) == (STS_B, part)), None)
    if found is None:
        return None
    known = set(_pair_keys(target))
    kept = np.array([key not in known for key in _pair_keys(found)])
    return Choice(found.label, kept, found.gold) if kept.sum() > 2 else None


def _pair_keys(pairs: SentencePairs) -> list[frozenset[str]]:
    keys = [compared(sentence) for sentence in pairs.corpus.sentences]
    return [frozenset((keys[first], keys[second])) for first, second in pairs.sentences]


def by_layer(found: Sequence[Similarities], sets: Sequence[SentencePairs], seed: int) -> list[Row]:
    """Return a row for each set, layer, space and aggregation, as in `sts.csv`; `gain` is over the plain space.

    Args:
        found: Cosines for every pooling, layer and space.
        sets: Sets that are reported on.
        seed: Seed of the bootstraps.
    """
    rows = []
    for target in sets:
        draws = Draws.of(target.subset, seed)
        for pooling, layer in dict.fromkeys((one.pooling, one.layer) for one in found):
            here = [one for one in found if (one.pooling, one.layer) == (pooling, layer)]
            rows += _compared(_by_space(here), target, draws)
    return rows


def chosen(
    found: Sequence[Similarities], targets: Sequence[SentencePairs], sets: Sequence[SentencePairs], seed: int
) -> list[Row]:
    """Return the result of each space on each set by either protocol, as in `chosen.csv`.

    `gain` is the difference from the plain space under the same protocol, with its interval over resampled pairs.

    Args:
        found: Cosines for every pooling, layer and space.
        targets: Sets that are reported on.
        sets: All sets that have cosines.
        seed: Seed of the bootstraps.
    """
    rows: list[Row] = []
    for target in targets:
        draws, on = Draws.of(target.subset, seed), choice(target, sets)
        for pooling in dict.fromkeys(one.pooling for one in found):
            candidates = [one for one in found if one.pooling == pooling]
            rows += _held_out(candidates, target, on, draws) + _published(candidates, target, draws)
    return rows


def _held_out(candidates: Sequence[Similarities], target: SentencePairs, on: Choice | None, draws: Draws) -> list[Row]:
    if len({one.layer for one in candidates}) == 1:  # there is no layer to choose
        return [{"protocol": "held_out"} | row for row in _compared(_by_space(candidates), target, draws)]
    if on is None:
        return []
    best = [max(of_space, key=on.score) for of_space in _grouped(candidates)]
    note = {"protocol": "held_out", "chosen_on": on.label, "n_chosen_on": int(on.kept.sum())}
    return [note | row for row in _compared(_by_space(best), target, draws)]


def _published(candidates: Sequence[Similarities], target: SentencePairs, draws: Draws) -> list[Row]:
    if len({one.layer for one in candidates}) == 1:
        return []

    def score(one: Similarities) -> float:
        return float(np.nan_to_num(spearman(one.cosines[target.label], target.gold), nan=-2))

    best = [max(of_space, key=score) for of_space in _grouped(candidates)]
    note = {"protocol": "published", "chosen_on": target.label, "n_chosen_on": target.n_pairs}
    return [note | row for row in _compared(_by_space(best), target, draws)]


def _grouped(candidates: Sequence[Similarities]) -> list[list[Similarities]]:
    names = dict.fromkeys(one.transform for one in candidates)
    return [[one for one in candidates if one.transform == name] for name in names]


def _by_space(best: Sequence[Similarities]) -> dict[str, Similarities]:
    return {one.transform: one for one in best}


def _compared(best: Mapping[str, Similarities], target: SentencePairs, draws: Draws) -> list[Row]:
    """Return a row for each space and aggregation, compared with the plain space if there is one."""
    values, drawn = {}, {}
    for name, one in best.items():
        values[name] = aggregated(one.cosines[target.label], target.gold, target.subset)
        drawn[name] = aggregated_draws(one.cosines[target.label], target.gold, target.subset, draws)
    rows = []
    for name, one in best.items():
        for how in AGGREGATIONS:
            low, high = percentile_interval(drawn[name][how], target.n_pairs)
            row = {"set": target.label, **one.key, "aggregation": how, "spearman": values[name][how]}
            row |= {"low": low, "high": high, "n_pairs": target.n_pairs}
            row |= {"n_clipped": len(clipped := one.clipped[target.label]), "clipped": " ".join(map(str, clipped))}
            gain = values[name][how] - values["none"][how] if "none" in best else float("nan")
            if name != "none" and np.isfinite(gain):
                row["gain"] = gain
                gains = drawn[name][how] - drawn["none"][how]
                row["gain_low"], row["gain_high"] = percentile_interval(gains, target.n_pairs)
            rows.append(row)
    return rows
