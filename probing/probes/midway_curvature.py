"""Curvature of a probe that is still far from its optimum, measured in an extra pass if it saves more than it costs.

With the Kronecker model of `Preconditioner`, positions on layer 3 of the built-in model take 130 passes, because the
hidden states of each class have a different second moment. `ClassCurvature` takes this into account, but measuring it
costs as much time as several passes. So it is measured only if more passes than that are left, as estimated from the
last passes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probing.probes.class_curvature import SAMPLES, ClassCurvature, ClassCurvatureAccumulator, cost_in_passes
from probing.statistics.scaling import Scaling

# Typical number of passes to the optimum once the curvature is known, and number of the last points from which the
# number of passes without the curvature is estimated.
AFTER, JUDGED_BY = 8, 5
# Fewest tokens: a pass over fewer takes hardly any time.
LEAST_TOKENS = 4096
# Largest optimality gap, in nats: farther from the optimum, the curvature still changes.
NEAR = 0.05
# The same limit for a probe that can only guess among many classes, as with shuffled labels. A probe counts as guessing
# if its Gini impurity is at least that of a uniform guess among five classes, and has changed over the last points by
# at most the share SETTLED.
NEAR_GUESSES, LEAST_IMPURITY, SETTLED = 2.0, 0.8, 0.002
# The smallest gap, in multiples of the tolerance, at which the curvature is measured. Nearer to the optimum, the first
# passes after a warm start make the estimated number of further passes too large.
FAR = 30.0
# Maximum number of bytes for the curvature of all problems of a stack; further problems are solved without curvature.
MOST_BYTES = 2**28
# Rows that are copied at a time.
ROWS = 4096


class Visited(NamedTuple):
    """A point on a solver's way.

    Args:
        gap: Optimality gap there, in nats.
        n_passes: Number of passes that it took to get there.
        impurity: Gini impurity of what is predicted there, the mean over tokens of 1 - sum of p_k^2: the trace of the
            class covariance.
    """

    gap: float
    n_passes: int
    impurity: float


def passes_left(points: Sequence[Visited], tolerance: float) -> float:
    """Return how many passes are left to the tolerance, if the gap goes on falling as it did at the last points.

    Args:
        points: The points on the way.
        tolerance: The gap at which the problem is solved, in nats.

    Returns:
        Infinite where the gap did not fall; NaN where there are too few points to judge by.
    """
    if len(points) <= JUDGED_BY or not math.isfinite(points[-1 - JUDGED_BY].gap):
        return math.nan
    before, here = points[-1 - JUDGED_BY], points[-1]
    fall = math.log(before.gap / here.gap) / (here.n_passes - before.n_passes)
    return math.log(here.gap / tolerance) / fall if fall > 0 else math.inf


def is_near(points: Sequence[Visited]) -> bool:
    """Return whether the curvature at the last of some points is about that at the optimum."""
    here = points[-1]
    if here.gap <= NEAR or len(points) <= JUDGED_BY:
        return here.gap <= NEAR
    change = abs(here.impurity - points[-1 - JUDGED_BY].impurity)
    is_guess = here.impurity >= LEAST_IMPURITY and change <= SETTLED * here.impurity
    return is_guess and here.gap <= NEAR_GUESSES


class MidwayCurvature:
    """Decides which problems' curvature is measured, and measures it.

    Args:
        n_problems: Number of problems of the stack.
        tolerance: Optimality gap at which they are solved, in nats.
    """

    def __init__(self, n_problems: int, tolerance: float) -> None:
        self.tolerance = tolerance
        self.visited: list[list[Visited]] = [[] for _ in range(n_problems)]
        # Sums of the problems whose curvature the next pass measures, and the problems whose curvature is known.
        self.sums: dict[int, ClassCurvatureAccumulator] = {}
        self.known: set[int] = set()

    def asks(self, problem: int, point: Visited, shape: torch.Size, n_tokens: int) -> bool:
        """Record a point on a problem's way, and return whether measuring the curvature there would save time.

        Args:
            problem: Index of the problem.
            point: The point.
            shape: Shape of its weights, (n_classes, d_model).
            n_tokens: Number of training tokens.
        """
        points = self.visited[problem]
        points.append(point)
        if problem in self.known or point.gap <= FAR * self.tolerance or not is_near(points) or n_tokens < LEAST_TOKENS:
            return False
        n_bytes = 4 * shape[0] * shape[1] ** 2
        if (len(self.known) + len(self.sums) + 1) * n_bytes > MOST_BYTES:
            return False
        return passes_left(points, self.tolerance) > AFTER + cost_in_passes(n_tokens, shape[1])

    def begin(self, problem: int, weight: Tensor, class_covariance: Tensor, n_tokens: int) -> None:
        """Prepare the sums of a problem, which the next pass takes.

        Args:
            problem: Index of the problem.
            weight: Its weights on raw hidden states, shape (n_classes, d_model).
            class_covariance: Mean over tokens of diag(p) - p p' there, shape (n_classes, n_classes).
            n_tokens: Number of training tokens.
        """
        thresholds = class_covariance.diagonal().float() * (n_tokens / (SAMPLES * weight.shape[1]))
        self.sums[problem] = ClassCurvatureAccumulator(weight, thresholds, seed=0)

    def update(self, problem: int, hidden_states: Tensor, labels: Tensor) -> None:
        """Add a batch's examples to a problem's sums.

        Args:
            problem: Index of the problem.
            hidden_states: Hidden states of its layer, shape (n, d_model).
            labels: Class of each row, -1 for rows that are not examples, shape (n,).
        """
        for rows in (labels >= 0).nonzero().squeeze(1).split(ROWS):
            self.sums[problem].update(hidden_states.index_select(0, rows))

    def end(
        self, problem: int, sum_over_ranks: Callable[[Tensor], Tensor], scaling: Scaling, n_tokens: int, l2: float
    ) -> ClassCurvature:
        """End the pass and return a problem's curvature.

        Args:
            problem: Index of the problem.
            sum_over_ranks: All-reduces a tensor.
            scaling: The scaling of the layer's neurons.
            n_tokens: Number of training tokens.
            l2: Strength of the problem's penalty.
        """
        sums = self.sums.pop(problem)
        sums.all_reduce(sum_over_ranks)
        self.known.add(problem)
        return sums.result(scaling, n_tokens, l2)

    def solved(self, problem: int) -> None:
        """Forget a problem."""
        self.known.discard(problem)
        self.sums.pop(problem, None)
