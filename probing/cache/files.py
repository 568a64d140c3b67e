"""Where the cache is, and safetensors files with the usual behaviour of files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from probing.errors import UserError, as_clause


def cache_folder(cache: str | Path | None, runs: str = "runs") -> Path:
    """Return the folder of cached activations: `--cache`, else $PROBING_CACHE, else `cache` in the folder of runs.

    Raises:
        UserError: If the path is a file.
    """
    if cache:
        return folder(cache, f"--cache {cache}")
    if variable := os.environ.get("PROBING_CACHE"):
        return folder(variable, f"PROBING_CACHE={variable}")
    return folder(Path(runs) / "cache", f"--runs {runs}")


def folder(path: str | Path, typed: str) -> Path:
    """Return the path of a folder that exists or can be made.

    Raises:
        UserError: If something else than a folder has this path.
    """
    try:
        str(path).encode()  # safetensors opens no other files
    except UnicodeEncodeError:
        raise UserError(f"`{typed}` is no name in UTF-8{_of_locale(path)} name another folder.") from None
    for part in (path := Path(path), *path.parents):
        try:
            if stat.S_ISDIR(part.stat().st_mode):
                return path
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = as_clause(error)
        else:
            reason = f"{part} is a file"
        raise UserError(f"`{typed}` is no folder ({reason}); name another one.")
    return path


def _of_locale(path: str | Path) -> str:
    """Return what to do if it is the locale that keeps Python from reading a name as UTF-8; else a semicolon."""
    try:
        os.fsencode(path).decode()
    except UnicodeError:
        return ";"
    return " under this locale: set PYTHONUTF8=1 or LC_ALL=C.UTF-8, or"


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
