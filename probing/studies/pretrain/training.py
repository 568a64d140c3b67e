"""Trains one encoder of one arm with Lightning: its curve, its checkpoints, and states to continue from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytorch_lightning as pl
import torch

from probing.runtime.processes import interrupts_pass
from probing.runtime.progress import steps_counted
from probing.runtime.trainer import KeptTraining, Places, Row, build_trainer
from probing.studies.pretrain.arms import build, checkpoint_folder, checkpoint_steps, save_checkpoint
from probing.studies.pretrain.batches import PackedRows, PackedText
from probing.studies.pretrain.module import LanguageModel
from probing.studies.pretrain.options import CAUSAL_LM, Encoder, Recipe

# Points of the curve of the training loss.
POINTS = 200
CLIP = 0.5


@dataclass(frozen=True)
class Job:
    """One training.

    Args:
        arm: Name of the arm.
        seed: Seed of the initial weights, of the order of the rows and of the masks.
    """

    arm: str
    seed: int

    @property
    def name(self) -> str:
        """Its name, in folders and curves."""
        return f"{self.arm}-seed{self.seed}"


def train(
    job: Job, text: PackedText, shape: Encoder, recipe: Recipe, options: Mapping[str, Any], places: Places,
    logger: Any, callbacks: Sequence[pl.Callback] = (),
) -> list[Row]:  # fmt: skip
    """Train an encoder from its beginning or from its last state, unless it is finished; return its curve.

    Args:
        job: The arm and the seed.
        text: The packed text.
        shape: The encoder's shape.
        recipe: How it is trained.
        options: Arguments of Lightning's Trainer.
        places: Where to write.
        logger: Lightning logger of the curves, if any.
        callbacks: Further callbacks of Lightning.
    """
    rows = PackedRows(text, recipe.batch_size, None if job.arm == CAUSAL_LM else recipe.masked, job.seed)
    keeper = Keeper(job, rows, recipe, places, logger)
    if (curve := places.finished(job.name)) is not None:
        keeper.log_curve(curve)
        return curve
    module = LanguageModel(build(job.arm, shape, text.tokenizer, job.seed), job.arm, recipe, job.seed)
    defaults = {"gradient_clip_val": CLIP, "limit_val_batches": 0}
    own = {"max_steps": recipe.steps, "max_epochs": -1}
    callbacks = [keeper, steps_counted(), *callbacks]
    trainer = build_trainer({**defaults, **options, **own}, None, callbacks, str(places.folder))
    state = places.state(job.name)
    with interrupts_pass(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        trainer.fit(module, datamodule=rows, ckpt_path=state if state.is_file() else None)
    return keeper.curve


class Keeper(KeptTraining):
    """Writes checkpoints, states and the curve of a training, and logs the curve.

    Args:
        job: The arm and the seed.
        rows: The packed rows, whose held-out part is measured at every checkpoint.
        recipe: How it is trained.
        places: Where to write.
        logger: Lightning logger of the curves, if any.
    """

    def __init__(self, job: Job, rows: PackedRows, recipe: Recipe, places: Places, logger: Any) -> None:
        self.job, self.rows, self.recipe = job, rows, recipe
        due = checkpoint_steps(recipe.steps, recipe.checkpoint_factor)
        logged = ("train_loss", "loss", "unigram_loss")
        super().__init__(job.name, recipe.steps, due, POINTS, recipe.save_every, places, logger, logged)
        self.unigram_loss = rows.unigram_loss()

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the first checkpoint; of a continued training, log the curve so far."""
        super().on_train_start(trainer, pl_module)
        if trainer.global_step == 0:
            self.note(trainer, pl_module, 0)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Write the curve, which says that the training is finished, and remove its state."""
        if trainer.global_step >= self.steps:
            self.places.finish(self.job.name, self.curve)

    def note(self, trainer: pl.Trainer, module: Any, step: int) -> None:
        """Add a row to the curve; at a checkpoint, also write it and measure the held-out loss."""
        row: Row = {"arm": self.job.arm, "seed": self.job.seed, "step": step, "unigram_loss": self.unigram_loss}
        if self.losses:
            row["train_loss"] = self.mean_loss(trainer)
        if step in self.due:
            if self.places.writes:
                folder = checkpoint_folder(self.places.checkpoints, self.job.arm, self.job.seed, step, self.steps)
                folder.parent.mkdir(parents=True, exist_ok=True)
                save_checkpoint(folder, self.job.arm, module.model, self.rows.text.tokenizer)
            row["loss"] = module.held_out_loss(self.rows.held_out())
        self.add(row)
