"""Files that are read only if they are files."""

from __future__ import annotations

from pathlib import Path


def regular(path: Path) -> Path:
    """Return the path of a file to open; reading a named pipe would wait for ever.

    A path that leads nowhere is returned too: opening it says why.

    Raises:
        ValueError: If something else is there.
    """
    if path.exists() and not path.is_file():
        raise ValueError(f"{path.name} is no file")
    return path
