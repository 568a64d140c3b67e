"""The ranked table of a run: its columns, its first rows as HTML, and all rows as numbers for the script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from probing.page.packing import pack_floats, pack_integers
from probing.page.sources import Subject
from probing.results.markup import Html, element
from probing.results.schema import Column, Row
from probing.schemas.probes import NEURONS, NUMBER_NEURONS
from probing.tables.columns import BELOW_RESOLUTION, FAR, NEGLIGIBLE

# Number of rows that the page has without its script.
FIRST = 10
# Columns of ablation effects, of classes and of numbers.
WITHOUT = ("cross_entropy_without", "r2_without")
# Text of a cell where an ablation effect is neither different from 0 nor negligible.
UNRESOLVED = "unresolved"


def cell(column: Column, row: Row) -> str:
    """Return a row's value in a column as text."""
    if column.name == "rank_low":
        return f"{row['rank_low']}–{row['rank_high']}"
    if row.get(column.name) in (None, ""):
        return ""
    if column.name in WITHOUT and BELOW_RESOLUTION in row["removed"]:
        return UNRESOLVED
    if column.name in WITHOUT and NEGLIGIBLE in row["removed"]:
        return NEGLIGIBLE
    star = "*" if column.name == "contribution_centred" and is_far(row) else ""
    return star + column.show(row)


def described(column: Column) -> dict[str, Any]:
    """Return what the script has to know of a column: its heading, its meaning and its format."""
    digits = re.search(r"\.(\d+)", column.form)
    return {
        "key": column.name, "label": column.words, "help": column.meaning, "digits": int(digits[1]) if digits else 0,
        "percent": column.form.endswith("%"), "signed": column.form.startswith("+"),
    }  # fmt: skip


def is_far(row: Row) -> bool:
    """Return whether a neuron's mean is so far from 0 that its centred contribution is unreliable."""
    return bool(row["flag"] != "dead" and abs(row["mean"]) > FAR * row["sd"])


_SHOWN = (
    "layer", "rank", "rank_low", "neuron", "head", "contribution", "ratio", "share", "contribution_centred",
    "contribution_companion", "control_task_share", "correlation", "eta_squared", "eta_squared_z", "eta_squared_q",
    "given_eta_squared", "given_q", "unique", "cross_entropy_without", "r2_without",
)  # fmt: skip
_PRESSED = " What a neuron is stands above the table; press its number to see its contribution to each class."
# The columns of the table, of classes and of numbers.
COLUMNS = tuple(
    replace(column, meaning=column.meaning + _PRESSED) if name == "neuron" else column
    for name in _SHOWN
    for column in [NEURONS[name] if name in NEURONS else NUMBER_NEURONS[name]]
)
# Further columns that the script needs to show the picked neuron.
BESIDE = ("rank_high", *(f"{name}_{end}" for name in WITHOUT for end in ("low", "high")), "mean", "sd")
TEXTS = ("flag", "removed")
_INTEGERS = ("neuron", "head", "rank_low", "rank_high")
_KNOWN_BY_INDEX = ("layer", "rank")


def shown_columns(subject: Subject) -> list[Column]:
    """Return the columns that a run has, except empty ones."""
    rows = subject.run.neurons
    return [column for column in COLUMNS if any(row.get(column.name, "") != "" for row in rows)]


def first_rows(subject: Subject, caption: str) -> Html:
    """Return the last layer's first neurons as a table, which the script extends."""
    columns = shown_columns(subject)
    head = [element("th", column.words, scope="col", title=column.meaning, data_key=column.name) for column in columns]
    head.append(element("th", "flag", scope="col", class_="words", title="a warning about the rank", data_key="flag"))
    body = [_row(row, columns) for row in subject.ranked[subject.layers[-1]][:FIRST]]
    return element(
        "table", element("caption", caption), element("thead", element("tr", *head)), element("tbody", *body),
        class_="neurons",
    )  # fmt: skip


def _row(row: Row, columns: Sequence[Column]) -> Html:
    cells = [element("td", cell(column, row)) for column in columns]
    return element("tr", *cells, element("td", row["flag"], class_="words"))


def packed_rows(subject: Subject) -> dict[str, Any]:
    """Return the whole table for the script: rows in ranked order, layer by layer; columns as packed numbers."""
    rows = [row for table in subject.ranked.values() for row in table]
    columns = shown_columns(subject)
    numbers = [key for key in (*(column.name for column in columns), *BESIDE) if key in rows[0]]
    packed: dict[str, Any] = {}
    for key in numbers:
        values = [row[key] if row[key] != "" else float("nan") for row in rows]
        if key in _INTEGERS:
            packed[key] = pack_integers(values)
        elif key not in _KNOWN_BY_INDEX:
            packed[key] = pack_floats(values)
    for key in TEXTS:
        if key in rows[0]:
            names = sorted({row[key] for row in rows})
            packed[key] = {"names": names, "codes": pack_integers([names.index(row[key]) for row in rows])}
    return {"columns": [described(column) for column in columns], "rows": packed}
