"""Effects of changed neurons, paired by item and compared with drawn sets; the settings and results of a survey."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.interventions import ReadoutUnit, measure_of
from probing.interventions.effects import Rows, Sums, among, valued
from probing.interventions.forward import ReadableText
from probing.interventions.frozen_probes import PositionHead, PositionHeads
from probing.interventions.neurons import Kind, NeuronSet, Place, Source

DRAWN: tuple[Source, ...] = ("random", "matched")


@dataclass(frozen=True)
class EffectRow:
    """Description of one row of the results of a pass; `named` are further columns.

    The layer of a head is the layer of its block. `n` is the number of examples of each item, or another divisor of its
    sum, shape (n_items,).
    """

    readout: str
    layer: int
    n: NDArray[Any]
    named: Mapping[str, Any] = field(default_factory=dict)

    @property
    def measure(self) -> ReadoutUnit:
        """Unit of the readout."""
        return measure_of(self.readout)


def lines_of(reads: Sequence[Any], layer: int) -> list[EffectRow]:
    """Describe each row of the results of a pass with these readouts, in order, when a layer is changed."""
    lines = []
    for read in reads:
        if isinstance(read, PositionHeads):
            for measure, head in read.rows(layer + 1):
                lines.append(EffectRow(measure, head.layer, read.n(head), {"head": head.head, "offset": head.offset}))
        else:
            lines += [EffectRow(read.name, read_layer, read.n) for read_layer in read.layers(layer + 1)]
    return lines


def effect_rows(
    results: Mapping[NeuronSet, Sums],
    drawn: Mapping[NeuronSet, Sums],
    lines: Sequence[EffectRow],
    part: NDArray[np.int64],
) -> tuple[Rows, Rows]:
    """Return the rows of both tables for the sets of one layer.

    `effect` is the measure minus its value in the intact model, paired by item. Drawn sets may be read on a part of the
    items, given by index, and the chosen sets are then compared with them on this part: `random_percentile` is the
    percentage of random sets that harm less, and `random_p` is the share of sets, among the random ones and the set
    itself, that harm at least as much. `results`, which include the empty set, have shape (n_lines, n_items); `drawn`
    have (n_lines, n_items of the part).
    """
    (intact,) = (sums for neuron_set, sums in results.items() if not neuron_set.k)
    rows: Rows = []
    draws: Rows = []
    for neuron_set, sums in results.items():
        if not neuron_set.k:
            continue
        alike = {other: sums for other, sums in drawn.items() if other.compared_with == neuron_set.compared_with}
        others = {source: [sums for other, sums in alike.items() if other.source == source] for source in DRAWN}
        for i, line in enumerate(lines):
            if not (total := line.n.sum()):
                continue
            named = {
                "changed_layer": neuron_set.layer, "kind": neuron_set.kind, "k": neuron_set.k, "readout": line.readout,
                "layer": line.layer, **line.named,
            }  # fmt: skip
            values = {"intact": float(intact[i].sum() / total)}
            values |= valued(sums[i], intact[i], line.n, line.measure.is_share)
            values.pop("p_value")
            row = {**named, "neurons": " ".join(map(str, neuron_set.neurons)), **values}
            on_part = _effect(sums[i][part], intact[i][part], line.n[part])
            draws.append({**named, "set": "chosen", "draw": 0, "effect": on_part})
            for source, drawn_sums in others.items():
                effects = [_effect(other[i], intact[i][part], line.n[part]) for other in drawn_sums]
                draws += [
                    {**named, "set": source, "draw": draw, "effect": effect}
                    for draw, effect in enumerate(effects, start=1)
                ]
                row |= _compared(source, on_part, np.array(effects), -line.measure.sign)
            rows.append(row)
    return rows, draws


def _compared(source: str, effect: float, others: Sums, harm: int) -> dict[str, float]:
    """Return the columns, prefixed `source`, that compare an effect with drawn sets; `harm` is the sign of a loss."""
    if not len(others):
        return {}
    lowest, highest = float(others.min()), float(others.max())
    columns = {source: float(others.mean()), f"{source}_lowest": lowest, f"{source}_highest": highest}
    return columns | among(effect, others, harm, f"{source}_")


def _effect(sums: Sums, intact: Sums, n: NDArray[Any]) -> float:
    return float((sums - intact).sum() / total) if (total := n.sum()) else 0.0


@dataclass(frozen=True)
class NeuronConfig:
    """Settings of the changes of neurons, ranked by layer, and of the readouts.

    `n_tokens` is the maximum of the read text, and of the training sentences. `n_draws` is the number of random sets,
    and of matched ones, for each size; for `n_retrained` of the largest size, probes are retrained. `task_name` is None
    for position.
    """

    ranked: Mapping[int, Sequence[int]]
    kinds: Sequence[Kind]
    at: Place
    n_tokens: int
    n_draws: int
    n_retrained: int
    seed: int
    task_name: str | None = None


@dataclass(frozen=True)
class NeuronTables:
    """The rows of `neuron_interventions.csv` and `neuron_draws.csv`, and the texts, heads and tasks behind them.

    Drawn sets were read on `part`. `read` has the origin of each task's probes: `run`, or `here` if they were trained
    for this. `erased` is the task whose classes were erased, or between which examples were moved, if any. Neurons were
    exchanged in `n_pairs`; `n_excluded` pairs cannot be read token by token.
    """

    interventions: Rows
    draws: Rows
    text: ReadableText
    part: ReadableText
    heads: Sequence[PositionHead]
    read: Mapping[str, str]
    erased: str | None
    n_pairs: int = 0
    n_excluded: int = 0

    @property
    def summary(self) -> dict[str, Any]:
        """Entries for `results.json`."""
        return {
            "n_sentences": self.text.tokens.n_sentences, "n_tokens": self.text.tokens.n_tokens,
            "n_drawn_sentences": self.part.tokens.n_sentences, "n_drawn_tokens": self.part.tokens.n_tokens,
            "position_heads": [vars(head) for head in self.heads], "probes": dict(self.read), "classes_of": self.erased,
            **({"n_pairs": self.n_pairs, "n_left_out": self.n_excluded} if self.n_pairs else {}),
        }  # fmt: skip
