"""A checkpoint of a finished run of `finetune`: the model with its head, its text, its task, and its score."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probing.corpus.splits import GroupBy
from probing.errors import UserError
from probing.models import resolve_model
from probing.results.schema import listed
from probing.runs.checks import reading
from probing.runs.folder import read_json
from probing.runs.loading import load_run
from probing.runs.places import TEXTS, sources_of, texts_of
from probing.runs.study import Result, study_of

# The folder of a run that holds its checkpoints, and the beginning of the name of those that started from trained
# weights.
CHECKPOINTS, PRETRAINED = "checkpoints", "pretrained-"
# Options of `finetune` that name pairs, in the order of `TEXTS`.
PAIRS = "pairs", "test_pairs"
# Options whose values are those of the run.
OF_TUNED = ("revision", "random_weights", "max_length")


@dataclass(frozen=True)
class Tuned:
    """A model that `finetune` tuned.

    Args:
        run: The results of the run.
        checkpoint: Folder of the model with its head.
        typed: The option that names it, with its value, for messages.
    """

    run: Result
    checkpoint: Path
    typed: str

    @property
    def folder(self) -> Path:
        """Folder of the run."""
        return self.run.folder

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration of the run."""
        return self.run.config

    @property
    def results(self) -> Mapping[str, Any]:
        """Content of `results.json`."""
        return self.run.results

    @property
    def are_pairs(self) -> bool:
        """Whether it was tuned on pairs of sentences."""
        return "pairs" in self.run.results["corpora"]

    @property
    def split_by(self) -> GroupBy:
        """What the split kept whole: the value of `--group_by`."""
        found: GroupBy = self.run.config["group_by"]
        return found

    @property
    def predicts_numbers(self) -> bool:
        """Whether the head predicts numbers, so that its score is R²."""
        return bool(self.run.results["numbers"])

    @property
    def score(self) -> float:
        """What `tunings.csv` has as the score of this checkpoint: accuracy or R² of the whole test part."""
        name = self.checkpoint.name
        return float(next(row["score"] for row in self.run.tunings if checkpoint_name(row) == name))


def is_of_tunings(folder: str | Path) -> bool:
    """Return whether a folder holds a finished run of `finetune`; a folder without results does not."""
    path = Path(folder) / "results.json"
    if not os.path.isfile(path):
        return False
    with reading(Path(folder)):
        return bool(read_json(path).get("kind") == study_of("finetune").kind)


def checkpoint_name(row: Mapping[str, Any]) -> str:
    """Return the name of the checkpoint of a row of `tunings.csv`."""
    return f"{row['start']}-seed{row['seed']}-order{row['order_seed']}"


def is_tuned(typed: str) -> bool:
    """Return whether a folder is that of a run of `finetune`, or of a checkpoint in one."""
    return is_of_tunings(_folder_of(typed)[0])


def _folder_of(typed: str) -> tuple[Path, str | None]:
    """Return the folder of a run, and the name of its checkpoint if that is named."""
    folder = Path(os.path.normpath(typed))
    return (folder.parent.parent, folder.name) if folder.parent.name == CHECKPOINTS else (folder, None)


def tuned_of(typed: str, option: str) -> Tuned:
    """Return a checkpoint of a run of `finetune`.

    Args:
        typed: The folder of the run, whose first checkpoint from trained weights is meant, or of a checkpoint in it.
        option: The option that names it, with its value, for messages.

    Raises:
        UserError: If there is no such run or checkpoint.
    """
    folder, name = _folder_of(typed)
    run = load_run(folder)
    if run.study.name != "finetune":
        raise UserError(f"`{option}`: expected a run of `finetune`, found one of `{run.study.name}`; give another.")
    known = [checkpoint_name(row) for row in run.tunings]
    first = next((one for one in known if one.startswith(PRETRAINED)), known[0])
    if (name := name or first) not in known:
        raise UserError(f"`{option}`: the run has no checkpoint {name}; it has {listed(known)}.")
    return Tuned(run, folder / CHECKPOINTS / name, option)


def read_as_tuned(tuned: Tuned, config: dict[str, Any], usual: Mapping[str, Any]) -> None:
    """Set the options of a command that must be those of a tuned model, because its text is read again.

    A text that is named is where that of the run is now.

    Args:
        tuned: The model.
        config: The resolved configuration, which is changed.
        usual: The defaults of the options.

    Raises:
        UserError: If an option contradicts the run, or its text has changed or is gone.
    """
    model = str(tuned.checkpoint)
    made = {**tuned.config, "model": model, "revision": None, "random_weights": False}
    for option in ("model", *OF_TUNED):
        if config[option] not in (usual[option], made[option]):
            raise UserError(
                f"`--{option} {config[option]}`: with `{tuned.typed}`, that of the tuned model is read, which is "
                f"{made[option]}; leave one of the two out."
            )
    resolve_model(model)
    if tuned.are_pairs:
        config |= {option: made[option] for option in ("model", *OF_TUNED)}
        for option, of_pairs in zip(TEXTS, PAIRS, strict=True):
            typed = made[of_pairs]
            if config[option] == usual[option]:
                places = [] if typed is None else sources_of(tuned, of_pairs, typed)
                config[option] = next((one for one, place in places if not place or os.path.exists(place)), typed)
        return
    moved = [config[option] for option in TEXTS if config[option] not in (usual[option], tuned.config[option])]
    config |= {option: made[option] for option in ("model", *OF_TUNED)}
    config |= {"test_corpus": None, **dict(zip(TEXTS, texts_of(tuned, moved).sources, strict=False))}
