"""Logs a run's results to W&B as curves over layers, tables, images and an artifact."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.tracking.results import Logged, Rows, by, curves_of, points

if TYPE_CHECKING:
    from wandb import Artifact, Run


def log_results(run: Run, found: Logged) -> None:
    """Log curves by their axes, their summary, tables, images, one artifact and a page; see `Tracker.log_results`."""
    import wandb

    # First, because it is the largest, and is uploaded while the rest is logged.
    if found.files:
        run.log_artifact(_artifact(found))
    for axis, rows in found.curves.items():
        _declare(run, rows, axis)
        for point in points(rows, axis):
            run.log(point)
    run.summary.update(found.summary)
    for key, columns, data in found.shown():
        # A column may hold 0 and 0.5, or a number and "unresolved".
        run.log({key: wandb.Table(columns=[*columns], data=data, allow_mixed_types=True)})
    for figure in found.images:
        run.log({f"figures/{figure.stem}": wandb.Image(str(figure))})
    if found.report:
        # The page's policy allows no injected style.
        run.log({"report": wandb.Html(str(found.report), inject=False)})


def _declare(run: Run, rows: Rows, axis: str) -> None:
    """Declare the columns with several numbers as curves over the axis: W&B would draw a chart of one point."""
    columns = curves_of(rows, axis)
    if not columns:
        return
    # By default the summary would have the last point's value, under a name that does not say so; of time, it does.
    summary: dict[str, Any] = {} if axis == "step" else {"summary": "none"}
    run.define_metric(axis, hidden=True, **summary)
    # Exact names, because the `*` of Lightning's metrics would take precedence over a pattern.
    for column in columns:
        run.define_metric(by(axis, column), step_metric=axis, **summary)


def _artifact(found: Logged) -> Artifact:
    import wandb

    artifact = wandb.Artifact(re.sub(r"[^\w.-]", "_", found.name, flags=re.ASCII)[:128], type=found.kind)
    for file, kept_as in found.kept().items():
        # With this policy the file is read in place; otherwise W&B would copy every tensor.
        artifact.add_file(str(file.absolute()), kept_as, policy="immutable", skip_cache=True)
    if found.report:
        artifact.add_file(str(found.report.absolute()), skip_cache=True)
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
