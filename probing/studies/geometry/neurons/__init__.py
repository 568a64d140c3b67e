"""Tables and sentences on neurons of the stream that are changed inside a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from probing.interventions import (
    AGAIN,
    CONTRAST,
    INTERCHANGED,
    TASK,
    TRANSLATED,
    WORD_MASS,
    WORDS,
    measure_of,
    probed_of,
)
from probing.results import Row, Table, cells_table, count, ends, in_brackets, interval, rounded
from probing.statistics import binomial_interval, few_sentences

# How neurons are changed, as a phrase that follows `neurons of layer N`; where it is by classes, of positions and of a
# run's own task.
_KINDS = {
    "mean": "set to their mean",
    "zero": "set to 0",
    "resample": "with their values at random tokens of other sentences",
    "direction": "without the directions from which position is decoded linearly",
    "shuffled": "without the directions from which shuffled positions are decoded linearly",
    "translate": "moved from the mean of each token's position to the mean of another position",
    "interchange": "exchanged between the sentences of pairs",
}

_KINDS_OF_TASK = {
    "direction": "without the directions from which {} is decoded linearly",
    "shuffled": "without the directions from which shuffled labels of {} are decoded linearly",
    "translate": "moved from the mean of each example's class of {} to the mean of another class",
}

# What a readout by probes is, as a phrase before the probe.
_HOW = {AGAIN: "retrained ", TRANSLATED: "target by ", INTERCHANGED: "counterpart by "}


# The drawn sets that neurons are compared with.
_SETS = {"random": "random sets", "matched": "sets matched in sd"}

SENTENCES = {
    "changed": "Layer {layer}, {neurons} {kind}: {readouts}.",
    "readout": "{name} from {intact:.3f} to {value:.3f} ({effect} {unit}{compared})",
    "drawn": "; {sets} {effect}, p = {p:.2g}",
    "all_neurons": "; all neurons {effect}",
    "words": "In the intact model, the log odds of the two words differ by {difference:.2g} nats between the texts of "
    "a pair, in {n_as_given} of {pairs} in the direction of the file{chance}.",
    "chance": ": not shown to be more than by chance, so do not interpret the shares as effects of what the file is "
    "about",
}


def kind_of(row: Row) -> str:
    """Return the change of a row's neurons, as a phrase that follows `neurons of layer N`."""
    kind = row["kind"]
    return _KINDS_OF_TASK[kind].format(row["task"]) if "task" in row and kind in _KINDS_OF_TASK else _KINDS[kind]


def groups_of(rows: Sequence[Row]) -> list[Table]:
    """Return the rows of each changed layer and kind, in their order."""
    return list(Table(rows).by("changed_layer", "kind").values())


