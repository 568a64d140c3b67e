"""Folders of trainings that a killed run of the same name goes on with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from probing.corpus import Corpus
from probing.errors import UserError
from probing.runs.folder import ResumableFolder
from probing.runtime.processes import interrupt_behind, launched

# Options that decide how a run is made or shown, and not what is in it.
NOT_OF_THE_RUN = ("quiet", "cache", "runs", "wandb", "figure_format")


def folder_of_trainings(
    place: Path, name: str, config: dict[str, Any], texts: Mapping[str, Corpus | None]
) -> ResumableFolder:
    """Return the folder of a run; sentences that were given as a list are named by their file in it.

    Args:
        place: Folder of runs.
        name: Name of the run.
        config: The resolved options, which are changed.
        texts: The texts by the option that names them.

    Raises:
        UserError: If the name is taken.
    """
    for option in texts:
        if config[option] is not None and not isinstance(config[option], str):
            config[option] = str(place / name / f"{option}.txt")
    definition = {k: v for k, v in config.items() if k not in NOT_OF_THE_RUN}
    prints = [text.fingerprint for text in texts.values() if text is not None]
    return ResumableFolder(place, name, {**definition, "fingerprint": prints[0] if len(prints) == 1 else prints})


@contextmanager
def continuable(folder: ResumableFolder, first: bool) -> Iterator[None]:
    """Lock the folder; after an interrupt, say how to continue; after a refused request, leave no folder behind.

    Args:
        folder: The folder.
        first: Whether this is the first of several processes, which alone locks and removes it.
    """
    with folder.locked() if first else nullcontext():
        try:
            yield
        except BaseException as error:
            if interrupt := interrupt_behind(error):
                again = f"the same command with --name {folder.final.name} continues it"
                raise type(interrupt)(f"the unfinished run is {folder.path}; {again}") from None
            if isinstance(error, UserError) and first:
                folder.discard()
            raise


def check_several(trainer: Mapping[str, Any], named: bool) -> None:
    """Refuse several processes without a name, by which all of them know the folder.

    Args:
        trainer: Arguments of Lightning's Trainer.
        named: Whether the run has a name.

    Raises:
        UserError: If there are several, and none is given.
    """
    several = bool(launched()) or any(str(trainer.get(option, 1)) != "1" for option in ("devices", "num_nodes"))
    if several and not named:
        raise UserError(
            "`--trainer.devices` and `--trainer.num_nodes`: several processes need a name by which all of them know "
            "the run's folder; give --name."
        )
