"""Solvers of single problems of a stack, driven by full passes over the training tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor

from probing.probes.objective import ClassCurvature
from probing.runtime.arithmetic import to_float64
from probing.statistics.moments import PrincipalAxes

# --------------------------------------------------------------------------------------------------------------------
# The inverse Hessian of L-BFGS, from the last pairs of a step and a change of the gradient, applied in a few
# products.
# --------------------------------------------------------------------------------------------------------------------

LONGEST = 20  # pairs; 10 cost up to 15% more passes on the built-in model, 30 saved none


class _Visit(NamedTuple):
    """A point, the gradient there, and the gradient preconditioned, if the preconditioner is the same everywhere."""

    point: Tensor
    gradient: Tensor
    preconditioned: Tensor | None


class _Pairs(NamedTuple):
    """Steps s, changes y of the gradient along them, and their products.

    Args:
        steps: Shape (n, n_weights), in any order.
        changes: Shape (n, n_weights).
        products: s_i'y_j, shape (n, n), float64, on the processor.
    """

    steps: Tensor
    changes: Tensor
    products: Tensor


class History:
    """The last pairs of a step and the change of the gradient along it, and the inverse Hessian that they give.

    A preconditioner that is the same at every point is linear and fixed, so it is applied only once to each gradient,
    and the results are stored. The preconditioned difference of a gradient and some changes is then the difference of
    stored results.
    """

    def __init__(self) -> None:
        # Rows of the pairs in what follows, the oldest first; a new pair takes the row of the oldest.
        self.rows: list[int] = []
        self.steps = self.changes = self.preconditioned = torch.empty(0)
        self.products = torch.zeros(LONGEST, LONGEST, dtype=torch.float64)
        self.last: _Visit | None = None

    def visit(self, point: Tensor, gradient: Tensor, preconditioned: Tensor | None) -> None:
        """Add the pair of the last point and this one, unless rounding left no curvature between them.

        Args:
            point: The point, shape (n_classes, d_model).
            gradient: Gradient of the smooth part of the objective there.
            preconditioned: What the preconditioner makes of it, if it is the same at every point; else None.
        """
        last, self.last = self.last, _Visit(point, gradient, preconditioned)
        if last is None:
            return
        step, change = (point - last.point).flatten(), (gradient - last.gradient).flatten()
        if not self.steps.numel():
            self.steps, self.changes, self.preconditioned = (step.new_empty(LONGEST, step.numel()) for _ in range(3))
        if (curvature := float(step @ change)) <= 0:
            return
        row = self.rows.pop(0) if len(self.rows) == LONGEST else len(self.rows)
        self.steps[row], self.changes[row] = step, change
        if preconditioned is not None and last.preconditioned is not None:
            self.preconditioned[row] = (preconditioned - last.preconditioned).flatten()
        self.rows.append(row)
        n = len(self.rows)
        self.products[row, :n] = to_float64(self.changes[:n] @ step).cpu()
        self.products[:n, row] = to_float64(self.steps[:n] @ change).cpu()
        self.products[row, row] = curvature

    def precondition(self, precondition: Callable[[Sequence[Tensor]], Sequence[Tensor]] | None) -> None:
        """Exchange the preconditioner for one that is the same at every point; None if it is not to be remembered.

        Args:
            precondition: Applies it to several gradients at once, so that large blocks are read from memory once.
        """
        if self.last is None:
            return
        if precondition is None:
            self.last = self.last._replace(preconditioned=None)
            return
        changes = [self.changes[row].view_as(self.last.point) for row in self.rows]
        made, *others = precondition([self.last.gradient, *changes])
        for row, other in zip(self.rows, others, strict=True):
            self.preconditioned[row] = other.flatten()
        self.last = self.last._replace(preconditioned=made)

    def inverse_hessian(
        self, gradient: Tensor, initial: Callable[[Tensor], Tensor], free: Tensor | None = None
    ) -> Tensor:
        """Apply the inverse Hessian given by the pairs and the preconditioner, within the subspace of some weights.

        Args:
            gradient: The objective's subgradient at the last point, shape (n_classes, d_model).
            initial: Applies the preconditioner.
            free: 1 for the weights of the subspace and 0 for others, shape (n_classes, d_model); all weights if None.
        """
        made = None if self.last is None or free is not None else self.last.preconditioned
        rows, pairs = self._curved(free)
        if not rows:
            return initial(gradient) if made is None else made.clone()
        upper, curvatures = pairs.products.triu(), pairs.products.diagonal()
        along = to_float64(pairs.steps @ gradient.flatten()).cpu()[rows]
        weights = torch.linalg.solve_triangular(upper, along[:, None], upper=True).squeeze(1)
        last = pairs.changes[rows[-1]]
        if made is None:
            rest = gradient - _sum(weights, rows, pairs.changes).view_as(gradient)
            result, changed = initial(rest).flatten(), initial(last.view_as(gradient)).flatten()
        else:
            result = made.flatten() - _sum(weights, rows, self.preconditioned[: len(pairs.changes)])
            changed = self.preconditioned[rows[-1]]
        # The products of small changes, as of classes that are told apart perfectly, are 0 in float32.
        if length := float(last @ changed) or float(to_float64(last) @ to_float64(changed)):
            result *= float(curvatures[-1]) / length
        missing = curvatures * weights - to_float64(pairs.changes @ result).cpu()[rows]
        weights = torch.linalg.solve_triangular(upper.T, missing[:, None], upper=False).squeeze(1)
        return (result + _sum(weights, rows, pairs.steps)).view_as(gradient)

    def _curved(self, free: Tensor | None) -> tuple[list[int], _Pairs]:
        """Return the rows of the pairs, the oldest first, and the pairs; their products are in the order of the rows.

        Args:
            free: As of `inverse_hessian`; pairs without curvature in that subspace are left out.
        """
        n, rows = len(self.rows), self.rows
        steps, changes, products = self.steps[:n], self.changes[:n], self.products
        if rows and free is not None:
            steps, changes = steps * free.flatten(), changes * free.flatten()
            products = to_float64(steps @ changes.T).cpu()
            rows = [row for row in rows if products[row, row] > 0]
        return rows, _Pairs(steps, changes, products[rows][:, rows])


def _sum(weights: Tensor, rows: list[int], vectors: Tensor) -> Tensor:
    """Return the sum of weighted vectors.

    Args:
        weights: Weight of some vectors, shape (n_rows,), float64.
        rows: Their rows.
        vectors: Shape (n, n_weights).
    """
    of_all = torch.zeros(len(vectors), dtype=torch.float64)
    of_all[rows] = weights
    return of_all.to(vectors.dtype).to(vectors.device) @ vectors


SUFFICIENT_DECREASE = 1e-4
SMALLEST_STEP = 1e-8
# Points at which the sensitivity of a readout is measured, at least: from a start alone it was up to 3 times too small.
VISITED = 3
# A share of a gain that is 0 is never reached.
SMALLEST_GAP = 1e-9
# Number of classes up to which eigenvectors of the class covariance are computed at every point; of 1,024 classes they
# take as long as a pass over 16 thousand tokens of 128 neurons.
MANY = 256
# Values are sums of float32 terms: differences below this fraction of the value are noise.
VALUE_NOISE = 1e-7


@dataclass(frozen=True)
class Evaluation:
    """The mean cross-entropy over the training tokens at one point, and its derivatives.

    Args:
        value: Mean cross-entropy in nats.
        gradient: Gradient with respect to the scaled weights, shape (n_classes, d_model).
        class_covariance: Mean over tokens of diag(p) - p p', the curvature in the logits, shape (n_classes, n_classes).
        curvature: Curvature at this point, which replaces the preconditioner from here on; None to keep it.
        preconditioned: What the preconditioner makes of the objective's subgradient, where that is known already, shape
            (n_classes, d_model).
    """

    value: float
    gradient: Tensor
    class_covariance: Tensor
    curvature: ClassCurvature | None = None
    preconditioned: Tensor | None = None


@dataclass(frozen=True)
class Solution:
    """The point at which a solver stopped.

    Args:
        point: Scaled weights, shape (n_classes, d_model).
        objective: Cross-entropy plus penalty, in nats.
        optimality_gap: Upper bound on the objective's distance to its minimum, in nats.
        n_passes: Number of evaluations used.
        converged: Whether the gap is within the tolerance, or the readout is near enough to its value at the optimum.
        shift: Estimated distance of the readout from its value at the optimum, in its unit; NaN without a readout.
    """

    point: Tensor
    objective: float
    optimality_gap: float
    n_passes: int
    converged: bool
    shift: float = math.nan


Solver = Generator[Tensor, Evaluation | None, Solution]


@dataclass(frozen=True)
class Penalty:
    """l1 |U|_1 + l2 |U|_F^2 on the scaled weights U."""

    l1: float
    l2: float

    def __call__(self, point: Tensor) -> float:
        """Return the penalty in nats."""
        wide = to_float64(point)
        squares = self.l2 * float(wide.square().sum())
        return squares + self.l1 * float(wide.abs().sum()) if self.l1 else squares

    def of(self, point: Tensor) -> Tensor:
        """Return the penalty in nats as a scalar tensor through which gradients flow."""
        return self.l1 * point.abs().sum() + self.l2 * point.square().sum()

    def subgradient(self, point: Tensor, gradient: Tensor) -> Tensor:
        """Return the objective's subgradient of least norm, given the gradient of the data term.

        With l1 > 0 this is the pseudo-gradient of OWL-QN (Andrew & Gao 2007, eq. 4).
        """
        smooth = gradient + 2 * self.l2 * point
        if not self.l1:
            return smooth
        at_zero = smooth.sign() * (smooth.abs() - self.l1).clamp(min=0)
        return torch.where(point == 0, at_zero, smooth + self.l1 * point.sign())

    def optimality_gap(self, point: Tensor, gradient: Tensor) -> float:
        """Bound the objective's distance to its minimum by the Fenchel duality gap, in nats.

        With the data term's gradient G at U as the dual point, the gap is the sum over weights of
        G U + l1 |U| + l2 U^2 + max(|G| - l1, 0)^2 / (4 l2), in which every term is at least 0.
        Without l1 it is |G + 2 l2 U|^2 / (4 l2), the bound from strong convexity. The bound holds
        at every point, and needs no further pass over the data.
        """
        u, g = to_float64(point), to_float64(gradient)
        if not self.l1:
            return float(g.add(u, alpha=2 * self.l2).square().sum()) / (4 * self.l2)
        shrunk = (g.abs() - self.l1).clamp(min=0)
        return float((g * u + self.l1 * u.abs() + self.l2 * u.square() + shrunk.square() / (4 * self.l2)).sum())


@dataclass(frozen=True)
class Readout:
    """A function of the weights, such as the test cross-entropy, whose value at the optimum is wanted.

    Near the optimum, a gap of D in the objective shifts the function by c sqrt(2 D). Because of the root, the function
    can still be far from its final value when the objective is not. By the Cauchy-Schwarz inequality, c is at most the
    length of the function's gradient t in the metric of the inverse Hessian B. That bound is 60 to 100 times too large,
    because t is nearly orthogonal to the remaining steps B g. So c is measured: it is the largest
    |t' B g| / sqrt(g' B g) of all points visited, where D = g' B g / 2 is the Newton decrement, and at least three
    times the value for a random direction in as many dimensions.

    Args:
        gradient: Gradient of the function at a nearby point, with respect to scaled weights, shape (n_classes,
            d_model).
        objective: Objective of the intact probe, relative to which the objective rises if the probe is restricted.
        resolution: Largest distance of the function from its value at the optimum, in its unit.
        share: Largest distance as a share of the objective's rise; the larger of the two limits applies.
    """

    gradient: Tensor
    objective: float = 0.0
    resolution: float = 0.0
    share: float = 0.0

    def is_near(self, shift: float, objective: float) -> bool:
        """Return whether a distance from the optimal value is small enough, given the current objective."""
        return shift <= max(self.resolution, self.share * (objective - self.objective))


class _Shift:
    """Estimates, at each point, how far a readout is from its value at the optimum."""

    def __init__(self, readout: Readout) -> None:
        self.readout, self.sensitivity = readout, 0.0

    def at(self, gradient: Tensor, step: Tensor, precondition: Callable[[Tensor], Tensor]) -> float:
        """Return the estimate at the next point, given the objective's gradient; the decrement is its second order.

        Args:
            gradient: The gradient, shape (n_classes, d_model).
            step: What `precondition` makes of it.
            precondition: Applies the inverse Hessian.
        """
        t = self.readout.gradient
        length = math.sqrt(max(_dot(gradient, step), 0.0))
        if not self.sensitivity:
            self.sensitivity = 3 * math.sqrt(max(_dot(t, precondition(t)), 0.0) / t.numel())
        if length:
            self.sensitivity = max(self.sensitivity, abs(_dot(t, step)) / length)
        return self.sensitivity * length + length**2 / 2


class Preconditioner:
    """The inverse of (class covariance) x (second moment) + 2 l2, a Kronecker model of the Hessian.

    The second moment of the features is the same for all classes and passes, so its principal axes are computed once
    per layer. The class covariance is small and is updated at every accepted point, with many classes at ever fewer.
    The preconditioner changes the path to the minimum, never the minimum.

    Args:
        second_moment: Uncentred second moment of the scaled features, shape (d_model, d_model), or its principal axes.
        device: Device of the gradients; that of the second moment if None.
        dtype: Dtype of the steps.
    """

    # Whether it is the same at every point.
    is_constant = False
    neurons: Tensor | None = None

    def __init__(
        self,
        second_moment: Tensor | PrincipalAxes,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        axes = second_moment if isinstance(second_moment, PrincipalAxes) else PrincipalAxes.of(second_moment)
        values, vectors = axes
        if device is None:
            device = values.device if axes is second_moment else cast(Tensor, second_moment).device
        self.feature_values = values.to(dtype).to(device)
        self.feature_vectors = vectors.to(dtype).to(device)

    def within(self, neurons: Tensor) -> Preconditioner:
        """Return a preconditioner with steps along some neurons only: 1 for those, 0 for others, shape (d_model,).

        It is the inverse for all neurons, restricted to these. This is not the inverse for these neurons, but it is
        positive definite.
        """
        narrowed = copy(self)
        narrowed.neurons = neurons.to(self.feature_vectors)
        return narrowed

    def at(self, class_covariance: Tensor, l2: float) -> Callable[[Tensor], Tensor]:
        """Return the map from gradients to steps for the curvature at one point."""
        # So small that the processor is faster than an accelerator.
        values, vectors = torch.linalg.eigh(class_covariance.cpu().double())
        class_values, rotation = values.clamp(min=0).to(self.feature_values), vectors.to(self.feature_vectors)
        curvature = class_values[:, None] * self.feature_values + 2 * l2

        def apply(gradient: Tensor) -> Tensor:
            rotated = rotation.T @ gradient.to(rotation) @ self.feature_vectors
            step = (rotation @ (rotated / curvature) @ self.feature_vectors.T).to(gradient)
            return step if self.neurons is None else step * self.neurons

        return apply


def lbfgs(
    start: Tensor,
    penalty: Penalty,
    preconditioner: Preconditioner | ClassCurvature,
    tolerance: float,
    readout: Readout | None = None,
    wants_curvature: Callable[[Evaluation, float, int], bool] = lambda here, gap, n_passes: False,
    gain_share: float = math.inf,
) -> Solver:
    """Minimise cross-entropy plus penalty by preconditioned L-BFGS, orthant-wise where l1 > 0.

    With l1, the history and the preconditioner are restricted at every step to the free weights (not zero, or leaving
    zero), as in a projected Newton method. With 384 neurons and 65 classes, 47 to 74 passes reach a gap of 1e-4 nats;
    OWL-QN with the same preconditioner but without this restriction had not reached 1 nat after 300 passes.

    Args:
        start: Initial scaled weights, shape (n_classes, d_model).
        penalty: The penalty; l2 must be positive, because otherwise the gap has no bound.
        preconditioner: An approximation of the inverse Hessian.
        tolerance: Stop when the optimality gap is at most this many nats.
        readout: If given, stop instead when the readout is near enough to its value at the optimum.
        wants_curvature: Told the evaluation, the optimality gap and the number of passes at each point on the way, says
            whether that point is to be evaluated once more, with the curvature there.
        gain_share: Stop only when the gap is also at most this share of what the objective has fallen below that of
            weight 0, which is the logarithm of the number of classes.
    """
    point, history, n_passes, step, n_points = start, History(), 1, 1.0, 0
    is_linear = preconditioner.is_constant and not penalty.l1
    judge = None if readout is None else _Shift(readout)
    if (here := (yield point)) is None:
        return Solution(point, math.inf, math.inf, 0, converged=False)
    gap = penalty.optimality_gap(point, here.gradient)
    while True:
        if here.curvature is not None:
            preconditioner, is_linear, n_points = here.curvature, not penalty.l1, 0
            history.precondition(here.curvature.apply if is_linear else None)
        value = here.value + penalty(point)
        subgradient = penalty.subgradient(point, here.gradient)
        n_points += 1
        if _is_due(n_points, len(point)):
            precondition = preconditioner.at(here.class_covariance, penalty.l2)
        preconditioned = here.preconditioned
        if preconditioned is None and (judge is not None or is_linear):
            preconditioned = precondition(subgradient)
        history.visit(point, here.gradient + 2 * penalty.l2 * point, preconditioned if is_linear else None)
        shift = math.nan
        if judge is not None and preconditioned is not None:
            shift = judge.at(subgradient, preconditioned, precondition)
        limit = tolerance
        if gain_share < math.inf:
            limit = min(tolerance, max(gain_share * (math.log(len(point)) - value), SMALLEST_GAP))
        is_solved = gap <= limit if readout is None else n_passes >= VISITED and readout.is_near(shift, value)
        if is_solved:
            return Solution(point, value, gap, n_passes, True, shift)
        direction = _direction(history, point, subgradient, precondition, penalty)
        while True:
            trial = point + step * direction
            if penalty.l1:
                trial = _within_orthant(trial, point, subgradient)
            if (there := (yield trial)) is None:
                return Solution(point, value, gap, n_passes, False, shift)
            n_passes += 1
            rise, slope = there.value + penalty(trial) - value, _dot(subgradient, trial - point)
            if rise <= SUFFICIENT_DECREASE * slope + VALUE_NOISE * abs(value):
                break
            # The minimum of the parabola through both values and the slope, limited to a safe range.
            parabola = step * slope / (2 * (slope - rise)) if math.isfinite(rise) else 0.0
            step = min(max(parabola, 0.1 * step), 0.5 * step)
            if step < SMALLEST_STEP:  # the points no longer differ in float32
                return Solution(point, value, gap, n_passes, False, shift)
        point, here = trial, there
        # Where classes are told apart with a wide margin, full steps are too long many times in a row.
        step = 1.0 if penalty.l1 else min(1.0, 2 * step)
        gap = penalty.optimality_gap(point, here.gradient)
        if gap > limit and wants_curvature(here, gap, n_passes):
            if (again := (yield point)) is None:
                return Solution(point, here.value + penalty(point), gap, n_passes, False)
            here, n_passes = again, n_passes + 1


def _is_due(n_points: int, n_classes: int) -> bool:
    """Return whether the preconditioner follows the class covariance at a point, by the point's number since a change.

    With more than `MANY` classes, it stays what it was, except at the first, second, fourth, eighth ... point.
    """
    return n_classes <= MANY or n_points.bit_count() == 1


def _direction(
    history: History, point: Tensor, subgradient: Tensor, precondition: Callable[[Tensor], Tensor], penalty: Penalty
) -> Tensor:
    """Return the quasi-Newton step; with l1 > 0, of the free weights only."""
    if not penalty.l1:
        return -history.inverse_hessian(subgradient, precondition)
    free = ((point != 0) | (subgradient != 0)).to(point.dtype)
    direction = -history.inverse_hessian(subgradient, lambda gradient: free * precondition(free * gradient), free)
    # A weight at zero may move only in a descent direction.
    direction = torch.where((point == 0) & (direction * subgradient >= 0), torch.zeros_like(direction), direction)
    return direction if _dot(direction, subgradient) < 0 else -subgradient


def _within_orthant(trial: Tensor, point: Tensor, subgradient: Tensor) -> Tensor:
    """Set weights to zero that have left the orthant: that of `point`, or of the descent direction at zero."""
    orthant = torch.where(point == 0, -subgradient.sign(), point.sign())
    return torch.where(trial * orthant > 0, trial, torch.zeros_like(trial))


def _dot(a: Tensor, b: Tensor) -> float:
    # In float32, because it only affects directions and steps; the optimality gap is summed in float64.
    return float(torch.dot(a.reshape(-1), b.reshape(-1)))


@dataclass(frozen=True)
class Problem:
    """One probe of the stack.

    Args:
        name: For training curves, such as `layer_06`.
        layer_index: Index of its layer in `Batch.hidden_states`.
        penalty: Penalty on its scaled weights.
        start: Initial weights on raw hidden states, shape (n_classes, d_model); 0 if None.
        neurons: Which neurons it may use, shape (d_model,), bool; all if None.
        draws: How often each sentence of the training corpus counts, shape (n_sentences,); once if None.
        labels: Classes that replace those of the training corpus's tokens, shape (n_tokens,), for the same examples.
        curvature: Curvature of a similar probe, used as preconditioner; if None, the layer's second moment is used.
        readout: A function of the weights that decides when to stop, in place of the tolerance; its gradient is with
            respect to weights on raw hidden states.
        gain_share: Largest optimality gap as a share of what the objective has fallen below that of weight 0, where
            this is less than the tolerance.
    """

    name: str
    layer_index: int
    penalty: Penalty
    start: Tensor | None = None
    neurons: Tensor | None = None
    draws: Tensor | None = None
    labels: Tensor | None = None
    curvature: ClassCurvature | None = None
    readout: Readout | None = None
    gain_share: float = math.inf


def problem_of_layer(layer: int, layer_index: int, penalty: Penalty, start: Tensor | None = None) -> Problem:
    """Return the probe of a layer, named after its number.

    Args:
        layer: Layer number.
        layer_index: Index of the layer in `Batch.hidden_states`.
        penalty: Penalty on its scaled weights.
        start: Initial weights on raw hidden states, shape (n_classes, d_model); 0 if None.
    """
    return Problem(f"layer_{layer:02d}", layer_index, penalty, start)
