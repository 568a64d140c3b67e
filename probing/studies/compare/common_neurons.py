"""Neurons that are in the top of every run, and how many would be there by chance under shuffled labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.comparison.agreement import Chance, label_chance
from probing.comparison.pairs import Pair, Ranked
from probing.statistics.rank_similarity import neuron_ranks


@dataclass(frozen=True)
class Common:
    """Neurons of the first run that are in the top k of every run, together with their partners there.

    Args:
        rows: Rows of `top_everywhere.csv`.
        chance: Number of such neurons when one run's ranking is replaced by one under shuffled labels, and the share of
            such rankings that leave at least as many; None where no run has such rankings.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    chance: Chance | None = None

    def summary(self) -> dict[str, Any]:
        """Return the number of neurons and its value under chance, as in `results.json`."""
        by_chance = self.chance._asdict() if self.chance else {}
        return {"n_neurons": len(self.rows), **{f"chance_{name}": value for name, value in by_chance.items()}}


def top_everywhere(ranked: Sequence[Ranked], pairs: Mapping[int, Pair], k: int) -> Common:
    """Return the neurons that are in the top of every run, in layers of the same relative depth.

    A neuron's p-value in one run is the share of the run's rankings under shuffled labels that also have it in the top,
    the true ranking included; the largest over the runs is reported.

    Args:
        ranked: The runs.
        pairs: Comparison of the first run with each other run, by the index of the other run.
        k: Size of the top.
    """
    at_top = [_of_first(ranked, pairs, run, ranked[run].scores[:, None], k)[:, 0] for run in range(len(ranked))]
    everywhere = np.all(at_top, axis=0)
    nulls, p_values = [], np.zeros(everywhere.shape)
    for run, one in enumerate(ranked):
        if one.shuffled is None:
            continue
        drawn = _of_first(ranked, pairs, run, one.shuffled, k)
        others = np.all([mask for other, mask in enumerate(at_top) if other != run], axis=0)
        nulls.append((drawn & others[:, None]).sum((0, 2)))
        p_values = np.maximum(p_values, (1 + drawn.sum(1)) / (1 + drawn.shape[1]))
    rows = [
        _row(ranked, pairs, layer, neuron) | ({"p_value": float(p_values[layer, neuron])} if nulls else {})
        for layer in range(len(everywhere))
        for neuron in np.argsort(neuron_ranks(ranked[0].scores[layer]), kind="stable")[:k]
        if everywhere[layer, neuron]
    ]
    return Common(rows, label_chance(len(rows), np.array(nulls, dtype=np.float64)) if nulls else None)


def _of_first(
    ranked: Sequence[Ranked], pairs: Mapping[int, Pair], run: int, scores: NDArray[np.float64], k: int
) -> NDArray[np.bool_]:
    """Return whether rankings of a run have the partner of each neuron of the first run in their top k.

    Args:
        ranked: The runs.
        pairs: Comparison of the first run with each other run.
        run: Index of the run.
        scores: Scores of its neurons, shape (n_layers of the run, n_rankings, d_model of the run).
        k: Size of the top.

    Returns:
        Shape (n_layers, n_rankings, d_model) of the first run; False in layers without a partner in the run.
    """
    top = (ranks := neuron_ranks(scores)) <= min(k, ranks.shape[-1])
    if run == 0:
        return top
    found = np.zeros((len(ranked[0].layers), scores.shape[1], ranked[0].d_model), dtype=bool)
    for i, j in ranked[0].aligned(ranked[run]).items():
        partner = pairs[run].partners[i, j]
        found[i] = top[j][:, partner] & (partner >= 0)
    return found


def _row(ranked: Sequence[Ranked], pairs: Mapping[int, Pair], i: int, neuron: int) -> dict[str, Any]:
    """Return a row for a neuron of the first run and its partners in the other runs, with their ranks."""
    first = ranked[0]
    row: dict[str, Any] = {"layer": first.layers[i], "neuron": int(neuron), "rank": _rank(first, i, neuron)}
    unseen = [first.label] if _is_unseen(first, i, neuron) else []
    for other, pair in pairs.items():
        one, j = ranked[other], first.aligned(ranked[other])[i]
        partner = int(pair.partners[i, j, neuron])
        row |= {f"{one.label} layer": one.layers[j], f"{one.label} neuron": partner}
        row |= {f"{one.label} rank": _rank(one, j, partner)}
        unseen += [one.label] if _is_unseen(one, j, partner) else []
    return row | {"no_signal": ", ".join(unseen)}


def _rank(run: Ranked, i: int, neuron: int) -> int:
    return int(neuron_ranks(run.scores[i])[neuron])


def _is_unseen(run: Ranked, i: int, neuron: int) -> bool:
    return run.no_signal is not None and bool(run.no_signal[i, neuron])
