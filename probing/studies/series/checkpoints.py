"""The checkpoints of a training in the order of their steps, and the losses that their training wrote beside them."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from glob import glob, has_magic
from itertools import pairwise
from pathlib import Path
from typing import Any

from probing.errors import UserError, about_option
from probing.runtime.files import most_text, open_file, parse_json, read_text
from probing.studies.series.tables import LOST, UNIGRAM

_THOUSANDS = {"": 1, "k": 1_000, "m": 1_000_000}
# A whole number, also as 20k or 1M; not the digits of a word such as 2B or v2beta.
_NUMBER = r"(?<![\d.])(\d+)([km]?)(?![\w.]*[a-z])"
# What says that the number after it is the step.
_NAMED = re.compile(r"(?:step|steps|checkpoint|ckpt|iter|iteration)[-_=]?(\d+)([km]?)(?![a-z0-9])", re.IGNORECASE)


@dataclass(frozen=True)
class Checkpoint:
    """A state of a model in its training.

    Args:
        step: Number of steps of the training.
        name: The name of its folder, or of the revision.
        model: Folder, hub id or alias.
        revision: Revision on the hub; None for a folder.
    """

    step: int
    name: str
    model: str
    revision: str | None = None

    @property
    def folder(self) -> Path | None:
        """The local folder; None if it is a revision on the hub."""
        return Path(self.model) if self.revision is None else None


def find_checkpoints(
    model: str | None, revisions: str | Sequence[str] | None, checkpoints: str | Sequence[str] | None
) -> list[Checkpoint]:
    """Return the checkpoints that the options name, by step.

    Args:
        model: Model on the hub whose revisions are read.
        revisions: Names of the revisions, separated by commas.
        checkpoints: Local folders, or patterns such as DIR/*, separated by commas.

    Raises:
        UserError: If both or neither are given, nothing is found, a folder holds no model, or the steps cannot be told
            from the names.
    """
    if checkpoints is not None:
        if model is not None or revisions is not None:
            other = "--model" if model is not None else "--revisions"
            raise UserError(
                f"`--checkpoints` and `{other}`: a series is one of local folders, given as --checkpoints, or of "
                "revisions on the hub, given as --model and --revisions; leave one of the two out."
            )
        return _by_step([_of_folder(folder) for folder in _folders(_words(checkpoints))], "--checkpoints")
    if model is None or revisions is None:
        raise UserError(
            "`series` takes checkpoints: local folders as `--checkpoints 'DIR/step*'`, or revisions on the hub as "
            "`--model pythia --revisions step0,step1000`."
        )
    if not (names := _words(revisions)):
        raise UserError("`--revisions` names none; give some, such as step0,step1000.")
    return _by_step([Checkpoint(_step(name, "--revisions"), name, model, name) for name in names], "--revisions")


def _words(typed: str | Sequence[str]) -> list[str]:
    typed = [typed] if isinstance(typed, str) else typed
    words = [word.strip() for one in typed for word in one.split(",")]
    return list(dict.fromkeys(word for word in words if word))


def _folders(patterns: Sequence[str]) -> list[Path]:
    """Return the folders that patterns match; files beside checkpoints, such as a table, are passed over."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        there = [Path(path) for path in sorted(glob(pattern))] if has_magic(pattern) else [Path(pattern)]
        folders = [path for path in there if os.path.isdir(path)]
        if has_magic(pattern) and not folders:
            raise UserError(
                f"`--checkpoints {pattern}` matches no folder; give the pattern of folders that hold a model each, "
                "such as 'DIR/step*'."
            )
        if not has_magic(pattern) and not os.path.exists(there[0]):
            raise UserError(f"`--checkpoints {pattern}`: there is no such folder; give folders that hold a model each.")
        found |= dict.fromkeys(folders)
    if not found:
        raise UserError(
            f"`--checkpoints {','.join(patterns) or ' '}` names no folder; give folders that hold a model each."
        )
    return list(found)


def _of_folder(folder: Path) -> Checkpoint:
    from probing.models import find_model, load_config, load_tokenizer

    with about_option("--checkpoints"):
        source = find_model(str(folder))
        load_config(source)
        load_tokenizer(source)
    name = folder.name or folder.resolve().name
    return Checkpoint(_step(name, "--checkpoints"), name, str(folder))


def _step(name: str, option: str) -> int:
    """Return the step that a name tells: the number after a word such as step, or else the last number.

    Raises:
        UserError: If there is no number.
    """
    numbers = _NAMED.findall(name) or re.findall(_NUMBER, name, re.IGNORECASE)
    if not numbers:
        raise UserError(
            f"`{option}`: the name {name} tells no step; expected a number in it, such as step1000 or checkpoint-500: "
            "rename it, or leave it out."
        )
    digits, unit = numbers[-1]
    return int(digits) * _THOUSANDS[unit.lower()]


def _by_step(checkpoints: Sequence[Checkpoint], option: str) -> list[Checkpoint]:
    """Return checkpoints in the order of their steps.

    Raises:
        UserError: If two are of one step.
    """
    ordered = sorted(checkpoints, key=lambda one: one.step)
    for one, other in pairwise(ordered):
        if one.step == other.step:
            names = sorted((one, other), key=lambda each: (each.name, each.model))
            first, second = (each.name if each.revision else each.model for each in names)
            raise UserError(
                f"`{option}`: {first} and {second} are both of step {one.step}; leave one of them out, or rename it."
            )
    return ordered


# What the Trainer of transformers writes into each checkpoint.
TRAINER_STATE = "trainer_state.json"
# What `pretrain` writes into its run, whose checkpoints are at checkpoints/ARM-seedSEED/stepSTEP.
LOSSES = "losses.csv"


def loss_rows(checkpoints: Sequence[Checkpoint]) -> list[dict[str, Any]]:
    """Return the rows of `series.csv` with the loss of each checkpoint whose folder tells one.

    A run of `pretrain` also tells the loss of a model of token frequencies.
    """
    return [
        {"step": one.step, "checkpoint": one.name, "command": "training", "measure": measure, "value": value}
        for one in checkpoints
        if one.folder is not None
        for measure, value in (_of_pretrain(one.folder, one.step) or _of_trainer(one.folder, one.step)).items()
    ]


def _of_pretrain(folder: Path, step: int) -> dict[str, float]:
    """Return both losses of a checkpoint of a run of `pretrain`; nothing if it is none."""
    training = folder.absolute().parent
    try:
        with open_file(training.parent.parent / LOSSES, "r", most=most_text(), newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if f"{row['arm']}-seed{row['seed']}" == training.name]
            (own,) = (row for row in rows if int(row["step"]) == step)
            return {LOST: float(own["loss"]), UNIGRAM: float(own["unigram_loss"])}
    except (OSError, LookupError, ValueError):
        return {}


def _of_trainer(folder: Path, step: int) -> dict[str, float]:
    """Return the loss on the evaluation set at a step; nothing if the Trainer did not write it."""
    try:
        state = parse_json(read_text(folder / TRAINER_STATE, folder, most_text()))
    except (OSError, ValueError):
        return {}
    history = state.get("log_history", ()) if isinstance(state, Mapping) else ()
    told = [entry["eval_loss"] for entry in history if entry.get("step") == step and "eval_loss" in entry]
    return {LOST: float(told[-1])} if told else {}
