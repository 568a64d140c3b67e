"""Tables and results as commands write them: the schema of a file is found by its name."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from probing import results as csv_files
from probing.results import LAYER_NAME, Schema, Table, Type
from probing.runs import Result, study_names, study_of, study_of_kind
from probing.tables.schema import NUMBER_NEURONS, NUMBERS, PREDICTIONS


def schemas() -> list[Schema]:
    """Return the schemas of all tables of all studies."""
    return [schema for name in study_names() for schema in study_of(name).schemas] + [
        NUMBERS,
        NUMBER_NEURONS,
        PREDICTIONS,
    ]


def columns_of(schema: Schema) -> tuple[str, ...]:
    """Return the columns of rows whose layers have no names."""
    return tuple(name for name in schema.types if name != LAYER_NAME)


def schema_of(name: str, columns: Collection[str]) -> Schema:
    """Return the schema of a table: of those with its name, or else of all, the one that has most of the columns."""
    named = [schema for schema in schemas() if schema.name == name]
    return max(named or schemas(), key=lambda schema: len(set(columns) & set(schema.types)))


def read_csv(path: Path) -> Table:
    """Read a table."""
    with path.open(encoding="utf-8") as file:
        return csv_files.read_csv(path, schema_of(path.stem, file.readline().rstrip("\n").split(",")))


def write_csv(
    path: Path, rows: Sequence[Mapping[str, Any]], columns: Iterable[str] = (), without: Iterable[str] = ()
) -> None:
    """Write a table: of its columns those that are named, if some are, and without some."""
    named = set(columns)
    kept = [
        {name: cell for name, cell in row.items() if name not in without and (not named or name in named)}
        for row in rows
    ]
    csv_files.write_csv(path, kept, schema_of(path.stem, {name for row in kept for name in row}))


def complete(folder: Path) -> None:
    """Write the tables without rows that a folder of its kind always has."""
    study = study_of_kind(json.loads((folder / "results.json").read_text(encoding="utf-8"))["kind"])
    for schema in study.schemas if study else ():
        if not schema.optional and not (path := folder / f"{schema.name}.csv").is_file():
            csv_files.write_csv(path, [], schema)


def results_of(
    study: str, folder: Path, config: dict[str, Any], results: dict[str, Any], *tables: Table, **named: Table
) -> Result:
    """Return results of a study, with its first tables in their order, and others by their names."""
    first = dict(zip((schema.name for schema in study_of(study).schemas), tables, strict=False))
    return Result(study_of(study), folder, config, results, {**first, **named})


def type_of(column: str) -> Type:
    """Return the type of a column, which is the same in all tables that have it."""
    return next((schema.types[column] for schema in schemas() if column in schema.types), str)
