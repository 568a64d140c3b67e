"""Trainings with Lightning that are killed and continued: where they write, their states and their curves."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch

from probing.runtime.files import replacing

Row = dict[str, Any]


@dataclass(frozen=True)
class Places:
    """Where trainings write.

    Args:
        folder: The run's folder.
        writes: Whether this process writes there: the first one alone does.
    """

    folder: Path
    writes: bool = True

    @property
    def checkpoints(self) -> Path:
        """The folder of all checkpoints."""
        return self.folder / "checkpoints"

    def state(self, name: str) -> Path:
        """The file of the last state of an unfinished training."""
        return self.folder / "state" / f"{name}.ckpt"

    def curve(self, name: str) -> Path:
        """The file with the curve of a finished training."""
        return self.folder / "state" / f"{name}.json"

    def finished(self, name: str) -> list[Row] | None:
        """Return the curve of a training; None if it is not finished."""
        path = self.curve(name)
        return cast(list[Row], json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None

    def finish(self, name: str, curve: list[Row]) -> None:
        """Write the curve of a training, which says that it is finished, and remove its state."""
        if not self.writes:
            return
        path = self.curve(name)
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as partial:
            partial.write_text(json.dumps(curve), encoding="utf-8")
        self.state(name).unlink(missing_ok=True)

    def keep(self, name: str, trainer: pl.Trainer) -> None:
        """Write the state from which a killed training is continued; the file is replaced as a whole."""
        path = self.state(name)
        if not self.writes:
            trainer.save_checkpoint(path)  # takes part in what the first process writes
            return
        path.parent.mkdir(exist_ok=True)
        with replacing(path) as partial:
            trainer.save_checkpoint(partial)


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Write a model and its tokenizer as a folder that `from_pretrained` reads; an older one is replaced."""
    partial = folder.with_name(f"{folder.name}.partial")
    for left in (partial, folder):
        shutil.rmtree(left, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)


def mean_over_processes(trainer: pl.Trainer, values: list[float], device: Any) -> float:
    """Return the mean of some values over all processes."""
    mean = torch.tensor(sum(values) / len(values), dtype=torch.float64, device=device)
    return float(trainer.strategy.reduce(mean, reduce_op="mean"))


def share_of_rate(steps: int, warm_up: int) -> Callable[[int], float]:
    """Return what share of the highest learning rate each step has, counted from 0: it rises and falls linearly."""

    def share(step: int) -> float:
        if step < warm_up:
            return (step + 1) / (warm_up + 1)
        return max(0.0, (steps - step) / (steps - warm_up)) if steps > warm_up else 1.0

    return share
