"""Client of W&B: its background process, temporary files and variables, and a logger without its exceptions."""

from __future__ import annotations

import atexit
import netrc
import os
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from configparser import Error as ConfigParserError
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from numbers import Real
from operator import attrgetter
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any, Literal, cast, get_args
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from probing.errors import UserError
from probing.results import with_layer_name
from probing.runtime import restored_environment

if TYPE_CHECKING:
    from pytorch_lightning.loggers import WandbLogger
    from wandb import Run

# --------------------------------------------------------------------------------------------------------------------
# Decides whether a run is logged online, from options, environment, settings and keys, without network or prompt.
# --------------------------------------------------------------------------------------------------------------------

Mode = Literal["online", "offline", "disabled"]
# The client's older names. Lightning's `WandbLogger(offline=True)` leaves the first in WANDB_MODE.
_OLDER_NAMES = {"dryrun": "offline", "run": "online"}


# What is true for the client and for transformers.
_TRUE = {"1", "on", "t", "true", "y", "yes"}


def resolve_mode(mode: str) -> Mode:
    """Return the mode of W&B; `auto` falls back to offline if not logged in (no API key). No network, no prompt.

    `UserError` is raised for an invalid mode. The client's rules are not used: without a key it prompts forever in a
    terminal and fails elsewhere, and it rejects an empty `WANDB_MODE`. If `wandb offline` or `wandb disabled` has
    switched it off for a folder, that takes precedence over the environment. `auto` takes the least of `WANDB_MODE` (or
    else online with an API key and offline without), of `WANDB_DISABLED`, and of the client's settings files.
    """
    if mode != "auto":
        return _checked_mode("--wandb.mode", mode)
    modes: list[Mode] = ["disabled"] if os.environ.get("WANDB_DISABLED", "").lower() in _TRUE else []
    if from_environment := os.environ.get("WANDB_MODE"):
        modes.append(_checked_mode("WANDB_MODE", from_environment))
    else:
        modes.append("online" if credentials() else "offline")
    return least([*modes, *_modes_of_settings()])


def least(modes: Iterable[Mode]) -> Mode:
    """Return the mode that sends and writes least."""
    return max(modes, key=get_args(Mode).index)


def _modes_of_settings() -> list[Mode]:
    """Return the modes of the folder's settings, or else of the user's; clients up to 0.17 write `disabled`."""
    modes: list[Mode] = []
    for path in _local_settings():
        modes += _mode_of_file(path)
    return modes or _mode_of_file(_global_settings())


def _mode_of_file(path: Path) -> list[Mode]:
    settings = _settings_in(path)
    if mode := settings.get("mode"):
        return [_checked_mode(f"`mode` in {path}", mode)]
    return ["disabled"] if settings.get("disabled", "").lower() in _TRUE else []


def _checked_mode(source: str, mode: str) -> Mode:
    if (mode := _OLDER_NAMES.get(mode, mode) if not source.startswith("--") else mode) in get_args(Mode):
        return cast(Mode, mode)
    raise UserError(
        f"{source} is {mode!r}: expected online, offline or disabled"
        + (" (or auto)." if source.startswith("--") else "; correct it or remove it.")
    )


def credentials() -> dict[str, str]:
    """Return the user's W&B credentials as an environment variable; empty without any.

    The client then uses netrc credentials as read here, and does not prompt because it reads the file differently.
    """
    for variable in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"):
        if value := os.environ.get(variable):
            return {variable: value}
    key = _netrc_password(_api_hosts())
    return {"WANDB_API_KEY": key} if key else {}


def _api_hosts() -> tuple[str, ...]:
    """Return the hosts whose netrc entries are used: the configured server, else W&B's service."""
    configured = [settings["base_url"] for path in _local_settings() if "base_url" in (settings := _settings_in(path))]
    url = os.environ.get("WANDB_BASE_URL") or next(iter(configured), _settings_in(_global_settings()).get("base_url"))
    # Both names of W&B's own service; the client accepts an entry for either.
    return (urlsplit(url).netloc,) if url else ("api.wandb.ai", "api.forge.coreweave.com")


