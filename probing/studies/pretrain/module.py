"""The LightningModule of language modelling, and its curves."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from probing.runtime.trainer import ContinuedModule, share_of_rate
from probing.studies.pretrain.arms import head_of, told
from probing.studies.pretrain.batches import Batch
from probing.studies.pretrain.options import Recipe


class LanguageModel(ContinuedModule):
    """A model that learns to predict the tokens that a batch says, masked ones or the next.

    Logits are computed where a token is to be predicted alone; of masked ones, these are a seventh of all.

    Args:
        model: The encoder of transformers with its language-model head.
        arm: Name of its arm, which says what it is told of positions.
        recipe: How it is trained.
        seed: Seed of dropout. A draw depends only on the seed, the step, the batch and the process, so that a continued
            run draws the same.
    """

    def __init__(self, model: Any, arm: str, recipe: Recipe, seed: int) -> None:
        super().__init__(seed, f"--training.learning_rate {recipe.learning_rate}")
        self.model, self.arm, self.recipe = model, arm, recipe

    def loss_sum(self, batch: Batch) -> Tensor:
        """Return the cross-entropy of the tokens to predict in a batch, summed, in nats."""
        chosen = batch.labels >= 0
        states = self.model.base_model(**told(self.arm, batch.input_ids)).last_hidden_state
        logits = head_of(self.model)(states[chosen])
        return functional.cross_entropy(logits.float(), batch.labels[chosen], reduction="sum")

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """Return the loss whose mean over processes and accumulated batches is the mean over all tokens to predict."""
        return self.loss_of_step(self.loss_sum(batch), batch.n_predicted)

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        """Log the mean cross-entropy of the tokens to predict in the held-out rows."""
        self.log("loss", self.loss_sum(batch) / max(batch.n_predicted, 1), batch_size=batch.n_predicted)

    @torch.no_grad()
    def held_out_loss(self, batches: Iterable[Batch]) -> float:
        """Return the mean cross-entropy of the tokens to predict in some batches, without dropout, in float32."""
        was_training = self.model.training
        self.model.eval()
        total, n = 0.0, 0
        for batch in batches:
            total += float(self.loss_sum(batch.to(self.device)))
            n += batch.n_predicted
        self.model.train(was_training)
        return total / n

    def configure_optimizers(self) -> Any:
        """Return AdamW with a learning rate that rises linearly and then falls linearly to 0."""
        recipe = self.recipe
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(
            trained, recipe.learning_rate, (recipe.beta1, recipe.beta2), recipe.epsilon, recipe.weight_decay
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share_of_rate(recipe.steps, recipe.warm_up))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
