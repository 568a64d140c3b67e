"""Contributions of neurons beside those of random directions: the same logits, split over rotated bases.

With U the weights on scaled neurons and z a scaled hidden state, the logits are U z = (U Q)(Q' z) for every orthogonal
Q. The l2 penalty |U|^2 is the same in all these bases, so that a probe at its optimum is the optimum in each of them,
and none is trained again. What directions contribute says what a basis without neurons would: a ranking is one of
neurons only as far as they contribute more. Rotations mix neurons of equal variance, and directions have unequal ones:
this favours directions, and "less than directions" says nothing by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from probing.data.examples import Examples, read_share
from probing.data.labelling import thin
from probing.probes.objective import centre_over_classes
from probing.probes.ridge import NumberFit
from probing.probes.training import LayerFit
from probing.runtime.processes import sum_over_ranks
from probing.statistics.moments import Moments, PenaltySpace, Scaling
from probing.statistics.rotations import random_rotation
from probing.tables.columns import BASIS_KINDS, CONCENTRATION, FIRST
from probing.tables.evidence_sentences import ALPHA

# Test tokens that are read, whole sentences drawn evenly.
N_TOKENS = 4_000
# Numbers at a time, so that a wide layer takes no more memory than a narrow one.
AT_A_TIME = 2**17
# Sums of equal parts differ in the last bits alone.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Directions:
    """Contributions of a layer's neurons and of the directions of rotations, on the same test tokens.

    The first axis is of `BASIS_KINDS`: contributions as they are, and with the means over training tokens subtracted.

    Args:
        neurons: Mean contribution of each neuron, 0 for dead ones, shape (2, d_model), float64.
        directions: Mean contribution of each direction, highest first, shape (2, n_rotations, n_live), float64.
        n_tokens: Number of test tokens.
    """

    neurons: Tensor
    directions: Tensor
    n_tokens: int

    @property
    def n_rotations(self) -> int:
        """Number of rotations."""
        return self.directions.shape[1]

    @property
    def p(self) -> Tensor:
        """Share of the rotations, and of the neurons, whose largest direction contributes as much; (2, d_model)."""
        return torch.stack([shares_above(*pair) for pair in zip(self.neurons, self.directions, strict=True)])

    @property
    def columns(self) -> dict[str, list[Any]]:
        """Which neurons contribute more than directions, with the share of rotations in which they do not."""
        plain, centred = self.p.tolist()
        above = ["yes" if p <= ALPHA else "no" for p in plain]
        return {"direction_p": plain, "direction_p_centred": centred, "above_directions": above}


def shares_above(neurons: Tensor, directions: Tensor) -> Tensor:
    """Return the share of the rotations, and of the neurons, whose largest direction scores as much as each neuron.

    Args:
        neurons: Score of each neuron, shape (n,).
        directions: Score of each direction, highest first, shape (n_rotations, n_live).
    """
    largest = directions[:, :1].sum(-1)  # 0 where no neuron is live
    reached = largest[:, None] >= neurons * (1 - ROUNDING)
    return (1 + reached.sum(0)).double() / (1 + len(directions))


def comparison(
    test: Examples, layer: int, weight: Tensor, moments: Moments, space: PenaltySpace, n_rotations: int, seed: int
) -> Callable[[], Directions]:
    """Read some of a layer's test tokens, divided among ranks, and return what measures neurons and directions on them.

    Args:
        test: Test examples.
        layer: Layer number.
        weight: Weight of the layer's probe on raw hidden states, shape (n_classes, d_model).
        moments: Moments of the layer's training tokens.
        space: By what neurons are divided before they are rotated, as before their weights are penalised.
        n_rotations: Number of rotations.
        seed: Seed of the rotations, and of the sample of the tokens where not all are used.

    """
    scaling, live = Scaling(moments, space), ~moments.dead
    weights = scaling.scaled_weight(centre_over_classes(weight.double()))[:, live]
    mean = scaling.features(moments.mean)[live]
    states, labels = _sample(thin(test, N_TOKENS, seed), layer, scaling, live, len(weight))
    return partial(_compared, states, labels, mean, weights, live, int(layer), n_rotations, seed)


def measure_directions(
    test: Examples, layer: int, weight: Tensor, moments: Moments, space: PenaltySpace, n_rotations: int, seed: int
) -> Directions:
    """Return what neurons and directions contribute, as `comparison` measures it."""
    return comparison(test, layer, weight, moments, space, n_rotations, seed)()


def _compared(
    states: Tensor, labels: Tensor, mean: Tensor, weights: Tensor, live: Tensor, layer: int, n_rotations: int, seed: int
) -> Directions:
    n_live, width = states.shape[1], len(live)
    if not n_live:
        return Directions(torch.zeros(2, width), torch.zeros(2, n_rotations, 0), len(labels))
    sums = torch.zeros(2, 1 + n_rotations, n_live, dtype=torch.float64)
    sums[:, 0] = _sums(states, labels, mean, weights)
    for draw in range(n_rotations):
        rotate = random_rotation(n_live, seed, layer, draw)
        turned_mean, turned_weights = rotate(mean[None])[0], rotate(weights)
        for part, own in zip(_parts(states), _parts(labels, n_live), strict=True):
            sums[:, 1 + draw] += _sums(rotate(part), own, turned_mean, turned_weights)
    n_tokens = int(sum_over_ranks(torch.tensor(len(labels))))
    means = sum_over_ranks(sums) / max(n_tokens, 1)
    neurons = torch.zeros(2, width, dtype=torch.float64)
    neurons[:, live] = means[:, 0]
    return Directions(neurons, means[:, 1:].sort(-1, descending=True).values, n_tokens)


def _parts(rows: Tensor, width: int = 0) -> Sequence[Tensor]:
    return rows.split(max(1, AT_A_TIME // (width or rows.shape[1])))


def _sample(examples: Examples, layer: int, scaling: Scaling, live: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """Return this rank's scaled hidden states of live neurons, in float64, and their classes, ascending."""
    states = [torch.zeros(0, int(live.sum()), dtype=torch.float64)]
    labels = [torch.zeros(0, dtype=torch.int64)]
    for batch in read_share(examples, [layer]):
        states.append(scaling.features(batch.hidden_states[0].double())[:, live])
        labels.append(batch.labels if n_classes > 1 else torch.zeros_like(batch.labels))
    order = torch.cat(labels).argsort(stable=True)
    return torch.cat(states)[order], torch.cat(labels)[order]


