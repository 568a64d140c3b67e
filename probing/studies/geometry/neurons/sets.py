"""Which neurons are changed together, beside which others, and the rows of their effects paired by sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probing.disabling.subject import tested
from probing.heads.position_controls import matched_sets, random_sets
from probing.readouts.names import Measure, measure_of
from probing.statistics.chance import percentile_of, rank_p

Kind = Literal["mean", "zero", "resample", "direction", "shuffled", "translate", "interchange"]
Source = Literal["chosen", "random", "matched"]

KINDS: tuple[Kind, ...] = ("mean", "zero", "resample", "direction", "shuffled", "translate")
# Numbers of neurons of a dose curve; the number of all neurons that were asked for is its last point.
_STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


@dataclass(frozen=True)
class NeuronSet:
    """Neurons of one layer that are changed together.

    Args:
        layer: The layer whose hidden states are changed.
        kind: The replacement: their mean, 0, their values at a random token of another sentence, their values after
            linear erasure of the classes of a task, or of classes that are permuted, their values moved by the
            difference of two class means, or those at the same token of a counterfactual sentence.
        neurons: The neurons; none if nothing is changed, which is what the others are compared with.
        source: Whether these are the neurons that were asked for, or drawn to be compared with them.
        draw: Number of the draw, from 1; 0 for those that were asked for.
    """

    layer: int
    kind: Kind
    neurons: tuple[int, ...]
    source: Source = "chosen"
    draw: int = 0

    @property
    def k(self) -> int:
        """Number of neurons."""
        return len(self.neurons)


def sizes_up_to(n: int) -> list[int]:
    """Return the numbers of neurons of a dose curve, ascending, up to all n."""
    return [*(k for k in _STEPS if k < n), n]


def chosen_sets(layer: int, ranked: Sequence[int], kinds: Sequence[Kind], d_model: int) -> list[NeuronSet]:
    """Return the empty set, and the first neurons of a ranking, for each kind and each number of neurons.

    Args:
        layer: The layer.
        ranked: The neurons that were asked for, in their order; if they are all neurons of the layer, the order has no
            meaning.
        kinds: What stands in their place.
        d_model: Number of neurons of the layer.
    """
    sizes = sizes_up_to(len(ranked)) if len(ranked) < d_model else [d_model]
    steps = [NeuronSet(layer, kind, tuple(ranked[:k])) for kind in kinds for k in sizes]
    return [NeuronSet(layer, kinds[0], ()), *steps]


def drawn_sets(chosen: Sequence[NeuronSet], sd: NDArray[np.float64], n_draws: int, seed: int) -> Iterator[NeuronSet]:
    """Yield sets to compare each chosen one with: as many neurons at random, and others with nearly the same spread.

    For a given layer and size, the sets are the same for all kinds. No sets are drawn to compare with all neurons of
    the layer.

    Args:
        chosen: Sets of one layer.
        sd: Standard deviation of each neuron of the layer over training tokens, shape (d_model,).
        n_draws: Number of sets of either source.
        seed: Seed of the draws.
    """
    for one in chosen:
        if n_draws and 0 < one.k < len(sd):
            generator = np.random.default_rng([seed, one.layer, one.k])
            drawn: dict[Source, NDArray[np.int64]] = {
                "random": random_sets(len(sd), one.k, generator, n_draws),
                "matched": matched_sets(sd, np.array(one.neurons, dtype=np.int64), generator, n_draws),
            }
            for source, sets in drawn.items():
                for draw, neurons in enumerate(sets.tolist(), start=1):
                    yield NeuronSet(one.layer, one.kind, tuple(neurons), source, draw)


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
