"""Tunes a model once with Lightning: its curve, its answers on the test part, and states to continue from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from probing.cache.store import batches as by_length
from probing.data.labelling import is_target, nothing
from probing.errors import UserError
from probing.models import ModelSource
from probing.models.anatomy import examine
from probing.models.loading import load_with_head
from probing.runs.tuned import checkpoint_name
from probing.runtime.arithmetic import generator_of, seed_of
from probing.runtime.files import regular, replacing
from probing.runtime.processes import interrupts_pass
from probing.runtime.progress import steps_counted
from probing.runtime.trainer import ContinuedModule, KeptTraining, Places, Row, build_trainer, save_model, share_of_rate
from probing.studies.finetune.examples import Batch, Side, Task
from probing.studies.finetune.options import RANDOM, SHUFFLED, TuningOptions

# --------------------------------------------------------------------------------------------------------------------
# The LightningModule that tunes a model with its head, and what it answers on sentences.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answers:
    """What a model answers on the sentences of a side, as sums over the targets of each sentence.

    Args:
        right: Targets whose class is predicted; of numbers, the squared error that the constant answer makes and the
            model does not. Shape (n_sentences of the corpus,).
        loss: Cross-entropy in nats; of numbers, the squared error in standard deviations.
        confusion: Number of targets of each class that are taken for each class, shape (n_classes, n_classes); of
            numbers (0, 0).
        predicted: Of a task of sentences whose numbers are predicted, the standardised number that is predicted of each
            sentence, NaN where none is; shape (n_sentences of the corpus,). Of other tasks NaN throughout.
    """

    right: NDArray[np.float64]
    loss: NDArray[np.float64]
    confusion: NDArray[np.int64]
    predicted: NDArray[np.float64]


class TunedModel(ContinuedModule):
    """A model with a head of `transformers` that learns to predict classes, or a standardised number.

    Args:
        model: The model with its head.
        recipe: How it is tuned.
        steps: Number of steps.
        order: Seed of dropout. A draw depends only on this seed, the step, the batch and the process, so that a
            continued training draws the same.
    """

    def __init__(self, model: Any, recipe: TuningOptions, steps: int, order: int) -> None:
        super().__init__(order, f"--tuning.learning_rate {recipe.learning_rate}")
        self.model, self.recipe, self.steps = model, recipe, steps
        self.groups = parameter_groups(model, recipe)

    def outputs(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return outputs, of shape (n_targets, n_outputs), and targets, of shape (n_targets,), of a batch."""
        kept = is_target(batch.targets)
        return self.model(**batch.inputs).logits[kept].float(), batch.targets[kept]

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Return the loss whose mean over processes and accumulated batches is the mean over all targets."""
        return self.loss_of_step(losses(*self.outputs(batch)).sum(), batch.n)

    def configure_optimizers(self) -> Any:
        """Return AdamW with a learning rate that rises linearly and then falls linearly to 0."""
        optimizer = torch.optim.AdamW(self.groups, self.recipe.learning_rate)
        warm_up = round(self.recipe.warm_up * self.steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_rate(self.steps, warm_up))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    @torch.no_grad()
    def answers(self, batches: Iterable[Batch], n_sentences: int, n_classes: int) -> Answers:
        """Return what the model answers, without dropout.

        Args:
            batches: Batches of a side.
            n_sentences: Number of sentences of its corpus.
            n_classes: Number of classes; 0 for numbers.
        """
        was_training = self.model.training
        self.model.eval()
        right, loss, predicted = np.zeros(n_sentences), np.zeros(n_sentences), np.full(n_sentences, np.nan)
        confusion = np.zeros((n_classes, n_classes), dtype=np.int64)
        for batch in batches:
            outputs, targets = self.outputs(batch.to(self.device))
            kept = is_target(batch.targets)
            of = batch.sentences.view(-1, *[1] * (kept.ndim - 1)).expand(kept.shape)[kept].numpy()
            found, own = losses(outputs, targets).cpu().double().numpy(), targets.cpu().numpy()
            np.add.at(loss, of, found)
            if n_classes:
                chosen = outputs.argmax(1).cpu().numpy()
                np.add.at(right, of, chosen == own)
                np.add.at(confusion, (own, chosen), 1)
            else:
                np.add.at(right, of, own.astype(np.float64) ** 2 - found)
                if kept.ndim == 1:
                    predicted[of] = outputs[:, 0].cpu().double().numpy()
        self.model.train(was_training)
        return Answers(right, loss, confusion, predicted)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of each target in nats, or the squared error of its number, shape (n_targets,)."""
    if targets.is_floating_point():
        return (outputs[:, 0] - targets) ** 2
    return functional.cross_entropy(outputs, targets, reduction="none")


def layer_of_parameters(model: Any) -> dict[str, int]:
    """Return the layer of each parameter: 0 for the embeddings, k for block k, and one more for the head.

    What stands before the blocks, in the order of the model's modules, is embeddings, and what stands behind them is
    head. Blocks that share their parameters, as those of ALBERT, are block 1.
    """
    base = model.base_model
    anatomy = examine(base, int(getattr(model.config, "pad_token_id", None) or 0))
    block_of: dict[int, int] = {}
    for k, block in enumerate(anatomy.blocks or (), start=1):
        for parameter in block.parameters():
            block_of.setdefault(id(parameter), k)
    of_base = {id(parameter) for parameter in base.parameters()}
    found, is_behind = {}, False
    for name, parameter in model.named_parameters():
        inside = block_of.get(id(parameter))
        is_behind |= inside is not None
        outside = anatomy.n_layers + 1 if is_behind or id(parameter) not in of_base else 0
        found[name] = outside if inside is None else inside
    return found


