"""Tables whose columns are declared once: a name, a type, a meaning, a heading and a format, for every place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from probing.runtime.terminal import plain_table

# --------------------------------------------------------------------------------------------------------------------
# A number as text.
# --------------------------------------------------------------------------------------------------------------------


def shown(value: float, form: str) -> str:
    """Return a number as text; one that is not 0 never looks like 0: it has as many digits as show its first one.

    So an interval that leaves out 0 is seen to do so, such as `2e-05 to 0.0036` in place of `0.0000 to 0.0036`.

    Args:
        value: The number.
        form: Its format, such as `.4f`, `+.3f` or `.1%`.
    """
    text = format(value + 0.0 if value else 0.0, form)
    if value and math.isfinite(value) and not set(text) & set("123456789"):
        sign, percent = "+" * form.startswith("+"), "%" * form.endswith("%")
        return format(100 * value if percent else value, f"{sign}.1g") + percent
    return text


Row = Mapping[str, Any]
Value = int | float | str
Type = Callable[[str], Value]

# Heading of an interval beside the column that it is of, and its meaning.
RANGE = "95% range"
RANGE_MEANING = "Confidence interval of the number before it, over sentences or what else is independent."
# Stands for the layer in rows over all layers but the embeddings.
ALL_LAYERS = "all"


# Column of the name of a layer that has one; tables are shown with the name in the column of the layer.
LAYER_NAME = "layer_name"


class NamedLayer(int):
    """A layer's number that is shown by its name: as text it is the name, in order, arithmetic and files the number.

    Args:
        number: The number.
        name: The name.
    """

    name: str

    def __new__(cls, number: int, name: str) -> NamedLayer:  # noqa: D102
        made = super().__new__(cls, number)
        made.name = name
        return made

    def __str__(self) -> str:
        return self.name

    def __format__(self, form: str) -> str:
        return format(int(self), form) if form else self.name

    def __reduce__(self) -> tuple[type[NamedLayer], tuple[int, str]]:
        return NamedLayer, (int(self), self.name)


def layer_cells(layer: int) -> dict[str, Any]:
    """Return the cells of a row that say which layer it is of: its number, and its name if it has one."""
    return {"layer": layer, LAYER_NAME: layer.name} if isinstance(layer, NamedLayer) else {"layer": layer}


def with_layer_name(row: Row) -> dict[str, Any]:
    """Return a row as it is written: with the number of its layer, and the name beside it if it has one."""
    layer = row.get("layer")
    if not isinstance(layer, NamedLayer):
        return dict(row)
    return {key: cell for name, value in row.items() for key, cell in _written(name, value)}


def _written(name: str, value: Any) -> list[tuple[str, Any]]:
    return [("layer", int(value)), (LAYER_NAME, value.name)] if name == "layer" else [(name, value)]


def with_named_layer(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as it is in memory, whose layer knows its name, from one that was read."""
    if row.get(LAYER_NAME):
        row["layer"] = NamedLayer(row["layer"], row[LAYER_NAME])
    return row


def layer_number(text: str) -> int | str:
    """Return a layer's number, or the word for all layers."""
    return text if text == ALL_LAYERS else int(text)


def label_of_class(text: str) -> int | str:
    """Return the label of a class as it is written; `results.json` says whether labels are text or whole numbers."""
    return text


@dataclass(frozen=True)
class Column:
    """A column of a table: all that a file, a terminal, a page, W&B and the documentation say of it.

    Args:
        name: Its name in files.
        type: What makes a cell of its text: `int`, `float`, `str`, `layer_number` or `label_of_class`.
        meaning: What it holds, as a sentence that a page and the documentation print.
        heading: Its heading where it is shown; its name in words by default.
        form: Format of a shown cell.
        interval: What the names of the columns of its interval begin with, which follow it: `""` for `low` and `high`,
            otherwise a name such as `accuracy`; None without an interval.
        may_be_empty: Whether an empty cell is a value, the empty text; otherwise it is no value.
        labels: What is shown in place of some values, such as `as it is` for `intact`.
    """

    name: str
    type: Type = float
    meaning: str = ""
    heading: str = ""
    form: str = ""
    interval: str | None = None
    may_be_empty: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """Its heading."""
        return self.heading or self.name.replace("_", " ")

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, and those of the ends of its interval."""
        if self.interval is None:
            return (self.name,)
        return self.name, *(f"{self.interval}_{end}".lstrip("_") for end in ("low", "high"))

    def show(self, row: Row) -> str:
        """Return a row's cell as text, empty where it has no value; a number that is not 0 never looks like 0."""
        value = row.get(self.name)
        if value is None or value == "":
            return ""
        if value in self.labels:
            return self.labels[value]
        return shown(value, self.form) if isinstance(value, float) and self.form else format(value, self.form)