def _sums(states: Tensor, labels: Tensor, mean: Tensor, weights: Tensor) -> Tensor:
    """Return the sums over tokens of |W[y, i] z[i]|, and of the same with z - mean in the place of z, shape (2, n)."""
    if not len(labels):
        return torch.zeros(2, weights.shape[1], dtype=torch.float64)
    classes, counts = labels.unique_consecutive(return_counts=True)
    sizes = weights[classes].abs()
    found = []
    for deviations in (states.abs(), (states - mean).abs_()):
        by_class = torch.segment_reduce(deviations, "sum", lengths=counts)
        found.append((sizes * by_class).sum(0))
    return torch.stack(found)


def directions_of(
    fits: Sequence[LayerFit | NumberFit], test: Examples, space: PenaltySpace, n_rotations: int, seed: int
) -> list[Directions | None]:
    """Return for each layer what its neurons and the directions of rotations contribute; None without rotations.

    Args:
        fits: The probe of each layer, at its optimum.
        test: Test examples.
        space: By what neurons are divided before their weights are penalised.
        n_rotations: Number of rotations.
        seed: Seed of the rotations.
    """
    if not n_rotations:
        return [None] * len(fits)
    return [measure_directions(test, fit.layer, fit.weight, fit.moments, space, n_rotations, seed) for fit in fits]


def basis_table(of_layers: Iterable[tuple[int, Directions | None]]) -> list[dict[str, Any]]:
    """Return for each layer a row of contributions as they are and one of centred ones, as in `basis.csv`."""
    return [
        {
            "layer": layer, "kind": kind, **concentration(found.neurons[i], found.directions[i]),
            "n_above": int((found.p[i] <= ALPHA).sum()), "n_neurons": found.directions.shape[2],
            "n_rotations": found.n_rotations, "n_test_tokens": found.n_tokens,
        }
        for layer, found in of_layers
        if found is not None
        for i, kind in enumerate(BASIS_KINDS)
    ]  # fmt: skip


def concentration(neurons: Tensor, directions: Tensor) -> dict[str, float]:
    """Return how concentrated scores of neurons are, and beside each number that of the rotations."""
    found: dict[str, float] = {}
    for name, (own, *_), of_rotations in zip(
        CONCENTRATION, _statistics(neurons[None]), _statistics(directions), strict=True
    ):
        sign = -1 if name == "participation_ratio" else 1  # the fewer, the more concentrated
        reached = int((sign * of_rotations >= sign * own - ROUNDING * abs(own)).sum())
        found |= {
            name: float(own), f"{name}_directions": float(of_rotations.quantile(0.5)),
            f"{name}_lowest": float(of_rotations.min()), f"{name}_highest": float(of_rotations.max()),
            f"{name}_p": (1 + reached) / (1 + len(of_rotations)),
        }  # fmt: skip
    return found


def _statistics(contributions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the share of the first, that of the first ten, and the participation ratio, of each row; 0 without sum."""
    highest = contributions.sort(-1, descending=True).values
    total = highest.sum(-1)
    known = torch.where(total > 0, total, 1.0)
    ratio = known.square() / highest.square().sum(-1).clamp(min=torch.finfo(torch.float64).tiny)
    ratio = torch.where(total > 0, ratio, 0.0)
    return highest[:, :1].sum(-1) / known, highest[:, :FIRST].sum(-1) / known, ratio
