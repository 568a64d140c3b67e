"""Rows of `neuron_interventions.csv` and `neuron_draws.csv`: effects paired by sentence, beside those of drawn sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.disabling.effects import tested
from probing.disabling.neurons.neuron_sets import NeuronSet, Source
from probing.statistics.among_draws import percentile_of, rank_p
from probing.tables.readout_names import Measure, measure_of

Rows = list[dict[str, Any]]
Sums = NDArray[np.float64]
DRAWN: tuple[Source, ...] = ("random", "matched")


@dataclass(frozen=True)
class Line:
    """What one row of the results of a pass is.

    Args:
        readout: What is read.
        layer: The layer that is read; of a head, that of its block.
        n: Number of examples of each item, or what else its sum is divided by, shape (n_items,).
        named: Further columns that name it.
    """

    readout: str
    layer: int
    n: NDArray[Any]
    named: Mapping[str, Any]

    @property
    def measure(self) -> Measure:
        """What its numbers are."""
        return measure_of(self.readout)


def effect_rows(
    results: Mapping[NeuronSet, Sums], drawn: Mapping[NeuronSet, Sums], lines: Sequence[Line], part: NDArray[np.int64]
) -> tuple[Rows, Rows]:
    """Return the rows of both tables for the sets of one layer.

    `effect` is the measure minus that of the intact model, paired by item. Drawn sets may be read on a part of the
    items, and the sets that were asked for are then compared with them on this part: `random_percentile` is the
    percentage of random sets that harm less, and `random_p` is the share of sets, among the random ones and the set
    itself, that harm at least as much.

    Args:
        results: Sums of the sets that were asked for, shape (n_lines, n_items), the empty one among them.
        drawn: Sums of drawn sets, shape (n_lines, n_items of the part).
        lines: What each line is.
        part: Index of each item that drawn sets are read on.
    """
    (intact,) = (sums for one, sums in results.items() if not one.k)
    rows: Rows = []
    draws: Rows = []
    for one, sums in results.items():
        if not one.k:
            continue
        others = {
            source: [sums for other, sums in drawn.items() if _is_beside(other, one, source)] for source in DRAWN
        }  # fmt: skip
        for i, line in enumerate(lines):
            if not (total := line.n.sum()):
                continue
            named = {
                "changed_layer": one.layer, "kind": one.kind, "k": one.k, "readout": line.readout, "layer": line.layer,
                **line.named,
            }  # fmt: skip
            own = tested(sums[i], intact[i], line.n, line.measure.is_share)
            own.pop("p_value")
            values = {"intact": float(intact[i].sum() / total), "value": float(sums[i].sum() / total)}
            row = {**named, "neurons": " ".join(map(str, one.neurons)), **values, **own}
            on_part = _effect(sums[i][part], intact[i][part], line.n[part])
            draws.append({**named, "set": "chosen", "draw": 0, "effect": on_part})
            for source, found in others.items():
                effects = [_effect(other[i], intact[i][part], line.n[part]) for other in found]
                draws += [
                    {**named, "set": source, "draw": draw, "effect": effect}
                    for draw, effect in enumerate(effects, start=1)
                ]
                row |= beside(source, on_part, np.array(effects), -line.measure.sign)
            rows.append(row)
    return rows, draws


def _is_beside(other: NeuronSet, one: NeuronSet, source: Source) -> bool:
    return other.source == source and (other.layer, other.kind, other.k) == (one.layer, one.kind, one.k)


def _effect(sums: Sums, intact: Sums, n: NDArray[Any]) -> float:
    return float((sums - intact).sum() / total) if (total := n.sum()) else 0.0


def beside(source: str, effect: float, others: NDArray[np.float64], harm: int) -> dict[str, float]:
    """Return the columns that compare an effect with the effects of drawn sets; empty if there are none.

    Args:
        source: Which sets they are, the first word of the columns.
        effect: The effect.
        others: The effects of the drawn sets, shape (n_draws,).
        harm: Sign of an effect that is a loss.
    """
    if not len(others):
        return {}
    return {
        source: float(others.mean()), f"{source}_lowest": float(others.min()), f"{source}_highest": float(others.max()),
        f"{source}_percentile": percentile_of(harm * effect, harm * others),
        f"{source}_p": rank_p(harm * effect, harm * others),
    }  # fmt: skip
