"""Tables in a terminal, whose headings and formats are those of the columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from probing.results.cells import interval
from probing.results.schema import RANGE, Column, Row, Schema
from probing.runtime.terminal import plain_table

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
        names: The columns; an asterisk behind a name shows its interval as well. By default all that some row has.
        beside: Further columns.
    """
    table = plain_table(title or f"{schema.name.replace('_', ' ').capitalize()}: {schema.row}", collapse_padding=True)
    cells: list[Callable[[Row], str]] = []
    for name in names or _there(schema, rows):
        column = schema[name.rstrip("*")]
        table.add_column(column.words, justify="left" if column.type is str else "right")
        cells.append(column.show)
        if name.endswith("*"):
            table.add_column(RANGE, justify="right")
            cells.append(_range_of(column))
    for heading, cell in (beside or {}).items():
        table.add_column(heading, justify="right")
        cells.append(cell)
    for row in rows:
        table.add_row(*(cell(row) for cell in cells))
    return table


def _there(schema: Schema, rows: Sequence[Row]) -> list[str]:
    there = [column for column in schema.columns if any(column.name in row for row in rows)]
    return [f"{column.name}*" if column.interval is not None else column.name for column in there]


def _range_of(column: Column) -> Callable[[Row], str]:
    """Return what gives a row's interval, with signs where the column has them."""
    between, form = (" to ", column.form) if column.form.startswith("+") else ("-", column.form or ".3f")
    return lambda row: interval(row, column.interval or "", between, form)
