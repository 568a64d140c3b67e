"""Where the cache is, and locks on its files."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from probing.errors import UserError, as_clause
from probing.runtime.files import regular


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


class FileLease:
    """A lock on a file, which ends with this object or with its process, however that ends; forked processes share it.

    Readers share a lock, which needs no right to write; a process that removes the file takes it alone. Where the
    file system has no locks nothing is locked, nor on Windows, where no file is removed that is open.

    Args:
        path: The file.
        shared: Whether others may have a shared lock, too.

    Raises:
        BlockingIOError: If other locks forbid it.
        OSError: If the file is not there, or cannot be opened.
    """

    def __init__(self, path: Path, shared: bool = True) -> None:
        # NFS locks a file alone only if it is open for writing.
        self._descriptor, self._close = os.open(regular(path), os.O_RDONLY if shared else os.O_RDWR), os.close
        with suppress(ImportError):
            import fcntl

            try:
                fcntl.flock(self._descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError) as error:  # the second one on NFS
                raise BlockingIOError(*error.args) from None
            except OSError:
                return
        if not os.fstat(self._descriptor).st_nlink:  # removed before it was locked
            raise FileNotFoundError(f"{path} was removed")

    def __del__(self) -> None:
        if hasattr(self, "_close"):
            self._close(self._descriptor)
