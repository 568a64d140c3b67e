"""One W&B run, from its start to its end."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from pathlib import Path
from secrets import token_hex
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from probing.cli.options import WandbOptions
from probing.tracking.environment import variables
from probing.tracking.logger import Call, guarded_logger
from probing.tracking.mode import Mode, credentials, resolve_mode
from probing.tracking.results import by_layer, log_results, repair_artifacts
from probing.tracking.service import background_process, close_service, within

if TYPE_CHECKING:
    from pytorch_lightning.loggers import WandbLogger
    from wandb import Run

# What takes the place of a mode that fails.
_FALLBACK: dict[Mode, Mode] = {"online": "offline", "offline": "disabled"}

# What a server that is absent, slow or dying may cost: connecting and the last upload have limits
# of their own, logging the results has what they and a second copy, offline, leave of the whole.
_LOSS_S = 30.0
_INIT_S = 8.0
_FINISH_S = 10.0
_COPY_S = 3.0
_REQUEST_S = 4


class Tracker:
    """One W&B run, from its start to `finish`; no method ever raises because of W&B.

    Args:
        options: Where and how to log.
        folder: The run's folder, which exists; W&B writes beneath `folder/wandb` alone.
        name: Name of the run and of its artifact.
        config: The run's resolved configuration, shown on W&B as it stands: no secrets.
        warn: Called at most once, with one sentence, when W&B fails.
        light: Whether it is one of many runs of a process: packages and machine, which take longer to list than all
            else, are left out.

    Raises:
        UserError: If the mode asked for is none of the modes.
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
        self._light = light
        self._folder = folder.absolute()
        self._name = name
        self._config = dict(config)
        self._warn = warn
        self._warned = False
        self._mode = resolve_mode(options.mode)
        self._run: Run | None = None
        # An agent of a sweep says which run this is; what takes the place of a run that fails has the id of that.
        self._id = (None if light else os.environ.get("WANDB_RUN_ID")) or token_hex(6)
        self._url: str | None = None
        self._run_folder = ""
        self._failure: Exception | None = None  # what ended the logging to the present run
        self._from_lightning: list[Call] = []
        self._results: Callable[[Run], None] | None = None
        # The service outlives runs and keeps the environment it was started with; one that was
        # there before belongs to somebody else and is left alone.
        self._owns_service = "WANDB_SERVICE" not in os.environ
        self._service: Popen[bytes] | None = None
        start = time.monotonic()
        failure = self._start()
        self._log_s = _LOSS_S - _FINISH_S - _COPY_S - (time.monotonic() - start)
        if failure:
            self._report(failure)

    @property
    def mode(self) -> Mode:
        """What is in force now: the mode asked for, or the one W&B's failure left."""
        return self._mode

    @cached_property
    def logger(self) -> WandbLogger | None:
        """Lightning's logger on this run, for `Trainer(logger=...)`; None when disabled."""
        if self._run is None:
            return None
        return self._logger_on(self._run)

    def log_results(
        self,
        accuracy: Sequence[Mapping[str, Any]],
        neurons: Sequence[Mapping[str, Any]],
        figures: Sequence[Path],
        files: Sequence[Path],
        tables: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        kind: str = "probe",
        report: Path | None = None,
    ) -> None:
        """Log what the run found.

        Args:
            accuracy: One row per layer: `by_layer/COLUMN` as curves over the layers and, where
                there is a column of that name, the table `accuracy`.
            neurons: Rows with `layer` and `rank`: one table per layer, `neurons/layer_06`, with
                the first 10,000 ranks.
            figures: Images, logged as `figures/STEM`; of each, the vector form that lies beside it
                is kept in the artifact and logged nowhere else.
            files: Files of the run's folder, kept as one artifact. They must not change
                afterwards: they are uploaded from where they are.
            tables: Further tables, by their names, each with the first 10,000 rows.
            kind: Type of the artifact.
            report: A page that needs no other file, logged as `report`, and kept in the artifact
                as it is now: it may be written anew.
        """
        by_name = {**by_layer(neurons), **(tables or {})}
        # Of one of many runs the curves say the same, and the table is another file for each.
        if not self._light and any("accuracy" in row for row in accuracy):
            by_name["accuracy"] = accuracy

        def log(run: Run) -> None:
            log_results(run, self._name, accuracy, by_name, figures, files, kind, report)

        self._results = log
        self._log_results()

    def finish(self, exit_code: int = 0) -> None:
        """Close the run and everything that W&B holds open; a second call does nothing.

        A run that did not reach the server whole is written again as an offline run of the same
        id, in place of the log that an online run keeps for later, which leaves artifacts out.

        Args:
            exit_code: 0 marks the run as finished on W&B, anything else as failed.
        """
        self._close(exit_code)
        if (failure := self._failure) is None:
            return
        self._mode, torn = _FALLBACK[self._mode], self._run_folder
        self._start()
        if self._run:
            self._repeat(self._run)
        self._log_results()
        self._close(exit_code)
        if self._failure:
            self._mode = "disabled"
        elif self._mode == "offline":
            self._remove(torn)  # a sync of both would end with whichever comes last
        self._report(failure)
        self._failure = None

    def where(self, folder: Path) -> str | None:
        """Say where the run is to be seen, in one line.

        Args:
            folder: The run's folder under its final name.

        Returns:
            The address when all of it was sent, the command that sends it when not, wherever
            the folder is copied to, None when W&B is disabled.
        """
        if self._mode == "online":
            return self._url
        if self._mode == "offline":
            return f"cd {shlex.quote(str(folder))} && wandb sync wandb/{self._run_folder}"
        return None

    def _start(self) -> Exception | None:
        """Start a run in the present mode, or in the next that works.

        Returns:
            Why the present mode failed, if it did.
        """
        self._failure, first_error = None, None
        while self._mode != "disabled":
            before = set(self._logs())
            try:
                self._run = self._init(self._mode)
            except Exception as error:
                first_error = first_error or error
                self._clear_failed_start(before)
                self._mode = _FALLBACK[self._mode]
            else:
                self._url = self._run.url
                self._run_folder = Path(self._run.dir).parent.name
                break
        return first_error

    def _init(self, mode: Mode) -> Run:
        if mode == "online" and not credentials():
            raise RuntimeError("no API key is configured; `wandb login` stores one")
        # Without this folder the client writes to another one.
        (self._folder / "wandb").mkdir(parents=True, exist_ok=True)
        with self._environment():
            import wandb

            run = wandb.init(
                id=self._id,
                dir=self._folder,
                mode=mode,
                project=self._options.project,
                entity=self._options.entity,
                group=self._options.group,
                tags=self._options.tags or None,
                name=self._name,
                config=self._config,
                # A run that is open elsewhere in the process would be returned instead.
                reinit="create_new",
                settings=wandb.Settings(
                    console="off",  # progress bars are not worth keeping
                    silent=True,  # no greeting, which costs a request; `where` says what matters
                    symlink=False,  # absolute links, dead once the folder is renamed
                    init_timeout=_INIT_S,
                    finish_timeout=_FINISH_S - 2,
                    finish_timeout_raises=True,
                    x_graphql_timeout_seconds=_REQUEST_S,
                    # By default a run that is killed loses its last 15 s.
                    x_transaction_log_flush_interval=1,
                    x_save_requirements=not self._light,
                    x_disable_stats=self._light,
                    disable_git=self._light,
                ),
            )
        repair_artifacts(run, self._folder, offline=mode == "offline")
        self._service = background_process() if mode == "online" and self._owns_service else None
        # What Lightning does for runs of its own making: its metrics over its own step count.
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        return run

    def _attempt(self, action: Callable[[], None]) -> None:
        """Log something; the first failure ends the logging to this run."""
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
        options = {"project": self._options.project, "save_dir": self._folder}
        return guarded_logger(run, self._from_lightning.append, self._attempt, **options)

    def _repeat(self, run: Run) -> None:
        """Log again what Lightning logged to a run that failed."""
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
        if self._mode == "online":
            self._remove(f"data/{self._id}")  # an offline run's tables are sent from there

    def _report(self, failure: Exception) -> None:
        """Tell the user, once, what is in force and what to do."""
        if self._warned:
            return
        self._warned = True
        if self._mode == "offline":
            self._warn(
                f"W&B is logged offline ({_reason(failure)}): the results on disk are complete,"
                f" and `wandb sync wandb/{self._run_folder}` in the run's folder uploads them."
            )
        else:
            self._warn(
                f"W&B is off for this run ({_reason(failure)}): the results on disk are complete"
                " without it, and `--wandb.mode disabled` leaves it out."
            )

    def _clear_failed_start(self, before: Container[Path]) -> None:
        """Leave nothing behind of a run that never started, and all logs that were there before it."""
        with suppress(Exception):
            if self._owns_service:
                close_service()
        for path in self._logs():
            if path not in before:
                self._remove(path.name)

    def _logs(self) -> list[Path]:
        """Return the folders of runs, this one's and those that were logged from the same folder."""
        return list((self._folder / "wandb").glob("*run-*"))

    def _remove(self, name: str) -> None:
        """Remove a folder beneath `wandb`, and what it was in if that is empty then."""
        path = self._folder / "wandb" / name
        shutil.rmtree(path, ignore_errors=True)
        if path.parent.name == "data":
            with suppress(OSError):
                path.parent.rmdir()

    @contextmanager
    def _environment(self) -> Iterator[None]:
        """Set what the client can be told by variables alone, and put them back afterwards."""
        wandb_folder = self._folder / "wandb"
        ours = {
            "WANDB_MODE": self._mode,  # an empty one is an error even where another is given
            "WANDB_DIR": str(self._folder),
            "WANDB_DATA_DIR": str(wandb_folder / "data" / self._id),  # copies of what goes into artifacts
            "WANDB_CACHE_DIR": str(wandb_folder / "cache"),
            "WANDB_ERROR_REPORTING": "false",  # else even an offline run looks up its server
            "WANDB_HTTP_TIMEOUT": str(_REQUEST_S),
            "WANDB_SILENT": "true",
            **credentials(),
        }
        with variables(ours):
            yield


def _reason(error: Exception) -> str:
    """Put an error into half a line: its first line, or its name where it has none."""
    first_line = (str(error) or type(error).__name__).splitlines()[0]
    return first_line.rstrip(" .")[:200]
