"""Files that are read only if they are files, files that are replaced atomically, and files of tensors."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any


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


def write_tensors(path: Path, tensors: Mapping[str, Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file: the same content has the same bytes, and the umask sets who may read it.

    By itself safetensors writes the metadata in any order, and makes its files readable by the owner only, so that a
    cache could not be shared.

    Args:
        path: Path of the file.
        tensors: Tensors of torch, or arrays of NumPy, by name.
        metadata: Texts by name.

    Raises:
        OSError: If the file cannot be written.
    """
    from safetensors import SafetensorError

    are_of_torch = any(hasattr(tensor, "data_ptr") for tensor in tensors.values())
    library: Any = import_module(f"safetensors.{'torch' if are_of_torch else 'numpy'}")
    path.touch()
    mode = path.stat().st_mode
    try:
        library.save_file(dict(tensors), path, dict(metadata) if metadata else None)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    if len(metadata or ()) > 1:
        _sort_metadata(path)
    path.chmod(mode)


def _sort_metadata(path: Path) -> None:
    """Sort the metadata of a safetensors file by name, in place: a length in eight bytes, then JSON, then the data."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
        assert len(text) <= length  # the same characters in another order
        file.seek(8)
        file.write(text.ljust(length))
