"""Logs a run's results to W&B as curves over layers, tables, images and an artifact."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.results.schema import with_layer_name

if TYPE_CHECKING:
    from wandb import Artifact, Run, Table

# The media copy of a table, which offline runs show, is silently cut at this number of rows.
_MAX_TABLE_ROWS = 10_000


def log_results(
    run: Run,
    name: str,
    accuracy: Sequence[Mapping[str, Any]],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
    figures: Sequence[Path],
    files: Sequence[Path],
    kind: str,
    report: Path | None,
    axis: str = "layer",
) -> None:
    """Log curves over the axis, tables, images, one artifact and a page; see `Tracker.log_results`."""
    import wandb

    # First, because it is the largest, and is uploaded while the rest is logged.
    if files:
        run.log_artifact(_artifact(name, files, figures, report, kind))
    run.summary.update(_best(accuracy))
    for point in _curve(run, accuracy, axis):
        run.log(point)
    for key, rows in tables.items():
        if rows:
            run.log({key: _table(rows[:_MAX_TABLE_ROWS])})
    for figure in (path for path in figures if path.suffix == ".png"):
        run.log({f"figures/{figure.stem}": wandb.Image(str(figure))})
    if report:
        run.log({"report": wandb.Html(str(report), inject=False)})  # the page's policy allows no injected style


def _curve(run: Run, accuracy: Sequence[Mapping[str, Any]], axis: str) -> Iterator[dict[str, Any]]:
    """Declare the numeric columns as curves over the axis; yield one point per row."""
    numeric = [{column: value for column, value in row.items() if _is_number(value)} for row in accuracy]
    run.define_metric(axis)
    # Exact names, because the `*` of Lightning's metrics would take precedence over a pattern.
    for column in dict.fromkeys(column for row in numeric for column in row if column != axis):
        run.define_metric(f"by_{axis}/{column}", step_metric=axis)
    for row in numeric:
        yield {key if key == axis else f"by_{axis}/{key}": value for key, value in row.items()}


def _best(accuracy: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best accuracy, of numbers the best R², and its layer, the lowest one among equals.

    These are set explicitly because `define_metric(summary="max")` gives different values before and after a sync.
    """
    for name in ("accuracy", "r2"):
        if measured := [row for row in accuracy if _is_number(row.get(name))]:
            best = max(measured, key=lambda row: (row[name], -row["layer"]))
            return {f"best_{name}": best[name], "best_layer": best["layer"]}
    return {}


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
