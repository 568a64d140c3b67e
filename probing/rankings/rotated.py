"""Scores of neurons beside those of directions: what a method ranks by, computed in randomly rotated bases.

Neurons are standardised before they are rotated. A score is then one of a direction as it is of a neuron: it follows
from the weights, from the moments of the classes, or from the tokens, and nothing is trained again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from probing.data.labelling import Sample
from probing.probes.closed_forms import FLOOR, choose_shared, entropy
from probing.probes.objective import centre_over_classes
from probing.rankings.methods import SELECTED, LayerData, mean_differences
from probing.statistics.rotations import random_rotation

# Validation tokens on which it is measured what directions tell of the class.
N_TOKENS = 2_000
# Numbers of tokens, classes and directions at a time.
AT_A_TIME = 2**24


def _variances(data: LayerData, basis: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums of squares of each direction between and within classes, each of shape (n_directions,)."""
    counts, mean = data.classes.counts, data.classes.mean @ basis
    between = counts @ (mean - counts @ mean / counts.sum()).square()
    return between, _squares(data.classes.pooled * counts.sum(), basis)


def _squares(products: Tensor, basis: Tensor) -> Tensor:
    """Return q' P q for each direction q, shape (n_directions,)."""
    return ((products @ basis) * basis).sum(0)


def _weight(data: LayerData, basis: Tensor) -> Tensor:
    """Return the mean over classes of the absolute weight of each direction."""
    return ((centre_over_classes(data.weight.double()) * data.moments.sd.square()) @ basis).abs().mean(0)


def _differences(data: LayerData, basis: Tensor) -> Tensor:
    """Return how far class means are apart in each direction, in its standard deviations, summed over pairs."""
    sd = (sum(_variances(data, basis)) / data.classes.counts.sum()).sqrt()
    return mean_differences(data.classes.mean @ basis) / sd


def _anova(data: LayerData, basis: Tensor) -> Tensor:
    """Return the share of each direction's variance that is between classes: in the order of F, and never infinite."""
    between, within = _variances(data, basis)
    return between / (between + within)


def _alone(data: LayerData, basis: Tensor, shared: float, tokens: Sample) -> Tensor:
    """Return the bits of the class that a Gaussian probe reads from each direction alone; 0 where it misleads.

    Args:
        data: The data of a layer.
        basis: The directions, shape (d_model, n_directions).
        shared: Weight of the shared covariance in the probe, in tokens.
        tokens: Validation tokens.
    """
    between, within = _variances(data, basis)
    counts, n = data.classes.counts[:, None], data.classes.counts.sum()
    scatter = torch.stack([_squares(one, basis) for one in data.classes.scatter])
    prior = scatter / counts.clamp(min=1) + FLOOR * (between + within) / n
    variance = (scatter + shared * within / n + prior) / (counts + 6 + shared)
    centre = data.moments.mean
    mean, states = ((data.classes.mean - centre) @ basis).float(), (tokens.hidden_states.double() - centre) @ basis
    constant, slope = ((counts / n).log() - variance.log() / 2).float(), (-0.5 / variance).float()
    total = torch.zeros(basis.shape[1], dtype=torch.float64)
    size = max(1, AT_A_TIME // mean.numel())
    for rows, labels in zip(states.float().split(size), tokens.labels.split(size), strict=True):
        joint = (rows[:, None] - mean).square_().mul_(slope).add_(constant)
        total += (joint[torch.arange(len(labels)), labels] - joint.logsumexp(1)).sum(0, dtype=torch.float64)
    return (entropy(tokens.labels) + total / len(tokens.labels) / math.log(2)).clamp(min=0)


# By what neurons are compared with directions, for each method whose score is one of a direction, too.
SCORES: dict[str, Callable[..., Tensor]] = {
    "weight": _weight, "probeless_standardised": _differences, "anova": _anova, "gaussian": _alone,
}  # fmt: skip


def rotated_scores(
    data: LayerData, methods: Sequence[str], n_rotations: int, seed: int
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return scores of live neurons, shape (n_live,), and of the directions of rotations, (n_rotations, n_live).

    Args:
        data: The data of a layer.
        methods: Names of methods; those that are not in `SCORES` are left out.
        n_rotations: Number of rotations.
        seed: Seed of the rotations.
    """
    scores = {name: SCORES[name] for name in methods if name in SCORES}
    if "gaussian" in scores:
        states, labels = data.validation
        drawn = [i for i in data.draw(SELECTED, 0) if not data.moments.dead[i]]
        few = slice(None, None, math.ceil(len(labels) / N_TOKENS))
        shared = choose_shared(data.classes, states, labels, drawn).shared  # as the method itself chooses it
        scores["gaussian"] = partial(_alone, shared=shared, tokens=Sample(states[few], labels[few]))
    live = data.live
    eye = torch.eye(len(live), dtype=torch.float64)
    found: dict[str, list[Tensor]] = {name: [] for name in scores}
    for draw in range(-1, n_rotations if live else -1):
        basis = torch.zeros(len(data.moments.sd), len(live), dtype=torch.float64)
        directions = eye if draw < 0 else random_rotation(len(live), seed, int(data.layer), draw)(eye)
        basis[live] = directions / data.moments.sd[live, None]
        for name, score in scores.items():
            found[name].append(score(data, basis))
    return {name: (of[0], torch.stack(of[1:]).sort(-1, descending=True).values) for name, of in found.items() if of}
