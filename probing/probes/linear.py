"""The linear probe without an intercept: layers and penalties stacked in one parameter, trained under Lightning."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, Literal, cast

import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torchmetrics import MeanAbsoluteError, MeanMetric, Metric

from probing.data.examples import Batch, as_batch, as_batches, blocks
from probing.data.module import loader_moments
from probing.errors import UserError
from probing.probes.solvers import (
    ClassCurvature,
    Evaluation,
    MidwayCurvature,
    OptimumValue,
    Penalty,
    Preconditioner,
    Problem,
    Solution,
    Solver,
    Visited,
    Workspace,
    cross_entropy_sums,
    dtype_that_solves,
    lbfgs,
    problem_of_layer,
    steps,
)
from probing.runtime.processes import are_several
from probing.runtime.trainer import float64_device, on_float64_device, to_float64
from probing.statistics.moments import Moments, PenaltySpace, Scaling

# --------------------------------------------------------------------------------------------------------------------
# Training by full passes: an epoch gives one value and gradient for every unsolved problem of the stack.
# --------------------------------------------------------------------------------------------------------------------

# Reuse the layer's preconditioner if at most this many neurons are excluded: it works nearly as well, and saves an
# eigendecomposition. With a quarter of the neurons excluded, it would need twice the passes.
FEW = 10


class SolverSteps(torch.optim.Optimizer):
    """An optimiser whose step moves every unsolved problem to the point that its solver requests.

    Lightning counts the passes as its steps; checkpoints and loggers rely on this count.
    """

    def __init__(self, weight: Tensor, advance: Callable[[], None]) -> None:
        super().__init__([weight], {"lr": 1.0})  # the first length tried; callbacks such as LearningRateMonitor read it
        self.advance = advance

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Move to the next points; the closure is Lightning's and computes nothing here."""
        if closure is not None:
            closure()
        self.advance()


