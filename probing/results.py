"""Tables: columns declared once (name, type, meaning, heading, format), and their rows in Python and CSV files."""

from __future__ import annotations

import ast
import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import Any, TextIO

from probing.errors import UserError, as_clause
from probing.runtime.files import most_text, open_file, replacing
from probing.runtime.terminal import plain_table, render

# Largest difference of two equal numbers that are computed in another order.
ROUNDING = 1e-12


def shown(value: float, form: str) -> str:
    """Return a number in a format such as `.4f`, with enough digits that only 0 looks like 0.

    So an interval that excludes 0 visibly does so, such as `2e-05 to 0.0036` instead of `0.0000 to 0.0036`. Rounding
    errors of differences, whose format begins with `+`, are 0.
    """
    if form.startswith("+") and abs(value) < ROUNDING:
        value = 0.0
    text = format(value + 0.0 if value else 0.0, form)
    if value and math.isfinite(value) and not set(text) & set("123456789"):
        sign, percent = "+" * form.startswith("+"), "%" * form.endswith("%")
        return format(100 * value if percent else value, f"{sign}.1g") + percent
    return text


def rounded(value: float, form: str) -> str:
    """Return a number in a format such as `.3f`; what rounds to 0 has no sign."""
    text = format(value, form)
    return text if set(text) & set("123456789") else text.lstrip("+-")


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
    """Layer number that is shown by its name: text shows the name; order, arithmetic and files use the number."""

    name: str

    def __new__(cls, number: int, name: str) -> NamedLayer:  # noqa: D102
        layer = super().__new__(cls, number)
        layer.name = name
        return layer

    def __str__(self) -> str:
        return self.name

    def __format__(self, form: str) -> str:
        return format(int(self), form) if form else self.name

    def __reduce__(self) -> tuple[type[NamedLayer], tuple[int, str]]:
        return NamedLayer, (int(self), self.name)


def layer_cells(layer: int) -> dict[str, Any]:
    """Return the cells of a row for its layer: the number, and the name if it has one."""
    return {"layer": layer, LAYER_NAME: layer.name} if isinstance(layer, NamedLayer) else {"layer": layer}


def with_layer_name(row: Row) -> dict[str, Any]:
    """Return a row as written to files: the number of its layer, followed by the name if it has one."""
    layer = row.get("layer")
    if not isinstance(layer, NamedLayer):
        return dict(row)
    return {key: cell for name, value in row.items() for key, cell in _written(name, value)}


def _written(name: str, value: Any) -> list[tuple[str, Any]]:
    return [("layer", int(value)), (LAYER_NAME, value.name)] if name == "layer" else [(name, value)]


