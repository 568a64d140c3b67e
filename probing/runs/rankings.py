"""The folder `rankings` of a run: each file is replaced as a whole and keeps the rows of earlier commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probing.errors import UserError
from probing.results.csv_files import read_csv, write_csv
from probing.results.schema import Schema
from probing.runs.run import Row, Run
from probing.runtime.replaced_files import replacing
from probing.schemas.probes import CURVES
from probing.tasks import short_name

RANKING_KEY = ("layer", "neuron")

# Rows, their schema, and the columns that identify a row.
Ranked = tuple[Sequence[Row], Schema, Sequence[str]]


def ranking_rows(layer: int, order: Sequence[int], score: Sequence[float]) -> list[dict[str, Any]]:
    """Return the rows of `METHOD.csv` for one layer, in ranked order."""
    return [
        {"layer": layer, "rank": rank, "neuron": neuron, "score": score[neuron]}
        for rank, neuron in enumerate(order, start=1)
    ]


@contextmanager
def writing(folder: Path, run: Run) -> Iterator[None]:
    """Make the folder, and turn errors while it is written into a message.

    Raises:
        UserError: If the folder cannot be written.
    """
    try:
        folder.mkdir(exist_ok=True)
        yield
    except OSError as error:
        raise UserError(
            f"`rank {run.folder}`: {folder} cannot be written ({error.strerror or error}); make room, or copy the run "
            "to a writable folder."
        ) from None


def write_tables(folder: Path, tables: Mapping[str, Ranked]) -> None:
    """Write the tables that have rows; rows of other layers or rankings in the files are kept."""
    for name, (rows, schema, key) in tables.items():
        if rows:
            with replacing(path := folder / f"{name}.csv") as partial:
                write_csv(partial, _merged(path, rows, schema, key), schema)


def draw_curves(folder: Path, layers: Sequence[int], model: str, run: Run, formats: Sequence[str]) -> list[Path]:
    """Draw the curves of these layers, including those of earlier commands, and return the figures' paths."""
    from probing.figures.probes import write_curves_figure

    rows, paths, task = read_csv(folder / "curves.csv", CURVES), [], short_name(run.config)
    majority = {row["layer"]: row["majority_accuracy"] for row in run.accuracy}
    for layer in layers:
        of_layer = [row for row in rows if row["layer"] == layer]
        figure = folder / f"curves_{layer:02d}"
        paths += write_curves_figure(figure, of_layer, majority[layer], task, model, formats)
    return paths


def _merged(path: Path, rows: Sequence[Row], schema: Schema, key: Sequence[str]) -> list[Row]:
    """Return the rows in the order of layers, together with the rows of the file that no new row replaces."""

    def identity(row: Row) -> tuple[str, ...]:
        return tuple(str(row.get(column, "")) for column in key)

    new = {identity(row) for row in rows}
    kept = [row for row in read_csv(path, schema) if identity(row) not in new] if path.is_file() else []
    return sorted([*kept, *rows], key=lambda row: int(row["layer"]))
