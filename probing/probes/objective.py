"""A softmax probe without an intercept: centred weights, which are unique, cross-entropy, gradient and curvature."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probing.runtime.arithmetic import add_product, float64_device, on_float64_device, product
from probing.statistics.moments import Moments, Scaling

# Number of logits processed at a time, and the limits of the number of examples: small enough for intermediate results
# to stay in the processor's cache, large enough for efficient products. Chosen by timing 1, 3, 7 and 21 stacked
# problems with 65 classes on two cores.
BLOCK, LEAST_ROWS, MOST_ROWS = 2**20, 512, 4096
# Number of examples of each block from which the class covariance is estimated. It is used only for preconditioning,
# which does not change the optimum. With many classes these are fewer, but no fewer than the second number, so that its
# cost, which grows with the square of their number, stays below a quarter of that of the two products with the weights.
SAMPLED, LEAST_SAMPLED, QUARTER = 1024, 64, 0.5
# Least logarithm of a probability. With float32, products of smaller ones are denormal numbers, with which a processor
# takes up to ten times as long; beside a probability of 1, e^-40 is far below rounding.
LEAST_LOG_P = -40.0


def centre_over_classes(weight: Tensor) -> Tensor:
    """Subtract from each neuron's weights their mean over classes: the softmax stays and the weight is identifiable.

    A single row is the weight of a probe of numbers, which is identifiable as it is.

    Args:
        weight: Probe weight, shape (..., n_classes, d_model).
    """
    if weight.shape[-2] == 1:
        return weight
    return weight - weight.mean(-2, keepdim=True)


class Sums(NamedTuple):
    """Sums over the examples of a batch, for each stacked problem.

    Args:
        cross_entropy: Cross-entropy in nats, shape (n_problems,), float64, on the device that holds float64.
        gradient: Gradient with respect to the weight, shape (n_problems, n_classes, d_model).
        class_covariance: Sum of diag(p) - p p', shape (n_problems, n_classes, n_classes), estimated on the first
            examples of each block; shape (n_problems, 0, 0) without curvature.
    """

    cross_entropy: Tensor
    gradient: Tensor
    class_covariance: Tensor


class Workspace:
    """Memory that all blocks reuse, because allocating new pages takes longer than writing to them."""

    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def take(self, name: str, shape: Sequence[int], like: Tensor) -> Tensor:
        """Return a tensor of a shape, whose values are those that it was last left with.

        Args:
            name: What it is for; a tensor is valid until its name is taken again.
            shape: Its shape.
            like: A tensor of the same dtype on the same device.
        """
        size, kept = math.prod(shape), self.kept.get(name)
        if kept is None or kept.numel() < size or kept.dtype != like.dtype or kept.device != like.device:
            kept = self.kept[name] = like.new_empty(size)
        return kept[:size].view(*shape)


def cross_entropy_sums(
    weight: Tensor,
    hidden_states: Tensor,
    labels: Tensor,
    counts: Tensor | None = None,
    with_curvature: bool = True,
    workspace: Workspace | None = None,
) -> Sums:
    """Return value and derivatives of the summed cross-entropy of probes that read the same layer.

    Args:
        weight: Weights of each problem, shape (n_problems, n_classes, d_model).
        hidden_states: Hidden states of the tokens, shape (n_tokens, d_model).
        labels: Class of each token, -1 for tokens to ignore, shape (n_tokens,); or classes for each problem, shape
            (n_problems, n_tokens), where -1 must be at the same tokens in all problems.
        counts: How often each token counts in each problem, shape (n_problems, n_tokens); once if None.
        with_curvature: Whether the class covariance is computed; it is empty otherwise.
        workspace: Memory that is used again where many batches are summed.
    """
    n_problems, n_classes, d_model = weight.shape
    rows = ((labels if labels.dim() == 1 else labels[0]) >= 0).nonzero().squeeze(1)
    sums = Sums(
        torch.zeros(n_problems, dtype=torch.float64, device=float64_device(weight.device)),
        torch.zeros_like(weight),
        weight.new_zeros(n_problems, *[n_classes * with_curvature] * 2),
    )
    n = min(max(BLOCK // (n_problems * n_classes), LEAST_ROWS), MOST_ROWS)
    workspace = Workspace() if workspace is None else workspace
    labels, counts = labels[..., rows], None if counts is None else counts[:, rows]
    for i in range(0, len(rows), n):
        block = slice(i, i + n)
        picked = workspace.take("picked", (len(rows[block]), d_model), hidden_states)
        here = torch.index_select(hidden_states, 0, rows[block], out=picked)
        if here.dtype != weight.dtype:
            here = workspace.take("converted", here.shape, weight).copy_(here)
        own = None if counts is None else counts[:, block]
        _add_block(sums, weight, here, labels[..., block], own, with_curvature, workspace)
    return sums


def _add_block(
    sums: Sums,
    weight: Tensor,
    hidden_states: Tensor,
    labels: Tensor,
    counts: Tensor | None,
    with_curvature: bool,
    workspace: Workspace,
) -> None:
    n_problems, n_classes, d_model = weight.shape
    n_tokens = len(hidden_states)
    target = labels.expand(n_problems, n_tokens)[:, None]
    times = torch.ones((), device=weight.device, dtype=weight.dtype) if counts is None else counts[:, None]
    # With classes before tokens, both products read contiguous rows.
    shape = (n_problems, n_classes, n_tokens)
    logits = workspace.take("logits", shape, weight)
    product(weight.view(-1, d_model), hidden_states.T, out=logits.view(-1, n_tokens))
    log_p = torch.log_softmax(logits, 1, out=workspace.take("log_p", shape, weight))
    sums.cross_entropy.sub_(on_float64_device(log_p.gather(1, target) * times).sum((1, 2), dtype=torch.float64))
    p = log_p.clamp_(min=LEAST_LOG_P).exp_()
    counted = p if counts is None else p * times
    if with_curvature:
        n_sampled = _n_sampled(n_tokens, n_classes, d_model)
        sampled = counted[..., :n_sampled]
        covariance = product(sampled, p[..., :n_sampled].transpose(1, 2)).neg_()
        covariance.diagonal(dim1=1, dim2=2).add_(sampled.sum(2))
        sums.class_covariance.add_(covariance, alpha=n_tokens / n_sampled)
    residual = counted.scatter_add_(1, target, -times.expand_as(target).to(p.dtype))
    add_product(sums.gradient.view(-1, d_model), residual.flatten(0, 1), hidden_states)


def _n_sampled(n_tokens: int, n_classes: int, d_model: int) -> int:
    """Return from how many of a block's tokens the class covariance is estimated."""
    affordable = int(QUARTER * n_tokens * d_model / n_classes)
    return min(n_tokens, SAMPLED, max(affordable, LEAST_SAMPLED))


