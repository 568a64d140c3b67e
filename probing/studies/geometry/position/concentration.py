"""Whether position is in neurons or in directions: how few neurons have the position part, beside random directions.

A position part of r directions can lie in r neurons or in all of them, and random rotations of it tell the two apart:
they have the same spectrum, and no neurons. Neurons and directions are chosen alike: ordered by what they have of the
part of one half of the sentences, and measured on that of the other, both ways. Either part is first cut to as many
directions as sentences left out confirm.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from probing.statistics.chance import random_rotation

Array = NDArray[np.float64]

# As many as beside the contributions of neurons: p is at most .05 where all are less concentrated.
ROTATIONS = 20
NUMBERS = (1, 5, 10, 20, 50)
# Sums of equal parts differ in the last bits alone.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Held:
    """How much of the position part the first k neurons of an order hold.

    Args:
        order: What orders them: `fit`, `eta_squared`, `part` (what they hold), `random`, `rotated`, `directions`.
        k: Their number.
        share: The share; of draws, the median.
        low: The lowest of the draws; None without draws.
        high: The highest.
    """

    order: str
    k: int
    share: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Concentration:
    """How the position part of a layer is spread over neurons.

    Args:
        by_neuron: Share that each neuron holds, mean of the two halves, shape (d_model,).
        held: What the first k neurons hold.
        half: Number of neurons that hold half of it.
        half_rotated: Number of directions of each rotation that do, shape (ROTATIONS,).
        n_live: Number of neurons that vary, which are rotated.
        k: Number of directions of the part.
    """

    by_neuron: Array
    held: list[Held]
    half: int
    half_rotated: NDArray[np.int64]
    n_live: int
    k: int

    @property
    def p_value(self) -> float:
        """Share of the rotations, and of the neurons, of which at most as many hold half."""
        return (1 + int((self.half_rotated <= self.half).sum())) / (1 + len(self.half_rotated))


def concentration(
    halves: Sequence[Array], live: NDArray[np.bool_], orders: Mapping[str, Sequence[Sequence[int]]], *seeds: int
) -> Concentration:
    """Return how the position part is spread over neurons.

    Args:
        halves: The part of each half of the sentences: its principal directions as rows, each as long as the root of
            its sum of squares, shape (k, d_model).
        live: Whether each neuron varies, shape (d_model,).
        orders: Neurons in the order of each ranking, by either half; may be of the first ones alone.
        seeds: Numbers that the rotations depend on.
    """
    rows = [half / np.linalg.norm(half) for half in halves]
    shares = np.stack([np.square(half).sum(0) for half in rows])
    k, d_model = rows[0].shape
    rotations = [random_rotation(int(live.sum()), *seeds, draw) for draw in range(ROTATIONS)]
    turned = [[rotate(torch.from_numpy(half[:, live])).numpy() for half in rows] for rotate in rotations]
    rotated = np.stack([crossed(np.stack([np.square(half).sum(0) for half in pair])) for pair in turned])
    generator = np.random.default_rng([*seeds, ROTATIONS])
    random = generator.permuted(np.tile(shares.mean(0), (ROTATIONS, 1)), axis=1).cumsum(1)
    part = crossed(shares)
    directions = _of_directions(rows)
    held = []
    for n in sorted({*(n for n in NUMBERS if n < d_model), k}):
        for name, (first, second) in orders.items():
            if len(first) >= n:
                held.append(Held(name, n, float(shares[1, first[:n]].sum() + shares[0, second[:n]].sum()) / 2))
        held.append(Held("part", n, float(part[n - 1])))
        for name, drawn in (("random", random), ("rotated", rotated)):
            of_draws = drawn[:, min(n, drawn.shape[1]) - 1]
            held.append(Held(name, n, float(np.median(of_draws)), float(of_draws.min()), float(of_draws.max())))
        held.append(Held("directions", n, float(directions[min(n, k) - 1])))
    return Concentration(shares.mean(0), held, int(_half(part)), _half(rotated), int(live.sum()), k)


def crossed(shares: Array) -> Array:
    """Return what the first 1 to n units hold, ordered by one half and measured on the other, mean of both ways.

    Args:
        shares: What each unit has of the part of either half, shape (2, n).
    """
    orders = np.argsort(-shares, axis=1, kind="stable")
    return np.asarray(np.take_along_axis(shares[::-1], orders, 1).cumsum(1).mean(0))


def _half(sums: Array) -> NDArray[np.int64]:
    """Return how many of the first units hold half, of cumulative shares in the last axis."""
    return np.asarray((sums < 0.5 - ROUNDING).sum(-1) + 1)


def _of_directions(rows: Sequence[Array]) -> Array:
    """Return what the first 1 to k principal directions of one half have of the other's part, mean of both ways."""
    lengths = [np.linalg.norm(half, axis=1, keepdims=True) for half in rows]
    axes = [np.divide(half, length, out=np.zeros_like(half), where=length > 0)
            for half, length in zip(rows, lengths, strict=True)]  # fmt: skip
    shares = [np.square(other @ own.T).sum(0) for own, other in zip(axes, rows[::-1], strict=True)]
    return np.asarray(np.mean(shares, axis=0).cumsum())
