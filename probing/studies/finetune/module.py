"""The LightningModule that tunes a model with its head, and what it answers on sentences."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from probing.data.labelling import is_target
from probing.errors import UserError
from probing.models.anatomy import examine
from probing.runtime.trainer import ContinuedModule, share_of_rate
from probing.studies.finetune.examples import Batch
from probing.studies.finetune.options import TuningOptions


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
