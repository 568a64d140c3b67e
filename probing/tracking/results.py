"""What every logger shows of a run's results: curves over layers, a summary, tables, figures and files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from probing.results.schema import with_layer_name

# The media copy of a table of W&B, which offline runs show, is silently cut at this number of rows.
MAX_TABLE_ROWS = 10_000
# The axis of most curves.
LAYER = "layer"
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Logged:
    """The results of a run, as every logger takes them.

    Args:
        name: Name of the run.
        curves: Rows by the axis of their curves.
        tables: Rows by the name of their table.
        figures: Figures.
        files: Files of the run's folder.
        kind: What kind of results they are.
        report: A self-contained page.
    """

    name: str
    curves: Mapping[str, Rows]
    tables: Mapping[str, Rows]
    figures: Sequence[Path]
    files: Sequence[Path]
    kind: str
    report: Path | None

    @property
    def summary(self) -> dict[str, Any]:
        """What the summary of the run says of all rows with an axis; see `summary_of`."""
        return {key: value for axis, rows in self.curves.items() for key, value in summary_of(rows, axis).items()}

    def shown(self) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
        """Yield the name, the columns and the first rows of each table that has rows."""
        for name, all_rows in self.tables.items():
            rows = [with_layer_name(row) for row in all_rows[:MAX_TABLE_ROWS]]
            columns = list(dict.fromkeys(column for row in rows for column in row))
            if rows:
                yield name, columns, [[row.get(column) for column in columns] for row in rows]

    def kept(self) -> dict[Path, str]:
        """Return where each file is kept beside the others: files, and figures that are no images."""
        vectors = [figure for figure in self.figures if figure.suffix != ".png"]
        return {file: file.name for file in self.files} | {file: f"figures/{file.name}" for file in vectors}

    @property
    def images(self) -> list[Path]:
        """Figures that are images."""
        return [figure for figure in self.figures if figure.suffix == ".png"]


def summary_of(rows: Rows, axis: str = LAYER) -> dict[str, Any]:
    """Return what the summary of a run says of some rows: numbers whose names tell what they are of.

    Over layers these are `layer_06/COLUMN` for each number, and the best accuracy (of numbers, R²) with its layer, the
    lowest one among equals. A run of one layer also has `layer` and `by_layer/COLUMN`, which in trials of a sweep over
    layers are the same for all.

    These are set explicitly because `define_metric(summary="max")` gives different values before and after a sync.

    Args:
        rows: Rows of a table.
        axis: Their column that is the axis of the curves.
    """
    found: dict[str, Any] = {}
    for row in rows:
        numbers = {column: row[column] for column in row if column != axis and _is_number(row[column])}
        if axis == LAYER:
            found |= {f"layer_{int(row[axis]):02d}/{column}": value for column, value in numbers.items()}
        if len(rows) == 1:
            found |= {axis: row[axis], **{by(axis, column): value for column, value in numbers.items()}}
    return found | (_best(rows) if axis == LAYER else {})


def curves_of(rows: Rows, axis: str) -> list[str]:
    """Return the columns that have a number in more than one row: a single number is no curve."""
    counts = Counter(column for row in rows for column, value in row.items() if column != axis and _is_number(value))
    return [column for column, n in counts.items() if n > 1]


def points(rows: Rows, axis: str) -> Iterator[dict[str, Any]]:
    """Yield the points of the curves over an axis, one for each row that has any."""
    columns = curves_of(rows, axis)
    for row in rows:
        if found := {by(axis, column): row[column] for column in columns if _is_number(row.get(column))}:
            yield {axis: row[axis]} | found


def by(axis: str, column: str) -> str:
    """Return the name of a column's curve over an axis."""
    return f"by_{axis}/{column}"


def _best(accuracy: Rows) -> dict[str, Any]:
    """Return the best accuracy, of numbers the best R², and its layer, the lowest one among equals."""
    for name in ("accuracy", "r2"):
        if measured := [row for row in accuracy if _is_number(row.get(name))]:
            best = max(measured, key=lambda row: (row[name], -row[LAYER]))
            return {f"best_{name}": best[name], "best_layer": best[LAYER]}
    return {}


def of_lightning(metrics: Mapping[str, Any], layers: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a call of Lightning's logger into what is a curve and what belongs into the summary alone.

    Metrics of the test tokens are measured once. Means over several layers, which `LinearProbe` logs for callbacks,
    belong to neither: they stand in no table.

    Args:
        metrics: Values by name, such as `val/layer_06/accuracy`; `val/accuracy` is the mean.
        layers: The layers in former calls, to which those of this one are added: solved ones are no longer logged.
    """
    of_layers = [parts for parts in (key.split("/") for key in metrics) if len(parts) == 3]
    layers |= {layer for _, layer, _ in of_layers}
    means = {f"{stage}/{name}" for stage, _, name in of_layers} if len(layers) > 1 else set()
    kept = {key: value for key, value in metrics.items() if key not in means}
    tested = {key: value for key, value in kept.items() if key.startswith("test/")}
    return ({}, tested) if tested else (kept, {})


def by_layer(neurons: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """Split the ranking into one table per layer, in order of rank."""
    layers = sorted({row["layer"] for row in neurons})
    tables: dict[str, list[Mapping[str, Any]]] = {f"neurons/layer_{n:02d}": [] for n in layers}
    for row in sorted(neurons, key=lambda row: row["rank"]):
        tables[f"neurons/layer_{row['layer']:02d}"].append(row)
    return tables


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
