"""Folders that several commands find from the options they share."""

from __future__ import annotations

import os
from pathlib import Path

from probing.cache.location import cache_folder, folder
from probing.errors import UserError
from probing.runs.folder import check_name


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