def parameter_groups(model: Any, recipe: TuningOptions) -> list[dict[str, Any]]:
    """Return the parameters in groups of the same learning rate and weight decay, and freeze what is not tuned.

    Raises:
        UserError: If more layers are to be frozen than there are.
    """
    named: dict[str, nn.Parameter] = dict(model.named_parameters())
    layered = recipe.frozen > 0 or recipe.layer_decay < 1
    layers = layer_of_parameters(model) if layered else dict.fromkeys(named, 0)
    highest = max(layers.values())
    if recipe.frozen > highest:
        raise UserError(
            f"`--tuning.frozen {recipe.frozen}`: the model has {highest} layers under its head, 0 (embeddings) to "
            f"{highest - 1}; freeze at most these."
        )
    groups: dict[tuple[int, bool], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        if layered and layers[name] < recipe.frozen:
            parameter.requires_grad_(False)
        else:
            groups.setdefault((layers[name], parameter.ndim > 1), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": recipe.learning_rate * recipe.layer_decay ** (highest - layer),
            "weight_decay": recipe.weight_decay if is_matrix else 0.0,
        }
        for (layer, is_matrix), parameters in groups.items()
    ]


# --------------------------------------------------------------------------------------------------------------------
# Batches of sentences in an order that depends on a seed, the epoch and the text alone.
# --------------------------------------------------------------------------------------------------------------------

# Sentences of similar length are batched together among this many batches' worth of tokens, drawn at random.
_POOL = 32


def epoch_of(lengths: NDArray[np.int32], batch_tokens: int, order: int, epoch: int) -> list[NDArray[np.int64]]:
    """Return the batches of an epoch: each sentence once, in at most `batch_tokens` padded tokens or by itself.

    Args:
        lengths: Number of tokens of each sentence, shape (n_sentences,).
        batch_tokens: Most tokens of a batch, padding included.
        order: Seed of the order.
        epoch: Number of the epoch, from 0.
    """
    drawn = generator_of(order, "order", epoch)
    shuffled = torch.randperm(len(lengths), generator=drawn).numpy()
    pool = np.cumsum(lengths[shuffled], dtype=np.int64) // (_POOL * batch_tokens)
    found = []
    for number in np.unique(pool):
        inside = shuffled[pool == number]
        found += [inside[chosen] for chosen in by_length(lengths[inside], batch_tokens)]
    return [found[i] for i in torch.randperm(len(found), generator=drawn).tolist()]


class TuningData(pl.LightningDataModule):
    """The training sentences in batches; the order depends on its seed alone, also in a continued training.

    The processes share the sentences of each batch. If gradients are accumulated over n batches, these are the parts of
    one batch of n times as many tokens. The state is the number of steps that were made.

    Args:
        train: The training side.
        batch_tokens: Most tokens of a batch, padding included, over all processes.
        epochs: Number of times that the text is read.
        order: Seed of the order.
        n_accumulated: Number of batches whose gradients are accumulated.
    """

    def __init__(self, train: Side, batch_tokens: int, epochs: int, order: int, n_accumulated: int = 1) -> None:
        super().__init__()
        self.train, self.n_accumulated, self.first = train, n_accumulated, 0
        lengths = train.tokens.lengths[train.sentences]
        per_epoch = [epoch_of(lengths, batch_tokens * n_accumulated, order, epoch) for epoch in range(epochs)]
        self.steps = [train.sentences[chosen] for batches in per_epoch for chosen in batches]
        # Number of steps at the end of each epoch.
        self.ends = np.cumsum([len(batches) for batches in per_epoch], dtype=np.int64).tolist()

    def batches(self, first: int, rank: int = 0, n_ranks: int = 1) -> Iterator[Batch]:
        """Yield the batches of a process.

        Args:
            first: Step of the optimiser to begin with, from 0.
            rank: Number of the process.
            n_ranks: Number of processes.
        """
        n_parts = n_ranks * self.n_accumulated
        for sentences in self.steps[first:]:
            whole = self.train.batch(sentences)
            for part in range(rank, n_parts, n_ranks):
                yield whole if n_parts == 1 else self._part(sentences, part, n_parts, whole.n)

    def _part(self, sentences: NDArray[np.int64], part: int, n_parts: int, n: int) -> Batch:
        """Return every `n_parts`-th sentence; of too few, one without targets, so that all processes take each step."""
        if len(own := sentences[part::n_parts]):
            return self.train.batch(own, n)
        batch = self.train.batch(sentences[:1], n)
        return replace(batch, targets=torch.full_like(batch.targets, nothing(batch.targets)))

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this process."""
        trainer = cast(pl.Trainer, self.trainer)
        return DataLoader(_Steps(self, self.first, trainer.global_rank, trainer.world_size), batch_size=None)

    def state_dict(self) -> dict[str, int]:
        """Return the number of steps that were made."""
        return {"first": cast(pl.Trainer, self.trainer).global_step}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Begin with the first step that was not made."""
        self.first = state_dict["first"]


class _Steps(IterableDataset[Batch]):
    def __init__(self, data: TuningData, first: int, rank: int, n_ranks: int) -> None:
        self.data, self.first, self.rank, self.n_ranks = data, first, rank, n_ranks

    def __iter__(self) -> Iterator[Batch]:
        return self.data.batches(self.first, self.rank, self.n_ranks)


def in_batches(side: Side, batch_tokens: int) -> Iterator[Batch]:
    """Yield the sentences of a side once, longest first."""
    for chosen in by_length(side.tokens.lengths[side.sentences], batch_tokens):
        batch = side.batch(side.sentences[chosen])
        if is_target(batch.targets).any():
            yield batch


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
