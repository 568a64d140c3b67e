"""How well the cosine of two sentences' vectors agrees with human scores of their similarity: every set, layer, space.

Two protocols are reported. `held_out` uses the layer that is best on the dev part of STS-B, after the pairs that also
occur in the evaluated set are removed (STS-B was drawn from STS12 to STS16, among others). For the dev part of STS-B
itself, it uses the layer that is best on the training part of STS-B. `published` uses the layer that is best on the
evaluated set itself, as papers do, which gives a result that is too high by construction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.corpus.splits import compared
from probing.downstream.sts.dataset import STS_B, SentencePairs
from probing.downstream.sts.rank_correlation import (
    AGGREGATIONS,
    Array,
    Draws,
    aggregated,
    aggregated_draws,
    spearman,
)
from probing.statistics.bootstrap import percentile_interval

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
