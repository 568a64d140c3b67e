"""Tables as CSV files, in full precision; the schema of a table has the type of every column."""

from __future__ import annotations

import ast
import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from probing.results.cells import is_end
from probing.results.rows import Table
from probing.results.schema import Row, Schema, Type, Value
from probing.runtime.regular_files import regular

_LARGEST = 2**63 - 1


def write_csv(path: Path, rows: Sequence[Row], schema: Schema) -> None:
    """Write rows in full precision, leaving out columns that no row has; without rows, the columns alone.

    Where there is no interval, the cells of its ends are empty.

    Raises:
        RuntimeError: If a row has a column that the schema does not declare.
    """
    with path.open("w", newline="", encoding="utf-8") as file:
        # With this end of a line, the writer also puts cells with a carriage return in quotes.
        writer = csv.DictWriter(_Lines(file), schema.order(rows), lineterminator="\r\n")
        writer.writeheader()
        writer.writerows({name: _cell(name, value) for name, value in row.items()} for row in rows)


class _Lines:
    """Writes each row, which ends in CR LF, with LF as its end."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, row: str) -> int:
        return self.file.write(row.removesuffix("\r\n") + "\n")


def write_tables(
    folder: Path, config: Mapping[str, Any], tables: Mapping[str, Sequence[Row]], schemas: Sequence[Schema]
) -> list[Path]:
    """Write the configuration and the tables of a run, and return their paths.

    Args:
        folder: The run's folder.
        config: The resolved configuration as plain values.
        tables: Rows by the name of their table.
        schemas: The tables that the command may write.

    Raises:
        RuntimeError: If a table, or a column of one, is not declared.
    """
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
    """Read rows, each cell by the type of its column.

    Where there is no interval, its ends are NaN; another empty cell is an empty text.

    Raises:
        ValueError: If a cell is not of its column's type.
    """
    names, rows = _cells(path)
    types = [schema.type_of(name) for name in names]
    cells = [
        {name: _value(path, name, text, kind) for name, text, kind in zip(names, row, types, strict=True)}
        for row in rows
    ]
    return Table(cells, schema)


def _cells(path: Path) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns and the cells of the rows of a table that is whole.

    Raises:
        ValueError: If it has no columns or two of a name, or a row is cut or too long.
    """
    with regular(path).open(newline="", encoding="utf-8") as file:
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


def read_measured(path: Path, schema: Schema) -> Table:
    """Read rows in the form that they had in the command that wrote them: cells without a value are absent.

    The ends of an interval that is not there are NaN.

    Raises:
        ValueError: If a cell is not of its column's type.
    """
    found, kept = read_csv(path, schema), schema.may_be_empty
    rows = ({name: value for name, value in row.items() if value != "" or name in kept} for row in found)
    return Table(rows, schema)


def read_trials(path: Path, schema: Schema) -> Table:
    """Return the rows of `sweep.csv`, in which columns that are not declared are options of the trials."""
    rows = (
        {
            name: _option(value) if name not in schema.types and isinstance(value, str) else value
            for name, value in row.items()
        }
        for row in read_csv(path, schema)
    )
    return Table(rows, schema)


def _option(text: str) -> Any:
    """Return the value of an option that is written as text: a number, true or false, or none; otherwise the text."""
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
