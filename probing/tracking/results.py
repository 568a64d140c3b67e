"""Logs a run's results to W&B as curves over layers, tables, images and an artifact."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.results.schema import with_layer_name

if TYPE_CHECKING:
    from wandb import Artifact, Run, Table

# The media copy of a table, which offline runs show, is silently cut at this number of rows.
_MAX_TABLE_ROWS = 10_000
# The axis of most curves.
LAYER = "layer"


def log_results(
    run: Run,
    name: str,
    curves: Mapping[str, Sequence[Mapping[str, Any]]],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    figures: Sequence[Path],
    files: Sequence[Path],
    kind: str,
    report: Path | None,
) -> None:
    """Log curves by their axes, their summary, tables, images, one artifact and a page; see `Tracker.log_results`."""
    import wandb

    # First, because it is the largest, and is uploaded while the rest is logged.
    if files:
        run.log_artifact(_artifact(name, files, figures, report, kind))
    for axis, rows in curves.items():
        for point in _curve(run, rows, axis):
            run.log(point)
        run.summary.update(summary_of(rows, axis))
    for key, rows in tables.items():
        if rows:
            run.log({key: _table(rows[:_MAX_TABLE_ROWS])})
    for figure in (path for path in figures if path.suffix == ".png"):
        run.log({f"figures/{figure.stem}": wandb.Image(str(figure))})
    if report:
        run.log({"report": wandb.Html(str(report), inject=False)})  # the page's policy allows no injected style


def _curve(run: Run, rows: Sequence[Mapping[str, Any]], axis: str) -> Iterator[dict[str, Any]]:
    """Declare the columns with several numbers as curves over the axis; yield one point per row.

    A single number is no curve: W&B would draw a chart of one point.
    """
    columns = _curves(rows, axis)
    if not columns:
        return
    # By default the summary would have the last point's value, under a name that does not say so; of time, it does.
    summary: dict[str, Any] = {} if axis == "step" else {"summary": "none"}
    run.define_metric(axis, hidden=True, **summary)
    # Exact names, because the `*` of Lightning's metrics would take precedence over a pattern.
    for column in columns:
        run.define_metric(_by(axis, column), step_metric=axis, **summary)
    for row in (row for row in rows if any(_is_number(row.get(column)) for column in columns)):
        yield {axis: row[axis]} | {_by(axis, column): row[column] for column in columns if _is_number(row.get(column))}


def summary_of(rows: Sequence[Mapping[str, Any]], axis: str = LAYER) -> dict[str, Any]:
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
            found |= {axis: row[axis], **{_by(axis, column): value for column, value in numbers.items()}}
    return found | (_best(rows) if axis == LAYER else {})


def _curves(rows: Sequence[Mapping[str, Any]], axis: str) -> list[str]:
    """Return the columns that have a number in more than one row."""
    counts = Counter(column for row in rows for column, value in row.items() if column != axis and _is_number(value))
    return [column for column, n in counts.items() if n > 1]


def _by(axis: str, column: str) -> str:
    return f"by_{axis}/{column}"


def _best(accuracy: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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


def by_layer(neurons: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Split the ranking into one table per layer, in order of rank."""
    layers = sorted({row["layer"] for row in neurons})
    tables: dict[str, list[Mapping[str, Any]]] = {f"neurons/layer_{n:02d}": [] for n in layers}
    for row in sorted(neurons, key=lambda row: row["rank"]):
        tables[f"neurons/layer_{row['layer']:02d}"].append(row)
    return tables


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    import wandb

    rows = [with_layer_name(row) for row in rows]
    columns: list[str | int] = list(dict.fromkeys(column for row in rows for column in row))
    data = [[row.get(str(column)) for column in columns] for row in rows]
    # A column may hold 0 and 0.5, or a number and "unresolved".
    return wandb.Table(columns=columns, data=data, allow_mixed_types=True)


def _artifact(name: str, files: Sequence[Path], figures: Sequence[Path], report: Path | None, kind: str) -> Artifact:
    import wandb

    artifact = wandb.Artifact(re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)[:128], type=kind)
    vectors = [figure for figure in figures if figure.suffix != ".png"]
    names = {file: file.name for file in files} | {file: f"figures/{file.name}" for file in vectors}
    for file, kept_as in names.items():
        # With this policy the file is read in place; otherwise W&B would copy every tensor.
        artifact.add_file(str(file.absolute()), kept_as, policy="immutable", skip_cache=True)
    if report:
        artifact.add_file(str(report.absolute()), skip_cache=True)
    return artifact


def repair_artifacts(run: Run, folder: Path, offline: bool) -> None:
    """Correct how the client handles two properties of a run's artifacts; tables are artifacts too.

    An offline run records the absolute paths of an artifact's files. If a sync does not find a file, it leaves the
    artifact pending, with exit status 0. Because the run's folder is renamed, and may be copied to another machine,
    paths are made relative to the folder, and a sync must be started in it. Also, the temporary folder of a table is
    removed here; otherwise the garbage collector removes it much later, with a warning.
    """
    log_artifact = run.log_artifact

    def log_with_care(artifact: Artifact, *args: Any, **kwargs: Any) -> Artifact:
        for entry in artifact.manifest.entries.values():
            path = Path(entry.local_path or "")
            if offline and path.is_relative_to(folder):
                entry.local_path = str(path.relative_to(folder))
        logged = log_artifact(artifact, *args, **kwargs)
        if temporary := getattr(artifact, "_tmp_dir", None):
            temporary.cleanup()
        return logged

    # Tables also use this method.
    run.log_artifact = log_with_care  # type: ignore[assignment,method-assign]


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