# e^2 / 4: where L-BFGS in float32 came to a stand with 3 and 30 classes and 8 to 384 shifted neurons, it was 1e-18 to
# 7e-17 at r = 10 and 100; at a tenth of that, passes multiply.
FLOAT32_NOISE = 5e-18


def dtype_that_solves(moments: Sequence[Moments], l2: float, tolerance: float) -> torch.dtype:
    """Return the dtype in which probes reach a tolerance: float64 where the mean of their neurons is too far from 0.

    Args:
        moments: Moments of the training tokens of each layer.
        l2: The weakest penalty of the probes, in units of standard deviations.
        tolerance: Distance to the optimum that is to be reached, in nats.
    """
    reached = max((FLOAT32_NOISE * distance(own) ** 4 / l2 for own in moments), default=0.0)
    return torch.float64 if reached > tolerance else torch.float32


def distance(moments: Moments) -> float:
    """Return the distance between the mean of a layer's live neurons and 0, each in its standard deviations."""
    return float(torch.where(moments.dead, 0.0, moments.mean / moments.sd).norm())


# --------------------------------------------------------------------------------------------------------------------
# The block-diagonal curvature of a softmax probe, also of one that is still far from its optimum.
# --------------------------------------------------------------------------------------------------------------------

# Most bytes of the blocks of all classes; if they need more, the Kronecker model is used.
MOST_BYTES = 2**30
# Number of tokens sampled for the block of each class, in multiples of d_model; with all tokens, computing the blocks
# would take more time than they save.
SAMPLES = 8


# Passes over n tokens that take as long as the blocks and their inverses, per d_model^2 / n: in layer 3 of the built-in
# model (384 neurons, 47,698 tokens, 65 classes) 12 to 20.
COST = 5.0


def cost_in_passes(n_tokens: int, d_model: int) -> float:
    """Return how many passes of one problem over the tokens take as long as to measure and to invert the blocks."""
    return COST * d_model**2 / n_tokens


def fits(n_classes: int, d_model: int) -> bool:
    """Return whether the blocks of all classes need at most `MOST_BYTES`."""
    return 4 * n_classes * d_model**2 <= MOST_BYTES