def with_named_layer(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row that was read, in which the layer knows its name."""
    if row.get(LAYER_NAME):
        row["layer"] = NamedLayer(row["layer"], row[LAYER_NAME])
    return row


def layer_number(text: str) -> int | str:
    """Return a layer's number, or the word for all layers."""
    return text if text == ALL_LAYERS else int(text)


def label_of_class(text: str) -> int | str:
    """Return the label of a class as written; `results.json` records whether labels are text or whole numbers."""
    return text


@dataclass(frozen=True)
class Column:
    """Column of a table, as files, the terminal, pages, W&B and the documentation describe it.

    Args:
        name: Name in files.
        type: Converter of the text of a cell: `int`, `float`, `str`, `layer_number` or `label_of_class`.
        meaning: Meaning, as a sentence for pages and the documentation.
        heading: Heading where it is shown; by default the name in words.
        form: Format of a shown cell.
        interval: Prefix of the two columns of its interval, which follow it: `""` for `low` and `high`, otherwise a
            name such as `accuracy`; None without an interval.
        may_be_empty: Whether an empty cell is the empty text; otherwise it is no value.
        labels: Words shown for some values, such as `as it is` for `intact`.
        times: Factor of the number and its interval where they are shown, such as 100 for points.
    """

    name: str
    type: Type = float
    meaning: str = ""
    heading: str = ""
    form: str = ""
    interval: str | None = None
    may_be_empty: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    times: float = 1

    @property
    def words(self) -> str:
        """Heading of the column."""
        return self.heading or self.name.replace("_", " ")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the column and of the ends of its interval."""
        if self.interval is None:
            return (self.name,)
        return self.name, *(f"{self.interval}_{end}".lstrip("_") for end in ("low", "high"))

    def show(self, row: Row) -> str:
        """Return a row's cell as text, empty without a value; a number that is not 0 never looks like 0."""
        value = row.get(self.name)
        if value is None or value == "" or value != value:
            return ""
        if value in self.labels:
            return self.labels[value]
        is_number = isinstance(value, float) and self.form
        return shown(self.times * value, self.form) if is_number else format(value, self.form)


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


def estimate(name: str, meaning: str, heading: str = "", form: str = ".3f") -> Column:
    """Return a column of numbers, followed by the ends of its interval: NAME_low, NAME_high."""
    return Column(name, float, meaning, heading, form, name)


@dataclass(frozen=True)
class Schema:
    """Schema of a table: the meaning of a row and the permitted columns.

    Args:
        name: Name of its file and of its attribute in Python.
        row: Meaning of a row: "a row per layer".
        columns: Columns in the order of the file.
        further: Function from the name of a column that the user chooses, such as an option of a sweep, to its type;
            None for impossible names. By default only declared columns are permitted.
        optional: Whether the table is written only on request.
        needed: Columns that every row has, which readers check.
        shown: Columns that a prompt and a notebook show, as in `shown_table`; by default all.
    """

    name: str
    row: str
    columns: Sequence[Column]
    further: Callable[[str], Type | None] | None = None
    optional: bool = False
    needed: Sequence[str] = ()
    shown: Sequence[str] = ()

    def __getitem__(self, name: str) -> Column:
        return self._by_name[name]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {column.name: column for column in self.columns}

    @cached_property
    def types(self) -> dict[str, Type]:
        """Type of each column of its file, in the order of the file."""
        return {name: column.type for column in self.columns for name in column.names}

    def type_of(self, name: str) -> Type:
        """Return the type of a column; undeclared columns, as of another version, are text."""
        declared = self.types.get(name)
        further = self.further(name) if declared is None and self.further else None
        return declared or further or str

    def terms(self, names: Sequence[str]) -> dict[str, str]:
        """Return the meanings of columns by their headings; an asterisk after a name adds its interval."""
        meanings = {(column := self[name.rstrip("*")]).words: column.meaning for name in names}
        return meanings | ({RANGE: RANGE_MEANING} if any(name.endswith("*") for name in names) else {})

    @cached_property
    def may_be_empty(self) -> frozenset[str]:
        """Columns in which an empty cell is a value."""
        return frozenset(column.name for column in self.columns if column.may_be_empty)

    def order(self, rows: Sequence[Row]) -> list[str]:
        """Return the columns that some row has, in the order of the file (of the rows, if users name columns).

        Without rows, these are all columns. An undeclared column, which would be lost, raises RuntimeError.
        """
        present = dict.fromkeys(name for row in rows for name in row)
        undeclared = [name for name in present if name not in self.types]
        if lost := [name for name in undeclared if not (self.further and self.further(name))]:
            raise RuntimeError(f"the table {self.name} has no column {lost[0]}: declare it where the table is declared")
        if self.further and rows:
            return list(present)
        return [name for name in self.types if name in present or not rows]


def is_end(column: str) -> bool:
    """Return whether a column is an end of an interval; its cell is empty without an interval."""
    return column.split("_")[-1] in ("low", "high")


def without_nan(row: Row) -> dict[str, Any]:
    """Return a row with None instead of NaN, which JSON lacks."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


def ends(row: Row, of: str = "") -> tuple[float, float] | None:
    """Return both ends of an interval, in columns `OF_low` and `OF_high` (`low`, `high` without a name), or None."""
    low, high = (row.get(f"{of}_{end}".lstrip("_")) for end in ("low", "high"))
    are_numbers = all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high))
    return (float(low), float(high)) if are_numbers else None  # type: ignore[arg-type]


def estimate_cells(name: str, value: Any, interval: tuple[Any, Any], of: str | None = None) -> dict[str, Any]:
    """Return the cells of a number and its interval, in columns `NAME`, `OF_low` and `OF_high`.

    `of` is the name by default, and empty for `value`; if it is empty, the columns are `low` and `high`.
    """
    if of is None:
        of = "" if name == "value" else name
    low, high = (f"{of}_{end}".lstrip("_") for end in ("low", "high"))
    return {name: value, low: interval[0], high: interval[1]}


def curve_points(rows: Iterable[Row], cells: Callable[[Row], Row], axis: str = "layer") -> list[dict[str, Any]]:
    """Return a row for each value of `axis`, with the cells of all rows of this value, for the curves of W&B."""
    points: dict[Any, dict[str, Any]] = {}
    for row in rows:
        points.setdefault(row[axis], {axis: row[axis]}).update(cells(row))
    return list(points.values())


def interval(row: Row, of: str = "", between: str = "-", form: str = ".3f", times: float = 1) -> str:
    """Return an interval as text, empty if the row has none.

    `of` is as in `ends`, `between` the text between the ends; `times` multiplies the ends, which swap below 0.
    """
    both_ends = sorted(times * end for end in ends(row, of) or ())
    return between.join(shown(end, form) for end in both_ends)


def sign_of_interval(row: Row, of: str = "", than: float = 0.0) -> int:
    """Return 1 for an interval above a value, -1 for one below it, and 0 for one that contains it or is missing."""
    bounds = ends(row, of)
    return 0 if bounds is None else int(bounds[0] > than) - int(bounds[1] < than)


def estimated(row: Row, column: str, form: str = ".3f", of: str | None = None, times: float = 1) -> str:
    """Return a number with its interval, such as `0.386 (0.369 to 0.404)`.

    Args:
        row: A row, from memory or from a file.
        column: The number's column.
        form: Format of the number; of the ends without the sign of percent.
        of: Name of the interval, as in `ends`; the column by default.
        times: Factor of the number and the ends.
    """
    percent = form.endswith("%")
    ends_form = f"{form[:-1]}f" if percent else form
    within = interval(row, column if of is None else of, " to ", ends_form, 100 * times if percent else times)
    return f"{shown(times * row[column], form)}{in_brackets(within)}"


def in_brackets(*parts: str) -> str:
    """Return the non-empty parts in brackets after a space; an empty text without any."""
    joined = "; ".join(part for part in parts if part)
    return f" ({joined})" if joined else ""


def shortened(name: object, most: int) -> str:
    """Return a name as text of at most `most` characters, with an ellipsis if it is cut."""
    text = str(name)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def two_decimals(value: float) -> str:
    """Return a number with two decimals, and 0 without a sign."""
    return f"{round(value, 2) + 0.0:.2f}"


def listed(items: Sequence[object], before_last: str = "and") -> str:
    """Return items as a list in a sentence, with `before_last` before the last item."""
    *first, last = map(str, items)
    return f"{', '.join(first)} {before_last} {last}" if first else last


def layers_named(layers: Sequence[int]) -> str:
    """Return ascending layers with their noun; consecutive layers by the first and the last."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if isinstance(layers[0], NamedLayer):
        return f"layers {listed(layers)}"
    in_a_row = len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1
    return f"layers {layers[0]} to {layers[-1]}" if in_a_row else f"layers {listed(layers)}"


# Verdicts on a difference by the sign of its interval: of what is compared with a baseline, and of a change.
COMPARED = {1: "above it", -1: "below it", 0: "not distinguished from it"}

CHANGED = {1: "an increase", -1: "a decrease", 0: "not distinguished from 0"}


def layers_by(rows: Sequence[Row], of: str, verdicts: Mapping[int, str] = COMPARED) -> str:
    """Return in which layers an interval is above 0, below 0 or neither: "above it in layer 0 and below it in layer 3".

    Args:
        rows: A row per layer, ascending.
        of: Name of the interval, as in `ends`.
        verdicts: What is said of layers of each sign of the interval (1, -1, 0), in this order.
    """
    layers = {sign: [row["layer"] for row in rows if sign_of_interval(row, of) == sign] for sign in verdicts}
    return listed([f"{verdicts[sign]} in {layers_named(of_sign)}" for sign, of_sign in layers.items() if of_sign])


def capitalised(text: str) -> str:
    """Return a text with a capital first letter; the others stay."""
    return text[:1].upper() + text[1:]


def count(n: int, singular: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{n:,} {singular if n == 1 else many or singular + 's'}"


# Further columns by their headings, each with what returns a row's cell.
Beside = Mapping[str, Callable[[Row], str]]


def shown_table(
    schema: Schema, rows: Sequence[Row], title: str = "", names: Sequence[str] = (), beside: Beside | None = None,
    cells: Beside | None = None, leave_out: Sequence[str] = (),
) -> Any:  # fmt: skip
    """Return rows as a rich table, by default titled by the meaning of a row.

    An asterisk after a name adds its interval. By default all columns that some row has are shown, ranges in one cell.

    Args:
        schema: The table.
        rows: Its rows.
        title: The title.
        names: Names of the columns.
        beside: Further columns by heading.
        cells: Functions of a row for the cells of some columns, in place of the column's format.
        leave_out: Columns that a narrow terminal leaves out first.
    """
    title = title or f"{schema.name.replace('_', ' ').capitalize()}: {schema.row}"
    table = plain_table(title, [schema[name].words for name in leave_out], collapse_padding=True)
    shows: list[Callable[[Row], str]] = []
    for name in names or _default_columns(schema, rows):
        column = schema[name.rstrip("*")]
        table.add_column(column.words, justify="left" if column.type is str else "right")
        shows.append((cells or {}).get(column.name, _shown_with_other_end(schema, column, names)))
        if name.endswith("*"):
            table.add_column(_heading_of_range(column), justify="right")
            shows.append(_range_of(column))
    for heading, cell in (beside or {}).items():
        table.add_column(heading, justify="right")
        shows.append(cell)
    for row in rows:
        table.add_row(*(show(row) for show in shows))
    return table


def cells_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[str] = ()) -> Any:
    """Return rows of text as a rich table, to the right but for the columns with the headings in `words`."""
    table = plain_table(title)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right")
    for row in rows:
        table.add_row(*row)
    return table


def by_layer_table(title: str, rows: Table, cells: Mapping[str, Callable[[Table], str]]) -> Any:
    """Return a rich table with a row for each layer, ascending; `cells` are functions of its rows, by heading."""
    layers = sorted(rows.by("layer").items())
    body = ([str(layer), *(cell(of_layer) for cell in cells.values())] for layer, of_layer in layers)
    return cells_table(title, ["layer", *cells], body)


def grouped_table(
    schema: Schema,
    groups: Iterable[Table],
    title: str,
    names: Sequence[str],
    cells: Mapping[str, Callable[[Table], str]],
) -> Any:
    """Return a rich table with a row for each group of rows.

    Args:
        schema: The table that the rows are of.
        groups: The groups, none of which is empty.
        title: Title.
        names: Columns in which the rows of a group are the same, as in `shown_table`.
        cells: Functions from the rows of a group to the text of a cell, by heading; columns without text are left out.
    """
    group_of = {id(rows[0]): rows for rows in groups}
    beside: dict[str, Callable[[Row], str]] = {
        heading: lambda row, cell=cell: cell(group_of[id(row)])  # type: ignore[misc]
        for heading, cell in cells.items()
        if any(map(cell, group_of.values()))
    }
    return shown_table(schema, [rows[0] for rows in group_of.values()], title, names, beside)


@dataclass(frozen=True)
class View:
    """A table of the terminal and the page: some rows and columns of a table of the results.

    Args:
        schema: The table.
        columns: Its columns as in `shown_table`.
        title: Title, with a column's name in braces for the value of `by`; what a row is by default.
        by: A table is shown for each value of this column; empty for one table.
        where: The rows that are shown, as in `Table.where`.
        pivot: A column whose other values get a column each: its name, the number shown, and the heading by value.
        keys: Columns that identify a row among the rows of one value of the pivot.
    """

    schema: Schema
    columns: Sequence[str] = ()
    title: str = ""
    by: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    pivot: tuple[str, str, Mapping[str, str]] | None = None
    keys: Sequence[str] = ("layer",)

    def tables(self, rows: Table) -> list[Any]:
        """Return the rich tables; none without rows."""
        chosen = rows.where(**self.where)
        parts = chosen.by(self.by) if self.by else {"": chosen}
        return [self._table(part, value, rows) for value, part in parts.items() if part]

    def _table(self, part: Table, value: Any, rows: Table) -> Any:
        words = self.schema[self.by].show(part[0]) if self.by else ""
        title = self.title.format(**{self.by: words}) if self.by else self.title
        beside: dict[str, Callable[[Row], str]] = {}
        if self.pivot:
            column, number, headings = self.pivot
            others = rows.where(**({self.by: value} if self.by else {}))
            for other, heading in headings.items():
                if by_key := {self._key(row): row for row in others.where(**{column: other})}:
                    beside[heading] = partial(self._cell, by_key, number)
        columns = [name for name in map(partial(self._filled, part), self.columns) if name]
        return shown_table(self.schema, part, title[:1].upper() + title[1:], columns, beside)

    def _filled(self, part: Table, name: str) -> str:
        """Return a column without its interval if no row has one; empty if no row has a value."""
        column = self.schema[name.rstrip("*")]
        if name.endswith("*") and not any(map(_range_of(column), part)):
            name = column.name
        return name if any(map(column.show, part)) else ""

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self.keys)

    def _cell(self, by_key: Mapping[tuple[Any, ...], Row], number: str, row: Row) -> str:
        return self.schema[number].show(by_key.get(self._key(row), {}))

    def terms(self) -> dict[str, str]:
        """Return the meanings of the headings."""
        meanings = self.schema.terms(self.columns or [column.name for column in self.schema.columns])
        if self.pivot:
            column, number, headings = self.pivot
            name, other = self.schema[number].words, self.schema[column].words
            meanings |= {heading: f"{name} where {other} is {value}." for value, heading in headings.items()}
        return meanings


