"""Memory, computing speed, stage timings, quiet libraries and versions on this machine."""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

from probing.errors import UserError, did_you_mean
from probing.runtime.progress import counted

# Limits that Linux sets to a group of processes, such as those of a container or of a SLURM job.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int | None:
    """Return the bytes of memory available to all processes together; None if the system does not report them."""
    limits = []
    with suppress(AttributeError, ValueError, OSError):  # Windows has no `sysconf`
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in LIMITS:
        with suppress(OSError, ValueError):  # without a limit the file says "max"
            limits.append(int(limit.read_text(encoding="utf-8")))
    return min(limits, default=None)


def gigabytes(n_bytes: float) -> str:
    """Return a number of bytes in words."""
    return f"{n_bytes / 1e9:.1f} GB"


def check_memory(needed: int, what: str, way_out: str) -> None:
    """Raise UserError if work needs more memory than the machine is known to have.

    `what` is a plural noun phrase that names the work and `way_out` the advice, both for the message.
    """
    most = memory_bytes()
    if most is not None and needed > most:
        raise UserError(
            f"{what} need about {gigabytes(needed)} of memory and this machine has {gigabytes(most)}; {way_out}."
        )


def give_back_memory() -> None:
    """Return the allocator's free memory to the system (glibc): 18 shards of an extraction left 300 MiB unused."""
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def drop_garbage() -> None:
    """Collect reference cycles now and free their memory: Python waits for many cycles, even if a few are large."""
    gc.collect()
    give_back_memory()


# Whether this program has set objects aside. Python can say whether any are, but counts them, which takes long.
_is_set_aside = False


def set_heap_aside() -> None:
    """Exclude all existing objects from garbage collection, to the end of the process."""
    global _is_set_aside
    gc.freeze()
    _is_set_aside = True


# Objects that the interpreter itself has set aside when it starts; 3.12 has some.
_FROZEN_AT_START = gc.get_freeze_count()


@contextmanager
def heap_set_aside() -> Iterator[None]:
    """Exclude all existing objects from garbage collection, unless they already are: each would take 0.2 s."""
    global _is_set_aside
    if _is_set_aside or gc.get_freeze_count() > _FROZEN_AT_START:
        yield
        return
    gc.collect()  # what was garbage before is not to be kept
    set_heap_aside()
    try:
        yield
    finally:
        gc.unfreeze()
        _is_set_aside = False


def rate(work: Callable[[], object], amount: float, attempts: int = 3, attempt_s: float = 0.15) -> float:
    """Return the best rate over several attempts, in units of `amount` (per call) per second, after a warm-up call.

    The best excludes the load of other programs. An attempt lasts at least `attempt_s` seconds, or a single call if 0.
    """
    work()
    best = 0.0
    for _ in range(attempts):
        start, n = time.perf_counter(), 0
        while not n or time.perf_counter() - start < attempt_s:
            work()
            n += 1
        best = max(best, n * amount / (time.perf_counter() - start))
    return best


def undisturbed_rate(work: Callable[[], object], amount: float, device: str = "cpu") -> float:
    """Return the rate of an idle machine for work of about a millisecond in torch, even if the machine is busy.

    This is the fastest of many short calls, few of which are interrupted. On a CPU, calls run in one thread and the
    rate is multiplied by the number of threads, because threads wait for each other on a busy machine.
    """
    if device != "cpu":
        return rate(work, amount, attempts=40, attempt_s=0)
    import torch

    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return n_threads * rate(work, amount, attempts=40, attempt_s=0)
    finally:
        torch.set_num_threads(n_threads)


class Stopwatch:
    """Stopwatch that starts when created; each stage begins where the previous stage ends."""

    def __init__(self) -> None:
        self._start = self._last = perf_counter()
        self._stages: dict[str, float] = {}

    def end(self, stage: str) -> dict[str, float]:
        """Record the end of a stage, which begins the next stage, and return the timings so far."""
        now = perf_counter()
        self._stages[f"{stage}_s"], self._last = now - self._last, now
        return self.timings()

    def timings(self) -> dict[str, float]:
        """Return the seconds of each stage and their total, as in `results.json`."""
        return {**self._stages, "total_s": self._last - self._start}


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during imports, which create no garbage: it took a quarter of their time.

    In a process of a command, which excludes all objects from collection, imported objects are excluded too. In a
    notebook, that would also keep the user's garbage.
    """
    was_enabled, n_modules = gc.isenabled(), len(sys.modules)
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > n_modules and _is_set_aside:
            set_heap_aside()
        if was_enabled:
            gc.enable()


@contextmanager
def quiet_loggers(*names: str) -> Iterator[None]:
    """Let Python's loggers of these names report errors alone, and restore their levels afterwards."""
    levels = {logger: logger.level for logger in map(logging.getLogger, names)}
    for logger in levels:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def restored_environment(names: Iterable[str] | None = None) -> Iterator[None]:
    """Restore variables of the environment afterwards, those of these names or all."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() | before.keys() if names is None else names:
            if name in before:
                os.environ[name] = before[name]
            else:
                os.environ.pop(name, None)


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Silence the logs and warnings of Lightning and transformers, but not their exceptions."""
    with counted("loading PyTorch, Lightning and transformers", None), _without_garbage_collection():
        import pytorch_lightning  # noqa: F401  importing it sets the log levels that are changed here
        import transformers.utils.logging  # noqa: F401  the same

    names = (
        "pytorch_lightning",
        "pytorch_lightning.utilities.rank_zero",
        "lightning_fabric",
        "lightning_fabric.utilities.distributed",
    )
    with quiet_loggers(*names), _quiet_transformers(), warnings.catch_warnings():
        for module in ("pytorch_lightning", "lightning_fabric", "torch", "torchmetrics"):
            warnings.filterwarnings("ignore", module=rf"{module}(\..*)?$")
        yield


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers, whose switch of progress bars also switches the hub's client; restore both afterwards."""
    from huggingface_hub import utils as hub
    from transformers.utils import logging as transformers_logging

    def set_bars(of_transformers: bool, of_hub: bool) -> None:
        with warnings.catch_warnings():
            # $HF_HUB_DISABLE_PROGRESS_BARS goes before both switches; the hub's client warns of it.
            warnings.simplefilter("ignore")
            (
                transformers_logging.enable_progress_bar
                if of_transformers
                else transformers_logging.disable_progress_bar
            )()
            (hub.enable_progress_bars if of_hub else hub.disable_progress_bars)()

    verbosity = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    transformers_logging.set_verbosity_error()
    set_bars(False, False)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        set_bars(*bars)


