"""This machine: its memory, how fast it computes, and how long the stages of a command take."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter

from probing.errors import UserError

# Limits that Linux sets to a group of processes, such as those of a container or of a SLURM job.
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def memory_bytes() -> int | None:
    """Return the bytes of memory that processes can use in all; None where the system does not say."""
    found = []
    with suppress(AttributeError, ValueError, OSError):  # Windows has no `sysconf`
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in LIMITS:
        with suppress(OSError, ValueError):  # without a limit the file says "max"
            found.append(int(limit.read_text(encoding="utf-8")))
    return min(found, default=None)


def gigabytes(n_bytes: float) -> str:
    """Return a number of bytes in words."""
    return f"{n_bytes / 1e9:.1f} GB"


def check_memory(needed: int, what: str, way_out: str) -> None:
    """Refuse what cannot fit in the memory of the machine.

    Args:
        needed: Approximate number of bytes that are needed.
        what: What needs them: a plural noun phrase, the subject of the message.
        way_out: What the user can do.

    Raises:
        UserError: If the memory is known and too small.
    """
    most = memory_bytes()
    if most is not None and needed > most:
        raise UserError(
            f"{what} need about {gigabytes(needed)} of memory and this machine has {gigabytes(most)}; {way_out}."
        )


def give_back_memory() -> None:
    """Return the allocator's free memory to the operating system, under glibc.

    Memory that one thread frees is not reused by others, so that free memory grows with every pass over a text: by
    100 MiB over 18 shards of an extraction, after which 300 MiB would stay unused.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def drop_garbage() -> None:
    """Free objects that refer to each other, as a model and its trainer do, and give their memory back.

    Python itself looks for such objects only when there are many of them, even if a few hold much memory.
    """
    gc.collect()
    give_back_memory()


# Whether this program has set objects aside. Python can say whether any are, but counts them, which takes long.
_is_set_aside = False


def heap_is_set_aside() -> bool:
    """Return whether this program leaves objects out of the searches for garbage."""
    return _is_set_aside


def set_heap_aside() -> None:
    """Leave all objects that exist now out of later garbage collections, to the end of the process."""
    global _is_set_aside
    gc.freeze()
    _is_set_aside = True


@contextmanager
def heap_set_aside() -> Iterator[None]:
    """Leave all objects that exist now out of garbage collections: with all libraries, each would take 0.2 s.

    Does nothing if objects are set aside already, by this program for its whole process or by its caller.
    """
    global _is_set_aside
    if _is_set_aside or gc.get_freeze_count():
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
    """Return the best rate over several attempts, in units of `amount` per second; work is done once before.

    Args:
        work: Does the work, and returns when it is done.
        amount: How much is done in one call.
        attempts: Number of attempts. The best of several leaves out what other programs take from the machine.
        attempt_s: Least duration of an attempt in seconds; with 0 it is a single call.
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
    """Return the rate that the machine has with nothing else running, also where it is busy now.

    This is the rate of the fastest of many short calls, because few short calls are interrupted. On a processor, calls
    run in one thread, and the rate is multiplied by the number of threads, because on a busy machine threads wait for
    each other.

    Args:
        work: Work of about a millisecond, by torch.
        amount: How much is done in one call.
        device: Where the work is done, by its name in torch.
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
    """Starts when it is created; each stage begins where the previous one ends."""

    def __init__(self) -> None:
        self._start = self._last = perf_counter()
        self._stages: dict[str, float] = {}

    def end(self, stage: str) -> None:
        """Record the end of a stage, which begins the next one."""
        now = perf_counter()
        self._stages[f"{stage}_s"], self._last = now - self._last, now

    def timings(self) -> dict[str, float]:
        """Return the seconds of each stage, and of all stages together, as in `results.json`."""
        return {**self._stages, "total_s": self._last - self._start}
