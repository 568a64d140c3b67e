"""In how many directions the position part of hidden states lies, and how it changes along the positions.

The position part is estimated with noise, which lies in all directions: its own spectrum always has many. How many
directions there are is therefore judged by sentences that were left out. The part of the other sentences is cut to its
first k directions, and the sum of squares that it explains within the sentences left out is

    gain(k) = sum over directions of 2 <b, p> - <p, A p>,

with their own b and A: a direction of noise has a negative gain.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from probing.statistics.two_way import TwoWaySums
from probing.statistics.two_way_design import Design, Solution

Array = NDArray[np.float64]

FOLDS = 5
# Most directions that are judged.
MOST = 50
# Share of the largest gain that the counted directions have.
ENOUGH = 0.95
# Share of the frequencies that count as low, and the share of sentences that must have a position whose frequencies are
# taken, and their least number.
LOW, HELD_BY, LEAST = 0.1, 0.1, 10
SHUFFLES = 200


class Folds:
    """Sentences to estimate the position part on, and others to judge it by; the same for all layers.

    Args:
        design: The tokens' positions and sentences.
    """

    def __init__(self, design: Design) -> None:
        self.design = design

    @cached_property
    def fitted_and_judged(self) -> list[tuple[tuple[list[int], Solution], tuple[list[int], Solution]]]:
        """Groups and their solution, of the sentences of a fit, and of those left out; once for every fold."""
        parts = self.design.parts(min(FOLDS, self.design.n_groups))
        found = []
        for part in parts:
            others = sorted(set(range(self.design.n_groups)) - set(part))
            found.append(((others, self.design.solve(others)), (part, self.design.solve(part))))
        return found

    @cached_property
    def halves(self) -> list[tuple[list[int], Solution]]:
        """Groups and their solution, of either half of the sentences."""
        return [(part, self.design.solve(part)) for part in self.design.parts(2)]

    @cached_property
    def common(self) -> NDArray[np.int64]:
        """Indices of the first consecutive positions that a tenth of the sentences have, and at least ten."""
        n = self.design.whole.n
        enough = n >= max(LEAST, HELD_BY * self.design.n_sentences)
        indices = np.flatnonzero(enough)
        if not len(indices):
            return indices
        gaps = np.flatnonzero(np.diff(self.design.values[indices]) != 1)
        return indices[: gaps[0] + 1] if len(gaps) else indices


@dataclass(frozen=True)
class Spectrum:
    """The directions of the position part of a layer.

    Args:
        squares: Sum of squares of the estimated part along each of its principal directions, shape (n,).
        total: Its sum over all directions.
        gains: What each direction adds to the gain in sentences that are left out, shape (n,).
        directions: The directions, as columns, shape (d_model, n); of one unit per neuron where neurons are
            standardised.
        part: The position part along them, shape (n_positions, n).
    """

    squares: Array
    total: float
    gains: Array
    directions: Array
    part: Array

    @property
    def held_out(self) -> Array:
        """Gain of the first k directions as a share of the largest such gain, shape (n,); 0 if none is a gain."""
        sums = np.cumsum(self.gains)
        largest = sums.max(initial=0.0)
        return sums / largest if largest > 0 else np.zeros_like(sums)

    @property
    def n_directions(self) -> int:
        """The least number of directions with `ENOUGH` of the largest gain; 0 if none is a gain."""
        enough = np.flatnonzero(self.held_out >= ENOUGH)
        return int(enough[0]) + 1 if len(enough) else 0

    @property
    def n_directions_in_sample(self) -> int:
        """The least number of directions with `ENOUGH` of the estimated part's own sum of squares."""
        enough = np.flatnonzero(np.cumsum(self.squares) >= ENOUGH * self.total)
        return int(enough[0]) + 1 if len(enough) else len(self.squares)


def spectrum(sums: TwoWaySums, folds: Folds, scale: Array | float = 1.0) -> Spectrum:
    """Return the directions of a layer's position part.

    Args:
        sums: Sums of the layer.
        folds: The sentences to fit on and to judge by.
        scale: What each neuron is divided by, shape (d_model,).
    """
    design = folds.design
    gains = np.zeros(MOST)
    for (fitted, solution), (judged, other) in folds.fitted_and_judged:
        part = sums.position_part(solution, fitted) / scale
        _, directions = principal(part, solution.n)
        along = part @ directions
        right = (sums.by_position[judged] - sums.means_by_position[judged]).sum(0) / scale @ directions
        gain = 2 * np.einsum("tj,tj->j", right, along) - np.einsum("tj,tj->j", along, other.gram @ along)
        gains[: len(gain)] += gain
    part = sums.position_part(design.whole) / scale
    squares, directions = principal(part, design.whole.n)
    total = float(design.whole.n @ np.square(part).sum(1))
    return Spectrum(squares, total, gains[: len(squares)], directions, part @ directions)


