"""Whether position is in coordinates or in directions: how much of the position part a few neurons hold.

A position part of r directions can lie in r neurons or in all of them, and a random rotation of it tells the two apart:
it has the same spectrum, and no neurons. The part is first cut to the directions that sentences left out confirm, so
that noise is in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.studies.geometry.position.spectrum import Spectrum

Array = NDArray[np.float64]

# So many that a rank among them can be significant in each of 50 layers.
ROTATIONS = 1000
# Numbers drawn at a time for rotations.
DRAWN = 2**21
NUMBERS = (1, 5, 10, 20, 50)


@dataclass(frozen=True)
class Held:
    """How much of the position part the first k neurons of an order hold.

    Args:
        order: What orders them: `fit`, `eta_squared`, `part` (what they hold), `random`, `rotated`, `directions`.
        k: Their number.
        share: The share; of draws, the mean.
        low: The 2.5% quantile of draws; None without draws.
        high: The 97.5% quantile.
        p_value: Of `part`, the share of rotations, and of the part itself, whose k neurons hold at least as much.
    """

    order: str
    k: int
    share: float
    low: float | None = None
    high: float | None = None
    p_value: float | None = None


@dataclass(frozen=True)
class Concentration:
    """How the position part of a layer is spread over neurons.

    Args:
        by_neuron: Share that each neuron holds, shape (d_model,).
        held: What the first k neurons hold.
        alignment: How far the part is from a random rotation (0) towards neurons that are its directions (1), by what
            as many neurons hold as it has directions.
        p_value: Share of rotations, and of the part itself, that are at least as far.
        k: Number of its directions.
    """

    by_neuron: Array
    held: list[Held]
    alignment: float
    p_value: float
    k: int


def concentration(found: Spectrum, n_directions: int, orders: Mapping[str, Sequence[int]], seed: int) -> Concentration:
    """Return how the position part is spread over neurons.

    Args:
        found: The directions of the part.
        n_directions: How many of them count, at least 1.
        orders: Neurons in the order of each ranking, which may be of the first ones alone.
        seed: Seed of the rotations.
    """
    squares = found.squares[:n_directions] / found.squares[:n_directions].sum()
    directions = found.directions[:, :n_directions]
    d_model = len(directions)
    by_neuron = np.square(directions) @ squares
    generator = np.random.default_rng([seed, 13])
    turned = np.concatenate([np.square(axes) @ squares for axes in _rotations(d_model, n_directions, generator)])
    rotated = np.cumsum(np.sort(turned, axis=1)[:, ::-1], axis=1)
    random = np.cumsum(generator.permuted(np.tile(by_neuron, (ROTATIONS, 1)), axis=1), axis=1)
    best = np.cumsum(np.sort(by_neuron)[::-1])
    ends = np.cumsum(np.pad(squares, (0, d_model - n_directions)))

    def p_value(k: int) -> float:
        # Sums of equal parts differ in the last bits alone.
        return (1 + int((rotated[:, k - 1] >= best[k - 1] - 1e-12).sum())) / (1 + ROTATIONS)

    held = []
    for k in sorted({*(k for k in NUMBERS if k < d_model), n_directions}):
        for name, order in orders.items():
            if len(order) >= k:
                held.append(Held(name, k, float(by_neuron[list(order[:k])].sum())))
        held.append(Held("part", k, float(best[k - 1]), p_value=p_value(k)))
        for name, drawn in (("random", random), ("rotated", rotated)):
            low, high = np.quantile(drawn[:, k - 1], (0.025, 0.975))
            held.append(Held(name, k, float(drawn[:, k - 1].mean()), float(low), float(high)))
        held.append(Held("directions", k, float(ends[k - 1])))
    k = n_directions
    chance = float(rotated[:, k - 1].mean())
    room = float(ends[k - 1]) - chance
    alignment = (float(best[k - 1]) - chance) / room if room > 1e-9 else float("nan")
    return Concentration(by_neuron, held, alignment, p_value(k), k)


def _rotations(d_model: int, k: int, generator: np.random.Generator) -> Iterator[Array]:
    """Yield orthonormal columns, uniform among all, in parts of `ROTATIONS`; shape (n, d_model, k).

    Columns of normal numbers G, times the inverse of the triangular factor of G'G, are those of a QR decomposition.
    """
    at_a_time = max(1, DRAWN // (d_model * k))
    for first in range(0, ROTATIONS, at_a_time):
        columns = generator.standard_normal((min(at_a_time, ROTATIONS - first), d_model, k))
        factors = np.linalg.cholesky(columns.transpose(0, 2, 1) @ columns)
        yield np.linalg.solve(factors, columns.transpose(0, 2, 1)).transpose(0, 2, 1)
