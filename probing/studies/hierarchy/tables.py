"""Tables and sentences of `hierarchy`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from probing.data import CONTROLS as OF_FIT
from probing.page.charts import Line, line_chart
from probing.results import (
    Column,
    Html,
    Row,
    Schema,
    element,
    ends,
    estimate,
    in_brackets,
    interval,
    layers_named,
    listed,
    shown_table,
    text,
    whole,
)
from probing.runs import Result, framed, section_of
from probing.tables.schema import layer_column

_TASK = text("task", "What the probe looks for: main_auxiliary or subject_noun.")
_CONDITION = text("condition", "model for the model itself, or the control.")
_LINEAR = "Share of the sentences in which the two rules differ that is answered as linear order does"
_SHARES = (
    Column("generalisation", float, "Share of the sentences answered rightly in which the two rules differ; low, high: "
           "its 95% interval.", form=".3f", interval=""),
    estimate("first_auxiliary", f"{_LINEAR}, by the first auxiliary."),
    estimate("first_noun", f"{_LINEAR}, by the first noun."),
    estimate("preference", "Share answered rightly minus that answered as linear order does, paired."),
)  # fmt: skip
HIERARCHY = Schema("hierarchy", "a row per task, condition and layer", (
    _TASK, _CONDITION, layer_column(),
    estimate("test", "Share of sentences answered rightly in which both rules give the same answer, as in training."),
    *_SHARES,
    estimate("difference", "Of a control: generalisation of the model minus that of the control, paired."),
))  # fmt: skip
DISTRACTORS = Schema("distractors", "the same for each construction that holds the first auxiliary, or noun", (
    _TASK, _CONDITION,
    text("distractor", "The construction: subject_relative, object_relative, compound or possessive."),
    layer_column(), *_SHARES, whole("n", "Number of sentences."),
))  # fmt: skip


# The controls, with their labels in tables and figures.
CONTROLS = {name: OF_FIT[name].words for name in ("untrained", "permuted_positions")}
# Stands for the model itself among the conditions.
ITSELF = "model"
# The column of what linear order gives, by task.
LINEAR = {"main_auxiliary": "first_auxiliary", "subject_noun": "first_noun"}
# A probe that is right in a smaller share of test sentences has not learned the task whose generalisation is measured.
LEARNED = 0.95

_SHOWN_SHARES = (
    "generalisation", "low", "high",
    *(f"{linear}{end}" for linear in LINEAR.values() for end in ("", "_low", "_high")),
    "preference", "preference_low", "preference_high",
)  # fmt: skip


def named(task: str) -> str:
    """Return a task as text: `main auxiliary`."""
    return task.replace("_", " ")


def of_model(rows: Sequence[Row], task: str, condition: str = ITSELF) -> list[Row]:
    """Return the rows of a task for the model itself or for a control, by layer."""
    return [row for row in rows if (row["task"], row["condition"]) == (task, condition)]


def tasks_of(rows: Sequence[Row]) -> list[str]:
    """Return the tasks of a table, in order."""
    return list(dict.fromkeys(row["task"] for row in rows))


def controls_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return the controls of a table, with their labels."""
    conditions = {row["condition"] for row in rows}
    return {name: words for name, words in CONTROLS.items() if name in conditions}


def tables(by_name: Mapping[str, Sequence[Row]]) -> list[Any]:
    """Return a rich table for each task: a row for each layer."""
    return [_table(by_name["hierarchy"], task) for task in tasks_of(by_name["hierarchy"])]


def _table(rows: Sequence[Row], task: str) -> Any:
    title = f"{named(task).capitalize()}: share of sentences answered rightly, and by the {named(LINEAR[task])}"
    return shown_table(HIERARCHY, of_model(rows, task), title, shown_columns(task), {
        words: partial(_of_layer, {row["layer"]: row for row in of_model(rows, task, name)})
        for name, words in controls_of(rows).items()
    })  # fmt: skip


def shown_columns(task: str) -> list[str]:
    """Return the columns to show of a task, with an asterisk for columns with confidence intervals."""
    return ["layer", "test", "generalisation*", f"{LINEAR[task]}*"]


def _of_layer(by_layer: Mapping[int, Row], row: Row) -> str:
    return HIERARCHY["generalisation"].show(by_layer[row["layer"]])


