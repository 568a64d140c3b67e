"""W&B run, from its start to its end."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from secrets import token_hex
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from probing.cli.options import WandbOptions
from probing.runtime.progress import is_part
from probing.tracking.client import (
    Call,
    Logged,
    Mode,
    Rows,
    background_process,
    by,
    close_service,
    credentials,
    curves_of,
    guarded_logger,
    points,
    reason_of,
    refused_variables,
    resolve_mode,
    temporary_client_folder,
    variables,
    within,
)

if TYPE_CHECKING:
    from pytorch_lightning.loggers import WandbLogger
    from wandb import Artifact, Run

# --------------------------------------------------------------------------------------------------------------------
# Logs a run's results to W&B as curves over layers, tables, images and an artifact.
# --------------------------------------------------------------------------------------------------------------------


def log_results(run: Run, logged: Logged) -> None:
    """Log curves by their axes, their summary, tables, images, an artifact and a page; see `Tracker.log_results`."""
    import wandb

    # First, because it is the largest, and is uploaded while the rest is logged.
    if logged.files:
        run.log_artifact(_artifact(logged))
    for axis, rows in logged.curves.items():
        _declare(run, rows, axis)
        for point in points(rows, axis):
            run.log(point)
    run.summary.update(logged.summary)
    for key, columns, data in logged.shown():
        # A column may hold 0 and 0.5, or a number and "unresolved".
        run.log({key: wandb.Table(columns=[*columns], data=data, allow_mixed_types=True)})
    for figure in logged.images:
        run.log({f"figures/{figure.stem}": wandb.Image(str(figure))})
    if logged.report:
        # The page's policy allows no injected style.
        run.log({"report": wandb.Html(str(logged.report), inject=False)})


def _declare(run: Run, rows: Rows, axis: str) -> None:
    """Declare the columns with several numbers as curves over the axis: W&B would draw a chart of a single point."""
    columns = curves_of(rows, axis)
    if not columns:
        return
    # By default the summary would have the last point's value, under a name that does not say so; of time, it does.
    summary: dict[str, Any] = {} if axis == "step" else {"summary": "none"}
    run.define_metric(axis, hidden=True, **summary)
    # Exact names, because the `*` of Lightning's metrics would take precedence over a pattern.
    for column in columns:
        run.define_metric(by(axis, column), step_metric=axis, **summary)


def _artifact(logged: Logged) -> Artifact:
    import wandb

    artifact = wandb.Artifact(re.sub(r"[^\w.-]", "_", logged.name, flags=re.ASCII)[:128], type=logged.kind)
    for file, artifact_path in logged.artifact_paths().items():
        # With this policy the file is read in place; otherwise W&B would copy every tensor.
        artifact.add_file(str(file.absolute()), artifact_path, policy="immutable", skip_cache=True)
    if logged.report:
        artifact.add_file(str(logged.report.absolute()), skip_cache=True)
    return artifact


def repair_artifacts(run: Run, folder: Path, offline: bool) -> None:
    """Correct the paths and temporary folders of a run's artifacts, tables included.

    An offline run records absolute paths of an artifact's files, and a sync that misses a file leaves the artifact
    pending, with exit status 0. Since the run's folder is renamed and may be copied, paths become relative to the
    folder, where a sync must be started. The temporary folder of a table is removed here; the garbage collector would
    remove it much later, with a warning.
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


# The project of runs for which neither the option nor $WANDB_PROJECT names one.
PROJECT = "probing"

# The mode that replaces one that fails.
_FALLBACK: dict[Mode, Mode] = {"online": "offline", "offline": "disabled"}

# The folder of the run that has the id of the environment, by the id.
_FOLDER_OF_ID: dict[str, Path] = {}

# Most seconds lost to a server that is absent or slow. Connecting, finishing and writing a second, offline copy have
# limits of their own; logging the results has the rest.
_LOSS_S = 30.0
_INIT_S = 8.0
_FINISH_S = 10.0
_COPY_S = 3.0
_REQUEST_S = 4