class FullPasses:
    """Trains a stack by solvers that use all training tokens at every step; a Lightning epoch is a pass.

    Solved problems, with an optimality gap of at most `tolerance` nats, cause no further computation.
    """

    def __init__(self, probe: LinearProbe, tolerance: float) -> None:
        self.probe, self.tolerance = probe, tolerance
        self.solvers: dict[int, Solver] = {}
        # Preconditioners that are the same at every point, of problems without an l1 penalty.
        self.constant: dict[int, ClassCurvature] = {}
        self.solutions: dict[int, Solution] = {}
        self.midway = MidwayCurvature(len(probe.problems), tolerance)
        self.workspace = Workspace()
        self.first_objectives: dict[int, float] = {}
        # What the last pass found, and the points for the next pass. Until the next pass begins, the probe keeps the
        # weights of the last pass, so that validation and checkpoints use weights that match the logged values.
        self.evaluations: dict[int, Evaluation] = {}
        self.curves: dict[str, float] = {}
        self.requested: dict[int, Tensor] = {}

    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimiser that lets the solver of each problem step."""
        return SolverSteps(self.probe.scaled_weight, self._advance)

    def begin(self) -> None:
        """Set up a solver for each problem, preconditioned by the problem's curvature or its layer's second moment."""
        probe = self.probe
        self.solvers, self.solutions, self.requested, self.constant = {}, {}, {}, {}
        self.midway = MidwayCurvature(len(probe.problems), self.tolerance)
        for layer_index, group in probe.by_layer().items():
            scaling = Scaling(probe.moments[layer_index], probe.penalty_space)
            of_all = cache(partial(_of_all, scaling, probe.scaled_weight))
            for i in group:
                start, problem = probe.scaled_weight.data[i].clone(), probe.problems[i]
                preconditioner: Preconditioner | ClassCurvature
                if problem.curvature is None:
                    preconditioner = _preconditioner(problem.neurons, scaling, of_all, probe.scaled_weight)
                else:
                    preconditioner = problem.curvature.to(probe.scaled_weight)
                    preconditioner = (
                        preconditioner
                        if problem.neurons is None
                        else preconditioner.within(problem.neurons.to(probe.device))
                    )
                if isinstance(preconditioner, ClassCurvature) and not problem.penalty.l1:
                    self.constant[i] = preconditioner
                wants = partial(self._wants_curvature, i)
                self.solvers[i] = lbfgs(
                    start, problem.penalty, preconditioner, self.tolerance, self._readout(i), wants, problem.gain_share
                )
                next(self.solvers[i])

    def _readout(self, i: int) -> OptimumValue | None:
        """Return a problem's readout, as a function of its scaled weights."""
        if (readout := self.probe.problems[i].readout) is None:
            return None
        return replace(readout, gradient=readout.gradient.to(self.probe.device) * self.probe.inverse_scale[i])

    def begin_epoch(self) -> None:
        """Begin a pass at the requested points."""
        for i, point in self.requested.items():
            self.probe.scaled_weight.data[i] = point
        self.requested, self.curves = {}, {}
        (P, C, d), device = self.probe.scaled_weight.shape, float64_device(self.probe.device)
        self.cross_entropy = torch.zeros(P, dtype=torch.float64, device=device)
        self.gradient = torch.zeros(P, C, d, dtype=torch.float64, device=device)
        # A preconditioner that is the same at every point needs no curvature there.
        side = C if any(map(self._needs_curvature, self.solvers)) else 0
        self.class_covariance = torch.zeros(P, side, side, dtype=torch.float64, device=device)
        self.n_counted = torch.zeros(P, dtype=torch.float64, device=device)

    @torch.no_grad()
    def step(self, batches: Sequence[Batch]) -> None:
        """Add batches to value, gradient and curvature; a pass that `max_time` ends early does not count."""
        weight = self.probe.weight
        for batch in batches:
            self._add(batch, weight)
        if self.probe.trainer.is_last_batch:
            self._end_pass()

    def _add(self, batch: Batch, weight: Tensor) -> None:
        counts = self._counts(batch)
        is_example = batch.labels >= 0
        n_counted = is_example.sum() if counts is None else (is_example * counts).sum(1)
        self.n_counted += on_float64_device(n_counted)
        for layer_index, group in self.probe.by_layer(self.solvers).items():
            group_counts = None if counts is None else counts[group]
            labels = self._labels(batch, group)
            is_needed = any(map(self._needs_curvature, group))
            states = batch.hidden_states[layer_index]
            sums = cross_entropy_sums(weight[group], states, labels, group_counts, is_needed, self.workspace)
            for total, group_sum in zip((self.cross_entropy, self.gradient, self.class_covariance), sums, strict=True):
                if group_sum.numel():
                    total.index_add_(0, torch.tensor(group, device=total.device), to_float64(group_sum))
        for i in self.midway.sums:
            self.midway.update(i, batch.hidden_states[self.probe.problems[i].layer_index], batch.labels)

    def _needs_curvature(self, i: int) -> bool:
        """Return whether a problem's preconditioner depends on the class covariance at its point."""
        return self.probe.problems[i].curvature is None and i not in self.midway.known

    def _counts(self, batch: Batch) -> Tensor | None:
        """Return how often each token counts in each problem; None if every token counts once in all problems."""
        problems = self.probe.problems
        if all(problem.draws is None for problem in problems):
            return None
        once = torch.ones(len(batch.labels), device=self.probe.device)
        return torch.stack([once if p.draws is None else p.draws.to(once)[batch.sentences] for p in problems])

    def _labels(self, batch: Batch, group: Sequence[int]) -> Tensor:
        """Return each token's class in each problem; shape (n_tokens,) if all problems use the batch's labels."""
        problems = [self.probe.problems[i] for i in group]
        if all(problem.labels is None for problem in problems):
            return batch.labels
        by_problem = (problem.labels for problem in problems)
        return torch.stack([batch.labels if of is None else of.to(batch.labels)[batch.rows] for of in by_problem])

    @torch.no_grad()
    def _end_pass(self) -> None:
        """Evaluate the pass and let every solver request its next point."""
        probe, strategy = self.probe, self.probe.trainer.strategy
        n_tokens = strategy.reduce(self.n_counted, reduce_op="sum")
        for total in filter(Tensor.numel, (self.cross_entropy, self.gradient, self.class_covariance)):
            total.copy_(strategy.reduce(total, reduce_op="sum"))
            total.div_(n_tokens.view(-1, *[1] * (total.dim() - 1)))
        self.gradient *= on_float64_device(probe.inverse_scale)[:, None]
        curvatures = {i: self._midway_curvature(i) for i in sorted(self.midway.sums)}
        dtype = probe.scaled_weight.dtype
        gradients = {i: self.gradient[i].to(dtype).to(probe.device) for i in self.solvers}
        preconditioned = self._preconditioned(gradients)
        for i, gradient in gradients.items():
            value, point, problem = float(self.cross_entropy[i]), probe.scaled_weight.data[i], probe.problems[i]
            covariance = self.class_covariance[i].to(dtype).to(probe.device)
            evaluation = Evaluation(value, gradient, covariance, curvatures.get(i), preconditioned.get(i))
            self.evaluations[i] = evaluation
            objective = evaluation.value + problem.penalty(point)
            self.first_objectives.setdefault(i, objective)
            self.curves[f"train/{problem.name}/objective"] = objective
            self.curves[f"train/{problem.name}/optimality_gap"] = problem.penalty.optimality_gap(point, gradient)
        cast(LightningOptimizer, probe.optimizers()).step()

    def _preconditioned(self, gradients: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Apply constant preconditioners to the gradients of the objective, all at once."""
        constant = {i: self.constant[i] for i in gradients if i in self.constant}
        points, problems = self.probe.scaled_weight.data, self.probe.problems
        smooth = [problems[i].penalty.subgradient(points[i], gradients[i]) for i in constant]
        return dict(zip(constant, steps(list(constant.values()), smooth), strict=True))

    def _midway_curvature(self, i: int) -> ClassCurvature:
        """Return the curvature of a problem that was summed in this pass."""
        probe, problem = self.probe, self.probe.problems[i]
        scaling = Scaling(probe.moments[problem.layer_index], probe.penalty_space)
        reduced = partial(probe.trainer.strategy.reduce, reduce_op="sum")
        return self.midway.end(i, reduced, scaling, self._n_tokens(i), problem.penalty.l2)

    def _n_tokens(self, i: int) -> int:
        return self.probe.moments[self.probe.problems[i].layer_index].n_tokens

    def _wants_curvature(self, i: int, evaluation: Evaluation, gap: float, n_passes: int) -> bool:
        """Return whether to measure a problem's curvature at its point, and prepare the measurement.

        On accelerators it would not save time: they speed up passes more than inverses. With an l1 penalty, weights
        become zero or nonzero from step to step.
        """
        probe, problem = self.probe, self.probe.problems[i]
        is_plain = problem.curvature is None and problem.neurons is None and problem.draws is None
        if not is_plain or problem.penalty.l1 or probe.device.type != "cpu":
            return False
        weight, n_tokens = probe.weight[i], self._n_tokens(i)
        point = Visited(gap, n_passes, float(evaluation.class_covariance.trace()))
        if not self.midway.asks(i, point, weight.shape, n_tokens):
            return False
        self.midway.begin(i, weight, evaluation.class_covariance, n_tokens)
        return True

    def _advance(self) -> None:
        for i in list(self.solvers):
            self._send(i, self.evaluations.pop(i))

    def end_epoch(self) -> dict[str, float]:
        """Return the curves, empty if the pass did not end; stop if every problem is solved."""
        if not self.solvers:
            self.probe.trainer.should_stop = True
        return self.curves

    def end_validation(self, cross_entropies: Sequence[float]) -> None:
        """Do nothing: these solvers stop at the optimum, not by validation."""

    def end(self) -> None:
        """Collect the current points of unsolved problems after the last pass."""
        for i in list(self.solvers):
            self._send(i, None)

    def _send(self, problem: int, evaluation: Evaluation | None) -> None:
        try:
            point = self.solvers[problem].send(evaluation)
        except StopIteration as stop:
            del self.solvers[problem]
            self.midway.solved(problem)
            self.solutions[problem] = stop.value
            self.probe.scaled_weight.data[problem] = stop.value.point
        else:
            self.requested[problem] = point


def _of_all(scaling: Scaling, like: Tensor) -> Preconditioner:
    return Preconditioner(scaling.axes, like.device, like.dtype)


def _preconditioner(
    neurons: Tensor | None, scaling: Scaling, of_all: Callable[[], Preconditioner], like: Tensor
) -> Preconditioner:
    """Return the layer's preconditioner restricted to some neurons, or a new preconditioner if many are excluded."""
    if neurons is None:
        return of_all()
    used = neurons.double().cpu()
    if len(used) - used.sum() <= FEW:
        return of_all().within(used)
    return Preconditioner(
        used[:, None] * scaling.products(scaling.moments.second_moment) * used, like.device, like.dtype
    )


# --------------------------------------------------------------------------------------------------------------------
# Training by Adam on mini-batches, as published probes are trained; each problem of the stack stops by itself.
# --------------------------------------------------------------------------------------------------------------------


class Descent:
    """Trains a stack by Adam on mini-batches.

    Adam treats each weight separately and the loss is a sum over problems, so training problems together or separately
    gives the same weights. Each problem keeps its weights of the epoch with the lowest validation cross-entropy, and
    stops after `patience` epochs without a lower value.
    """

    def __init__(self, probe: LinearProbe, learning_rate: float, patience: int) -> None:
        self.probe, self.learning_rate, self.patience = probe, learning_rate, patience
        self.begin()

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
            [
                nn.functional.cross_entropy(probe_logits, batch.labels) + p.penalty.of(weight)
                for p, weight, probe_logits in problems
            ]
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


# --------------------------------------------------------------------------------------------------------------------
# Metrics of a probe on the test tokens.
# --------------------------------------------------------------------------------------------------------------------


class SumBy(Metric):
    """Sums a value of each test token, such as correctness, by class or by sentence of the corpus."""

    total: Tensor
    higher_is_better = None
    full_state_update = False

    def __init__(self, n_groups: int, dtype: torch.dtype) -> None:
        super().__init__(distributed_available_fn=are_several)
        self.add_state("total", torch.zeros(n_groups, dtype=dtype), dist_reduce_fx="sum")

    def update(self, values: Tensor, groups: Tensor) -> None:
        """Add tokens: the value and the group's index of each, both of shape (n,)."""
        device = self.total.device
        self.total.index_add_(0, groups.to(device), values.to(device).to(self.total.dtype))

    def compute(self) -> Tensor:
        """Return the sums, shape (n_groups,)."""
        return self.total

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = ()) -> nn.Module:
        """Move to a device, but leave float64 sums on the CPU if the device has no float64."""
        device = fn(torch.zeros(0)).device
        stays = self.total.dtype == torch.float64 and float64_device(device) != device
        return super()._apply(fn, ("total",) if stays else exclude_state)


