"""Sizes of files, and reading from disk rather than from memory."""

from __future__ import annotations

import os
from pathlib import Path


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]


def size(path: Path) -> int:
    """Return the number of bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in _files(path))


def forget(path: Path) -> None:
    """Ask the system to drop its copies of files in memory, so that they are next read from disk."""
    for each in _files(path):
        with each.open("rb") as file:
            os.fsync(file.fileno())
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
