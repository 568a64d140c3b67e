"""Safetensors files with the usual behaviour of files: failures are OSErrors, and permissions follow the umask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def tensor_file(path: Path) -> Iterator[Path]:
    """Yield a path for safetensors to write to; then set the file's permissions by the umask.

    By itself safetensors makes its files readable by the owner only, so that a cache could not be shared.

    Raises:
        OSError: If the file cannot be written; safetensors raises its own error type instead.
    """
    from safetensors import SafetensorError

    path.touch()
    mode = path.stat().st_mode
    try:
        yield path
    except SafetensorError as error:
        raise OSError(str(error)) from error
    path.chmod(mode)
