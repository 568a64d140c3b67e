"""The held-out loss of checkpoints, where their training wrote it beside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.pretraining.series.names import Checkpoint
from probing.tables.series import LOST, UNIGRAM

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
        with (training.parent.parent / LOSSES).open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if f"{row['arm']}-seed{row['seed']}" == training.name]
            (own,) = (row for row in rows if int(row["step"]) == step)
            return {LOST: float(own["loss"]), UNIGRAM: float(own["unigram_loss"])}
    except (OSError, LookupError, ValueError):
        return {}


def _of_trainer(folder: Path, step: int) -> dict[str, float]:
    """Return the loss on the evaluation set at a step; nothing if the Trainer did not write it."""
    try:
        state = json.loads((folder / TRAINER_STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    history = state.get("log_history", ()) if isinstance(state, Mapping) else ()
    told = [entry["eval_loss"] for entry in history if entry.get("step") == step and "eval_loss" in entry]
    return {LOST: float(told[-1])} if told else {}
