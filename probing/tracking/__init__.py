"""Logs a run to Weights & Biases, and to other loggers, without depending on them.

Only this package imports wandb, tensorboard or mlflow, and only when a run is tracked. The files of a run are complete
before they are logged, so a failure of a logger (no network, no answer, a full quota) only causes a warning. Tested
with wandb 0.31; comments name the client's behaviour behind each precaution.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from probing.cli.options import WandbOptions
from probing.runtime import logger_names
from probing.tracking.client import LAYER, Logged, Mode, Rows, by_layer, least, resolve_mode, shared_service
from probing.tracking.file_loggers import RUNS, LoggerRun
from probing.tracking.wandb_run import WandbRun


class Tracker:
    """Run in each logger, from its start to `finish`; no method raises because of a failure of a logger.

    Args:
        folder: The run's folder, which must exist; each logger writes only into a folder of its name there.
        name: Name of the run, unless the options name it, and of its artifact.
        config: The run's resolved configuration, which loggers show unchanged, so it must not contain secrets. Its
            `trainer.logger` names the loggers besides W&B.
        warn: Called with a sentence, at most once per logger, if it fails.
        light: Whether this is one of many runs of a process; then W&B gets less, because it takes most of the time.
        final: The run's folder under its final name; `folder` by default.

    Raises:
        UserError: If the requested mode of W&B is invalid.
    """

    def __init__(
        self,
        options: WandbOptions,
        folder: Path,
        name: str,
        config: Mapping[str, Any],
        warn: Callable[[str], None],
        light: bool = False,
        final: Path | None = None,
    ) -> None:
        self._name, self._light = name, light
        self._wandb = WandbRun(options, folder, name, config, warn, light)
        project = options.project or None
        self._others: list[LoggerRun] = [
            RUNS[logger](folder.absolute(), (final or folder).absolute(), options.name or name, project, config, warn)
            for logger in logger_names(config.get("trainer") or {})
        ]

    @property
    def mode(self) -> Mode:
        """Current mode of W&B: the requested mode, or its replacement after a failure."""
        return self._wandb.mode

    @cached_property
    def logger(self) -> Any:
        """Lightning's logger for this run, for `Trainer(logger=...)`; None if nothing is logged."""
        if not self._others:
            return self._wandb.logger
        from probing.tracking.for_trainer import in_all

        return in_all(self._wandb.logger, self._others)

    def log_results(
        self,
        accuracy: Rows,
        neurons: Rows,
        figures: Sequence[Path],
        files: Sequence[Path],
        tables: Mapping[str, Rows] | None = None,
        kind: str = "probe",
        report: Path | None = None,
        axis: str = LAYER,
        curves: Mapping[str, Rows] | None = None,
    ) -> None:
        """Log the run's results.

        Args:
            accuracy: Rows, usually by layer, logged as curves over layers, `by_layer/COLUMN`, and in the summary as
                `layer_06/COLUMN`; with a column `accuracy` or `r2` also as the table `accuracy`. A single layer makes
                no curve.
            neurons: Rows with `layer` and `rank`, logged as a table per layer, such as `neurons/layer_06`, up to rank
                10,000.
            figures: PNG images are logged as `figures/STEM`, vector formats are only stored in the artifact.
            files: Files of the run's folder, stored in the artifact; uploaded in place, so they must not change
                afterwards.
            tables: Further tables by name, each with the first 10,000 rows.
            kind: Type of the artifact.
            report: A self-contained page, logged as `report` and copied into the artifact, since it may be written
                again.
            axis: Column of `accuracy` that is the axis of the curves, `by_AXIS/COLUMN`.
            curves: Rows of further curves by their axes.
        """
        by_name = {**by_layer(neurons), **(tables or {})}
        # For one of many runs the curves suffice; the table would be another file per run.
        if not self._light and any("accuracy" in row or "r2" in row for row in accuracy):
            by_name["accuracy"] = accuracy
        logged = Logged(self._name, {**(curves or {}), axis: accuracy}, by_name, figures, files, kind, report)
        self._wandb.log_results(logged)
        for run in self._others:
            run.log_results(logged)

    def finish(self, exit_code: int = 0) -> None:
        """Close the run in all loggers, as failed unless `exit_code` is 0; a second call does nothing."""
        for run in self._others:
            run.finish(exit_code)
        self._wandb.finish(exit_code)

    def where(self, folder: Path, verbose: bool = False) -> str | None:
        """Return the address of the run on W&B, or the command that uploads it; see `WandbRun.where`."""
        return self._wandb.where(folder, verbose)


__all__ = ["Tracker", "least", "resolve_mode", "shared_service"]