class ClassCurvature:
    """The inverse of the objective's block-diagonal Hessian, with one block per class; a preconditioner.

    Args:
        inverse: Inverse of each class's block, shape (n_classes, d_model, d_model).
        removed: Neurons that the probe does not use, left out of every block; shape (n_removed,).
    """

    # Whether it is the same at every point.
    is_constant = True

    def __init__(self, inverse: Tensor, removed: Tensor | None = None) -> None:
        self.inverse, self.removed = inverse, torch.tensor([], dtype=torch.int64) if removed is None else removed
        self.columns = inverse[:, :, self.removed]

    def to(self, like: Tensor) -> ClassCurvature:
        """Return the curvature in the dtype and on the device of a tensor."""
        return ClassCurvature(self.inverse.to(like), self.removed.to(like.device))

    def within(self, neurons: Tensor) -> ClassCurvature:
        """Return the curvature of a probe that uses some neurons only: 1 for those, 0 for others, shape (d_model,)."""
        return ClassCurvature(self.inverse, (neurons == 0).nonzero().squeeze(1))

    def without(self, weight: Tensor) -> Tensor:
        """Return the nearest weights, in the metric of the curvature, that do not use the removed neurons.

        This is the second-order step of LeCun et al. (1990) and Hassibi & Stork (1993): the other neurons take over the
        part of the removed neurons that they predict. Softmax ignores a vector added to all classes, so weights are
        centred over classes.

        Args:
            weight: Scaled weights, shape (n_classes, d_model).
        """
        if len(self.removed):
            share = torch.linalg.solve(self.columns[:, self.removed], weight[:, self.removed, None])
            weight = weight - (self.columns @ share).squeeze(2)
            weight[:, self.removed] = 0
        return centre_over_classes(weight)

    def at(self, class_covariance: Tensor, l2: float) -> Callable[[Tensor], Tensor]:
        """Return the map from gradients to steps, which is the same at every point."""
        return lambda gradient: self.apply([gradient])[0]

    def apply(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the step of each gradient, all of shape (n_classes, d_model); blocks are read from memory once."""
        return steps([self] * len(gradients), gradients)


def steps(curvatures: Sequence[ClassCurvature], gradients: Sequence[Tensor]) -> list[Tensor]:
    """Apply each curvature to its gradient; blocks that several share are read from memory once.

    Args:
        curvatures: The curvature of each problem.
        gradients: The gradient of each, shape (n_classes, d_model).

    Returns:
        What `ClassCurvature.at` makes of each, shape (n_classes, d_model).
    """
    shared: dict[int, list[int]] = {}
    for i, curvature in enumerate(curvatures):
        shared.setdefault(curvature.inverse.data_ptr(), []).append(i)
    found: dict[int, Tensor] = {}
    for group in shared.values():
        together = curvatures[group[0]].inverse @ torch.stack([gradients[i] for i in group], 2)
        found |= {i: curvatures[i].without(step) for i, step in zip(group, together.unbind(2), strict=True)}
    return [found[i] for i in range(len(curvatures))]


class ClassCurvatureAccumulator:
    """Estimates the sum over tokens of p_k (1 - p_k) h h' for each class k by sampling tokens.

    A token with a weight p_k (1 - p_k) of at least the threshold is always taken. A token with a smaller weight is
    drawn with probability weight / threshold, and then gets the weight of the threshold, so that the estimate is
    unbiased (threshold sampling: Duffield, Lund & Thorup 2005).

    Args:
        weight: Weights of the probe on raw hidden states, shape (n_classes, d_model).
        thresholds: Threshold of each class, shape (n_classes,); 0 takes all tokens.
        seed: Seed of the draws.
    """

    def __init__(self, weight: Tensor, thresholds: Tensor, seed: int) -> None:
        self.weight, self.thresholds = weight, thresholds
        self.generator = torch.Generator().manual_seed(seed)
        self.blocks = weight.new_zeros(len(weight), weight.shape[1], weight.shape[1])

    def update(self, hidden_states: Tensor) -> None:
        """Add tokens: their hidden states, shape (n_tokens, d_model)."""
        hidden_states = hidden_states.to(self.weight.dtype)
        p = product(hidden_states, self.weight.T).softmax(1)
        weights = p * (1 - p)
        drawn = torch.rand(p.shape, generator=self.generator) * self.thresholds < weights
        counted = torch.maximum(weights, self.thresholds)
        for block, own, times in zip(self.blocks, drawn.T.contiguous(), counted.T.contiguous(), strict=True):
            rows = own.nonzero().squeeze(1)
            there = hidden_states.index_select(0, rows)
            add_product(block, (there * times.index_select(0, rows)[:, None]).T, there)

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums of all ranks."""
        self.blocks = sum_over_ranks(self.blocks)

    def result(self, scaling: Scaling, n_tokens: int, l2: float) -> ClassCurvature:
        """Return the curvature in the space of the penalty, which takes the place of the sums in memory.

        Args:
            scaling: The scaling of the layer's neurons.
            n_tokens: Number of tokens added.
            l2: Strength of the penalty.
        """
        for block in self.blocks:
            block.copy_(_inverse(scaling.products(block / n_tokens), l2))
        return ClassCurvature(self.blocks)


def _inverse(block: Tensor, l2: float) -> Tensor:
    """Return the inverse of a class's block and the penalty's 2 l2, computed in float64, in the block's dtype."""
    wide = block.double() + 2 * l2 * torch.eye(len(block), dtype=torch.float64)
    factor, failed = torch.linalg.cholesky_ex(wide)
    # The penalty may be less than the rounding error of a block that few tokens are in.
    return (torch.linalg.inv(wide) if failed else torch.cholesky_inverse(factor)).to(block.dtype)


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
MOST_BYTES_OF_SUMS = 2**28
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
        if (len(self.known) + len(self.sums) + 1) * n_bytes > MOST_BYTES_OF_SUMS:
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