def _default_columns(schema: Schema, rows: Sequence[Row]) -> list[str]:
    """Return the default columns: of numbers, those that some row has; of ranges, the lower ends."""
    upper = {_other_end(schema, column.name) for column in schema.columns}
    names = [
        column
        for column in schema.columns
        if any(column.name in row and (column.type is str or column.show(row)) for row in rows)
        and column.name not in (LAYER_NAME, *upper)
    ]
    return [f"{column.name}*" if column.interval is not None else column.name for column in names]


def _other_end(schema: Schema, lower: str) -> str | None:
    """Return the column of the upper end of a range that is declared by its ends, or None for any other column."""
    upper = lower.removesuffix("_low") + "_high"
    return upper if lower.endswith("_low") and upper in (column.name for column in schema.columns) else None


def _shown_with_other_end(schema: Schema, column: Column, names: Sequence[str]) -> Callable[[Row], str]:
    """Return the function of a row for a column's cell, with the upper end of its range unless that is shown itself."""
    other = _other_end(schema, column.name)
    if not other or other in names:
        return column.show
    return lambda row: "-".join(filter(None, (column.show(row), schema[other].show(row))))


def _heading_of_range(column: Column) -> str:
    is_named_like_column = column.interval in ("", column.name)
    return RANGE if is_named_like_column else f"{RANGE} {str(column.interval).replace('_', ' ')}"