class WandbRun:
    """Run on W&B, from its start to `finish`; no method raises because of a failure of W&B.

    Args:
        folder: The run's folder, which must exist; W&B writes only into `folder/wandb`.
        name: Name of the run, unless the options name it, and of its artifact.
        config: The run's resolved configuration, which W&B shows unchanged, so it must not contain secrets.
        warn: Called at most once, with a sentence, if W&B fails.
        light: Whether this is one of many runs of a process; then the list of packages and the machine's data, which
            take most of the time, are left out.

    Raises:
        UserError: If the requested mode is invalid.
    """

    def __init__(
        self,
        options: WandbOptions,
        folder: Path,
        name: str,
        config: Mapping[str, Any],
        warn: Callable[[str], None],
        light: bool = False,
    ) -> None:
        self._options = options
        self._project = options.project or os.environ.get("WANDB_PROJECT") or PROJECT
        self._light = light
        self._folder = folder.absolute()
        self._name = name
        self._config = dict(config)
        self._warn = warn
        self._warned = False
        # The requested mode, or its replacement after a failure of W&B.
        self.mode: Mode = resolve_mode(options.mode)
        self._run: Run | None = None
        self._is_part = light or is_part()
        # A run that replaces a failed one has the same id.
        self._id = self._id_of_environment() or token_hex(6)
        self._url: str | None = None
        self._run_folder = ""
        self._failure: Exception | None = None  # the error that ended the logging to the current run
        self._from_lightning: list[Call] = []
        self._results: Callable[[Run], None] | None = None
        # The service outlives runs and keeps the environment it was started with. A service that already exists belongs
        # to somebody else and is not touched.
        self._owns_service = "WANDB_SERVICE" not in os.environ
        self._service: Popen[bytes] | None = None
        start = time.monotonic()
        failure = self._start()
        self._log_s = _LOSS_S - _FINISH_S - _COPY_S - (time.monotonic() - start)
        if failure:
            self._report(failure)

    def _id_of_environment(self) -> str | None:
        """Return `$WANDB_RUN_ID`, which a sweep's agent sets, for a single run of this process: the command's."""
        run_id = os.environ.get("WANDB_RUN_ID")
        if not run_id or self._is_part or _FOLDER_OF_ID.setdefault(run_id, self._folder) != self._folder:
            return None
        return run_id

    @cached_property
    def logger(self) -> WandbLogger | None:
        """Lightning's logger for this run, for `Trainer(logger=...)`; None when disabled."""
        return None if self._run is None else self._logger_on(self._run)

    def log_results(self, logged: Logged) -> None:
        """Log the run's results; see `Tracker.log_results`."""
        self._results = partial(log_results, logged=logged)
        self._log_results()

    def finish(self, exit_code: int = 0) -> None:
        """Close the run and all resources of W&B, as failed unless `exit_code` is 0; a second call does nothing.

        A run that did not reach the server completely is written again as an offline run with the same id, which
        replaces the local log of the online run, since that has no artifacts.
        """
        self._close(exit_code)
        if (failure := self._failure) is None:
            return
        self.mode, torn = _FALLBACK[self.mode], self._run_folder
        self._start()
        if self._run:
            self._repeat(self._run)
        self._log_results()
        self._close(exit_code)
        if self._failure:
            self.mode = "disabled"
        elif self.mode == "offline":
            self._remove(torn)  # if both were synced, the last one would win
        self._report(failure)
        self._failure = None

    def where(self, folder: Path, verbose: bool = False) -> str | None:
        """Return the address of the run, or the command that uploads it.

        Args:
            folder: The run's folder under its final name.
            verbose: Whether the command is also returned to users who have never logged in to W&B nor asked for it.

        Returns:
            The address if the run was sent completely; otherwise the command that sends it, which also works in a copy
            of the folder; None if W&B is disabled, or not used on this machine.
        """
        if self.mode == "online":
            return self._url
        is_used = self._options.mode != "auto" or os.environ.get("WANDB_MODE") or credentials()
        if self.mode == "offline" and (verbose or is_used):
            return f"cd {shlex.quote(str(folder))} && wandb sync wandb/{self._run_folder}"
        return None

    def _start(self) -> Exception | None:
        """Start a run; if that fails online fall back to offline, then to disabled. Return the first error, if any."""
        self._failure, first_error = None, None
        while self.mode != "disabled":
            before = set(self._logs())
            try:
                self._run = self._init(self.mode)
            except Exception as error:
                first_error = first_error or error
                self._clear_failed_start(before)
                self.mode = _FALLBACK[self.mode]
            else:
                self._url = self._run.url
                self._run_folder = Path(self._run.dir).parent.name
                break
        return first_error

    def _init(self, mode: Mode) -> Run:
        if mode == "online" and not credentials():
            raise RuntimeError("no API key is configured; `wandb login` stores one")
        # If this folder does not exist, the client writes to another one.
        (self._folder / "wandb").mkdir(parents=True, exist_ok=True)
        with self._environment():
            with temporary_client_folder():
                import wandb

            run = wandb.init(
                id=self._id,
                dir=self._folder,
                mode=mode,
                project=self._project,
                entity=self._options.entity or os.environ.get("WANDB_ENTITY") or None,
                group=self._options.group,
                tags=self._options.tags or None,
                name=self._options.name or (None if self._is_part else os.environ.get("WANDB_NAME")) or self._name,
                notes=self._options.notes,
                job_type=self._options.job_type,
                config=self._config,
                # Otherwise a run that is open in this process would be returned.
                reinit="create_new",
                settings=wandb.Settings(
                    console="off",  # do not store progress bars
                    silent=True,  # no greeting, which costs a request; see `where`
                    symlink=False,  # they would be absolute, and break when the folder is renamed
                    init_timeout=_INIT_S,
                    finish_timeout=_FINISH_S - 2,
                    finish_timeout_raises=True,
                    x_graphql_timeout_seconds=_REQUEST_S,
                    # By default a run that is killed loses the last 15 s of its log.
                    x_transaction_log_flush_interval=1,
                    x_save_requirements=not self._light,
                    x_disable_stats=self._light,
                    disable_git=self._light,
                ),
            )
        repair_artifacts(run, self._folder, offline=mode == "offline")
        self._service = background_process() if mode == "online" and self._owns_service else None
        # As Lightning does for runs that it creates: plot its metrics over its step count.
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        return run

    def _attempt(self, action: Callable[[], None]) -> None:
        """Run a logging action; the first failure ends the logging to this run."""
        if self._run is None or self._failure:
            return
        try:
            action()
        except Exception as error:
            self._failure = error

    def _log_results(self) -> None:
        run, log = self._run, self._results
        if run is None or log is None:
            return
        with self._environment():
            self._attempt(lambda: within(self._log_s, self._service, lambda: log(run)))

    def _logger_on(self, run: Run) -> WandbLogger:
        options = {"project": self._project, "save_dir": self._folder}
        return guarded_logger(run, self._from_lightning.append, self._attempt, **options)

    def _repeat(self, run: Run) -> None:
        if self._from_lightning:
            logger = self._logger_on(run)
            for call in self._from_lightning:
                self._attempt(partial(call, logger))

    def _close(self, exit_code: int) -> None:
        run, self._run = self._run, None
        if run is None:
            return

        def close() -> None:
            try:
                run.finish(exit_code)
            finally:
                if self._owns_service:
                    close_service()

        with self._environment():
            try:
                within(_FINISH_S, self._service, close)
            except Exception as error:
                self._failure = self._failure or error
        self._remove("cache")
        if self.mode == "online":
            self._remove(f"data/{self._id}")  # kept for offline runs, whose tables are sent from there

    def _report(self, failure: Exception) -> None:
        if self._warned:
            return
        self._warned = True
        reason = self._reason(failure)
        if self.mode == "offline":
            self._warn(
                f"W&B is logged offline ({reason}): the results on disk are complete,"
                f" and `wandb sync wandb/{self._run_folder}` in the run's folder uploads them."
            )
        else:
            self._warn(
                f"W&B is off for this run ({reason}): the results on disk are complete"
                " without it, and `--wandb.mode disabled` leaves it out."
            )

    def _reason(self, failure: Exception) -> str:
        refused: dict[str, str] = {}
        with self._environment(), suppress(Exception):
            refused = refused_variables()
        return "; ".join(f"${variable}: {why}" for variable, why in refused.items()) or reason_of(failure)

    def _clear_failed_start(self, before: Container[Path]) -> None:
        """Remove everything of a run that did not start, but no earlier logs."""
        with suppress(Exception):
            if self._owns_service:
                close_service()
        for path in self._logs():
            if path not in before:
                self._remove(path.name)

    def _logs(self) -> list[Path]:
        return list((self._folder / "wandb").glob("*run-*"))

    def _remove(self, name: str) -> None:
        """Remove a folder in `wandb`; also remove its parent `data` if that becomes empty."""
        path = self._folder / "wandb" / name
        shutil.rmtree(path, ignore_errors=True)
        if path.parent.name == "data":
            with suppress(OSError):
                path.parent.rmdir()

    @contextmanager
    def _environment(self) -> Iterator[None]:
        wandb_folder = self._folder / "wandb"
        ours = {
            "WANDB_MODE": self.mode,  # an empty value is an error even if the mode is passed as an argument
            "WANDB_DIR": str(self._folder),
            "WANDB_DATA_DIR": str(wandb_folder / "data" / self._id),  # copies of artifact files
            "WANDB_CACHE_DIR": str(wandb_folder / "cache"),
            "WANDB_ERROR_REPORTING": "false",  # otherwise even an offline run contacts a server
            "WANDB_HTTP_TIMEOUT": str(_REQUEST_S),
            "WANDB_SILENT": "true",
            **credentials(),
        }
        with variables(ours):
            yield
