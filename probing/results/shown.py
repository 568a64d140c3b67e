"""Tables in a terminal, cells of tables, and numbers and lists as people read them in a sentence."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probing.results.digits import shown
from probing.results.schema import LAYER_NAME, RANGE, Column, NamedLayer, Row, Schema
from probing.runtime.plain_tables import plain_table


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