class ProbeMetrics(nn.Module):
    """Metrics of a probe; sums by sentence only if `n_sentences` of the test corpus is given.

    If `ordinal`, labels are numbers with meaningful distances.
    """

    def __init__(self, classes: Tensor, ordinal: bool, n_sentences: int | None) -> None:
        super().__init__()
        self.register_buffer("classes", classes, persistent=False)
        self.tokens_by_class, self.predicted_by_class, self.correct_by_class = (
            SumBy(len(classes), torch.int64) for _ in range(3)
        )
        # A training that diverges must not look finite.
        self.cross_entropy = MeanMetric(nan_strategy="disable", distributed_available_fn=are_several)
        if n_sentences is not None:
            self.correct_by_sentence = SumBy(n_sentences, torch.int64)
            self.cross_entropy_by_sentence = SumBy(n_sentences, torch.float64)
        if ordinal:
            self.within_one = MeanMetric(distributed_available_fn=are_several)
            self.mean_absolute_error = MeanAbsoluteError(distributed_available_fn=are_several)

    def update(self, logits: Tensor, labels: Tensor, sentences: Tensor) -> None:
        """Add tokens: logits of shape (n, n_classes), labels and sentences of shape (n,)."""
        predicted = logits.argmax(-1)
        is_correct = predicted == labels
        self.tokens_by_class.update(torch.ones_like(labels), labels)
        self.predicted_by_class.update(torch.ones_like(labels), predicted)
        self.correct_by_class.update(is_correct, labels)
        cross_entropy = nn.functional.cross_entropy(logits, labels, reduction="none")
        self.cross_entropy.update(cross_entropy)
        if hasattr(self, "correct_by_sentence"):
            self.cross_entropy_by_sentence.update(cross_entropy, sentences)
            self.correct_by_sentence.update(is_correct, sentences)
        if hasattr(self, "within_one"):
            values = cast(Tensor, self.classes).float()
            distance = (values[predicted] - values[labels]).abs()
            self.within_one.update((distance <= 1).float())
            self.mean_absolute_error.update(values[predicted], values[labels])

    def by_sentence(self, name: Literal["correct", "cross_entropy"]) -> NDArray[Any]:
        """Return the number of correct tokens, or the cross-entropy in nats, summed by sentence."""
        sums = getattr(self, f"{name}_by_sentence").compute()
        values: NDArray[Any] = sums.cpu().numpy().reshape(-1)  # `compute()` squeezes a single sum to a scalar
        return values

    def compute(self) -> dict[str, float]:
        """Return each metric by name: accuracies as fractions, cross-entropy in nats.

        `macro_accuracy` is the mean over the classes with test tokens, `macro_f1` the mean of 2 n_right / (n_tokens +
        n_predicted) over classes with test tokens or predictions, as in scikit-learn.
        """
        counts = self.correct_by_class, self.tokens_by_class, self.predicted_by_class
        correct, n_tokens, n_predicted = (to_float64(sums.compute()).reshape(-1) for sums in counts)
        has_tokens, known = n_tokens > 0, n_tokens + n_predicted > 0
        metrics = {
            "accuracy": float(correct.sum() / n_tokens.sum()),
            "macro_accuracy": float((correct[has_tokens] / n_tokens[has_tokens]).mean()),
            "macro_f1": float((2 * correct[known] / (n_tokens + n_predicted)[known]).mean()),
        }
        names = ("within_one", "mean_absolute_error", "cross_entropy")
        return metrics | {name: float(getattr(self, name).compute()) for name in names if hasattr(self, name)}