def text(
    name: str, meaning: str, heading: str = "", *, may_be_empty: bool = False, labels: Mapping[str, str] | None = None
) -> Column:
    """Return a column of words."""
    return Column(name, str, meaning, heading, may_be_empty=may_be_empty, labels=labels or {})


def whole(name: str, meaning: str, heading: str = "", form: str = "", interval: str | None = None) -> Column:
    """Return a column of whole numbers."""
    return Column(name, int, meaning, heading, form, interval)


def number(name: str, meaning: str, heading: str = "", form: str = ".3f", interval: str | None = None) -> Column:
    """Return a column of numbers."""
    return Column(name, float, meaning, heading, form, interval)


def measured(name: str, meaning: str, heading: str = "", form: str = ".3f") -> Column:
    """Return a column of numbers that the two ends of an interval named like it follow: NAME_low, NAME_high."""
    return Column(name, float, meaning, heading, form, name)


@dataclass(frozen=True)
class Schema:
    """The schema of a table: what a row is, and which columns a row may have.

    Args:
        name: Its name, which its file and its attribute in Python have.
        row: What a row is: "a row per layer".
        columns: Its columns in the order of the file.
        further: Type of a column that the user names, such as an option of a sweep, by its name; None for a name that
            cannot be one. Without it there are no other columns than those declared.
        optional: Whether the table is written only where it was asked for.
    """

    name: str
    row: str
    columns: Sequence[Column]
    further: Callable[[str], Type | None] | None = None
    optional: bool = False

    def __getitem__(self, name: str) -> Column:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def types(self) -> dict[str, Type]:
        """The type of each column of its file, in the order of the file."""
        return {name: column.type for column in self.columns for name in column.names}

    def type_of(self, name: str) -> Type:
        """Return the type of a column; one that is not declared, as of another version, is text."""
        declared = self.types.get(name)
        further = self.further(name) if declared is None and self.further else None
        return declared or further or str

    def terms(self, names: Sequence[str]) -> dict[str, str]:
        """Return the meanings of some columns by their headings, and what their intervals are.

        Args:
            names: The columns; an asterisk behind a name is for one that is shown with its interval.
        """
        found = {(column := self[name.rstrip("*")]).words: column.meaning for name in names}
        return found | ({RANGE: RANGE_MEANING} if any(name.endswith("*") for name in names) else {})

    @cached_property
    def may_be_empty(self) -> frozenset[str]:
        """The columns in which an empty cell is a value."""
        return frozenset(column.name for column in self.columns if column.may_be_empty)

    def order(self, rows: Sequence[Row]) -> list[str]:
        """Return the names of the columns that some row has, in the order of the file; all of them without rows.

        Where the user names columns, the order is that of the rows.

        Raises:
            RuntimeError: If a row has a column that is not declared, so that it would be lost.
        """
        there = dict.fromkeys(name for row in rows for name in row)
        undeclared = [name for name in there if name not in self.types]
        if lost := [name for name in undeclared if not (self.further and self.further(name))]:
            raise RuntimeError(f"the table {self.name} has no column {lost[0]}: declare it where the table is declared")
        if self.further and rows:
            return list(there)
        return [name for name in self.types if name in there or not rows]


# --------------------------------------------------------------------------------------------------------------------
# Tables in a terminal, cells of tables, and numbers and lists as people read them in a sentence.
# --------------------------------------------------------------------------------------------------------------------


def is_end(column: str) -> bool:
    """Return whether a column holds an end of an interval; its cell is empty where there is no interval."""
    return column.split("_")[-1] in ("low", "high")


