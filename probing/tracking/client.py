"""The client of W&B: its background process, temporary files and variables, and a logger without its exceptions."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock, Timeout

from probing.tracking.mode import Mode
from probing.tracking.results import of_lightning

if TYPE_CHECKING:
    from pytorch_lightning.loggers import WandbLogger
    from wandb import Run


@contextmanager
def variables(ours: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them afterwards."""
    before = {variable: os.environ.get(variable) for variable in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for variable, value in before.items():
            if value is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = value


_PREFIX, _LOCK = "probing-wandb-", ".lock"


@contextmanager
def own_temporary_folder() -> Iterator[None]:
    """Import the client here: it makes temporary folders when it is imported, which only a regular end removes.

    They are made in one folder of this process, which it holds by a lock. Folders whose process is gone are removed.
    """
    if "wandb" in sys.modules:
        yield
        return
    _remove_left(Path(tempfile.gettempdir()))
    before, tempfile.tempdir = tempfile.tempdir, str(_claim())
    try:
        yield
    finally:
        tempfile.tempdir = before


def _claim() -> Path:
    """Return a new folder, locked until this process ends, which then removes it."""
    folder, owner = Path(tempfile.mkdtemp(prefix=_PREFIX)), os.getpid()
    lock = FileLock(folder / _LOCK)
    lock.acquire()

    def remove() -> None:
        if os.getpid() == owner:  # not a process that was forked from this one
            lock.release()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def _remove_left(place: Path) -> None:
    """Remove the folders of processes that were killed."""
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(Timeout, OSError):  # in use, or another user's
            if (folder / _LOCK).is_file():
                with FileLock(folder / _LOCK, timeout=0):
                    shutil.rmtree(folder, ignore_errors=True)


def refused_variables() -> dict[str, str]:
    """Return the variables of the environment that the client refuses, each with its reason."""
    from wandb import Settings

    refused = {}
    for variable, value in sorted(os.environ.items()):
        try:
            Settings().update_from_env_vars({variable: value})
        except Exception as error:
            refused[variable] = reason_of(error)
    return refused


def reason_of(error: Exception) -> str:
    """Return what the client says is wrong, or the first line of an error, or its type's name if it has no message."""
    wrong = [str(one["msg"]) for one in error.errors()] if hasattr(error, "errors") else []  # of pydantic
    first_line = ("; ".join(wrong) or str(error) or type(error).__name__).splitlines()[0]
    return first_line.removeprefix("Value error, ").rstrip(" .")[:200]


# A call of the logger.
Call = Callable[["WandbLogger"], None]


def guarded_logger(
    run: Run, note: Callable[[Call], None], attempt: Callable[[Callable[[], None]], None], **options: Any
) -> WandbLogger:
    """Return Lightning's logger for a run, which records its calls and keeps W&B's errors out of training.

    Metrics go where `of_lightning` says.
    """
    from pytorch_lightning.loggers import WandbLogger

    layers: set[str] = set()

    class GuardedLogger(WandbLogger):
        def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
            curves, summary = of_lightning(metrics, layers)
            if curves:
                self._do(lambda logger: WandbLogger.log_metrics(logger, curves, step))
            if summary:
                self._do(lambda logger: logger.experiment.summary.update(summary))

        def log_hyperparams(self, params: Any) -> None:
            self._do(lambda logger: WandbLogger.log_hyperparams(logger, params))

        def _do(self, call: Call) -> None:
            note(call)
            attempt(lambda: call(self))

    return GuardedLogger(experiment=run, id=run.id, **options)


@contextmanager
def one_service(mode: Mode) -> Iterator[None]:
    """Share one background process of the client between all offline runs in this context.

    Online runs still have a process each, so that the process can be stopped if the server no longer answers.
    """
    if mode != "offline" or "WANDB_SERVICE" in os.environ:
        yield
        return
    with variables({"WANDB_MODE": mode, "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}):
        import wandb

        with suppress(Exception):  # otherwise each run starts its own process, or reports the error
            wandb.setup()
    try:
        yield
    finally:
        with suppress(Exception, SystemExit):
            wandb.teardown()


def background_process() -> Popen[bytes] | None:
    """Return the client's background process, which has no public name; None if it is not found."""
    from wandb.sdk import wandb_setup

    try:
        process = attrgetter("_connection._proc._process")(wandb_setup.singleton())
    except AttributeError:
        return None  # another version of the client: rely on its own time limits
    return cast("Popen[bytes]", process)


def close_service() -> None:
    """End the background process, which closes its files and clears its environment variable.

    Raises:
        RuntimeError: If the client reports that the process failed.
    """
    import wandb

    try:
        wandb.teardown()
    except SystemExit as stopped:  # the client reports a failure in this way
        raise RuntimeError("its background process failed") from stopped


def within(seconds: float, service: Popen[bytes] | None, action: Callable[[], None]) -> None:
    """Run an action; if it exceeds a time limit, stop an online run's background process.

    Stopping the process ends the wait with an error. The client's own limits do not always hold: if a server stops
    answering during the upload of an artifact, `finish` with a limit of 9 s takes minutes.

    Args:
        seconds: The time limit.
        service: The background process; without one there is no limit.
        action: The action.

    Raises:
        TimeoutError: If the action took longer.
        Exception: Any other error of the action.
    """
    if service is None:
        return action()
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        service.terminate()
        try:
            service.wait(2)
        except TimeoutExpired:
            service.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        action()
    except Exception as error:
        if expired.is_set():
            raise TimeoutError("the server answers too slowly") from error
        raise
    finally:
        timer.cancel()