Stage = Literal["train", "val", "test"]


class LinearProbe(pl.LightningModule):
    """Softmax probes without an intercept, one or several per layer, trained on activations.

    logits = hidden_states @ weight.T. The parameter contains the scaled weights U, on which the penalty acts; `weight`
    has the weights on raw hidden states.

    With the solver `lbfgs`, an epoch is a pass over the training tokens, and training stops at the optimum; a trainer
    requires only `max_epochs`. With `adam`, the data module should give mini-batches, and training stops after
    `patience` epochs without a lower validation cross-entropy.

    Logged are `train/layer_06/objective`, for lbfgs `train/layer_06/optimality_gap` in nats, and for the parts `val`
    and `test` `val/layer_06/cross_entropy`, `val/layer_06/accuracy` and the other metrics. The same names without the
    layer are means over the layers, for callbacks such as `ModelCheckpoint(monitor="val/cross_entropy")`.

    Batches come from `ActivationDataModule`, or are pairs (hidden_states, labels) of shapes (n, d_model) and (n,), as a
    `DataLoader` of a `TensorDataset` yields them; labels are then class indices.

    Args:
        d_model: Number of neurons of a layer.
        classes: The label of each class, or the number of classes.
        layers: Layer numbers, in the order of the activations in a batch.
        ordinal: Whether labels are numbers, so that distances between labels are meaningful.
        l1: Strength of the l1 penalty on the scaled weights.
        l2: Strength of the squared l2 penalty on the scaled weights, above 0.
        penalty_space: Divisor of each neuron before its weights are penalised: its standard deviation (sd), its root
            mean square (rms), or 1 (raw).
        solver: `lbfgs` trains by full passes, `adam` on mini-batches.
        tolerance: Bound on the distance to the optimum at which lbfgs stops, in nats.
        learning_rate: Learning rate of adam, on the scaled weights.
        patience: Number of epochs without a lower validation cross-entropy after which adam stops a layer.
        problems: Problems to train instead of a problem per layer; not saved as hyperparameters.
        moments: Moments of each layer's training tokens, measured on the training batches if None.
    """

    inverse_scale: Tensor

    def __init__(
        self,
        d_model: int,
        classes: int | Sequence[int | str],
        layers: Sequence[int] = (0,),
        ordinal: bool = False,
        l1: float = 0.0,
        l2: float = 1e-3,
        penalty_space: PenaltySpace = "sd",
        solver: Literal["lbfgs", "adam"] = "lbfgs",
        tolerance: float = 3e-6,
        learning_rate: float = 1e-3,
        patience: int = 3,
        problems: Sequence[Problem] | None = None,
        moments: Sequence[Moments] | None = None,
    ) -> None:
        super().__init__()
        classes = list(range(classes)) if isinstance(classes, int) else list(classes)
        layers = list(layers)
        self.save_hyperparameters(ignore=["problems", "moments"])
        self.classes, self.layers, self.ordinal, self.penalty_space = classes, layers, ordinal, penalty_space
        default_problems = [problem_of_layer(layer, i, Penalty(l1, l2)) for i, layer in enumerate(layers)]
        self.is_one_per_layer, self.problems = (
            problems is None,
            default_problems if problems is None else list(problems),
        )
        self.scaled_weight = nn.Parameter(torch.zeros(len(self.problems), len(classes), d_model))
        self.register_buffer("inverse_scale", torch.ones(len(self.problems), d_model))
        self.moments: Sequence[Moments] = ()
        if moments is not None:
            self._scale_by(moments)
        self.metrics = nn.ModuleList()
        self.rule: FullPasses | Descent
        self.rule = FullPasses(self, tolerance) if solver == "lbfgs" else Descent(self, learning_rate, patience)
        self.automatic_optimization = solver == "adam"  # the solvers of full passes update the weights themselves

    def _scale_by(self, moments: Sequence[Moments]) -> None:
        """Set the layers' moments, the scale of each problem's neurons and its initial weights."""
        weight, self.moments = self.weight, list(moments)
        by_layer = [Scaling(layer_moments, self.penalty_space).inverse for layer_moments in self.moments]
        for i, problem in enumerate(self.problems):
            # A neuron that may not be used gets an inverse scale of 0, like a dead one.
            inverse_scale = by_layer[problem.layer_index] * (1 if problem.neurons is None else problem.neurons)
            self.inverse_scale[i] = inverse_scale.to(self.inverse_scale)
            start = weight[i] if problem.start is None else problem.start.to(weight)
            inverse = self.inverse_scale[i]
            self.scaled_weight.data[i] = torch.where(inverse > 0, start / inverse, 0.0)

    @property
    def weight(self) -> Tensor:
        """Weights on raw hidden states, shape (n_problems, n_classes, d_model)."""
        return (self.scaled_weight * self.inverse_scale[:, None]).detach()

    def by_layer(self, active: Iterable[int] | None = None) -> dict[int, list[int]]:
        """Return the indices of each layer's problems, or only those in `active`."""
        groups: dict[int, list[int]] = {}
        for i in range(len(self.problems)) if active is None else active:
            groups.setdefault(self.problems[i].layer_index, []).append(i)
        return groups

    def forward(self, hidden_states: Tensor | Sequence[Tensor]) -> list[Tensor]:
        """Return the logits of each problem, (n, n_classes), given states by layer, or for all layers, (n, d_model)."""
        states = [hidden_states] * len(self.layers) if isinstance(hidden_states, Tensor) else hidden_states
        weight = self.scaled_weight * self.inverse_scale[:, None]
        return [states[p.layer_index] @ w.T for p, w in zip(self.problems, weight, strict=True)]

    # --- training ---

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam over the stacked parameter, or the steps of lbfgs, one per pass."""
        return self.rule.optimizer()

    def on_train_start(self) -> None:
        """Measure the moments of the training tokens unless they are known, choose the dtype, and begin."""
        if not self.moments:
            self._scale_by(self._training_moments())
        if isinstance(self.rule, FullPasses):
            self._use_the_dtype_that_solves()
        self.rule.begin()

    def _use_the_dtype_that_solves(self) -> None:
        """Continue in float64 if a layer requires it and the device has it; in place, for the optimisers' sake."""
        weakest = min(problem.penalty.l2 for problem in self.problems)
        dtype = dtype_that_solves(self.moments, weakest, cast(FullPasses, self.rule).tolerance)
        if dtype == torch.float64 and float64_device(self.device) == self.device:
            self.scaled_weight.data, self.inverse_scale = self.scaled_weight.data.double(), self.inverse_scale.double()
            self._scale_by(self.moments)

    def _training_moments(self) -> Sequence[Moments]:
        data = getattr(self.trainer, "datamodule", None)
        known: Sequence[Moments] | None = getattr(data, "moments", None)
        return known or loader_moments(cast(Iterable[Any], self.trainer.train_dataloader), len(self.layers))

    def on_train_epoch_start(self) -> None:
        """Begin a pass."""
        self.rule.begin_epoch()

    def training_step(self, batch: Any) -> Tensor | None:
        """Add batches to the pass; return adam's loss."""
        return self.rule.step(as_batches(batch))

    def on_train_epoch_end(self) -> None:
        """End a pass and log its curves."""
        self._log("train", self.rule.end_epoch())

    def on_train_end(self) -> None:
        """Set the final weights."""
        self.rule.end()

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradient of each problem separately."""
        if gradient_clip_val and isinstance(self.rule, Descent):
            self.rule.clip(gradient_clip_val, by_value=gradient_clip_algorithm == "value")

    # --- evaluation ---

    def on_validation_epoch_start(self) -> None:
        """Begin a pass over the validation tokens."""
        self._begin_metrics(None)

    def validation_step(self, batch: Any) -> None:
        """Update the metrics of every problem."""
        self._update_metrics(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics; adam keeps each problem's best weights."""
        by_problem = self._end_metrics("val")
        if self.trainer.state.fn == "fit" and not self.trainer.sanity_checking:
            self.rule.end_validation([metrics["cross_entropy"] for metrics in by_problem])

    def on_test_epoch_start(self) -> None:
        """Begin a pass over the test tokens."""
        self._begin_metrics(getattr(getattr(self.trainer, "datamodule", None), "n_test_sentences", None))

    def test_step(self, batch: Any) -> None:
        """Update the metrics of every problem."""
        self._update_metrics(batch)

    def on_test_epoch_end(self) -> None:
        """Log the metrics of the test tokens."""
        self._end_metrics("test")

    def predict_step(self, batch: Any) -> Tensor:
        """Return the predicted class of each row, an index of `classes`, shape (n_problems, n)."""
        logits = self([states.to(self.scaled_weight) for states in as_batch(batch).hidden_states])
        return torch.stack([scores.argmax(-1) for scores in logits])

    def _begin_metrics(self, n_sentences: int | None) -> None:
        labels = torch.tensor(self.classes) if self.ordinal else torch.arange(len(self.classes))
        metrics = (ProbeMetrics(labels, self.ordinal, n_sentences) for _ in self.problems)
        self.metrics = nn.ModuleList(metrics).to(self.device)

    def _update_metrics(self, batch: Any) -> None:
        for block in blocks(as_batch(batch), self.scaled_weight.dtype):
            if len(block.labels):
                for metrics, logits in zip(self.metrics, self(block.hidden_states), strict=True):
                    cast(ProbeMetrics, metrics).update(logits.float(), block.labels, block.sentences)

    def _end_metrics(self, stage: Stage) -> list[dict[str, float]]:
        by_problem = [cast(ProbeMetrics, metrics).compute() for metrics in self.metrics]
        pairs = zip(self.problems, by_problem, strict=True)
        self._log(stage, {f"{stage}/{p.name}/{name}": v for p, metrics in pairs for name, v in metrics.items()})
        return by_problem

    def _log(self, stage: Stage, values: Mapping[str, float]) -> None:
        """Log values of problems, with their means over problems, at the epoch as the step."""
        if not values or not (self.is_one_per_layer or self.trainer.loggers):
            return  # nobody reads the values of problems of our own making
        names = dict.fromkeys(name.rsplit("/", 1)[1] for name in values)
        parts = {name: [value for key, value in values.items() if key.endswith(f"/{name}")] for name in names}
        means = {f"{stage}/{name}": sum(part) / len(part) for name, part in parts.items()}
        step = {"step": float(self.current_epoch)} if stage != "test" else {}
        # The values are those of all ranks already. Ranks must not wait for one another here: only one has a logger.
        self.log_dict({**values, **means, **step})
