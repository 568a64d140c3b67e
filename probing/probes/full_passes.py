"""Training by full passes: an epoch gives one value and gradient for every unsolved problem of the stack."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

import torch
from pytorch_lightning.core.optimizer import LightningOptimizer
from torch import Tensor

from probing.data.examples import Batch
from probing.probes.curvature import ClassCurvature, MidwayCurvature, Visited, steps
from probing.probes.objective import Workspace, cross_entropy_sums
from probing.probes.solvers import Evaluation, Preconditioner, Readout, Solution, Solver, lbfgs
from probing.runtime.arithmetic import float64_device, on_float64_device, to_float64
from probing.statistics.moments import Scaling

if TYPE_CHECKING:
    from probing.probes.linear import LinearProbe

# Reuse the layer's preconditioner if at most this many neurons are excluded: it works nearly as well, and saves an
# eigendecomposition. With a quarter of the neurons excluded, it would need twice the passes.
FEW = 10


class SolverSteps(torch.optim.Optimizer):
    """One step a pass, in which every unsolved problem moves to the point that its solver requests.

    Because this is an optimiser, Lightning counts the passes as its steps; checkpoints and loggers rely on this count.

    Args:
        weight: The stacked parameter.
        advance: Moves every unsolved problem in `weight` to its next point.
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
    """Trains a stack by solvers that use all training tokens at every step.

    One Lightning epoch is one pass over the data. Solved problems cause no further computation.

    Args:
        probe: The stack.
        tolerance: Optimality gap, in nats, at which a problem is solved.
    """

    def __init__(self, probe: LinearProbe, tolerance: float) -> None:
        self.probe, self.tolerance = probe, tolerance
        self.solvers: dict[int, Solver] = {}
        # Preconditioners that are the same at every point, of problems without an l1 penalty.
        self.constant: dict[int, ClassCurvature] = {}
        self.solutions: dict[int, Solution] = {}
        self.gaps = [math.inf] * len(probe.problems)
        self.midway = MidwayCurvature(len(probe.problems), tolerance)
        self.workspace = Workspace()
        self.first_objectives: dict[int, float] = {}
        # What the last pass found, and the points for the next pass. Until the next pass begins, the probe keeps the
        # weights of the last pass, so that validation and checkpoints use weights that match the logged values.
        self.evaluations: dict[int, Evaluation] = {}
        self.curves: dict[str, float] = {}
        self.requested: dict[int, Tensor] = {}

    def optimizer(self) -> torch.optim.Optimizer:
        """Return the optimiser that lets each problem's own solver step."""
        return SolverSteps(self.probe.scaled_weight, self._advance)

    def begin(self) -> None:
        """Set up a solver for each problem, preconditioned by its layer's second moment."""
        probe = self.probe
        self.solvers, self.solutions, self.requested, self.constant = {}, {}, {}, {}
        self.midway = MidwayCurvature(len(probe.problems), self.tolerance)
        for layer_index, group in probe.by_layer().items():
            scaling = Scaling(probe.moments[layer_index], probe.penalty_space)
            of_all = cache(partial(_of_all, scaling, probe.scaled_weight))
            for i in group:
                start, problem = probe.scaled_weight.data[i].clone(), probe.problems[i]
                own: Preconditioner | ClassCurvature
                if problem.curvature is None:
                    own = _preconditioner(problem.neurons, scaling, of_all, probe.scaled_weight)
                else:
                    own = problem.curvature.to(probe.scaled_weight)
                    own = own if problem.neurons is None else own.within(problem.neurons.to(probe.device))
                if isinstance(own, ClassCurvature) and not problem.penalty.l1:
                    self.constant[i] = own
                wants = partial(self._wants_curvature, i)
                self.solvers[i] = lbfgs(
                    start, problem.penalty, own, self.tolerance, self._readout(i), wants, problem.gain_share
                )
                next(self.solvers[i])

    def _readout(self, i: int) -> Readout | None:
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
        """Add the share of batches in value, gradient and curvature; the last ones end the pass.

        A pass that `max_time` ends early does not count, since an evaluation on a part of the tokens is not valid.
        """
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
            own = None if counts is None else counts[group]
            labels = self._labels(batch, group)
            is_needed = any(map(self._needs_curvature, group))
            states = batch.hidden_states[layer_index]
            sums = cross_entropy_sums(weight[group], states, labels, own, is_needed, self.workspace)
            for total, own_sum in zip((self.cross_entropy, self.gradient, self.class_covariance), sums, strict=True):
                if own_sum.numel():
                    total.index_add_(0, torch.tensor(group, device=total.device), to_float64(own_sum))
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
        """Return each token's class in some problems; if none has labels of its own, the batch's, shape (n_tokens,)."""
        problems = [self.probe.problems[i] for i in group]
        if all(problem.labels is None for problem in problems):
            return batch.labels
        own = (problem.labels for problem in problems)
        return torch.stack([batch.labels if of is None else of.to(batch.labels)[batch.rows] for of in own])

    @torch.no_grad()
    def _end_pass(self) -> None:
        """Evaluate the pass and let every solver request its next point."""
        probe, strategy = self.probe, self.probe.trainer.strategy
        n_tokens = strategy.reduce(self.n_counted, reduce_op="sum")
        for total in filter(Tensor.numel, (self.cross_entropy, self.gradient, self.class_covariance)):
            total.copy_(strategy.reduce(total, reduce_op="sum"))
            total.div_(n_tokens.view(-1, *[1] * (total.dim() - 1)))
        self.gradient *= on_float64_device(probe.inverse_scale)[:, None]
        measured = {i: self._midway_curvature(i) for i in sorted(self.midway.sums)}
        dtype = probe.scaled_weight.dtype
        gradients = {i: self.gradient[i].to(dtype).to(probe.device) for i in self.solvers}
        preconditioned = self._preconditioned(gradients)
        for i, gradient in gradients.items():
            value, point, problem = float(self.cross_entropy[i]), probe.scaled_weight.data[i], probe.problems[i]
            covariance = self.class_covariance[i].to(dtype).to(probe.device)
            here = Evaluation(value, gradient, covariance, measured.get(i), preconditioned.get(i))
            self.evaluations[i], self.gaps[i] = here, problem.penalty.optimality_gap(point, here.gradient)
            objective = here.value + problem.penalty(point)
            self.first_objectives.setdefault(i, objective)
            self.curves[f"train/{problem.name}/objective"] = objective
            self.curves[f"train/{problem.name}/optimality_gap"] = self.gaps[i]
        cast(LightningOptimizer, probe.optimizers()).step()

    def _preconditioned(self, gradients: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Return what constant preconditioners make of the objective's gradients, all at once."""
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
        """Return the number of training tokens of a problem."""
        return self.probe.moments[self.probe.problems[i].layer_index].n_tokens

    def _wants_curvature(self, i: int, here: Evaluation, gap: float, n_passes: int) -> bool:
        """Return whether a problem's curvature is measured at its point, and prepare for that.

        It is not measured on accelerators, which speed up passes more than inverses, so it would not save time there.
        With an l1 penalty it is not measured either, because weights become zero or nonzero from step to step.
        """
        probe, problem = self.probe, self.probe.problems[i]
        is_plain = problem.curvature is None and problem.neurons is None and problem.draws is None
        if not is_plain or problem.penalty.l1 or probe.device.type != "cpu":
            return False
        weight, n_tokens = probe.weight[i], self._n_tokens(i)
        point = Visited(gap, n_passes, float(here.class_covariance.trace()))
        if not self.midway.asks(i, point, weight.shape, n_tokens):
            return False
        self.midway.begin(i, weight, here.class_covariance, n_tokens)
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
    """Return a preconditioner for some neurons: the layer's restricted to them, or a new one if many are excluded.

    Args:
        neurons: Which neurons are in use, shape (d_model,), bool; all if None.
        scaling: The scaling of the layer's neurons.
        of_all: Returns the layer's preconditioner.
        like: A tensor of the dtype and on the device of the gradients.
    """
    if neurons is None:
        return of_all()
    used = neurons.double().cpu()
    if len(used) - used.sum() <= FEW:
        return of_all().within(used)
    return Preconditioner(
        used[:, None] * scaling.products(scaling.moments.second_moment) * used, like.device, like.dtype
    )
