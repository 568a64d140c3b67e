"""Loggers of Lightning that write into the run's folder: CSV, TensorBoard and MLflow.

All of them have the metric keys and the configuration of W&B.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from probing.errors import as_clause
from probing.runtime import LOGGERS, quiet_loggers
from probing.tracking.client import Logged, of_lightning, points, variables
from probing.tracking.wandb_run import PROJECT

# Rows of a table that TensorBoard shows as text.
_TEXT_ROWS = 100


class LoggerRun:
    """Run in a logger of Lightning, from its start to `finish`; the first failure ends it, with a warning.

    The logger's folder in the run's folder is written anew, since a continued run logs everything again. `final` is the
    run's folder under its final name.
    """

    label = ""
    # Context of everything that the logger does.
    quiet: Callable[[], AbstractContextManager[None]] = nullcontext
    logger: Any

    def __init__(
        self, folder: Path, final: Path, name: str, project: str | None, config: Mapping[str, Any],
        warn: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.folder, self.final = folder / self.label, final / self.label
        self.name, self.project = name, project or PROJECT
        self._warn, self._layers, self._settings = warn, set[str](), dict[str, Any]()
        self._summary: dict[str, float] = {}
        self._is_open = True
        self._attempt(self._begin)
        self.log_settings(config)

    def log_training(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Log a call of Lightning's Trainer, split by `of_lightning`."""
        curves, summary = of_lightning(metrics, self._layers)
        self._summary |= {key: float(value) for key, value in summary.items()}
        if curves:
            self._attempt(lambda: self._log({key: float(value) for key, value in curves.items()}, step))

    def log_settings(self, settings: Mapping[str, Any]) -> None:
        """Log settings: the configuration, and additions of Lightning."""
        new = {key: value for key, value in settings.items() if key not in self._settings}
        self._settings |= new
        if new:
            self._attempt(lambda: self._log_settings(new))

    def log_results(self, logged: Logged) -> None:
        """Log the results of the run; see `Tracker.log_results`."""
        numbers = {key: value for key, value in logged.summary.items() if isinstance(value, int | float)}
        self._summary |= numbers
        self._attempt(lambda: self._log_results(logged))

    def finish(self, exit_code: int) -> None:
        """Log the summary and close the run; a second call does nothing."""
        self._attempt(lambda: self._end(exit_code == 0))
        self._is_open = False

    def _attempt(self, action: Callable[[], None]) -> None:
        if not self._is_open:
            return
        try:
            with self.quiet():
                action()
        except Exception as error:
            self._is_open = False
            self._warn(
                f"{self.label} is off for this run ({as_clause(error)}): the results on disk are complete without it; "
                "leave it out of `--trainer.logger`."
            )

    def _log_results(self, logged: Logged) -> None:
        for axis, rows in logged.curves.items():
            for place, point in enumerate(points(rows, axis)):
                at = float(point[axis])
                self._log({key: float(value) for key, value in point.items()}, int(at) if at.is_integer() else place)
        for name, columns, data in logged.shown():
            self._log_table(name, columns, data)
        for image in logged.images:
            self._log_image(image)
        report = {logged.report: logged.report.name} if logged.report else {}
        for file, artifact_path in {**logged.artifact_paths(), **report}.items():
            self._log_file(file, artifact_path)

    def _begin(self) -> None:
        """Remove the folder of a former run, and set `logger`."""
        raise NotImplementedError

    def _log(self, metrics: Mapping[str, float], step: int | None) -> None:
        self.logger.log_metrics({**metrics}, step)

    def _log_settings(self, settings: dict[str, Any]) -> None:
        self.logger.log_hyperparams(settings)
        self.logger.save()

    def _log_table(self, name: str, columns: Sequence[str], data: Sequence[Sequence[Any]]) -> None:
        """Log a table, if the logger supports tables."""

    def _log_image(self, path: Path) -> None:
        """Log an image, if the logger supports images."""

    def _log_file(self, path: Path, artifact_path: str) -> None:
        """Log a file, if the logger stores files."""

    def _end(self, is_finished: bool) -> None:
        if self._summary:
            self._log(self._summary, 0)
        self.logger.save()


