"""A softmax probe without an intercept: centred weights, which are unique, cross-entropy, gradient and curvature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from probing.runtime.arithmetic import add_product, float64_device, on_float64_device, product
from probing.statistics.moments import Moments

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
