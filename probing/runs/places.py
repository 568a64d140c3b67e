"""What several commands find or check of the options they share: folders, and arguments of the Trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probing.cache.location import cache_folder, folder
from probing.errors import UserError, as_clause
from probing.runs.folder import RunFolder, check_name
from probing.runs.registry import study_names, study_of
from probing.runs.result import Result
from probing.tables.wording import listed


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


def keep_inputs(config: dict[str, Any], model: str, folder: RunFolder) -> list[Path]:
    """Replace objects in the configuration by text: the model by its name, lists of sentences by files that hold them.

    Args:
        config: The configuration, which is changed.
        model: The model's name.
        folder: The run's folder, into which the sentences are written.

    Returns:
        The files.

    Raises:
        UserError: If they cannot be written; the run's folder is then removed.
    """
    files = []
    config["model"] = model
    for option in ("corpus", "test_corpus", "fit_corpus"):
        if isinstance(sentences := config.get(option), list):
            files.append(folder.path / f"{option}.txt")
            lines = "".join(f"{' '.join(text.split())}\n" for text in sentences)
            try:
                files[-1].write_text(lines, encoding="utf-8")
            except OSError as error:
                folder.discard()
                raise UserError(f"`--runs {folder.final.parent}` cannot be written ({as_clause(error)}).") from None
            config[option] = str(folder.final / files[-1].name)
    return files


def say_where(folder: Path, where: str | None) -> None:
    """Print where the results are, the last line of every command that writes some.

    Args:
        folder: Folder on disk.
        where: Address on Weights & Biases, or the command that uploads them; None if they are not tracked.
    """
    is_sent = where is not None and where.startswith("http")
    there = f"; {'on' if is_sent else 'to upload to'} Weights & Biases: {where}" if where else ""
    print(f"Results: {folder}{there}")


def say_results(made: Result, where: str | None, quiet: bool) -> None:
    """Print the tables, a sentence for each question, and where the results are.

    Args:
        made: The results.
        where: Address on Weights & Biases, if they were logged there.
        quiet: Whether the tables are left out.
    """
    from probing.runtime import terminal

    if not quiet:
        terminal.show(*made.tables())
    for line in made.conclusions():
        print(line)
    say_where(made.folder, where)


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


def only_accelerator(trainer: Mapping[str, Any], what: str) -> None:
    """Refuse arguments of the Trainer other than the accelerator, for a command that runs in one process.

    Args:
        trainer: The arguments.
        what: The command.

    Raises:
        UserError: If there is another one than the accelerator.
    """
    if wrong := set(trainer) - {"accelerator"}:
        several = ["`extract`", *(f"`{name}`" for name in study_names() if study_of(name).in_several_processes)]
        raise UserError(
            f"`--trainer.{min(wrong)}`: `{what}` runs in one process and takes only `--trainer.accelerator`; "
            f"{listed(several)} run in several processes."
        )
