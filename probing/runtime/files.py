"""Files that are read only if they are files, and files that are replaced atomically."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def regular(path: Path) -> Path:
    """Return the path of a file to open; reading a named pipe would wait for ever.

    A path that leads nowhere is returned too: opening it says why.

    Raises:
        ValueError: If something else is there.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"{path.name} is no file")
    return path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to `path` after writing; if writing fails, the old file stays."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder that takes the place of `path` after writing; if writing fails, nothing changes."""
    partial, old = (path.with_name(f".{path.name}.{os.getpid()}{end}") for end in ("", ".old"))
    partial.mkdir(parents=True)
    try:
        yield partial
        if path.exists():
            path.rename(old)
        try:
            partial.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
    finally:
        for left in (partial, old):
            shutil.rmtree(left, ignore_errors=True)
