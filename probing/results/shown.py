"""Tables in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probing.results.cells import interval
from probing.results.schema import Row, Schema
from probing.runtime.terminal import plain_table


def shown_table(schema: Schema, rows: Sequence[Row], title: str = "") -> Any:
    """Return rows as a rich table of the columns that some row has, each interval beside its column.

    Args:
        schema: The table.
        rows: Its rows.
        title: Title of the table; what a row is by default.
    """
    table = plain_table(title or f"{schema.name.replace('_', ' ').capitalize()}: {schema.row}")
    there = [column for column in schema.columns if any(column.name in row for row in rows)]
    for column in there:
        table.add_column(column.words, justify="left" if column.type is str else "right")
        if column.interval is not None:
            table.add_column("95% range", justify="right")
    for row in rows:
        cells: list[str] = []
        for column in there:
            cells.append(column.show(row))
            if column.interval is not None:
                cells.append(interval(row, column.interval))
        table.add_row(*cells)
    return table