def without_nan(row: Row) -> dict[str, Any]:
    """Return a row with None in place of NaN, which JSON does not have."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


def ends(row: Row, of: str = "") -> tuple[float, float] | None:
    """Return both ends of an interval, or None where the row has none.

    Args:
        row: A row, from memory or from a file.
        of: Name of the quantity; the columns are `OF_low` and `OF_high`, or `low` and `high` without a name.
    """
    low, high = (row.get(f"{of}_{end}".lstrip("_")) for end in ("low", "high"))
    there = all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high))
    return (float(low), float(high)) if there else None  # type: ignore[arg-type]


def interval(row: Row, of: str = "", between: str = "-", form: str = ".3f", times: float = 1) -> str:
    """Return an interval as text, empty where the row has none.

    Args:
        row: A row, from memory or from a file.
        of: Name of the quantity, as in `ends`.
        between: Text between the ends.
        form: Format of each end.
        times: Factor by which each end is multiplied; below 0 the ends change places.
    """
    found = sorted(times * end for end in ends(row, of) or ())
    return between.join(shown(end, form) for end in found)


def in_brackets(*parts: str) -> str:
    """Return the parts that are not empty in brackets after a space; an empty text if all are empty."""
    said = "; ".join(part for part in parts if part)
    return f" ({said})" if said else ""


def shortened(name: object, most: int) -> str:
    """Return a name as text of at most so many characters, with an ellipsis where some are left out."""
    text = str(name)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def two_decimals(value: float) -> str:
    """Return a number with two decimals, and 0 without a sign."""
    return f"{round(value, 2) + 0.0:.2f}"


def listed(items: Sequence[object], before_last: str = "and") -> str:
    """Return items as a list in a sentence, with `and` before the last one, or `or` where one is to be chosen."""
    *first, last = map(str, items)
    return f"{', '.join(first)} {before_last} {last}" if first else last


def layers_named(layers: Sequence[int]) -> str:
    """Return layers, ascending, with their noun; several in a row by the first and the last."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if isinstance(layers[0], NamedLayer):
        return f"layers {listed(layers)}"
    in_a_row = len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1
    return f"layers {layers[0]} to {layers[-1]}" if in_a_row else f"layers {listed(layers)}"


def count(n: int, one: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"


# Further columns by their headings, each with what returns a row's cell.
Beside = Mapping[str, Callable[[Row], str]]


def shown_table(
    schema: Schema, rows: Sequence[Row], title: str = "", names: Sequence[str] = (), beside: Beside | None = None
) -> Any:
    """Return rows as a rich table.

    Args:
        schema: The table.
        rows: Its rows.
        title: Title of the table; what a row is by default.
        names: The columns; an asterisk behind a name shows its interval as well. By default all that some row has, and
            both ends of a range in one cell.
        beside: Further columns.
    """
    table = plain_table(title or f"{schema.name.replace('_', ' ').capitalize()}: {schema.row}", collapse_padding=True)
    cells: list[Callable[[Row], str]] = []
    for name in names or _there(schema, rows):
        column = schema[name.rstrip("*")]
        table.add_column(column.words, justify="left" if column.type is str else "right")
        cells.append(column.show if names else _shown_with_other_end(schema, column))
        if name.endswith("*"):
            table.add_column(_heading_of_range(column), justify="right")
            cells.append(_range_of(column))
    for heading, cell in (beside or {}).items():
        table.add_column(heading, justify="right")
        cells.append(cell)
    for row in rows:
        table.add_row(*(cell(row) for cell in cells))
    return table


def _there(schema: Schema, rows: Sequence[Row]) -> list[str]:
    """Return the columns that are shown by default: of numbers, those that some row has; of ranges, the lower ends."""
    upper = {_other_end(schema, column.name) for column in schema.columns}
    there = [
        column
        for column in schema.columns
        if any(column.name in row and (column.type is str or column.show(row)) for row in rows)
        and column.name not in (LAYER_NAME, *upper)
    ]
    return [f"{column.name}*" if column.interval is not None else column.name for column in there]


def _other_end(schema: Schema, lower: str) -> str | None:
    """Return the column of the upper end of a range that is declared by its ends, or None for any other column."""
    upper = lower.removesuffix("_low") + "_high"
    return upper if lower.endswith("_low") and upper in (column.name for column in schema.columns) else None


def _shown_with_other_end(schema: Schema, column: Column) -> Callable[[Row], str]:
    other = _other_end(schema, column.name)
    return (lambda row: "-".join(filter(None, (column.show(row), schema[other].show(row))))) if other else column.show


def _heading_of_range(column: Column) -> str:
    """Return the heading of a column's interval, which says what it is of where that is not the column itself."""
    is_own = column.interval in ("", column.name)
    return RANGE if is_own else f"{RANGE} {str(column.interval).replace('_', ' ')}"


def _range_of(column: Column) -> Callable[[Row], str]:
    """Return what gives a row's interval, with signs where the column has them."""
    between, form = (" to ", column.form) if column.form.startswith("+") else ("-", column.form or ".3f")
    return lambda row: interval(row, column.interval or "", between, form)
