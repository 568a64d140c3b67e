"""`export`: results as files of another program, written whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from probing.errors import UserError, as_clause
from probing.exports.headvis import write_headvis
from probing.exports.neuronpedia import write_neuronpedia
from probing.results.rows import Table, write_csv
from probing.results.schema import Column, Schema
from probing.results.shown import ends, listed
from probing.runs.checks import reading
from probing.runs.study import Result
from probing.runtime.files import replacing_folder
from probing.runtime.installation import own_version

# By this file a folder is known as one that `export` wrote, which may be replaced.
ABOUT = "export.json"
# A longer table is cut where it is to be printed: first to each layer's first ranks, then to so many rows.
MOST_RANKS, MOST_ROWS = 10, 100


class _Format(NamedTuple):
    """A format: what writes it, of which commands (all if there are none), and what it is called in messages."""

    write: Callable[[Any, Path], Mapping[str, Any]]
    commands: tuple[str, ...] = ()


@dataclass(frozen=True)
class _OwnTable:
    """A table of some results.

    Args:
        name: Its name in files.
        rows: Its rows.
        schema: Its columns.
    """

    name: str
    rows: Table
    schema: Schema


def tables_of(made: Result) -> list[_OwnTable]:
    """Return the tables of results that have rows, in the order in which their study declares them."""
    found = []
    for name in made.by_name:
        with reading(made.folder):
            rows: Table = getattr(made, name)
        if rows:
            schema = rows.schema or Schema(
                name, "", [Column(one, str) for one in dict.fromkeys(k for r in rows for k in r)]
            )
            found.append(_OwnTable(name, rows, schema))
    return found


def export(made: Result, format: str, path: str | Path | None = None) -> Path:
    """Write results as files of another program, and return their folder.

    Args:
        made: The results.
        format: `parquet`, `latex` or `csv`, of the tables of any results; `neuronpedia`, of a run of `fit`; `headvis`,
            of a run of `attention`.
        path: The folder; `exports/FORMAT` in the folder of the results by default. One that this function wrote earlier
            is replaced.

    Raises:
        UserError: If there is no such format, these results have nothing for it, or the folder cannot be written.
    """
    if format not in FORMATS:
        raise UserError(f"`export`: there is no format `{format}`; use {listed(list(FORMATS), 'or')}.")
    how, folder = FORMATS[format], made.folder / "exports" / format if path is None else Path(path)
    if how.commands and made.study.name not in how.commands:
        raise UserError(
            f"`export`: `{format}` is of a run of {listed([f'`{name}`' for name in how.commands], 'or')}, and "
            f"`{made.folder}` is one of `{made.study.name}`; use parquet, latex or csv."
        )
    if folder.exists() and not (folder / ABOUT).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"`export`: `{folder}` holds something else; name a new folder with `path`.")
    try:
        with replacing_folder(folder) as partial:
            about = {"format": format, "run": made.folder.name, "probing": own_version(), **how.write(made, partial)}
            (partial / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"`export`: `{folder}` cannot be written ({as_clause(error)}); name a writable folder."
        ) from None
    return folder


def _write_csv(made: Result, folder: Path) -> dict[str, Any]:
    found = tables_of(made)
    for one in found:
        # Columns of another version are text.
        unknown = {name: Column(name, str) for row in one.rows for name in row if name not in one.schema.types}
        schema = replace(one.schema, columns=[*one.schema.columns, *unknown.values()])
        write_csv(folder / f"{one.name}.csv", one.rows, schema)
    return {"tables": {one.name: len(one.rows) for one in found}}


def _write_parquet(made: Result, folder: Path) -> dict[str, Any]:
    found = tables_of(made)
    for one in found:
        one.rows.to_parquet(folder / f"{one.name}.parquet")
    return {"tables": {one.name: len(one.rows) for one in found}}


def _write_latex(made: Result, folder: Path) -> dict[str, Any]:
    written = {}
    for one in tables_of(made):
        rows = _cut(one.rows)
        names = [
            column.name + "*" * (column.interval is not None and any(map(_has_ends(column), rows)))
            for column in one.schema.columns
            if any(row.get(column.name) not in (None, "") for row in rows)
        ]
        text = rows.to_latex(names)
        if len(rows) < len(one.rows):
            text = f"% {len(rows)} of {len(one.rows)} rows; all are in {one.name}.csv\n{text}"
        (folder / f"{one.name}.tex").write_text(text, encoding="utf-8")
        written[one.name] = len(rows)
    return {"tables": written, "needs": "\\usepackage{booktabs}"}


def _cut(rows: Table) -> Table:
    """Return the rows that are printed: of many, those of the first ranks, and of these the first ones."""
    kept = list(rows)
    if len(kept) > MOST_ROWS and "rank" in kept[0]:
        kept = [row for row in kept if row["rank"] <= MOST_RANKS]
    return Table(kept[:MOST_ROWS], rows.schema)


def _has_ends(column: Column) -> Callable[[Mapping[str, Any]], bool]:
    return lambda row: ends(row, column.interval or "") is not None


FORMATS = {
    "parquet": _Format(_write_parquet),
    "latex": _Format(_write_latex),
    "csv": _Format(_write_csv),
    "neuronpedia": _Format(write_neuronpedia, ("fit",)),
    "headvis": _Format(write_headvis, ("attention",)),
}
