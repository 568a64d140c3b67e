"""Columns, tables and sentences of `tuning-effect`, for files, the terminal and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.results import Schema, ends, layers_named, listed, number, shown_table, text, whole
from probing.results import estimate as with_interval
from probing.tables.schema import layer_column

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

# What is measured: of pairs of checkpoints, and of each checkpoint.
OF_PAIRS = MAPS, STATES, PUBLISHED = "maps", "states", "published"
OF_CHECKPOINTS = POSITION, OUTLIERS, SPECIAL_MASS = "position", "outliers", "special"
# Corrected p-values up to this are taken for a change by the task.
LEVEL = 0.05


@dataclass(frozen=True)
class TuningMeasure:
    """Measure of change: subject and end of its sentences, and whether it is a distance, 0 for equal checkpoints."""

    words: str
    meaning: str
    is_distance: bool = True


MEASURES = {
    "maps_cosine": TuningMeasure(
        "attention maps", "1 less the cosine of flattened maps of a sentence, mean over heads"
    ),
    "maps_jensen_shannon": TuningMeasure(
        "attention, by divergence", "Jensen-Shannon divergence of the rows of maps, in nats, mean over heads"
    ),
    "maps_as_published": TuningMeasure(
        "attention maps with padding",
        "1 less the cosine of maps of 200 x 200 tokens, padding included, as in the code of Kovaleva et al. (2019)",
    ),
    "states_cosine": TuningMeasure("hidden states", "1 less the cosine of the same token's hidden states"),
    "states_rotated": TuningMeasure(
        "hidden states, rotated", "the same after the best rotation, found on other sentences"
    ),
    "states_cka": TuningMeasure("hidden states, by CKA", "1 less linear CKA"),
    "position_accuracy": TuningMeasure("accuracy of a position probe", "test accuracy", is_distance=False),
    "mean_cosine": TuningMeasure("mean cosine of two tokens", "anisotropy", is_distance=False),
    "outlier_deviation": TuningMeasure(
        "the farthest outlier", "how far the mean of the farthest neuron is from those of all neurons, in sd",
        is_distance=False,
    ),
    "special_mass": TuningMeasure(
        "attention to special tokens", "share of the attention of tokens that goes to special ones", is_distance=False
    ),
}  # fmt: skip
# Those whose rows the terminal shows without --verbose.
_FIRST = ("maps_cosine", "states_cosine")

_MEASURE = text(
    "measure", "What is measured: " + "; ".join(f"`{name}`, {entry.meaning}" for name, entry in MEASURES.items()) + ".",
    labels={name: entry.words for name, entry in MEASURES.items()},
)  # fmt: skip
LAYERS = Schema("layer_changes", "a row per measure and layer", (
    _MEASURE, layer_column(),
    number("start_value", "Of a property, what the start has.", "start"),
    with_interval("tuned", "Distance of the tuned checkpoints from the start, mean over seeds and orders; of a "
                  "property, theirs less the start's. The interval is over seeds.", form=".4f"),
    number("shuffled", "The same of checkpoints that were tuned on shuffled labels.", "shuffled", ".4f"),
    number("two_seeds", "Distance of two tuned checkpoints that differ in the seed alone; of a property, the size of "
           "their difference.", "two seeds", ".4f"),
    number("common", "Of distances: share of the squared change that all seeds have in common.", "in common", ".0%"),
    with_interval("ratio", "Of distances: how many times as much tuning changes as tuning on shuffled labels, by means "
                  "of logarithms; the interval is over seeds (Welch).", "times shuffled", ".1f"),
    with_interval("difference", "Of a property: `tuned` less `shuffled`; the interval is over seeds (Welch).",
                  "tuned less shuffled", "+.4f"),
    number("p_value", "p-value of a ratio of 1 or less, or of a difference of 0, corrected for all measures and layers "
           "(Holm).", "p"),
    text("by_task", f"Whether the task has changed the layer: `yes` where that p-value is at most {LEVEL}, "
         "`not shown` where it is above; empty where it is not known.", "by the task"),
))  # fmt: skip
CHECKPOINTS = Schema("checkpoint_changes", "a row per checkpoint, what it is compared with, measure and layer", (
    text("checkpoint", "Name of the checkpoint."),
    text("start", "Tuned from where and on what: `pretrained` (on true labels) or `shuffled`.",
         labels={"shuffled": "shuffled labels"}),
    whole("seed", "Its seed."),
    whole("order_seed", "Seed of the order of its data.", "order"),
    text("against", "With which it is compared: `start`, or the name of another checkpoint."),
    text("measure", "What is measured, as in `layer_changes`.", labels=_MEASURE.labels), layer_column(),
    number("change", "Distance of both; of a property, that of the checkpoint less that of the other.", form=".4f"),
))  # fmt: skip
_OF_DISTANCES = ("layer", "tuned", "shuffled", "ratio*", "two_seeds", "common", "by_task")
_OF_PROPERTIES = ("layer", "start_value", "tuned", "shuffled", "difference*", "by_task")
TERMS = LAYERS.terms(_OF_DISTANCES) | LAYERS.terms(_OF_PROPERTIES)


def rows_of(rows_by_table: Tables, measure: str) -> list[Row]:
    """Return the rows of a measure, by layer."""
    return [row for row in rows_by_table["layer_changes"] if row["measure"] == measure]


def measures_of(rows_by_table: Tables) -> list[str]:
    """Return the present measures."""
    names = {row["measure"] for row in rows_by_table["layer_changes"]}
    return [name for name in MEASURES if name in names]


def tables(rows_by_table: Tables) -> list[Any]:
    """Return a rich table for each of the first measures, or for all if none of these is present."""
    names = measures_of(rows_by_table)
    return [_table(rows_by_table, name) for name in [measure for measure in names if measure in _FIRST] or names]


def more_tables(rows_by_table: Tables) -> list[Any]:
    """Return the other measures."""
    names = measures_of(rows_by_table)
    return [
        _table(rows_by_table, name) for name in names if name not in _FIRST and any(other in _FIRST for other in names)
    ]


def _table(rows_by_table: Tables, name: str) -> Any:
    rows, property_measure = rows_of(rows_by_table, name), MEASURES[name]
    has = {column for row in rows for column, value in row.items() if value not in (None, "") and value == value}
    columns: Sequence[str] = _OF_DISTANCES if property_measure.is_distance else _OF_PROPERTIES
    if property_measure.is_distance and "shuffled" not in has:
        columns = ["tuned*" if column == "tuned" else column for column in columns]
    shown = [column for column in columns if column.rstrip("*") in has]
    return shown_table(LAYERS, rows, f"Change of {property_measure.words}: {property_measure.meaning}", shown)


def known(row: Row, column: str) -> bool:
    """Return whether a row has a number in a column."""
    value = row.get(column)
    return isinstance(value, float) and value == value


def answer(rows_by_table: Tables, model: str) -> list[str]:
    """Return the layers that the task has changed, in attention and in hidden states."""
    first = [name for name in _FIRST if rows_of(rows_by_table, name)] or measures_of(rows_by_table)[:1]
    return [_by_task(rows_by_table, name, model) for name in first]


def _by_task(rows_by_table: Tables, name: str, model: str) -> str:
    words = MEASURES[name].words
    if not _tested(rows_by_table, name):
        most = max(rows_of(rows_by_table, name), key=lambda row: abs(row["tuned"]))
        return (
            f"{model}: tuning changes {words} most in layer {most['layer']} ({_size(most)}); whether the task does it "
            "is not known."
        )
    layers = _layers_by_task(rows_by_table, name)
    where = f"in {layers_named(layers)}" if layers else "in no layer that can be told from tuning on shuffled labels"
    return f"{model}: the task changes {words} {where}."


def _size(row: Row) -> str:
    form = _form(MEASURES[row["measure"]])
    within = f", {apart[0]:{form}} to {apart[1]:{form}}" if (apart := ends(row, "tuned")) else ""
    return f"{row['tuned']:{form}}{within}"


def conclusions(rows_by_table: Tables, results: Mapping[str, Any]) -> list[str]:
    """Return for each measure the layer of the largest change and its cause, and the limits of the evidence."""
    names = measures_of(rows_by_table)
    unchanged = [
        name
        for name in names
        if name not in _FIRST and _tested(rows_by_table, name) and not _layers_by_task(rows_by_table, name)
    ]
    lines = [line for name in names if name not in unchanged for line in _lines(rows_by_table, name)]
    if unchanged:
        lines.append(
            f"In no layer is shown that the task changes {listed([MEASURES[name].words for name in unchanged])}."
        )
    n = {start: results["n_seeds"].get(start, 0) for start in ("pretrained", "shuffled")}
    if not n["shuffled"]:
        lines.append(
            "Nothing here is shown to be the task's: that takes checkpoints that were tuned on shuffled labels, such "
            "as those of `finetune --starts pretrained,shuffled --seeds 3`."
        )
    elif min(n.values()) < 2:
        lines.append(
            "Nothing here is shown to be the task's: that takes at least two seeds with true and two with shuffled "
            f"labels, found {n['pretrained']} and {n['shuffled']}."
        )
    else:
        n_tests = sum(bool(row.get("by_task")) for row in rows_by_table["layer_changes"])
        lines.append(
            "A change is the task's where it is larger than that by tuning on shuffled labels: Welch's t over "
            f"{n['pretrained']} and {n['shuffled']} seeds, corrected for all {n_tests} layers and measures (Holm, "
            f"{LEVEL:.0%})." + (" Two seeds show only large changes." if min(n.values()) == 2 else "")
        )
    return lines


def _tested(rows_by_table: Tables, name: str) -> bool:
    return any(row.get("by_task") for row in rows_of(rows_by_table, name))


def _layers_by_task(rows_by_table: Tables, name: str) -> list[int]:
    return [row["layer"] for row in rows_of(rows_by_table, name) if row.get("by_task") == "yes"]


def _lines(rows_by_table: Tables, name: str) -> list[str]:
    rows, property_measure = rows_of(rows_by_table, name), MEASURES[name]
    begin = f"{property_measure.words[0].upper()}{property_measure.words[1:]}"
    most = max(rows, key=lambda row: abs(row["tuned"]))
    if not most["tuned"]:
        return [f"{begin}: nothing is changed in any layer."]
    beside = [f"{most['shuffled']:{_form(property_measure)}} with shuffled labels"] if known(most, "shuffled") else []
    if apart := ends(most, "ratio"):
        beside = [f"{most['ratio']:.2g} times as much as with shuffled labels, {apart[0]:.2g} to {apart[1]:.2g}"]
    beside += [f"{most['two_seeds']:.3g} between two seeds"] if known(most, "two_seeds") else []
    sentence = f"{begin}: changed most in layer {most['layer']} ({'; '.join([_size(most), *beside])})"
    if name not in _FIRST and (layers := _layers_by_task(rows_by_table, name)):
        sentence += f", by the task in {layers_named(layers)}"
    if property_measure.is_distance and known(most, "common"):
        sentence += f"; {max(most['common'], 0.0):.0%} of that is common to all seeds"
    return [f"{sentence}.", *[_last_two(rows_by_table, name, begin)] * (name in _FIRST)]


def _form(property_measure: TuningMeasure) -> str:
    return ".3g" if property_measure.is_distance else "+.3g"


def _last_two(rows_by_table: Tables, name: str, begin: str) -> str:
    """Count checkpoints whose last two layers change most, as Kovaleva et al. (2019) report for BERT."""
    last_rows = [
        row for row in rows_by_table["checkpoint_changes"]
        if row["measure"] == name and row["start"] == "pretrained" and row["against"] == "start"
    ]  # fmt: skip
    layers = sorted({row["layer"] for row in last_rows if row["layer"] > 0})
    if len(layers) < 3:
        return ""
    checkpoints = list(dict.fromkeys(row["checkpoint"] for row in last_rows))
    n = 0
    for checkpoint in checkpoints:
        change_of = {row["layer"]: row["change"] for row in last_rows if row["checkpoint"] == checkpoint}
        n += min(change_of[layer] for layer in layers[-2:]) > max(change_of[layer] for layer in layers[:-2])
    which = listed([str(layer) for layer in layers[-2:]])
    how_many = f"in all {n}" if n == len(checkpoints) else f"in {n} of {len(checkpoints)}"
    if len(checkpoints) == 1:
        return f"{begin}: the last two layers, {which}, {'change' if n else 'do not change'} most."
    return f"{begin}: the last two layers, {which}, change most {how_many} checkpoints."