# By name: the packages without which it does not work, and which the extra of the same name installs.
LOGGERS: Mapping[str, tuple[str, ...]] = {
    "csv": (),
    "tensorboard": ("tensorboard",),
    "mlflow": ("mlflow", "pandas", "sqlalchemy", "alembic"),
}


def logger_names(trainer: Mapping[str, Any]) -> list[str]:
    """Return the loggers named in the Trainer's arguments, in the order of `LOGGERS`; `false` names none."""
    named = _logger_words(trainer.get("logger"))
    return [name for name in LOGGERS if name in named]


def without_logger(trainer: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Trainer's arguments without the logger."""
    return {name: value for name, value in (trainer or {}).items() if name != "logger"}


def logger_problems(trainer: Mapping[str, Any]) -> list[str]:
    """Return the problems of `--trainer.logger`: unknown names and packages that are not installed."""
    value = trainer.get("logger")
    problems = []
    for name in _logger_words(value):
        if name in LOGGERS:
            missing = [package for package in LOGGERS[name] if find_spec(package) is None]
            problems += [
                f"`--trainer.logger {name}` needs {', '.join(missing)}, which is not installed; "
                f"`pip install 'neuron-probing[{name}]'`"
            ][: len(missing)]
        else:
            problems.append(
                f"`--trainer.logger {name}`: expected some of {', '.join(LOGGERS)}, separated by commas"
                f"{did_you_mean(name, LOGGERS)}; W&B is set by `--wandb.mode`"
            )
    return problems


def _logger_words(value: Any) -> list[str]:
    if value is None or value is False or value == "":
        return []
    names = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
    return list(dict.fromkeys(str(name).strip() if not isinstance(name, bool) else str(name).lower() for name in names))


# Name of this distribution.
PACKAGE = "neuron-probing"

_LIBRARIES = ("torch", "pytorch-lightning", "transformers", "torchmetrics", "numpy", "safetensors", "wandb")

# Each version is read from a file, which does not change while the process runs.
_version = cache(version)


def package_version() -> str:
    """Return the version of this package."""
    return _version(PACKAGE)


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and the libraries that results depend on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in (PACKAGE, *_LIBRARIES)}}


# An unrelated distribution of the package index, whose import name is also `probing`.
OTHER = "probing"


def started_as() -> str:
    """Return how the user starts commands: the installed script, or else the form that works in every installation."""
    return PACKAGE if Path(sys.argv[0]).stem == PACKAGE else "python -m probing"


def refuse_other_files() -> None:
    """Raise UserError if other files are imported under the package's name.

    A folder of that name in the current folder, such as a clone, comes before an editable installation. Files of the
    other distribution overwrite some of this one's; removal of the other may leave a foreign `__init__.py`.
    """
    package = Path(__file__).resolve().parent.parent
    folder = Path(next(iter(sys.modules["probing"].__path__))).resolve()
    if folder != package:
        raise UserError(f"the folder {folder} hides the installed package; run in another folder, or rename it")
    version = _other_in(package)
    names = getattr(sys.modules["probing"], "__all__", ())
    if version is None and "load_run" in names:
        return
    other = f"{OTHER} {version}" if version else OTHER
    raise UserError(
        f"files of the unrelated distribution `{other}` are mixed with those of `{PACKAGE}` in {package}, since both "
        f"have the import name `probing`; remove both with `pip uninstall {OTHER} {PACKAGE}`, then install `{PACKAGE}` "
        "again, the other one in another environment"
    )


def _other_in(package: Path) -> str | None:
    try:
        other = distribution(OTHER)
    except PackageNotFoundError:
        return None
    files = (Path(str(other.locate_file(file))) for file in other.files or ())
    return other.version if any(package in file.resolve().parents for file in files) else None
