"""Curvature of a probe that is still far from solved, measured in one of its passes, where that saves passes.

The Kronecker model of `Preconditioner` takes 130 passes for positions on layer 3 of the built-in model, since every
class has its tokens elsewhere. `ClassCurvature` knows that. It costs as much as some passes, so that it is measured
only where more of them are left, judged by the last ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from probing.probes.class_curvature import SAMPLES, ClassCurvature, ClassCurvatureAccumulator, cost_in_passes
from probing.statistics.scaling import Scaling

# Number of passes with the curvature until a problem is solved, and of the last passes by which those without it are
# judged.
AFTER, JUDGED_BY = 8, 5
# Fewest tokens: a pass over fewer takes hardly any time.
LEAST_TOKENS = 4096
# Largest optimality gap, in nats: farther away the curvature still changes. And the smallest, in tolerances: nearer to
# it, the first passes after a warm start promise more passes than there will be.
NEAR, FAR = 0.05, 30.0
# Most bytes of curvature of all problems of a stack; further problems go on without.
MOST_BYTES = 2**28
# Rows that are copied at a time.
ROWS = 4096


def passes_left(gaps: Sequence[float], tolerance: float) -> float:
    """Return how many passes are left to the tolerance, if the gap goes on falling as it did in the last passes.

    Args:
        gaps: Optimality gap after each pass, in nats.
        tolerance: The gap at which the problem is solved, in nats.

    Returns:
        Infinite where the gap did not fall; NaN where there are too few passes to judge by.
    """
    if len(gaps) <= JUDGED_BY or not math.isfinite(gaps[-1 - JUDGED_BY]):
        return math.nan
    fall = math.log(gaps[-1 - JUDGED_BY] / gaps[-1]) / JUDGED_BY
    return math.log(gaps[-1] / tolerance) / fall if fall > 0 else math.inf


class MidwayCurvature:
    """Decides which problems' curvature is measured, and measures it.

    Args:
        n_problems: Number of problems of the stack.
        tolerance: Optimality gap at which they are solved, in nats.
    """

    def __init__(self, n_problems: int, tolerance: float) -> None:
        self.tolerance = tolerance
        self.gaps: list[list[float]] = [[] for _ in range(n_problems)]
        # Problems whose curvature is summed in the next pass, and whose curvature is known.
        self.asked: set[int] = set()
        self.known: set[int] = set()
        self.sums: dict[int, ClassCurvatureAccumulator] = {}

    def passed(self, problem: int, gap: float, shape: torch.Size, n_tokens: int) -> None:
        """Note a problem's gap after a pass, and ask for its curvature in the next one where it would pay.

        Args:
            problem: Index of the problem.
            gap: Its optimality gap, in nats.
            shape: Shape of its weights, (n_classes, d_model).
            n_tokens: Number of training tokens.
        """
        self.gaps[problem].append(gap)
        if problem in self.known or not FAR * self.tolerance < gap <= NEAR or n_tokens < LEAST_TOKENS:
            return
        n_bytes = 4 * shape[0] * shape[1] ** 2
        if (len(self.known) + len(self.asked) + 1) * n_bytes > MOST_BYTES:
            return
        if passes_left(self.gaps[problem], self.tolerance) > AFTER + cost_in_passes(n_tokens, shape[1]):
            self.asked.add(problem)

    def begin(self, problem: int, weight: Tensor, class_covariance: Tensor, n_tokens: int) -> None:
        """Begin a pass in which the curvature of a problem that was asked for is summed.

        Args:
            problem: Index of the problem.
            weight: Its weights on raw hidden states, shape (n_classes, d_model).
            class_covariance: Mean over tokens of diag(p) - p p' in the last pass, shape (n_classes, n_classes).
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
        self.asked.remove(problem)
        self.known.add(problem)
        return sums.result(scaling, n_tokens, l2)

    def solved(self, problem: int) -> None:
        """Forget a problem."""
        self.known.discard(problem)
        self.asked.discard(problem)
        self.sums.pop(problem, None)