def _range_of(column: Column) -> Callable[[Row], str]:
    between, form = (" to ", column.form) if column.form.startswith("+") else ("-", column.form or ".3f")
    return lambda row: interval(row, column.interval or "", between, form, column.times)


Child = str | int | None

# The first line of a page, by which a report is recognised.
MARK = '<!doctype html><html lang="en" data-made-by="probing report">'


class Html(str):
    """String that is already HTML and is not escaped again."""

    __slots__ = ()


# What is code in a sentence: what stands between backticks, and options, with the values that sentences advise.
_CODE = re.compile(r"`([^`\n]+)`|((?<![\w-])--[a-z][\w.]*(?: (?:centred|true)\b)?)")

# Most characters of code that is not broken over lines.
_SHORT = 32


def element(name: str, *children: Child, **attributes: str | float | bool | None) -> Html:
    """Return an element with its attributes and children; code in paragraphs is marked as code.

    Text is escaped unless it is HTML; None is omitted. `class_` is `class` and `data_x` is `data-x`; True gives a bare
    attribute, None and False are omitted.
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in ("br", "img", "input", "meta"):
        return Html(f"<{name}{written}>")
    inner = joined(*map(with_code, children)) if name in ("p", "li", "dd") else joined(*children)
    return Html(f"<{name}{written}>{inner}</{name}>")


def with_code(child: Child) -> Child:
    """Return a text in which code and options are marked as code; anything else unchanged."""
    if isinstance(child, Html) or not isinstance(child, str):
        return child
    parts: list[Child] = []
    end = 0
    for match in _CODE.finditer(child):
        code = match[1] or match[2]
        parts += [child[end : match.start()], element("code", code, class_="whole" if len(code) <= _SHORT else None)]
        end = match.end()
    return joined(*parts, child[end:])


def joined(*children: Child) -> Html:
    """Return the children joined."""
    return Html("".join(c if isinstance(c, Html) else escape(str(c)) for c in children if c is not None))


def _attribute(key: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    if value is True:
        return f" {name}"
    return f' {name}="{escape(f"{value:g}" if isinstance(value, float) else str(value))}"'


def table(head: Sequence[str], rows: Sequence[Sequence[Child]], caption: Child = None) -> Html:
    """Return a table whose first column names the rows."""
    body = [
        element(
            "tr",
            element("th", first, scope="row", class_=_phrase(first)),
            *(element("td", cell, class_=_phrase(cell)) for cell in rest),
        )
        for first, *rest in rows
    ]
    return element(
        "div",
        element(
            "table",
            element("caption", caption) if caption else None,
            element("thead", element("tr", *(element("th", name, scope="col") for name in head))),
            element("tbody", *body),
        ),
        class_="scroll",
    )


def _phrase(cell: Child) -> str | None:
    return "phrase" if " " in str(cell) else None


def as_in_terminal(shown: Any, caption: Child = None) -> Html:
    """Return a rich table as a table of the page with the same content; the caller shows its title."""
    columns = [list(column.cells) for column in shown.columns]
    head = [str(column.header) for column in shown.columns]
    return table(head, list(zip(*columns, strict=True)), caption)


def pairs(entries: Sequence[tuple[str, Child]]) -> Html:
    """Return a list of names and their meanings."""
    parts = [part for name, value in entries for part in (element("dt", name), element("dd", value))]
    return element("dl", *parts)


# Rows that a prompt or a notebook shows of a table.
SHOWN = 10

# In a notebook no number is broken, and an interval has room for one line.
_STYLE = element(
    "style", Html(".probing td:not(.phrase) { white-space: nowrap } .probing td.phrase { min-width: 11em }")
)


class Table(list[dict[str, Any]]):
    """Rows of a table in order, each a dict by column; a prompt or a notebook shows the first `SHOWN`.

    Args:
        rows: The rows.
        schema: Columns with their types; by default types are inferred from the cells.
    """

    def __init__(self, rows: Iterable[Row] = (), schema: Schema | None = None) -> None:
        super().__init__(row if isinstance(row, dict) else dict(row) for row in rows)
        self.schema = schema

    def __repr__(self) -> str:
        if self.schema is None or not self:
            return super().__repr__()
        return render(self._shown())

    def _repr_html_(self) -> str:
        if self.schema is None or not self:
            return element("p", repr(self))
        table = self._shown()
        shown = as_in_terminal(table)
        return element("div", _STYLE, element("p", table.title), shown, element("p", table.caption), class_="probing")

    def where(self, holds: Callable[[Row], bool] | None = None, /, **values: Any) -> Table:
        """Return the rows that have these values, and for which a function holds.

        Args:
            holds: A function of a row.
            values: The value of each named column; of several in a tuple, one.

        Raises:
            UserError: If the table has rows and a schema, and no such column.
        """
        for name in values if self.schema else ():  # without one, a column that no row has may be one that is empty
            self.column(name)  # is refused if there is none
        choices = {name: value if isinstance(value, tuple) else (value,) for name, value in values.items()}
        return self._with(
            row
            for row in self
            if all(row.get(name) in accepted for name, accepted in choices.items()) and (holds is None or holds(row))
        )

    def by(self, *columns: str) -> dict[Any, Table]:
        """Return the rows of each value of a column, in the order in which the values occur; of several, by tuples."""
        for name in columns:
            self.column(name)  # is refused if there is none
        rows_of: dict[Any, list[dict[str, Any]]] = {}
        for row in self:
            if all(name in row for name in columns):
                key = tuple(row[name] for name in columns)
                rows_of.setdefault(key if len(columns) > 1 else key[0], []).append(row)
        return {key: self._with(rows) for key, rows in rows_of.items()}

    def values(self, column: str) -> list[Any]:
        """Return the distinct values of a column, in the order in which they occur."""
        return list(dict.fromkeys(self.column(column)))

    def column(self, name: str) -> list[Any]:
        """Return the cells of a column, of the rows that have one.

        Raises:
            UserError: If the table has rows and no such column.
        """
        if self and not (self.schema and name in self.schema) and not any(name in row for row in self):
            raise UserError(self._no_column(name))
        return [row[name] for row in self if name in row]

    def layers(self, holds: Callable[[Row], bool] = bool) -> list[int]:
        """Return the layers of the rows for which a function holds."""
        return [row["layer"] for row in self if holds(row)]

    def first_and_last(self) -> Table:
        """Return the first row and the last one; a single row once."""
        return self._with(self[:1] + self[1:][-1:])

    def _with(self, rows: Iterable[dict[str, Any]]) -> Table:
        return Table(rows, self.schema)

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            raise UserError(self._no_column(key))
        selected = super().__getitem__(key)
        return self._with(selected) if isinstance(key, slice) else selected

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(self._no_column(name))

    def _no_column(self, name: str) -> str:
        columns = list(
            dict.fromkeys([column.name for column in self.schema.columns] if self.schema else self._columns())
        )
        if name in columns:
            return (
                f"a table is a list of rows: `column({name!r})` gives the column `{name}`, `to_pandas()` a DataFrame."
            )
        return (
            f"the table has no column `{name}`: expected one of {', '.join(columns)} (`column(NAME)` gives the cells, "
            "`to_pandas()` a DataFrame)."
        )

    def _shown(self) -> Any:
        assert self.schema
        every = {name.rstrip("*"): name for name in _default_columns(self.schema, self)}
        names = [name for name in self.schema.shown if name.rstrip("*") in every] or [*every.values()]
        table, n_more = shown_table(self.schema, self[:SHOWN], names=names), len(every) - len(names)
        notes = [f"the first {SHOWN} of {len(self):,} rows"] * (len(self) > SHOWN)
        notes += [f"{count(n_more, 'more column')}: `to_pandas()`"] * bool(n_more)
        table.caption = "; ".join(notes) or None
        return table

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame, each column by its type; missing numbers are NaN.

        Raises:
            UserError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("`to_pandas` needs pandas, which is not installed; `pip install pandas`.") from None

        def series(column: str) -> Any:
            cells, kind = self._cells(column)
            if kind is str:
                return pandas.Series(cells)
            return pandas.Series(cells, dtype=float if kind is float or None in cells else int)

        return pandas.DataFrame({column: series(column) for column in self._columns()})

    def to_latex(self, columns: Sequence[str] = ()) -> str:
        r"""Return the table as a LaTeX `tabular` without caption, with the headings, numbers and intervals of a prompt.

        It needs `\usepackage{booktabs}`.

        Args:
            columns: Columns by their names in files; an asterisk, as in `accuracy*`, adds the interval. By default all
                that some row has.

        Raises:
            UserError: If the table lacks a column, or the column an interval, or there are no rows.
        """
        if not self:
            raise UserError("`to_latex`: the table has no rows; expected at least one.")
        present = self._columns()
        schema = self.schema or Schema("table", "", [Column(name, self._cells(name)[1]) for name in present])
        known = [name for name in present if name in schema]
        for name in columns:
            bare = name.removesuffix("*")
            if bare not in known:
                raise UserError(f"`to_latex`: the table has no column `{bare}`; it has {', '.join(known)}.")
            if bare != name and schema[bare].interval is None:
                raise UserError(f"`to_latex`: the column `{bare}` has no interval; give it without the asterisk.")
        return booktabs(shown_table(schema, self, names=columns))

    def to_parquet(self, path: str | Path) -> None:
        """Write the table as a Parquet file, each column by its type; an existing file is replaced.

        A cell is null if its row lacks the column, a number is missing, or there is no interval. Columns that mix whole
        numbers and words, such as classes, are text.

        Args:
            path: Path of the file.

        Raises:
            UserError: If pyarrow is not installed, or the file cannot be written.
        """
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise UserError(
                "`to_parquet` needs pyarrow, which is not installed; `pip install pyarrow`, or read the CSV file."
            ) from None
        table = pyarrow.table({column: self._array(column, pyarrow) for column in self._columns()})
        try:
            with replacing(Path(path)) as partial, partial.open("wb") as file:
                parquet.write_table(table, file)
        except OSError as error:
            raise UserError(f"`{path}` cannot be written ({as_clause(error)}); name a writable file.") from None

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self for column in row))

    def _array(self, column: str, pyarrow: Any) -> Any:
        cells, kind = self._cells(column)
        if kind is str:
            return pyarrow.array([None if cell is None else str(cell) for cell in cells], pyarrow.string())
        return pyarrow.array(cells, pyarrow.float64() if kind is float else pyarrow.int64())

    def _cells(self, column: str) -> tuple[list[Any], type]:
        """Return the cells of a column, None for missing cells, and their type: text if any cell is text."""
        cells, declared = [row.get(column) for row in self], self.schema.type_of(column) if self.schema else None
        if declared is str:
            return cells, str
        known = [None if _is_missing(column, cell) else cell for cell in cells]
        if any(isinstance(cell, str) for cell in known):
            return known if self.schema else cells, str
        is_whole = all(isinstance(cell, int) for cell in known if cell is not None)
        return known, int if is_whole and declared is not float and any(cell is not None for cell in known) else float


def _is_missing(column: str, cell: Any) -> bool:
    return cell is None or cell == "" or (is_end(column) and isinstance(cell, float) and math.isnan(cell))


_LARGEST = 2**63 - 1


def write_csv(path: Path, rows: Sequence[Row], schema: Schema) -> None:
    """Write rows in full precision, without columns that no row has; without rows, the header alone.

    Ends of missing intervals are empty cells. An undeclared column raises RuntimeError.
    """
    rows = [with_layer_name(row) for row in rows]
    with path.open("w", newline="", encoding="utf-8") as file:
        # With this end of a line, the writer also puts cells with a carriage return in quotes.
        writer = csv.DictWriter(_Lines(file), schema.order(rows), lineterminator="\r\n")
        writer.writeheader()
        writer.writerows({name: _cell(name, value) for name, value in row.items()} for row in rows)


class _Lines:
    """File that replaces the CR LF at the end of each row by LF."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")