def principal(part: Array, n: Array) -> tuple[Array, Array]:
    """Return the first `MOST` sums of squares of a position part, and its directions, shapes (n,) and (d_model, n).

    Args:
        part: The position part, shape (n_positions, d_model).
        n: Number of tokens at each position.
    """
    _, values, directions = np.linalg.svd(np.sqrt(n)[:, None] * part, full_matrices=False)
    most = min(MOST, len(values), max(len(part) - 1, 1))
    return np.square(values[:most]), directions[:most].T


def principal_halves(sums: TwoWaySums, folds: Folds, k: int, scale: Array | float = 1.0) -> list[tuple[Array, Array]]:
    """Return the first k sums of squares of the position part of either half of the sentences, and its directions.

    Args:
        sums: Sums of the layer.
        folds: The halves.
        k: Number of directions; as many as there are, if fewer.
        scale: What each neuron is divided by, shape (d_model,).
    """
    parts = [principal(sums.position_part(solution, groups) / scale, solution.n) for groups, solution in folds.halves]
    return [(squares[:k], directions[:, :k]) for squares, directions in parts]


def oriented(curves: Array) -> Array:
    """Return curves, shape (n_positions, n), each with the sign that makes its entry farthest from 0 positive."""
    farthest = np.abs(curves).argmax(0)
    return curves * np.where(curves[farthest, np.arange(curves.shape[1])] < 0, -1.0, 1.0)


@dataclass(frozen=True)
class Low:
    """How much of the position part changes slowly along the positions.

    Args:
        share: Share of its sum of squares in the lowest frequencies, without noise: by products of two halves.
        by_chance: Mean of this share over all orders of the positions.
        p_value: Share of shuffled orders, and of the true one, with at least this share.
        n_positions: Number of positions that frequencies are taken over.
    """

    share: float
    by_chance: float
    p_value: float
    n_positions: int


def low_frequencies(sums: TwoWaySums, folds: Folds, seed: int) -> Low | None:
    """Return how smooth the position part is; None with fewer than eight positions, or if halves share nothing.

    The cosines of the discrete cosine transform (type II) are the frequencies. Their squares are products of the two
    halves' own, so that noise, which is not common to both, adds nothing on average.
    """
    common = folds.common
    n = len(common)
    if n < 8:
        return None
    first, second = (sums.position_part(solution, groups)[common] for groups, solution in folds.halves)
    products = (first - first.mean(0)) @ (second - second.mean(0)).T
    total = float(np.trace(products))
    if total <= 0:
        return None
    n_low = int(np.ceil(LOW * (n - 1)))
    steps = np.arange(n) + 0.5
    cosines = np.sqrt(2 / n) * np.cos(np.pi / n * np.outer(np.arange(1, n_low + 1), steps))

    def share(order: NDArray[np.int64]) -> float:
        return float(np.einsum("ft,ts,fs->", cosines, products[np.ix_(order, order)], cosines, optimize=True)) / total

    generator = np.random.default_rng([seed, 12])
    found = share(np.arange(n))
    shuffled = np.array([share(generator.permutation(n)) for _ in range(SHUFFLES)])
    p_value = (1 + int((shuffled >= found).sum())) / (1 + SHUFFLES)
    return Low(found, n_low / (n - 1), p_value, n)


def overlap(first: Array, second: Array) -> tuple[float, float]:
    """Return the mean squared cosine of the principal angles of two subspaces, and the smallest angle in degrees.

    Args:
        first: Orthonormal columns, shape (d_model, k).
        second: Orthonormal columns, shape (d_model, k).
    """
    cosines = np.clip(np.linalg.svd(first.T @ second, compute_uv=False), 0, 1)
    return float(np.square(cosines).mean()), float(np.degrees(np.arccos(cosines[0])))


def random_subspace(d_model: int, k: int, generator: np.random.Generator) -> Array:
    """Return orthonormal columns of a subspace drawn uniformly, shape (d_model, k)."""
    return np.asarray(np.linalg.qr(generator.standard_normal((d_model, k)))[0])