def terms() -> dict[str, str]:
    """Return the meanings of all headings."""
    meanings = {name: meaning for task in LINEAR for name, meaning in HIERARCHY.terms(shown_columns(task)).items()}
    return meanings | {
        CONTROLS["untrained"]: "Share answered rightly by probes of the same architecture, randomly initialised.",
        CONTROLS["permuted_positions"]: "Share answered rightly where the model reads each sentence with its tokens "
        "permuted.",
    }


def conclusions(by_name: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return the conclusions, a few sentences for each task."""
    return [line for task in tasks_of(by_name["hierarchy"]) for line in _lines(by_name["hierarchy"], task)]


def _lines(rows: Sequence[Row], task: str) -> list[str]:
    model_rows, linear = of_model(rows, task), LINEAR[task]
    name = named(task).capitalize()
    lines = [f"{name}: where the two rules differ, probes go {_rules(model_rows)}."]
    for layer_row in model_rows[:1] + model_rows[1:][-1:]:
        lines.append(
            f"{name}, layer {layer_row['layer']}: right in {layer_row['generalisation']:.1%}{_within(layer_row)} of "
            f"the sentences in which the {named(linear)} is wrong, which it answers in "
            f"{layer_row[linear]:.1%}{_within(layer_row, linear)}."
        )
    for control, words in controls_of(rows).items():
        beside = of_model(rows, task, control)
        above = _layers_where(beside, lambda row: _side(row, "difference") > 0)
        where = f"above it in {layers_named(above)}" if above else "above it in no layer"
        below = _layers_where(beside, lambda row: _side(row, "difference") < 0)
        where += f" and below it in {layers_named(below)}" if below else ""
        lines.append(f"{name}, beside {words}: the model is {where}.")
    if unlearned := _layers_where(model_rows, lambda row: row["test"] < LEARNED):
        lines.append(
            f"{name}: in {layers_named(unlearned)} the probe is right in fewer than {LEARNED:.0%} of test sentences of "
            "the kind it was trained on, so that what it does on others says little there."
        )
    return lines


def _rules(model_rows: Sequence[Row]) -> str:
    sides = {
        side: _layers_where(model_rows, lambda row, side=side: _side(row, "preference") == side)  # type: ignore[misc]
        for side in (-1, 1, 0)
    }
    words = {-1: "by linear order", 1: "by hierarchy", 0: "by neither beyond the interval"}
    return listed([f"{words[side]} in {layers_named(layers)}" for side, layers in sides.items() if layers])


def _layers_where(rows: Sequence[Row], holds: Callable[[Row], bool]) -> list[int]:
    return [row["layer"] for row in rows if holds(row)]


def _side(row: Row, of: str) -> int:
    """Return the side of 0 on which an interval lies: 1, -1, or 0 if it contains 0 or is missing."""
    interval = ends(row, of)
    return 0 if interval is None else int(interval[0] > 0) - int(interval[1] < 0)


def _within(row: Row, of: str = "") -> str:
    return in_brackets(interval(row, of, " to ", ".1f", 100))


# --------------------------------------------------------------------------------------------------------------------
# By which rule probes generalise (`hierarchy`).
# --------------------------------------------------------------------------------------------------------------------


def hierarchy_section(result: Result, anchor: str) -> Html:
    """Return the layers that follow each rule, the shares by layer, and the tables of the terminal."""
    rows = result.hierarchy
    return section_of(
        result,
        anchor,
        *(_shares(rows, task) for task in tasks_of(rows)),
        *framed(result.tables()),
    )


def _shares(rows: Sequence[Row], task: str) -> Html:
    model_rows, linear = of_model(rows, task), LINEAR[task]
    lines = [
        _line("both rules agree: right", model_rows, "test", "test"),
        _line("they differ: right", model_rows, "generalisation", ""),
        _line(f"they differ: the {named(linear)}", model_rows, linear, linear),
    ]
    for name, words in controls_of(rows).items():
        lines.append(_line(f"they differ, {words}: right", of_model(rows, task, name), "generalisation", ""))
    title = f"{named(task).capitalize()}: share of sentences by layer, with 95% intervals over sentences"
    return element("figure", element("figcaption", title), line_chart(lines, title))


def _line(label: str, rows: Sequence[Row], column: str, of: str) -> Line:
    return Line(label, [row["layer"] for row in rows], [row[column] for row in rows], [ends(row, of) for row in rows])
