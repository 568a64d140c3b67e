"""Tables and sentences on neurons of the stream that are changed inside a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from probing.results import ends, in_brackets, interval
from probing.statistics import binomial_interval, few_sentences

Row = Mapping[str, Any]

_DRAWN = tuple(
    f"{source}{column}"
    for source in ("random", "matched")
    for column in ("", "_lowest", "_highest", "_percentile", "_p")
)

# How neurons are changed, as a phrase that follows `neurons of layer N`; where it is by classes, of positions and of a
# run's own task.
_KINDS = {
    "mean": "held at their mean",
    "zero": "set to 0",
    "resample": "with their values at random tokens of other sentences",
    "direction": "without what tells the position linearly in them",
    "shuffled": "without what tells shuffled positions linearly in them",
    "translate": "moved from the mean of each token's position to that of another",
    "interchange": "exchanged between the sentences of pairs",
}

_KINDS_OF_TASK = {
    "direction": "without what tells {} linearly in them",
    "shuffled": "without what tells shuffled labels of {} linearly in them",
    "translate": "moved from the mean of each example's class of {} to that of another",
}

# What a readout by probes is, as a phrase before the probe.
_HOW = {AGAIN: "retrained ", TRANSLATED: "target by ", INTERCHANGED: "counterpart by "}


def kind_of(row: Row) -> str:
    """Return the change of a row's neurons, as a phrase that follows `neurons of layer N`."""
    kind = row["kind"]
    return _KINDS_OF_TASK[kind].format(row["task"]) if "task" in row and kind in _KINDS_OF_TASK else _KINDS[kind]


def groups_of(rows: Sequence[Row]) -> Iterator[list[Row]]:
    """Yield the rows of each changed layer and kind, in their order."""
    for key in dict.fromkeys((row["changed_layer"], row["kind"]) for row in rows):
        yield [row for row in rows if (row["changed_layer"], row["kind"]) == key]


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
    groups = list(groups_of(rows))
    return [_table(group, all_sizes=len(groups) == 1) for group in groups]


def _table(rows: Sequence[Row], all_sizes: bool) -> Any:
    from probing.runtime.terminal import plain_table

    first = rows[0]
    table = plain_table(f"k neurons of layer {first['changed_layer']} {kind_of(first)}: points, or logits of contrasts")
    for heading in ("read", "k", "effect", "95% range", "random sets", "p", "matched in sd", "p"):
        table.add_column(heading, justify="right", no_wrap=True)
    for curve in readouts_of(rows):
        for row in curve if all_sizes else curve[-1:]:
            table.add_row(
                _short(row),
                str(row["k"]),
                *_effect(row),
                *_range(row, "random"),
                *_range(row, "matched"),
            )
        for effect in _of_whole(curve[-1]):
            table.add_row(_short(curve[-1]), "all", effect)
    return table


def _short(row: Row) -> str:
    """Return the name of a row's readout, without the offset of a head."""
    return name_of(row).split(" at ")[0]


def _effect(row: Row) -> tuple[str, str]:
    """Return an effect and its interval, in the unit of the readout."""
    measure = measure_of(row["readout"])
    form = f"+.{measure.digits}f"
    return f"{measure.times * row['effect']:{form}}", interval(row, between=" to ", form=form, times=measure.times)


def _of_whole(row: Row) -> list[str]:
    """Return the effect of all neurons of the layer, in the unit of the readout; empty if not measured."""
    if (value := row.get("all_neurons")) is None or value != value:
        return []
    measure = measure_of(row["readout"])
    return [f"{measure.times * (value - row['intact']):+.{measure.digits}f}"]


def _range(row: Row, source: str) -> tuple[str, str]:
    if not has(row, source):
        return "", ""
    measure = measure_of(row["readout"])
    form = f"+.{measure.digits}f"
    low, high = (measure.times * row[f"{source}_{end}"] for end in ("lowest", "highest"))
    return f"{low:{form}} to {high:{form}}", f"{row[f'{source}_p']:.2g}"


def has(row: Row, source: str) -> bool:
    """Check whether a row was compared with drawn sets."""
    value = row.get(source)
    return value is not None and value == value


def conclusions(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each changed layer and kind, and the reason if intervals are missing."""
    lines = [_conclusion(group) for group in groups_of(rows)]
    most = max(rows, key=lambda row: row["n"], default=None)
    few = few_sentences(most["n"]) if most and not ends(most) else None
    return [*lines, *_pair_baseline_lines(rows), *([few] if few else [])]


def _pair_baseline_lines(rows: Sequence[Row]) -> list[str]:
    """Return a sentence on the intact model's difference between the texts of pairs, of which the shares are parts.

    It warns of chance where the exact 95% interval of the share of pairs that differ in the file's order reaches one
    half.
    """
    if (row := next((row for row in rows if row["readout"] == WORDS), None)) is None:
        return []
    n, n_as_ordered = row["n"], row["n_as_given"]
    chance = ": not shown to be more than by chance, so do not read the shares as of what the file is about"
    if binomial_interval(n_as_ordered, n)[0] > 0.5:
        chance = ""
    return [
        f"In the intact model, the log odds of the two words differ by {row['difference']:.2g} nats between the texts "
        f"of a pair, in {n_as_ordered} of {n} pairs as the file has it{chance}."
    ]


def _conclusion(rows: Sequence[Row]) -> str:
    largest = [curve[-1] for curve in readouts_of(rows)]
    first = max(rows, key=lambda row: row["k"])
    what = f"Layer {first['changed_layer']}, {_count(first['k'])} {kind_of(first)}"
    return f"{what}: {'; '.join(_readout_clause(row) for row in largest)}."


def _count(k: int) -> str:
    return f"{k} neuron{'s' * (k != 1)}"


def _readout_clause(row: Row) -> str:
    measure = measure_of(row["readout"])
    form = f"+.{measure.digits}f"
    between = in_brackets(interval(row, between=" to ", form=form, times=measure.times))
    beside = [
        f"{words} {measure.times * row[source]:{form}}, p = {row[f'{source}_p']:.2g}"
        for source, words in (("random", "random sets"), ("matched", "sets matched in sd"))
        if has(row, source)
    ]
    beside += [f"all neurons {effect}" for effect in _of_whole(row)]
    return (
        f"{name_of(row)} from {row['intact']:.3f} to {row['value']:.3f} "
        f"({measure.times * row['effect']:{form}} {measure.unit}{between}{''.join(f'; {text}' for text in beside)})"
    )
