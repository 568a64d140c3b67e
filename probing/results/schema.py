"""Tables whose columns are declared once: a name, a type, a meaning, a heading and a format, for every place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from probing.results.digits import shown

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