class CsvRun(LoggerRun):
    """Run as `metrics.csv` and `hparams.yaml`; tables and figures are already files of the run."""

    label = "csv"

    def _begin(self) -> None:
        from pytorch_lightning.loggers import CSVLogger

        shutil.rmtree(self.folder, ignore_errors=True)
        self.logger = CSVLogger(self.folder.parent, name=self.label, version="")


class TensorBoardRun(LoggerRun):
    """Run as scalars, images, tables as text, and settings with the summary."""

    label = "tensorboard"

    def _begin(self) -> None:
        from pytorch_lightning.loggers import TensorBoardLogger

        shutil.rmtree(self.folder, ignore_errors=True)
        self.logger = TensorBoardLogger(self.folder.parent, self.label, version="", default_hp_metric=False)

    def _log_table(self, name: str, columns: Sequence[str], data: Sequence[Sequence[Any]]) -> None:
        rows = [columns, ["---"] * len(columns), *data[:_TEXT_ROWS]]
        text = "\n".join(f"| {' | '.join(_cell(value) for value in row)} |" for row in rows)
        if len(data) > _TEXT_ROWS:
            text += f"\n\nThe first {_TEXT_ROWS} of {len(data)} rows."
        self.logger.experiment.add_text(name, text)

    def _log_image(self, path: Path) -> None:
        from matplotlib.image import imread

        self.logger.experiment.add_image(f"figures/{path.stem}", imread(path), dataformats="HWC")

    def _end(self, is_finished: bool) -> None:
        self.logger.log_hyperparams(self._settings, {**self._summary} or None)
        self.logger.save()
        self.logger.experiment.close()


@contextmanager
def _quiet_mlflow() -> Iterator[None]:
    """Silence MLflow and its telemetry, and give up a server that does not answer."""
    ours = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_LOGGING_LEVEL": "WARNING"}
    ours |= {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
    with (
        quiet_loggers("mlflow", "alembic", "pytorch_lightning.loggers.mlflow"),
        variables({name: os.environ.get(name) or value for name, value in ours.items()}),
    ):
        yield


class MlflowRun(LoggerRun):
    """Run as metrics, parameters, tables and files, in a database in the run's folder or on `$MLFLOW_TRACKING_URI`."""

    label = "mlflow"
    quiet = staticmethod(_quiet_mlflow)

    def _begin(self) -> None:
        server = os.environ.get("MLFLOW_TRACKING_URI", "")
        self._database = None if server.startswith(("http", "databricks")) else self.folder / "mlflow.db"
        if self._database:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            server = f"sqlite:///{self._database}"
        place = (self.folder / "artifacts").as_uri() if self._database else None
        from pytorch_lightning.loggers import MLFlowLogger

        self.logger = MLFlowLogger(self.project, self.name, server, artifact_location=place)
        self._run = str(self.logger.run_id)

    def _log_table(self, name: str, columns: Sequence[str], data: Sequence[Sequence[Any]]) -> None:
        by_column = {column: [row[place] for row in data] for place, column in enumerate(columns)}
        self.logger.experiment.log_table(self._run, by_column, f"{name}.json")

    def _log_image(self, path: Path) -> None:
        self._log_file(path, f"figures/{path.name}")

    def _log_file(self, path: Path, artifact_path: str) -> None:
        self.logger.experiment.log_artifact(self._run, str(path), str(Path(artifact_path).parent).strip("."))

    def _end(self, is_finished: bool) -> None:
        super()._end(is_finished)
        self.logger.experiment.set_terminated(self._run, "FINISHED" if is_finished else "FAILED")
        if self._database:
            _move(self._database, self.folder.as_uri(), self.final.as_uri())


def _move(database: Path, before: str, after: str) -> None:
    """Write the final place of artifacts into a database of MLflow, which stores absolute paths."""
    with closing(sqlite3.connect(database)) as connection, connection:
        for table, column in (("runs", "artifact_uri"), ("experiments", "artifact_location")):
            connection.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (before, after))


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


RUNS: Mapping[str, type[LoggerRun]] = {run.label: run for run in (CsvRun, TensorBoardRun, MlflowRun)}
assert set(RUNS) == set(LOGGERS)
