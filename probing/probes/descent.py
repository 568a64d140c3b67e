"""Training by Adam on mini-batches, as published probes are trained; each problem of the stack stops by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from probing.data.examples import Batch
from probing.errors import UserError
from probing.runtime.arithmetic import float64_device, on_float64_device

if TYPE_CHECKING:
    from probing.probes.linear import LinearProbe


class Descent:
    """Trains a stack by Adam on mini-batches.

    Adam treats each weight separately and the loss is a sum over problems, so training problems together or alone gives
    the same weights. Each problem keeps its weights of the epoch with the lowest validation cross-entropy, and stops
    after `patience` epochs without a lower one.

    Args:
        probe: The stack.
        learning_rate: Learning rate of Adam, on the scaled weights.
        patience: Number of epochs without a lower validation cross-entropy before a problem stops.
    """

    def __init__(self, probe: LinearProbe, learning_rate: float, patience: int) -> None:
        self.probe, self.learning_rate, self.patience = probe, learning_rate, patience
        n = len(probe.problems)
        self.best_cross_entropy, self.waited = [math.inf] * n, [0] * n
        self.best_weight = torch.zeros_like(probe.scaled_weight.data)

    def optimizer(self) -> torch.optim.Optimizer:
        """Return Adam over the stacked parameter."""
        return torch.optim.Adam([self.probe.scaled_weight], lr=self.learning_rate)

    def begin(self) -> None:
        """Begin without a best epoch."""
        n = len(self.probe.problems)
        self.best_cross_entropy, self.waited = [math.inf] * n, [0] * n
        self.best_weight = torch.zeros_like(self.probe.scaled_weight.data)

    def begin_epoch(self) -> None:
        """Begin the sum of the objective over the epoch's batches."""
        device = float64_device(self.probe.device)
        self.total = torch.zeros(len(self.probe.problems), dtype=torch.float64, device=device)
        self.n_batches = 0

    def step(self, batches: Sequence[Batch]) -> Tensor:
        """Return the sum over problems of mean cross-entropy and penalty.

        Raises:
            UserError: If whole shards are read.
        """
        if not self.n_batches and (len(batches) > 1 or bool((batches[0].labels < 0).any())):
            raise UserError("adam trains on mini-batches, and these are whole shards; give the data a `batch_size`.")
        (batch,) = batches
        logits = self.probe(batch.hidden_states)
        problems = zip(self.probe.problems, self.probe.scaled_weight, logits, strict=True)
        losses = torch.stack(
            [nn.functional.cross_entropy(own, batch.labels) + p.penalty.of(weight) for p, weight, own in problems]
        )
        self.total += on_float64_device(losses.detach())
        self.n_batches += 1
        return losses.sum()

    def end_epoch(self) -> dict[str, float]:
        """Return the mean over batches of each problem's objective, while its weights were changing."""
        total = self.probe.trainer.strategy.reduce(self.total / max(self.n_batches, 1), reduce_op="mean")
        names = (problem.name for problem in self.probe.problems)
        return {f"train/{name}/objective": value for name, value in zip(names, total.tolist(), strict=True)}

    def end_validation(self, cross_entropies: Sequence[float]) -> None:
        """Store the weights of problems that improved; stop if none has improved for `patience` epochs."""
        for i, value in enumerate(cross_entropies):
            if self.waited[i] >= self.patience:
                continue
            if value < self.best_cross_entropy[i]:
                self.best_cross_entropy[i], self.waited[i] = value, 0
                self.best_weight[i] = self.probe.scaled_weight.data[i]
            else:
                self.waited[i] += 1
        if min(self.waited) >= self.patience:
            self.probe.trainer.should_stop = True

    def clip(self, limit: float, by_value: bool) -> None:
        """Clip the gradient of each problem separately."""
        gradients = self.probe.scaled_weight.grad
        for gradient in () if gradients is None else gradients:
            if by_value:
                gradient.clamp_(-limit, limit)
            else:
                gradient.mul_((limit / gradient.norm()).clamp(max=1))

    def end(self) -> None:
        """Restore each problem's best weights, if there was a validation epoch."""
        for i, value in enumerate(self.best_cross_entropy):
            if math.isfinite(value):
                self.probe.scaled_weight.data[i] = self.best_weight[i]