def readouts_of(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the dose curves of one changed layer and kind that are shown, ascending in the number of neurons.

    These are the probes of the last layer, frozen and retrained, the other readouts, and the clearest head: the head
    with the most attention to its offset in the intact model.
    """
    curves: dict[Any, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["k"]):
        curves.setdefault((row["readout"], row["layer"], row.get("head")), []).append(row)
    last = max((layer for readout, layer, _ in curves if probed_of(readout)), default=None)
    masses = {key[1:]: curve[0]["intact"] for key, curve in curves.items() if key[0] == WORD_MASS}
    clearest = max(masses, key=masses.__getitem__, default=None)
    return [
        curve
        for (readout, layer, head), curve in curves.items()
        if (not probed_of(readout) or layer == last)
        and (readout not in (WORD_MASS, CONTRAST) or (layer, head) == clearest)
    ]


def name_of(row: Row) -> str:
    """Return the name of a row's readout."""
    readout, layer = row["readout"], row["layer"]
    if probed := probed_of(readout):
        # Where probes read two things, each is named.
        of = f"{row['task'] if probed == TASK else probed} " if "task" in row else ""
        how = next((words for end, words in _HOW.items() if readout.endswith(end)), "")
        return f"{how}{of}probe of layer {layer}"
    if readout in (WORD_MASS, CONTRAST):
        what = "contrast" if readout == CONTRAST else "attention"
        return f"{what} of head {layer}-{row['head']} at {row['offset']:+d}"
    return f"{measure_of(readout).noun}, layer {layer}"


def tables(rows: Sequence[Row]) -> list[Any]:
    """Return the effects as rich tables, one for each changed layer and kind; of several, the largest sets alone."""
    groups = groups_of(rows)
    return [_table(group, all_sizes=len(groups) == 1) for group in groups]


def _table(rows: Table, all_sizes: bool) -> Any:
    def cells() -> Iterator[list[str]]:
        for curve in readouts_of(rows):
            for row in curve if all_sizes else curve[-1:]:
                start = [_short(row), str(row["k"]), _effect(row), _interval(row)]
                yield [*start, *_range(row, "random"), *_range(row, "matched")]
            yield from ([_short(curve[-1]), "all", effect] for effect in _of_whole(curve[-1]))

    first = rows[0]
    title = f"k neurons of layer {first['changed_layer']} {kind_of(first)}: points, or logits of contrasts"
    return cells_table(title, ("read", "k", "effect", "95% range", "random sets", "p", "matched in sd", "p"), cells())


def _short(row: Row) -> str:
    """Return the name of a row's readout, without the offset of a head."""
    return name_of(row).split(" at ")[0]


def _in_unit(row: Row, effect: float) -> str:
    """Return an effect in the unit of the row's readout."""
    measure = measure_of(row["readout"])
    return rounded(measure.times * effect, f"+.{measure.digits}f")


def _effect(row: Row) -> str:
    return _in_unit(row, row["effect"])


def _interval(row: Row) -> str:
    measure = measure_of(row["readout"])
    return interval(row, between=" to ", form=f"+.{measure.digits}f", times=measure.times)


def _of_whole(row: Row) -> list[str]:
    """Return the effect of all neurons of the layer, in the unit of the readout; empty if not measured."""
    return [_in_unit(row, row["all_neurons"] - row["intact"])] if has(row, "all_neurons") else []


def _range(row: Row, source: str) -> tuple[str, str]:
    if not has(row, source):
        return "", ""
    low, high = (_in_unit(row, row[f"{source}_{end}"]) for end in ("lowest", "highest"))
    return f"{low} to {high}", f"{row[f'{source}_p']:.2g}"


def has(row: Row, source: str) -> bool:
    """Check whether a row was compared with drawn sets, or with all neurons."""
    value = row.get(source)
    return value is not None and value == value


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each changed layer and kind, and the reason if intervals are missing."""
    most = max(rows, key=lambda row: row["n"], default=None)
    few = few_sentences(most["n"]) if most and not ends(most) else None
    return [*map(_conclusion, groups_of(rows)), *_pair_baseline_lines(Table(rows)), *([few] if few else [])]


def _pair_baseline_lines(rows: Table) -> list[str]:
    """Return a sentence on the intact model's difference between the texts of pairs, of which the shares are parts.

    It warns of chance where the exact 95% interval of the share of pairs that differ in the file's order reaches one
    half.
    """
    return [
        SENTENCES["words"].format(
            difference=row["difference"], n_as_given=row["n_as_given"], pairs=count(row["n"], "pair"),
            chance="" if binomial_interval(row["n_as_given"], row["n"])[0] > 0.5 else SENTENCES["chance"],
        )
        for row in rows.where(readout=WORDS)[:1]
    ]  # fmt: skip


def _conclusion(rows: Table) -> str:
    first = max(rows, key=lambda row: row["k"])
    return SENTENCES["changed"].format(
        layer=first["changed_layer"], neurons=count(first["k"], "neuron"), kind=kind_of(first),
        readouts="; ".join(_readout_clause(curve[-1]) for curve in readouts_of(rows)),
    )  # fmt: skip


def _readout_clause(row: Row) -> str:
    drawn = [
        SENTENCES["drawn"].format(sets=words, effect=_in_unit(row, row[source]), p=row[f"{source}_p"])
        for source, words in _SETS.items()
        if has(row, source)
    ]
    of_whole = [SENTENCES["all_neurons"].format(effect=effect) for effect in _of_whole(row)]
    return SENTENCES["readout"].format(
        name=name_of(row), intact=row["intact"], value=row["value"], effect=_effect(row),
        unit=measure_of(row["readout"]).unit, compared="".join([in_brackets(_interval(row)), *drawn, *of_whole]),
    )  # fmt: skip
