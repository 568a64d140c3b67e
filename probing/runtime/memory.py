"""The memory of this machine, or of the container in which the program runs, and ways to release memory."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
