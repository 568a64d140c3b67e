"""The bias-free linear probe: all layers and penalties stacked in one parameter, trained under Lightning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from probing.data.examples import Batch, blocks
from probing.probes.class_curvature import ClassCurvature
from probing.probes.metrics import ProbeMetrics
from probing.probes.objective import cross_entropy_sums
from probing.probes.solvers import Evaluation, Penalty, Preconditioner, Readout, Solution, Solver, lbfgs
from probing.statistics.moments import Moments, PenaltySpace

# Reuse the layer's preconditioner if at most this many neurons are excluded: it works nearly as well, and saves an
# eigendecomposition. With a quarter of the neurons excluded, it would need twice the passes.
FEW = 10


@dataclass(frozen=True)
class Problem:
    """One probe of the stack.

    Args:
        name: For training curves, such as `layer_06`.
        layer: Index of its layer in `Batch.hidden_states`.
        penalty: Penalty on its scaled weights.
        start: Initial weights on raw hidden states, shape (n_classes, d_model); 0 if None.
        neurons: Which neurons it may use, shape (d_model,), bool; all if None.
        draws: How often each sentence of the training corpus counts, shape (n_sentences,); once if None.
        labels: Classes that replace those of the training corpus's tokens, shape (n_tokens,), for the same examples.
        curvature: Curvature of a similar probe, used as preconditioner; if None, the layer's second moment is used.
        readout: A function of the weights that decides when to stop, in place of the tolerance; its gradient is with
            respect to weights on raw hidden states.
    """

    name: str
    layer: int
    penalty: Penalty
    start: Tensor | None = None
    neurons: Tensor | None = None
    draws: Tensor | None = None
    labels: Tensor | None = None
    curvature: ClassCurvature | None = None
    readout: Readout | None = None


class LinearProbe(pl.LightningModule):
    """Bias-free softmax probes on cached activations; logits = hidden_states @ weight.T.

    The parameter holds the scaled weights U, on which the penalty acts; `weight` returns the weights on raw hidden
    states.

    Args:
        problems: The stacked problems.
        moments: Moments of each layer's training tokens.
        classes: The label of each class, shape (n_classes,).
        ordinal: Whether labels are numbers.
        penalty_space: Scale by which neurons are divided before their weights are penalised.
        n_test_sentences: Number of sentences of the test corpus.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        moments: Sequence[Moments],
        classes: Tensor,
        ordinal: bool = False,
        penalty_space: PenaltySpace = "sd",
        n_test_sentences: int = 0,
    ) -> None:
        super().__init__()
        self.problems, self.moments, self.n_classes = list(problems), list(moments), len(classes)
        by_layer = [m.inverse_scale(penalty_space) for m in moments]
        # A neuron that may not be used gets an inverse scale of 0, like a dead one.
        inverse_scale = torch.stack([by_layer[p.layer] * (1 if p.neurons is None else p.neurons) for p in problems])
        self.register_buffer("inverse_scale", inverse_scale.float())
        self.scaled_weight = nn.Parameter(torch.stack([self._scaled(p, i) for i, p in enumerate(problems)]))
        self.metrics = nn.ModuleList(ProbeMetrics(classes, ordinal, n_test_sentences) for _ in problems)

    def _scaled(self, problem: Problem, i: int) -> Tensor:
        """Return the initial scaled weights of a problem, 0 for neurons that it may not use."""
        inverse_scale = cast(Tensor, self.inverse_scale)[i]
        if problem.start is None:
            return torch.zeros(self.n_classes, len(inverse_scale))
        return torch.where(inverse_scale > 0, problem.start / inverse_scale, 0.0)

    @property
    def weight(self) -> Tensor:
        """Weights on raw hidden states, shape (n_problems, n_classes, d_model)."""
        return (self.scaled_weight * cast(Tensor, self.inverse_scale)[:, None]).detach()

    def by_layer(self, active: Iterable[int] | None = None) -> dict[int, list[int]]:
        """Return the indices of each layer's problems; with `active`, only those among it."""
        groups: dict[int, list[int]] = {}
        for i in range(len(self.problems)) if active is None else active:
            groups.setdefault(self.problems[i].layer, []).append(i)
        return groups

    def forward(self, hidden_states: Sequence[Tensor]) -> list[Tensor]:
        """Return the logits of each problem, shape (n, n_classes)."""
        weight = self.scaled_weight * cast(Tensor, self.inverse_scale)[:, None]
        return [hidden_states[p.layer] @ w.T for p, w in zip(self.problems, weight, strict=True)]

    def log_curves(self, values: dict[str, float]) -> None:
        """Send training curves to the logger, with the epoch as the step."""
        if self.logger is not None:
            self.logger.log_metrics(values, step=self.current_epoch)

    def test_step(self, batch: Batch) -> None:
        """Update the metrics of every problem."""
        for block in blocks(batch, self.scaled_weight.dtype):
            if len(block.labels):
                for metrics, logits in zip(self.metrics, self(block.hidden_states), strict=True):
                    cast(ProbeMetrics, metrics).update(logits.float(), block.labels, block.sentences)


