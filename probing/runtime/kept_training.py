"""Trainings with Lightning that are killed and continued: where they write, their states and their curves."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor

from probing.errors import UserError
from probing.runtime.arithmetic import float64_device
from probing.runtime.draws import seed_of
from probing.runtime.files import most_text, parse_json, read_text, replacing

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
        return cast(list[Row], parse_json(read_text(path, self.folder, most_text()))) if path.is_file() else None

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


class ContinuedModule(pl.LightningModule):
    """A LightningModule whose steps are the same in a training that was killed and continued.

    Args:
        seed: Seed of dropout. A draw depends only on it, the step, the batch and the process.
        rate: The option of the learning rate with its value, for messages.
    """

    def __init__(self, seed: int, rate: str) -> None:
        super().__init__()
        self.seed, self.rate = seed, rate
        self.last_loss = math.nan

    def on_train_batch_start(self, batch: Any, batch_index: int) -> None:
        """Draw the dropout of each batch from the seed, its number and the process."""
        seed = seed_of(self.seed, "dropout", self.global_step, batch_index, self.global_rank)
        if self.device.type == "cpu":
            # torch.manual_seed also formats the stack for each kind of accelerator that may be started later.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def loss_of_step(self, loss_sum: Tensor, n: int) -> Tensor:
        """Return the loss whose mean over processes and accumulated batches is the mean over all targets of the step.

        Args:
            loss_sum: Sum of the losses of the targets of a batch.
            n: Number of targets in all batches of the step.

        Raises:
            UserError: If it is not finite.
        """
        loss = loss_sum * self.trainer.world_size * self.trainer.accumulate_grad_batches / max(n, 1)
        if not math.isfinite(value := float(loss.detach())):
            raise UserError(f"`{self.rate}`: the training diverged at step {self.global_step}; lower it.")
        self.last_loss = value
        return loss


class KeptTraining(pl.Callback):
    """Keeps the states and the curve of a training, and logs the curve; subclasses note what is due.

    Args:
        name: Name of the training.
        steps: Number of steps.
        due: Further steps at which something is noted, besides about `points` of them.
        points: Number of points of the curve.
        save_every: Number of steps between saved states.
        places: Where to write.
        logger: Lightning logger of the curves, if any.
        logged: The columns of the curve that are logged.
    """

    def __init__(
        self, name: str, steps: int, due: Collection[int], points: int, save_every: int, places: Places, logger: Any,
        logged: Sequence[str],
    ) -> None:  # fmt: skip
        self.name, self.steps, self.due, self.every = name, steps, set(due), max(1, steps // points)
        self.save_every, self.places, self.logger, self.logged = save_every, places, logger, logged
        self.curve: list[Row] = []
        self.losses: list[float] = []
        self.done = -1

    def note(self, trainer: pl.Trainer, module: Any, step: int) -> None:
        """Add what is due after a step to the curve, by `add`."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """Return the curve so far."""
        return {"curve": self.curve, "losses": self.losses}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue the curve."""
        self.curve, self.losses = list(state_dict["curve"]), list(state_dict["losses"])

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Of a continued training, log the curve so far."""
        self.done = trainer.global_step
        if self.done:
            self.log_curve(self.curve)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        """After a step of the optimiser, note what is due, and keep the state."""
        step = trainer.global_step
        self.losses.append(cast(ContinuedModule, pl_module).last_loss)
        if step == self.done:  # gradients are still accumulated
            return
        self.done = step
        if step in self.due or step % self.every == 0:
            self.note(trainer, pl_module, step)
        if step % self.save_every == 0 and step < self.steps:
            self.places.keep(self.name, trainer)

    def mean_loss(self, trainer: pl.Trainer) -> float:
        """Return the mean loss over all processes since it was last asked for."""
        device = float64_device(trainer.strategy.root_device)
        mean = torch.tensor(sum(self.losses) / len(self.losses), dtype=torch.float64, device=device)
        self.losses = []
        return float(trainer.strategy.reduce(mean, reduce_op="mean"))

    def add(self, row: Row) -> None:
        """Add a row to the curve, and log it."""
        self.curve.append(row)
        self.log_curve([row])

    def log_curve(self, curve: Sequence[Row]) -> None:
        """Log rows of a curve."""
        for row in curve if self.logger else ():
            found = {f"{name}/{self.name}": row[name] for name in self.logged if name in row}
            self.logger.log_metrics(found, step=row["step"])


def share_of_rate(steps: int, warm_up: int) -> Callable[[int], float]:
    """Return what share of the highest learning rate each step has, counted from 0: it rises and falls linearly."""

    def share(step: int) -> float:
        if step < warm_up:
            return (step + 1) / (warm_up + 1)
        return max(0.0, (steps - step) / (steps - warm_up)) if steps > warm_up else 1.0

    return share
