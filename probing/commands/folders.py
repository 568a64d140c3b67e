"""Folders that several commands find from the options they share."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from probing.errors import UserError, as_clause
from probing.runs.folder import check_name


def cache_folder(cache: str | None, runs: str = "runs") -> Path:
    """Return the folder of cached activations: `--cache`, else $PROBING_CACHE, else `cache` in the folder of runs.

    Raises:
        UserError: If the path is a file.
    """
    if cache:
        return folder(cache, f"--cache {cache}")
    if variable := os.environ.get("PROBING_CACHE"):
        return folder(variable, f"PROBING_CACHE={variable}")
    return folder(Path(runs) / "cache", f"--runs {runs}")


def runs_folder(runs: str) -> Path:
    """Return the folder of runs, checked now because it may be written only hours later.

    Raises:
        UserError: If the path is a file or cannot be written.
    """
    return writable_folder(runs, f"--runs {runs}", "name a writable folder")


def places(cache: str | None, runs: str, name: str | None) -> tuple[Path, Path]:
    """Return the folder of the cache and the folder of runs, in which a run of that name can be made.

    Raises:
        UserError: If one is not a folder, runs cannot be written, or the name is taken or not a plain file name.
    """
    cached, place = cache_folder(cache, runs), runs_folder(runs)
    if name is not None:
        check_name(place, name)
    return cached, place


def say_where(folder: Path, where: str | None) -> None:
    """Print where the results are, the last line of every command that writes some.

    Args:
        folder: Folder on disk.
        where: Address on Weights & Biases, if they were logged there.
    """
    print(f"Results: {folder}" + (f"; on Weights & Biases: {where}" if where else ""))


def writable_folder(path: str | Path, typed: str, way_out: str) -> Path:
    """Return the path of a folder that exists or can be made, and that can be written.

    Raises:
        UserError: If it is not a folder or cannot be written.
    """
    path = folder(path, typed)
    there = next(part for part in (path, *path.parents) if part.exists())
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise UserError(f"`{typed}` cannot be written ({there} is read-only for you); {way_out}.")
    return path


def folder(path: str | Path, typed: str) -> Path:
    """Return the path of a folder that exists or can be made.

    Raises:
        UserError: If something else than a folder has this path.
    """
    try:
        str(path).encode()  # safetensors opens no other files
    except UnicodeEncodeError:
        raise UserError(f"`{typed}` is no name in UTF-8; name another folder.") from None
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