def write_tables(
    folder: Path, config: Mapping[str, Any], tables: Mapping[str, Sequence[Row]], schemas: Sequence[Schema]
) -> list[Path]:
    """Write the configuration and the tables of a run, and return their paths; undeclared names raise RuntimeError."""
    import yaml

    declared = {schema.name: schema for schema in schemas}
    if undeclared := [name for name in tables if name not in declared]:
        raise RuntimeError(f"the table {undeclared[0]} is not declared")
    paths = [folder / "config.yaml", *(folder / f"{name}.csv" for name in tables)]
    paths[0].write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    for path, (name, rows) in zip(paths[1:], tables.items(), strict=True):
        write_csv(path, rows, declared[name])
    return paths


def read_csv(path: Path, schema: Schema) -> Table:
    """Read rows, each cell by the type of its column; ends of missing intervals are NaN, other empty cells are "".

    Raises:
        ValueError: If a cell does not have its column's type.
    """
    names, rows = _cells(path)
    types = [schema.type_of(name) for name in names]
    cells = [
        {name: _value(path, name, text, kind) for name, text, kind in zip(names, row, types, strict=True)}
        for row in rows
    ]
    return Table(map(with_named_layer, cells), schema)


def as_read(rows: Iterable[Row], schema: Schema) -> Table:
    """Return rows as `read_csv` reads them once they are written."""
    rows, file = [with_layer_name(row) for row in rows], Path(f"{schema.name}.csv")
    types = {name: schema.type_of(name) for name in schema.order(rows)}

    def cell(name: str, kind: Type, value: Any) -> Value:
        if type(value) is kind:
            return value
        return _value(file, name, "" if value is None else str(_cell(name, value)), kind)

    cells = [{name: cell(name, kind, row.get(name)) for name, kind in types.items()} for row in rows]
    return Table(map(with_named_layer, cells), schema)


