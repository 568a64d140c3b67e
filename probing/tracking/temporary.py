"""Temporary files of the W&B client: in a folder that the next process removes if this one is killed."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

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