class FullPassProbe(LinearProbe):
    """Trains the stack by solvers that use all training tokens at every step.

    One Lightning epoch is one pass over the data, which gives one value and gradient for every unsolved problem. Solved
    problems cause no further computation.

    Args:
        n_train_tokens: Number of training examples over all ranks.
        tolerance: Optimality gap, in nats, at which a problem is solved.
        args: Arguments of `LinearProbe`.
        options: Keyword arguments of `LinearProbe`.
    """

    def __init__(self, *args: Any, n_train_tokens: int, tolerance: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.automatic_optimization = False  # the solvers update the weights
        self.n_train_tokens, self.tolerance = n_train_tokens, tolerance
        self.solvers: dict[int, Solver] = {}
        self.solutions: dict[int, Solution] = {}
        self.gaps = [math.inf] * len(self.problems)
        self.first_objectives: dict[int, float] = {}

    def configure_optimizers(self) -> None:
        """Return no optimiser, because each problem has its own solver."""

    def on_fit_start(self) -> None:
        """Set up a solver for each problem, preconditioned by its layer's second moment."""
        for group in self.by_layer().values():
            # The neurons that at least one problem of the layer uses.
            inverse_scale = cast(Tensor, self.inverse_scale)[group].amax(0).double()
            moment = self.moments[self.problems[group[0]].layer].second_moment.to(inverse_scale)
            scaled = inverse_scale[:, None] * moment * inverse_scale
            of_all = cache(partial(Preconditioner, scaled))
            for i in group:
                start, problem = self.scaled_weight.data[i].clone(), self.problems[i]
                own = of_all() if problem.curvature is None else problem.curvature.to(start.device)
                if problem.neurons is not None:
                    own = self._narrowed(own, scaled, problem.neurons.to(scaled))
                self.solvers[i] = lbfgs(start, problem.penalty, own, self.tolerance, self._readout(i))
                next(self.solvers[i])

    def _readout(self, i: int) -> Readout | None:
        """Return a problem's readout, as a function of its scaled weights."""
        if (readout := self.problems[i].readout) is None:
            return None
        return replace(readout, gradient=readout.gradient.to(self.device) * cast(Tensor, self.inverse_scale)[i])

    def _narrowed(
        self, of_all: Preconditioner | ClassCurvature, moment: Tensor, neurons: Tensor
    ) -> Preconditioner | ClassCurvature:
        """Return a preconditioner for some neurons: the layer's restricted to them, or a new one if many are excluded.

        Args:
            of_all: The layer's preconditioner.
            moment: The second moment that it was made from, shape (d_model, d_model).
            neurons: 1 for the neurons in use and 0 for others, shape (d_model,).
        """
        if isinstance(of_all, ClassCurvature) or len(neurons) - neurons.sum() <= FEW:
            return of_all.within(neurons)
        return Preconditioner(neurons[:, None] * moment * neurons)

    def on_train_epoch_start(self) -> None:
        """Begin a pass."""
        P, C, d = self.scaled_weight.shape
        self.cross_entropy = torch.zeros(P, dtype=torch.float64, device=self.device)
        self.gradient = torch.zeros(P, C, d, dtype=torch.float64, device=self.device)
        self.class_covariance = torch.zeros(P, C, C, dtype=torch.float64, device=self.device)
        self.n_seen = torch.zeros((), dtype=torch.int64, device=self.device)
        self.n_counted = torch.zeros(P, dtype=torch.float64, device=self.device)

    @torch.no_grad()
    def training_step(self, batch: Batch) -> None:
        """Add a batch's share of value, gradient and curvature."""
        weight = self.weight
        self.n_seen += (batch.labels >= 0).sum()
        counts = self._counts(batch)
        self.n_counted += ((batch.labels >= 0) * counts).sum(1) if counts is not None else (batch.labels >= 0).sum()
        for layer, group in self.by_layer(self.solvers).items():
            own = None if counts is None else counts[group]
            labels = self._labels(batch, group)
            sums = cross_entropy_sums(weight[group], batch.hidden_states[layer], labels, own)
            self.cross_entropy[group] += sums.cross_entropy
            self.gradient[group] += sums.gradient
            self.class_covariance[group] += sums.class_covariance

    def _counts(self, batch: Batch) -> Tensor | None:
        """Return how often each token counts in each problem; None if every token counts once in all problems."""
        if all(problem.draws is None for problem in self.problems):
            return None
        once = torch.ones(len(batch.labels), device=self.device)
        return torch.stack([once if p.draws is None else p.draws.to(once)[batch.sentences] for p in self.problems])

    def _labels(self, batch: Batch, group: Sequence[int]) -> Tensor:
        """Return each token's class in some problems; if none has labels of its own, the batch's, shape (n_tokens,)."""
        if all(self.problems[i].labels is None for i in group):
            return batch.labels
        own = (self.problems[i].labels for i in group)
        return torch.stack([batch.labels if of is None else of.to(batch.labels)[batch.rows] for of in own])

    @torch.no_grad()
    def on_train_epoch_end(self) -> None:
        """Send each solver its evaluation, and take the next point that it requests."""
        if int(self.trainer.strategy.reduce(self.n_seen, reduce_op="sum")) < self.n_train_tokens:
            return  # `max_time` ended the pass early: an evaluation on a part of the tokens is not valid
        n_tokens = self.trainer.strategy.reduce(self.n_counted, reduce_op="sum")
        for total in (self.cross_entropy, self.gradient, self.class_covariance):
            total.copy_(self.trainer.strategy.reduce(total, reduce_op="sum"))
            total.div_(n_tokens.view(-1, *[1] * (total.dim() - 1)))
        self.gradient *= cast(Tensor, self.inverse_scale)[:, None]
        curves: dict[str, float] = {}
        for i in list(self.solvers):
            here = Evaluation(float(self.cross_entropy[i]), self.gradient[i].float(), self.class_covariance[i].float())
            point, penalty = self.scaled_weight.data[i], self.problems[i].penalty
            self.gaps[i] = penalty.optimality_gap(point, here.gradient)
            objective = here.value + penalty(point)
            self.first_objectives.setdefault(i, objective)
            curves[f"train/{self.problems[i].name}/objective"] = objective
            curves[f"train/{self.problems[i].name}/optimality_gap"] = self.gaps[i]
            self._send(i, here)
        self.log_curves(curves)
        if not self.solvers:
            self.trainer.should_stop = True

    def on_fit_end(self) -> None:
        """Collect the current points of unsolved problems after the last pass."""
        for i in list(self.solvers):
            self._send(i, None)

    def _send(self, problem: int, evaluation: Evaluation | None) -> None:
        try:
            point = self.solvers[problem].send(evaluation)
        except StopIteration as stop:
            del self.solvers[problem]
            self.solutions[problem] = stop.value
            point = stop.value.point
        self.scaled_weight.data[problem] = point


class AdamProbe(LinearProbe):
    """Trains the stack by Adam on mini-batches, as published probes are; each problem stops by itself.

    Adam treats each weight separately and the loss is a sum over problems, so training problems together or alone gives
    the same weights. Each problem keeps its weights of the epoch with the lowest validation cross-entropy, and stops
    after `patience` epochs without a lower one.

    Args:
        learning_rate: Learning rate of Adam, on the scaled weights.
        patience: Number of epochs without a lower validation cross-entropy before a problem stops.
        args: Arguments of `LinearProbe`.
        options: Keyword arguments of `LinearProbe`.
    """

    def __init__(self, *args: Any, learning_rate: float, patience: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.learning_rate, self.patience = learning_rate, patience
        n = len(self.problems)
        self.best_cross_entropy, self.waited = [math.inf] * n, [0] * n
        self.register_buffer("best_weight", torch.zeros_like(self.scaled_weight.data))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over the stacked parameter."""
        return torch.optim.Adam([self.scaled_weight], lr=self.learning_rate)

    def training_step(self, batch: Batch) -> Tensor:
        """Return the sum over problems of mean cross-entropy and penalty."""
        losses = [nn.functional.cross_entropy(logits, batch.labels) for logits in self(batch.hidden_states)]
        for problem, weight in zip(self.problems, self.scaled_weight, strict=True):
            losses.append(problem.penalty.l1 * weight.abs().sum() + problem.penalty.l2 * weight.square().sum())
        return torch.stack(losses).sum()

    def on_validation_epoch_start(self) -> None:
        """Begin a pass over the validation tokens."""
        self.validation = torch.zeros(2, len(self.problems), dtype=torch.float64, device=self.device)

    def validation_step(self, batch: Batch) -> None:
        """Add a batch's cross-entropy."""
        for block in blocks(batch, self.scaled_weight.dtype):
            for total, logits in zip(self.validation[0], self(block.hidden_states), strict=True):
                total += nn.functional.cross_entropy(logits, block.labels, reduction="sum")
            self.validation[1] += len(block.labels)

    def on_validation_epoch_end(self) -> None:
        """Store the weights of problems that improved; stop if none has improved for `patience` epochs."""
        total, n_tokens = self.trainer.strategy.reduce(self.validation, reduce_op="sum")
        values = (total / n_tokens).tolist()
        self.log_curves({f"val/{p.name}/cross_entropy": v for p, v in zip(self.problems, values, strict=True)})
        for i, value in enumerate(values):
            if self.waited[i] >= self.patience:
                continue
            if value < self.best_cross_entropy[i]:
                self.best_cross_entropy[i], self.waited[i] = value, 0
                cast(Tensor, self.best_weight)[i] = self.scaled_weight.data[i]
            else:
                self.waited[i] += 1
        if min(self.waited) >= self.patience:
            self.trainer.should_stop = True

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradient of each problem separately."""
        if not gradient_clip_val:
            return
        for gradient in cast(Tensor, self.scaled_weight.grad):
            if gradient_clip_algorithm == "value":
                gradient.clamp_(-gradient_clip_val, gradient_clip_val)
            else:
                gradient.mul_((gradient_clip_val / gradient.norm()).clamp(max=1))

    def on_train_end(self) -> None:
        """Restore each problem's best weights, if there was a validation epoch."""
        for i, value in enumerate(self.best_cross_entropy):
            if math.isfinite(value):
                self.scaled_weight.data[i] = cast(Tensor, self.best_weight)[i]