def _global_settings() -> Path:
    """Return the settings file of the user, to which `wandb login --host` writes the server."""
    return Path(os.environ.get("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser() / "settings"


def _local_settings() -> list[Path]:
    """Return the settings files of the working folder, which the client reads, and of `WANDB_DIR`, where it writes."""
    folders = dict.fromkeys([Path(), Path(os.environ.get("WANDB_DIR") or ".").expanduser()])
    return [folder / (".wandb" if (folder / ".wandb").exists() else "wandb") / "settings" for folder in folders]


def _settings_in(path: Path) -> Mapping[str, str]:
    """Return the settings in a file; empty, as in the client, if the file cannot be read."""
    parser = ConfigParser(interpolation=None)
    try:
        parser.read(path, encoding="utf-8")
    except (ConfigParserError, OSError, UnicodeDecodeError):
        return {}
    return dict(parser["default"]) if "default" in parser else {}


def _netrc_password(hosts: Iterable[str]) -> str | None:
    candidates = [os.environ.get("NETRC"), "~/.netrc", "~/_netrc"]
    paths = [Path(candidate).expanduser() for candidate in candidates if candidate]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    try:
        entries = netrc.netrc(path)
    except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
        return None  # as the client does
    credentials = (entries.authenticators(host) for host in hosts)
    return next((entry[2] for entry in credentials if entry and entry[2]), None)


# --------------------------------------------------------------------------------------------------------------------
# What every logger shows of a run's results: curves over layers, a summary, tables, figures and files.
# --------------------------------------------------------------------------------------------------------------------

# The media copy of a table of W&B, which offline runs show, is silently cut at this number of rows.
MAX_TABLE_ROWS = 10_000
# The axis of most curves.
LAYER = "layer"
Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Logged:
    """Results of a run for every logger: curves by axis, tables by name, figures, files, kind and a page."""

    name: str
    curves: Mapping[str, Rows]
    tables: Mapping[str, Rows]
    figures: Sequence[Path]
    files: Sequence[Path]
    kind: str
    report: Path | None

    @property
    def summary(self) -> dict[str, Any]:
        """Summary of all rows with an axis; see `summary_of`."""
        return {key: value for axis, rows in self.curves.items() for key, value in summary_of(rows, axis).items()}

    def shown(self) -> Iterator[tuple[str, list[str], list[list[Any]]]]:
        """Yield the name, the columns and the first rows of each table that has rows."""
        for name, all_rows in self.tables.items():
            rows = [with_layer_name(row) for row in all_rows[:MAX_TABLE_ROWS]]
            columns = list(dict.fromkeys(column for row in rows for column in row))
            if rows:
                yield name, columns, [[row.get(column) for column in columns] for row in rows]

    def artifact_paths(self) -> dict[Path, str]:
        """Return the path in the artifact of each file and each vector figure."""
        vectors = [figure for figure in self.figures if figure.suffix != ".png"]
        return {file: file.name for file in self.files} | {file: f"figures/{file.name}" for file in vectors}

    @property
    def images(self) -> list[Path]:
        """Figures that are images."""
        return [figure for figure in self.figures if figure.suffix == ".png"]


def summary_of(rows: Rows, axis: str = LAYER) -> dict[str, Any]:
    """Return the summary of rows: numbers under the names of their curves.

    Over layers these are `layer_06/COLUMN` for each number, and the best accuracy (R² for numbers) with its layer, the
    lowest among equals. A single row also has the axis and `by_AXIS/COLUMN`, the same names in all trials of a sweep
    over layers. Set explicitly because `define_metric(summary="max")` gives different values before and after a sync.
    """
    summary: dict[str, Any] = {}
    for row in rows:
        numbers = {column: row[column] for column in row if column != axis and _is_number(row[column])}
        if axis == LAYER:
            summary |= {f"layer_{int(row[axis]):02d}/{column}": value for column, value in numbers.items()}
        if len(rows) == 1:
            summary |= {axis: row[axis], **{by(axis, column): value for column, value in numbers.items()}}
    return summary | (_best(rows) if axis == LAYER else {})


def curves_of(rows: Rows, axis: str) -> list[str]:
    """Return the columns that have a number in more than one row: a single number is no curve."""
    counts = Counter(column for row in rows for column, value in row.items() if column != axis and _is_number(value))
    return [column for column, n in counts.items() if n > 1]


def points(rows: Rows, axis: str) -> Iterator[dict[str, Any]]:
    """Yield the points of the curves over an axis, for each row that has any."""
    columns = curves_of(rows, axis)
    for row in rows:
        if values := {by(axis, column): row[column] for column in columns if _is_number(row.get(column))}:
            yield {axis: row[axis]} | values


def by(axis: str, column: str) -> str:
    """Return the name of a column's curve over an axis."""
    return f"by_{axis}/{column}"


def _best(accuracy: Rows) -> dict[str, Any]:
    for name in ("accuracy", "r2"):
        if scored := [row for row in accuracy if _is_number(row.get(name))]:
            best = max(scored, key=lambda row: (row[name], -row[LAYER]))
            return {f"best_{name}": best[name], "best_layer": best[LAYER]}
    return {}


def of_lightning(metrics: Mapping[str, Any], layers: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the metrics of a call of Lightning's logger into curves and entries of the summary alone.

    Metrics of the test tokens are measured once. Means over several layers, such as `val/accuracy`, which `LinearProbe`
    logs for callbacks, belong to neither. The layers of this call are added to `layers`, the layers of former calls,
    since solved layers are no longer logged.
    """
    of_layers = [parts for parts in (key.split("/") for key in metrics) if len(parts) == 3]
    layers |= {layer for _, layer, _ in of_layers}
    means = {f"{stage}/{name}" for stage, _, name in of_layers} if len(layers) > 1 else set()
    layer_metrics = {key: value for key, value in metrics.items() if key not in means}
    tested = {key: value for key, value in layer_metrics.items() if key.startswith("test/")}
    return ({}, tested) if tested else (layer_metrics, {})


def by_layer(neurons: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """Split the ranking into a table per layer, in order of rank."""
    ranked, layers = sorted(neurons, key=lambda row: row["rank"]), sorted({row["layer"] for row in neurons})
    return {f"neurons/layer_{n:02d}": [row for row in ranked if row["layer"] == n] for n in layers}


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


@contextmanager
def variables(ours: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them afterwards."""
    with restored_environment(ours):
        os.environ.update(ours)
        yield


_PREFIX, _LOCK = "probing-wandb-", ".lock"


@contextmanager
def temporary_client_folder() -> Iterator[None]:
    """Import the client here, in a locked temporary folder; abandoned folders are removed.

    On import the client makes temporary folders, which only a regular end removes.
    """
    if "wandb" in sys.modules:
        yield
        return
    _remove_abandoned(Path(tempfile.gettempdir()))
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


def _remove_abandoned(place: Path) -> None:
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
    """Return the client's reason, the first line of an error, or its type's name if it has no message."""
    wrong = [str(problem["msg"]) for problem in error.errors()] if hasattr(error, "errors") else []  # of pydantic
    first_line = ("; ".join(wrong) or str(error) or type(error).__name__).splitlines()[0]
    return first_line.removeprefix("Value error, ").rstrip(" .")[:200]


# A call of the logger.
Call = Callable[["WandbLogger"], None]


def guarded_logger(
    run: Run, note: Callable[[Call], None], attempt: Callable[[Callable[[], None]], None], **options: Any
) -> WandbLogger:
    """Return Lightning's logger with metrics split by `of_lightning`; it records calls and isolates W&B's errors."""
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
def shared_service(mode: Mode) -> Iterator[None]:
    """Share a background process of the client between all offline runs in this context.

    Online runs still have a process each, so that it can be stopped if the server no longer answers.
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
    """Return the client's background process, which has no public name; None if it does not exist."""
    from wandb.sdk import wandb_setup

    try:
        process = attrgetter("_connection._proc._process")(wandb_setup.singleton())
    except AttributeError:
        return None  # another version of the client: rely on its own time limits
    return cast("Popen[bytes]", process)


def close_service() -> None:
    """End the background process, which closes its files and clears its variable; raise RuntimeError if it failed."""
    import wandb

    try:
        wandb.teardown()
    except SystemExit as stopped:  # the client reports a failure in this way
        raise RuntimeError("its background process failed") from stopped


def within(seconds: float, service: Popen[bytes] | None, action: Callable[[], None]) -> None:
    """Run an action; if it exceeds a time limit, stop the background process of an online run and raise TimeoutError.

    The client's limits are not reliable: if a server stops answering during the upload of an artifact, `finish` with a
    limit of 9 s takes minutes. Without a service there is no limit.
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
