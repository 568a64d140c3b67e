"""Training by full passes: an epoch gives one value and gradient for every unsolved problem of the stack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from probing.data.examples import Batch
from probing.probes.class_curvature import ClassCurvature
from probing.probes.objective import cross_entropy_sums
from probing.probes.solvers import Evaluation, Preconditioner, Readout, Solution, Solver, lbfgs

if TYPE_CHECKING:
    from probing.probes.linear import LinearProbe

# Reuse the layer's preconditioner if at most this many neurons are excluded: it works nearly as well, and saves an
# eigendecomposition. With a quarter of the neurons excluded, it would need twice the passes.
FEW = 10


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
        self.solutions: dict[int, Solution] = {}
        self.gaps = [math.inf] * len(probe.problems)
        self.first_objectives: dict[int, float] = {}
        # The weights that the last values belong to. Those of the probe are already the next ones to be evaluated.
        self.evaluated: Tensor | None = None

    def optimizer(self) -> None:
        """Return no optimiser, because each problem has its own solver."""

    def begin(self) -> None:
        """Set up a solver for each problem, preconditioned by its layer's second moment."""
        probe = self.probe
        self.solvers, self.solutions = {}, {}
        for layer, group in probe.by_layer().items():
            # The neurons that at least one problem of the layer uses.
            inverse_scale = probe.inverse_scale[group].amax(0).double()
            moment = probe.moments[layer].second_moment.to(inverse_scale)
            scaled = inverse_scale[:, None] * moment * inverse_scale
            of_all = cache(partial(Preconditioner, scaled))
            for i in group:
                start, problem = probe.scaled_weight.data[i].clone(), probe.problems[i]
                own = of_all() if problem.curvature is None else problem.curvature.to(start.device)
                if problem.neurons is not None:
                    own = _narrowed(own, scaled, problem.neurons.to(scaled))
                self.solvers[i] = lbfgs(start, problem.penalty, own, self.tolerance, self._readout(i))
                next(self.solvers[i])

    def _readout(self, i: int) -> Readout | None:
        """Return a problem's readout, as a function of its scaled weights."""
        if (readout := self.probe.problems[i].readout) is None:
            return None
        return replace(readout, gradient=readout.gradient.to(self.probe.device) * self.probe.inverse_scale[i])

    def begin_epoch(self) -> None:
        """Begin a pass."""
        (P, C, d), device = self.probe.scaled_weight.shape, self.probe.device
        self.cross_entropy = torch.zeros(P, dtype=torch.float64, device=device)
        self.gradient = torch.zeros(P, C, d, dtype=torch.float64, device=device)
        self.class_covariance = torch.zeros(P, C, C, dtype=torch.float64, device=device)
        self.n_counted = torch.zeros(P, dtype=torch.float64, device=device)

    @torch.no_grad()
    def step(self, batch: Batch) -> None:
        """Add a batch's share of value, gradient and curvature."""
        weight = self.probe.weight
        counts = self._counts(batch)
        self.n_counted += ((batch.labels >= 0) * counts).sum(1) if counts is not None else (batch.labels >= 0).sum()
        for layer, group in self.probe.by_layer(self.solvers).items():
            own = None if counts is None else counts[group]
            labels = self._labels(batch, group)
            sums = cross_entropy_sums(weight[group], batch.hidden_states[layer], labels, own)
            self.cross_entropy[group] += sums.cross_entropy
            self.gradient[group] += sums.gradient
            self.class_covariance[group] += sums.class_covariance

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
    def end_epoch(self) -> dict[str, float]:
        """Send each solver its evaluation, take the next point that it requests, and return the curves."""
        probe, strategy = self.probe, self.probe.trainer.strategy
        whole = torch.tensor(float(probe.trainer.is_last_batch), device=probe.device)
        if strategy.reduce(whole, reduce_op="sum") < probe.trainer.world_size:
            return {}  # `max_time` ended the pass early: an evaluation on a part of the tokens is not valid
        n_tokens = strategy.reduce(self.n_counted, reduce_op="sum")
        for total in (self.cross_entropy, self.gradient, self.class_covariance):
            total.copy_(strategy.reduce(total, reduce_op="sum"))
            total.div_(n_tokens.view(-1, *[1] * (total.dim() - 1)))
        self.gradient *= probe.inverse_scale[:, None]
        self.evaluated = probe.scaled_weight.data.clone()
        curves: dict[str, float] = {}
        for i in list(self.solvers):
            here = Evaluation(float(self.cross_entropy[i]), self.gradient[i].float(), self.class_covariance[i].float())
            point, problem = probe.scaled_weight.data[i], probe.problems[i]
            self.gaps[i] = problem.penalty.optimality_gap(point, here.gradient)
            objective = here.value + problem.penalty(point)
            self.first_objectives.setdefault(i, objective)
            curves[f"train/{problem.name}/objective"] = objective
            curves[f"train/{problem.name}/optimality_gap"] = self.gaps[i]
            self._send(i, here)
        if not self.solvers:
            probe.trainer.should_stop = True
        return curves

    def end_validation(self, cross_entropies: Sequence[float]) -> None:
        """Do nothing: these solvers stop at the optimum, not by validation."""

    def end(self) -> None:
        """Collect the current points of unsolved problems after the last pass."""
        for i in list(self.solvers):
            self._send(i, None)
        self.evaluated = None

    def _send(self, problem: int, evaluation: Evaluation | None) -> None:
        try:
            point = self.solvers[problem].send(evaluation)
        except StopIteration as stop:
            del self.solvers[problem]
            self.solutions[problem] = stop.value
            point = stop.value.point
        self.probe.scaled_weight.data[problem] = point


def _narrowed(
    of_all: Preconditioner | ClassCurvature, moment: Tensor, neurons: Tensor
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
