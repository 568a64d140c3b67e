"""Tunes a model once with Lightning: its curve, its answers on the test part, and states to continue from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray

from probing.models import ModelSource
from probing.models.loading import load_with_head
from probing.runs.tuned import checkpoint_name
from probing.runtime.arithmetic import seed_of
from probing.runtime.files import regular, replacing
from probing.runtime.processes import interrupts_pass
from probing.runtime.progress import steps_counted
from probing.runtime.trainer import KeptTraining, Places, Row, build_trainer, save_model
from probing.studies.finetune.batches import TuningData, in_batches
from probing.studies.finetune.examples import Side, Task
from probing.studies.finetune.module import Answers, TunedModel
from probing.studies.finetune.options import RANDOM, SHUFFLED, TuningOptions

# Points of the curve of the training loss.
_POINTS = 100


@dataclass(frozen=True)
class Job:
    """One tuning.

    Args:
        start: One of `STARTS`.
        seed: Seed of the head, of all weights that are random, and of the draw of shuffled labels.
        order: Seed of the order of the text and of dropout.
    """

    start: str
    seed: int
    order: int

    @property
    def name(self) -> str:
        """Its name, in folders and curves."""
        return checkpoint_name(self.row)

    @property
    def row(self) -> Row:
        """The columns that say which tuning a row is of."""
        return {"start": self.start, "seed": self.seed, "order_seed": self.order}


def tune(
    job: Job, source: ModelSource, task: Task, recipe: TuningOptions, options: Mapping[str, Any], places: Places,
    logger: Any,
) -> list[Row]:  # fmt: skip
    """Tune a model from its start or from its last state, unless that is finished; return its curve.

    Args:
        job: Which tuning.
        source: The model.
        task: What it is tuned on.
        recipe: How.
        options: Arguments of Lightning's Trainer.
        places: Where to write.
        logger: Lightning logger of the curves, if any.
    """
    train = task.train.with_shuffled_targets(job.seed) if job.start == SHUFFLED else task.train
    data = TuningData(
        train, recipe.batch_tokens, recipe.epochs, job.order, int(options.get("accumulate_grad_batches", 1))
    )
    keeper = Keeper(job, task, recipe, data, places, logger)
    if (curve := places.finished(job.name)) is not None:
        keeper.log_curve(curve)
        return curve
    # A seed of its own, so that the draws have nothing in common with those of other parts.
    seed = seed_of(job.seed, "head") % 2**63
    model = load_with_head(source, task.of, task.n_outputs, seed, job.start == RANDOM, recipe.layer)
    _name_outputs(model, task)
    module = TunedModel(model, recipe, len(data.steps), job.order)
    if not data.steps:
        keeper.finish(module)
        return keeper.curve
    defaults = {"gradient_clip_val": recipe.clip or None, "limit_val_batches": 0}
    own = {"max_steps": len(data.steps), "max_epochs": -1}
    trainer = build_trainer({**defaults, **options, **own}, None, [keeper, steps_counted()], str(places.folder))
    state = places.state(job.name)
    with interrupts_pass(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        module.model.train()
        trainer.fit(module, datamodule=data, ckpt_path=state if state.is_file() else None)
    return keeper.curve


def _name_outputs(model: Any, task: Task) -> None:
    """Note what the outputs of the head are, and the padding token, in the configuration that is saved."""
    names = [str(label) for label in task.classes] or ["number"]
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: i for i, name in enumerate(names)}
    model.config.problem_type = "regression" if task.standard else None
    model.config.pad_token_id = task.train.pad_token_id


class Keeper(KeptTraining):
    """Writes the states, the curve, the answers and the model of a tuning, and logs the curve.

    Args:
        job: Which tuning.
        task: What it is tuned on.
        recipe: How.
        data: The training batches.
        places: Where to write.
        logger: Lightning logger of the curves, if any.
    """

    def __init__(
        self, job: Job, task: Task, recipe: TuningOptions, data: TuningData, places: Places, logger: Any
    ) -> None:  # fmt: skip
        self.job, self.task, self.recipe = job, task, recipe
        logged = ("train_loss", "validation_loss")
        super().__init__(job.name, len(data.steps), data.ends, _POINTS, recipe.save_every, places, logger, logged)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Test the model, and write it with its answers and its curve."""
        if trainer.global_step >= self.steps:
            self.finish(cast(TunedModel, pl_module))

    def finish(self, module: TunedModel) -> None:
        """Test the model, and write it with its answers and its curve, which says that the tuning is finished."""
        if not self.places.writes:
            return
        tested = answers_of(module, self.task.test, self.task, self.recipe.batch_tokens)
        self.places.checkpoints.mkdir(parents=True, exist_ok=True)
        save_model(self.places.checkpoints / self.job.name, module.model, self.task.tokenizer)
        write_answers(self.places, self.job, tested)
        self.places.finish(self.job.name, self.curve)

    def note(self, trainer: pl.Trainer, module: Any, step: int) -> None:
        """Add a row to the curve; at the end of an epoch, also with the loss on validation sentences."""
        row: Row = {**self.job.row, "step": step, "train_loss": self.mean_loss(trainer)}
        if step in self.due and len(self.task.validation.sentences):
            found = answers_of(module, self.task.validation, self.task, self.recipe.batch_tokens)
            row["validation_loss"] = float(found.loss.sum()) / self.task.validation.examples.n_tokens
        self.add(row)


def answers_of(module: TunedModel, side: Side, task: Task, batch_tokens: int) -> Answers:
    """Return what a model answers on a side."""
    batches = in_batches(side, batch_tokens)
    return module.answers(batches, side.tokens.n_sentences, len(task.classes) if task.standard is None else 0)


def write_answers(places: Places, job: Job, answers: Answers) -> None:
    """Write what a tuned model answers on the test part."""
    path = places.curve(job.name).with_suffix(".npz")
    path.parent.mkdir(exist_ok=True)
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, **vars(answers))


def read_answers(places: Places, job: Job) -> Answers:
    """Read what `write_answers` wrote."""
    with np.load(regular(places.curve(job.name).with_suffix(".npz"), places.folder), allow_pickle=False) as found:
        arrays: dict[str, NDArray[Any]] = {field.name: found[field.name] for field in fields(Answers)}
    return Answers(**arrays)
