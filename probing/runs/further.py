"""Tables that not every run has."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from probing.results.rows import Table, read_csv
from probing.results.schema import Schema, label_of_class
from probing.runs.checks import check_parts, reading


def further_table(folder: Path, schema: Schema, layers: Sequence[int], classes: Sequence[int | str]) -> Table:
    """Return a table of a run, empty where it has none, with the labels of classes as they are, text or whole numbers.

    Args:
        folder: Folder of the run.
        schema: The table.
        layers: The run's layers.
        classes: The labels of its classes.

    Raises:
        UserError: If the table is damaged.
    """
    if not (path := folder / f"{schema.name}.csv").exists():
        return Table((), schema)
    with reading(folder):
        rows = read_csv(path, schema)
        check_parts(schema.name, rows, layers)
        columns = [column.name for column in schema.columns if column.type is label_of_class]
        labels = {str(label): label for label in classes} | {"": ""}
        return Table(({**row, **{name: labels[row[name]] for name in columns if name in row}} for row in rows), schema)
