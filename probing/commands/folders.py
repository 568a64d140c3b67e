"""What several commands do with the options they share."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from probing.errors import UserError, as_clause
from probing.runs.folder import check_name


def cache_folder(cache: str | None, runs: str = "runs") -> Path:
    """Return where activations are cached: `--cache`, else $PROBING_CACHE, else `cache` among the runs.

    Raises:
        UserError: If a file is in the way.
    """
    if cache:
        return folder(cache, f"--cache {cache}")
    if variable := os.environ.get("PROBING_CACHE"):
        return folder(variable, f"PROBING_CACHE={variable}")
    return folder(Path(runs) / "cache", f"--runs {runs}")


def runs_folder(runs: str) -> Path:
    """Return the folder of runs, which hours later is to be written.

    Raises:
        UserError: If a file is in the way or it cannot be written.
    """
    return writable_folder(runs, f"--runs {runs}", "name a folder of yours")


def places(cache: str | None, runs: str, name: str | None) -> tuple[Path, Path]:
    """Return the folders of the cache and of runs, where a run of that name can be made.

    Raises:
        UserError: If one is no folder, runs cannot be written, or the name is taken or no plain one.
    """
    cached, place = cache_folder(cache, runs), runs_folder(runs)
    if name is not None:
        check_name(place, name)
    return cached, place


def say_where(folder: Path, where: str | None) -> None:
    """Print where results are, as every command that makes some ends.

    Args:
        folder: On disk.
        where: On Weights & Biases, if they are there.
    """
    print(f"Results: {folder}" + (f"; on Weights & Biases: {where}" if where else ""))


def writable_folder(path: str | Path, typed: str, way_out: str) -> Path:
    """Return the path of a folder that is there or can be made, and can be written.

    Raises:
        UserError: If it is no folder or cannot be written.
    """
    path = folder(path, typed)
    there = next(part for part in (path, *path.parents) if part.exists())
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        raise UserError(f"`{typed}` cannot be written ({there} is read-only for you); {way_out}.")
    return path


def folder(path: str | Path, typed: str) -> Path:
    """Return the path of a folder that is there or can be made.

    Raises:
        UserError: If something that is no folder is in the way.
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
