"""The rankings that `rank` made of a run: their files, and their form in Python."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from probing.errors import UserError
from probing.results.rows import Table, read_csv, read_measured, write_csv
from probing.results.schema import Row, Schema
from probing.runs.checks import check_ranking
from probing.runs.run import Run
from probing.runs.study import Result, Study
from probing.runtime.files import replacing
from probing.tables.schema import CURVES, DIRECTIONS, ERASURE, EVALUATION, RANKING
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


class Rank(Study):
    """Rankings of a finished run by other methods, and what probes read from their first neurons."""

    name, kind, title = "rank", "rankings", "Rankings"
    function = "probing.studies.fit.rank:rank"
    schemas = RANKING, DIRECTIONS, EVALUATION, ERASURE, CURVES
    page = "rankings.md"
    files: ClassVar[Mapping[str, str]] = {
        "curves_LL.png, .pdf": "Accuracy with, and without, the first k neurons of each ranking."
    }

    def tables(self, made: Result) -> list[Any]:
        """Return the rankings side by side, and what was measured of them."""
        from probing.tables.rankings import curves_tables, erasure_tables, evaluation_tables, rankings_tables

        return [
            *rankings_tables(vars(made)["rankings"], made.directions),
            *evaluation_tables(made.evaluation),
            *erasure_tables(made.erasure),
            *curves_tables(made.curves),
        ]

    def conclusions(self, made: Result) -> list[str]:
        """Return how many neurons of each ranking are enough."""
        from probing.tables.rankings import curves_lines

        return curves_lines(made.curves)


RANK = Rank()
# Schemas of the tables that evaluate rankings, by name.
TABLES = {schema.name: schema for schema in (DIRECTIONS, EVALUATION, ERASURE, CURVES)}


class Rankings(Result):
    """The rankings that `rank` made of a run, and what it measured of them.

    Args:
        run: The run.
        folder: Folder of the rankings, `rankings` in the run's folder.
        rankings: For each method, a dict per layer and neuron in ranked order, as in `METHOD.csv`.
        others: The tables `directions`, `evaluation`, `erasure` and `curves`, where they were asked for.
    """

    def __init__(self, run: Run, folder: Path, rankings: Mapping[str, Table], others: Mapping[str, Table]) -> None:
        super().__init__(RANK, folder, run.config, run.results, others)
        self.rankings = dict(rankings)


def read_rankings(folder: Path, run: Run) -> Rankings:
    """Read everything that `rank` has added to a run.

    Raises:
        ValueError: If a ranking does not rank every neuron of its layers.
    """
    found = {path.stem: read_measured(path, TABLES.get(path.stem, RANKING)) for path in sorted(folder.glob("*.csv"))}
    rankings = {name: table for name, table in found.items() if name not in TABLES}
    for name, rows in rankings.items():
        ranked = list(dict.fromkeys(row["layer"] for row in rows))
        check_ranking(f"{name}.csv", rows, [layer for layer in run.layers if layer in ranked])
    return Rankings(run, folder, rankings, {name: table for name, table in found.items() if name in TABLES})
