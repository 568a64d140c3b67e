"""Safetensors files that behave as other files do: what goes wrong is an OSError, who may read them the umask says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tensor_file(path: Path) -> Iterator[Path]:
    """Yield the path of a file that safetensors writes meanwhile.

    Left to itself safetensors lets nobody but the owner read what it wrote, so that a cache could not be shared.

    Raises:
        OSError: If it cannot be written, for which safetensors has an error of its own.
    """
    from safetensors import SafetensorError

    path.touch()
    mode = path.stat().st_mode
    try:
        yield path
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)
