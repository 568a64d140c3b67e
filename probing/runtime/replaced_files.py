"""Files that are replaced as a whole: a reader finds the old one or the new one, never half of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield where to write a file that then takes the place of `path`; if writing fails, the old one stays."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def vector_form(path: Path) -> Path:
    """Return where the vector form of a figure stands."""
    return path.with_suffix(".pdf")