def check_columns(rows: Sequence[Row], schema: Schema, finite: bool = True) -> None:
    """Raise `ValueError` unless rows of a file have the columns that its schema needs, with numbers if `finite`."""
    if missing := [name for name in schema.needed if name not in (rows[0] if rows else {})]:
        raise ValueError(f"{schema.name}.csv has no {min(missing)}")
    for name in schema.needed if finite else ():
        is_number = schema.type_of(name) not in (str, label_of_class) and not is_end(name)
        if is_number and any(not isinstance(row[name], int | float) or not math.isfinite(row[name]) for row in rows):
            raise ValueError(f"{schema.name}.csv has a row without a number in the column {name}")


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the column names and the rows of cells; raise ValueError for a damaged table."""
    with open_file(path, "r", within=path.parent, most=most_text(), newline="", encoding="utf-8") as file:
        text = file.read()
    if not text:
        raise ValueError(f"{path.name} is empty")
    try:
        names, *rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path.name} is no table ({error})") from None
    if len({*names}) < len(names) or "" in names:
        raise ValueError(f"{path.name} has a column twice, or one without a name")
    for n, row in enumerate(rows, start=1):
        if len(row) != len(names):
            raise ValueError(f"{path.name} has {len(row)} cells in row {n}, and {len(names)} columns")
    if not text.endswith("\n"):
        raise ValueError(f"{path.name} is cut at its end")
    return names, rows


def read_rows(path: Path, schema: Schema) -> Table:
    """Read rows as `read_csv`, as the command that wrote them had them: cells without a value are absent."""
    return without_empty_cells(read_csv(path, schema), schema)


def without_empty_cells(rows: Iterable[Row], schema: Schema) -> Table:
    """Return rows as read without the cells that have no value, but those of columns that may be empty."""
    may_be_empty = schema.may_be_empty
    return Table(
        ({name: value for name, value in row.items() if value != "" or name in may_be_empty} for row in rows), schema
    )


def read_trials(path: Path, schema: Schema) -> Table:
    """Return the rows of `sweep.csv`, in which undeclared columns are options of the trials."""
    rows = (
        {
            name: _option(value) if name not in schema.types and isinstance(value, str) else value
            for name, value in row.items()
        }
        for row in read_csv(path, schema)
    )
    return Table(rows, schema)


def _option(text: str) -> Any:
    """Return the value of an option from its text: a number, true or false, or none; otherwise the text."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text or None
    return value if isinstance(value, bool | int | float) else text


