"""A bias-free softmax probe: what its weights leave open, and its cross-entropy, gradient and curvature."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from probing.runtime.float64 import float64_device, on_float64_device
from probing.runtime.products import add_product, product

# Number of logits processed at a time, and the limits of the number of examples: small enough for intermediate results
# to stay in the processor's cache, large enough for efficient products. Chosen by timing 1, 4 and 20 stacked problems
# with 65 classes on two cores.
BLOCK, LEAST_ROWS, MOST_ROWS = 2**20, 512, 2048
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
        class_covariance: Sum of diag(p) - p p', shape (n_problems, n_classes, n_classes).
    """

    cross_entropy: Tensor
    gradient: Tensor
    class_covariance: Tensor


def cross_entropy_sums(
    weight: Tensor,
    hidden_states: Tensor,
    labels: Tensor,
    counts: Tensor | None = None,
    with_curvature: bool = True,
) -> Sums:
    """Return value and derivatives of the summed cross-entropy of probes that read the same layer.

    Args:
        weight: Weights of each problem, shape (n_problems, n_classes, d_model).
        hidden_states: Hidden states of the tokens, shape (n_tokens, d_model).
        labels: Class of each token, -1 for tokens to ignore, shape (n_tokens,); or classes for each problem, shape
            (n_problems, n_tokens), where -1 must be at the same tokens in all problems.
        counts: How often each token counts in each problem, shape (n_problems, n_tokens); once if None.
        with_curvature: Whether the class covariance is computed; it is 0 otherwise.
    """
    n_problems, n_classes, d_model = weight.shape
    rows = ((labels if labels.dim() == 1 else labels[0]) >= 0).nonzero().squeeze(1)
    sums = Sums(
        torch.zeros(n_problems, dtype=torch.float64, device=float64_device(weight.device)),
        torch.zeros_like(weight),
        weight.new_zeros(n_problems, n_classes, n_classes),
    )
    n = min(max(BLOCK // (n_problems * n_classes), LEAST_ROWS), MOST_ROWS)
    # Every block is copied to the same two places, because new pages of memory take longer than the copies.
    picked, converted = hidden_states.new_empty(n, d_model), weight.new_empty(n, d_model)
    for block in rows.split(n) if len(rows) else ():
        here = torch.index_select(hidden_states, 0, block, out=picked[: len(block)])
        here = converted[: len(block)].copy_(here) if here.dtype != weight.dtype else here
        own = None if counts is None else counts[:, block]
        _add_block(sums, weight, here, labels[..., block], own, with_curvature)
    return sums


def _add_block(
    sums: Sums,
    weight: Tensor,
    hidden_states: Tensor,
    labels: Tensor,
    counts: Tensor | None,
    with_curvature: bool,
) -> None:
    n_problems, n_classes, d_model = weight.shape
    n_tokens = len(hidden_states)
    target = labels.expand(n_problems, n_tokens)[:, None]
    times = torch.ones((), device=weight.device, dtype=weight.dtype) if counts is None else counts[:, None]
    # With classes before tokens, both products read contiguous rows.
    logits = product(weight.view(-1, d_model), hidden_states.T).view(n_problems, n_classes, n_tokens)
    log_p = logits.log_softmax(1)
    sums.cross_entropy.sub_(on_float64_device(log_p.gather(1, target) * times).sum((1, 2), dtype=torch.float64))
    p = log_p.clamp_(min=LEAST_LOG_P).exp_()
    counted = p if counts is None else p * times
    if with_curvature:
        sums.class_covariance.diagonal(dim1=1, dim2=2).add_(counted.sum(2))
        sums.class_covariance.sub_(product(counted, p.transpose(1, 2)))
    residual = counted.scatter_add_(1, target, -times.expand_as(target).to(p.dtype))
    add_product(sums.gradient.view(-1, d_model), residual.flatten(0, 1), hidden_states)