def _cell(column: str, value: Any) -> Any:
    return "" if is_end(column) and isinstance(value, float) and math.isnan(value) else value


def _value(path: Path, column: str, text: str, kind: Type) -> Value:
    if text == "":
        return math.nan if is_end(column) else ""
    try:
        value = kind(text)
    except ValueError:
        value = None
    # Python reads an underscore in a number, and whole numbers that no other library can hold.
    is_number = isinstance(value, float) or (isinstance(value, int) and abs(value) <= _LARGEST)
    if value is None or not (isinstance(value, str) or (is_number and "_" not in text)):
        raise ValueError(f"{path.name} has `{text:.40}` in the column {column}, where a number belongs")
    return value


# What a character is written as. Brackets and stars would be arguments of the end of a row where they begin the next.
_WRITTEN = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "[": "{[}", "]": "{]}", "*": "{*}",
    "²": "$^2$", "°": r"$^\circ$", "×": r"$\times$", "≤": r"$\leq$", "≥": r"$\geq$", "–": "--", "…": r"\ldots{}",
}  # fmt: skip


def escaped(text: str) -> str:
    """Return a text escaped for LaTeX, in one line."""
    return "".join(_WRITTEN.get(character, character) for character in " ".join(text.split()))


def _number(cell: str) -> str:
    """Return a cell with dashes between numbers, minus signs before them, and powers of ten for an `e`."""
    dashed = escaped(re.sub(r"(?<=[\d%])-(?=-?\.?\d)", "–", cell)).replace("--", "–")
    powers = re.sub(r"(?<=\d)e([-+])0*(\d+)", lambda e: rf"$\times10^{{{'−' * (e[1] == '-')}{e[2]}}}$", dashed)
    return re.sub(r"-(?=\.?\d)", "$-$", powers).replace("−", "-").replace("–", "--")


def _stacked(heading: str, side: str) -> str:
    lines = r" \\ ".join(map(escaped, heading.split("\n")))
    return rf"\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{lines}\end{{tabular}}" if "\n" in heading else lines


def booktabs(table: Any) -> str:
    """Return a rich table, without title and caption, as a `tabular` for booktabs that ends in a line break.

    A heading of several lines is stacked.
    """
    columns = [([*column.cells], column.justify == "right", str(column.header)) for column in table.columns]
    cells = [[(_number if is_number else escaped)(str(cell)) for cell in of] for of, is_number, _ in columns]
    head = [_stacked(heading, "r" if is_number else "l") for _, is_number, heading in columns]
    lines = [" & ".join(row) + r" \\" for row in zip(*cells, strict=True)]
    return "\n".join([
        rf"\begin{{tabular}}{{{''.join('r' if is_number else 'l' for _, is_number, _ in columns)}}}",
        r"\toprule", " & ".join(head) + r" \\", r"\midrule", *lines, r"\bottomrule", r"\end{tabular}", "",
    ])  # fmt: skip
