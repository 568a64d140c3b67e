"""The spectrum of the position part of hidden states, and its change along the positions.

The position part is estimated with noise, which lies in all directions: its spectrum always has many. The number of
directions is therefore judged by held-out sentences. The part of the other sentences is cut to its first k directions,
and the sum of squares that it explains within the held-out sentences is

    gain(k) = sum over directions of 2 <b, p> - <p, A p>,

with b and A of the held-out sentences: a direction of noise has a negative gain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from probing.results import Row, Table, count
from probing.statistics.two_way import Design, PositionSolution, TwoWaySums
from probing.studies.geometry.position import PositionTables
from probing.tables.figures import BLUE, GREEN, ORANGE, USUAL, write_drawings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """Sentences to estimate the position part on, and others to judge it by; the same for all layers."""

    def __init__(self, design: Design) -> None:
        self.design = design

    @cached_property
    def fitted_and_judged(self) -> list[tuple[tuple[list[int], PositionSolution], tuple[list[int], PositionSolution]]]:
        """For every fold, groups and solution of the fitted sentences, and of the held-out sentences."""
        parts = self.design.parts(min(FOLDS, self.design.n_groups))
        fold_pairs = []
        for part in parts:
            others = sorted(set(range(self.design.n_groups)) - set(part))
            fold_pairs.append(((others, self.design.solve(others)), (part, self.design.solve(part))))
        return fold_pairs

    @cached_property
    def halves(self) -> list[tuple[list[int], PositionSolution]]:
        """Groups and solution of either half of the sentences."""
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
class PartSpectrum:
    """The directions of the position part of a layer.

    Args:
        squares: Sum of squares of the estimated part along each of its principal directions, shape (n,).
        total: Sum of squares over all directions.
        gains: Contribution of each direction to the gain in held-out sentences, shape (n,).
        directions: The directions, as columns, shape (d_model, n); in units of each neuron's sd if standardised.
        part: The position part along them, shape (n_positions, n).
    """

    squares: Array
    total: float
    gains: Array
    directions: Array
    part: Array

    @property
    def gain_shares(self) -> Array:
        """Gain of the first k directions as a share of the largest such gain, shape (n,); 0 without any gain."""
        sums = np.cumsum(self.gains)
        largest = sums.max(initial=0.0)
        return sums / largest if largest > 0 else np.zeros_like(sums)

    @property
    def n_directions(self) -> int:
        """The least number of directions with `ENOUGH` of the largest gain; 0 without any gain."""
        enough = np.flatnonzero(self.gain_shares >= ENOUGH)
        return int(enough[0]) + 1 if len(enough) else 0

    @property
    def n_directions_in_sample(self) -> int:
        """The least number of directions with `ENOUGH` of the estimated part's sum of squares."""
        enough = np.flatnonzero(np.cumsum(self.squares) >= ENOUGH * self.total)
        return int(enough[0]) + 1 if len(enough) else len(self.squares)


def spectrum(sums: TwoWaySums, folds: Folds, scale: Array | float = 1.0) -> PartSpectrum:
    """Return the directions of a layer's position part, with each neuron divided by `scale`, shape (d_model,)."""
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
    return PartSpectrum(squares, total, gains[: len(squares)], directions, part @ directions)


def principal(part: Array, n: Array) -> tuple[Array, Array]:
    """Return the first `MOST` sums of squares, (n,), and directions, (d_model, n), of a part (n_positions, d_model)."""
    _, values, directions = np.linalg.svd(np.sqrt(n)[:, None] * part, full_matrices=False)
    most = min(MOST, len(values), max(len(part) - 1, 1))
    return np.square(values[:most]), directions[:most].T


def principal_halves(sums: TwoWaySums, folds: Folds, k: int, scale: Array | float = 1.0) -> list[tuple[Array, Array]]:
    """Return up to k sums of squares and directions of either half's position part, with neurons divided by `scale`."""
    parts = [principal(sums.position_part(solution, groups) / scale, solution.n) for groups, solution in folds.halves]
    return [(squares[:k], directions[:, :k]) for squares, directions in parts]


def oriented(curves: Array) -> Array:
    """Flip curves, shape (n_positions, n), so that the entry of each that is farthest from 0 is positive."""
    farthest = np.abs(curves).argmax(0)
    return curves * np.where(curves[farthest, np.arange(curves.shape[1])] < 0, -1.0, 1.0)


@dataclass(frozen=True)
class Low:
    """The share of the position part that changes slowly along the positions.

    `share` is of its sum of squares in the lowest frequencies, without noise: by products of two halves. `by_chance` is
    the mean of this share over all orders of the positions, and `p_value` the share of shuffled orders, and of the true
    one, with at least this share.
    """

    share: float
    by_chance: float
    p_value: float
    n_positions: int


def low_frequencies(sums: TwoWaySums, folds: Folds, seed: int) -> Low | None:
    """Return the smoothness of the position part; None with fewer than eight positions, or if halves share nothing.

    The cosines of the discrete cosine transform (type II) are the frequencies. Their squares are products of the two
    halves, so that noise, which is not common to both, adds nothing on average.
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
    low_share = share(np.arange(n))
    shuffled = np.array([share(generator.permutation(n)) for _ in range(SHUFFLES)])
    p_value = (1 + int((shuffled >= low_share).sum())) / (1 + SHUFFLES)
    return Low(low_share, n_low / (n - 1), p_value, n)


def overlap(first: Array, second: Array) -> tuple[float, float]:
    """Return the mean squared cosine of the principal angles, and the least in degrees, of two bases (d_model, k)."""
    cosines = np.clip(np.linalg.svd(first.T @ second, compute_uv=False), 0, 1)
    return float(np.square(cosines).mean()), float(np.degrees(np.arccos(cosines[0])))


def random_subspace(d_model: int, k: int, generator: np.random.Generator) -> Array:
    """Return orthonormal columns of a subspace drawn uniformly, shape (d_model, k)."""
    return np.asarray(np.linalg.qr(generator.standard_normal((d_model, k)))[0])


# --------------------------------------------------------------------------------------------------------------------
# Figures of `geometry --position`: how much is position, its curves, and what neurons hold of it.
# --------------------------------------------------------------------------------------------------------------------

_COMPONENTS = ((BLUE, "-"), (ORANGE, "--"), (GREEN, ":"))
# Curves are drawn at the positions that have this share of the tokens of the commonest.
DRAWN = 0.02
# Most layers whose curves are drawn, evenly spaced.
MOST_LAYERS = 6


def write_position_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw the curves of the position part, in some formats, and return the paths; none without its tables."""
    if not tables.get("position_split"):
        return []
    names = ("position_split", "position_shape", "position_basis")
    position = PositionTables({name: tables.get(name, ()) for name in names})
    draw = partial(draw_curves, curves=Table(tables["position_curves"]), position=position, model=model)
    return write_drawings(folder, {"position_curves": draw}, formats)


def _spaced(layers: Sequence[int]) -> list[int]:
    """Return at most `MOST_LAYERS` layers, evenly spaced, the first and the last among them."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    return [layers[i] for i in np.linspace(0, len(layers) - 1, MOST_LAYERS).round().astype(int)]


def draw_curves(figure: Figure, curves: Table, position: PositionTables, model: str) -> None:
    """Draw the first components of the position part along the positions, a panel for each layer."""
    layers = _spaced(position.layers)
    columns = min(3, len(layers))
    n_rows = -(-len(layers) // columns)
    figure.set_size_inches(3.1 * columns, 0.7 + 2.2 * n_rows)
    grid = figure.subplots(n_rows, columns, squeeze=False).ravel()
    for axes, layer in zip(grid, layers, strict=False):
        layer_curves = curves.where(layer=layer)
        n_tokens = layer_curves.values("n_tokens")
        drawn = layer_curves.where(n_tokens=tuple(n for n in n_tokens if n >= DRAWN * max(n_tokens)))
        for component, (colour, style) in enumerate(_COMPONENTS, 1):
            rows = drawn.where(component=component)
            positions = rows.column("position")
            axes.plot(positions, rows.column("value"), style, c=colour, lw=1.3, label=f"component {component}")
            low, high = ([_bound_or_value(row, end) for row in rows] for end in ("low", "high"))
            axes.fill_between(positions, low, high, color=colour, alpha=0.2, lw=0)
        shape = position.shape(layer, "directions")
        axes.set_title(f"layer {layer}: {count(int(shape['value']) if shape else 0, 'direction')}", fontsize=9)
        axes.axhline(0, color="black", lw=0.5)
    for axes in grid[len(layers) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(layers) - columns) : len(layers)]:
        axes.set_xlabel("position of the token")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.supylabel("position part", fontsize=9)
    figure.suptitle(
        f"{model}: the position part along its first directions (95% intervals)", x=0.01, ha="left", fontsize=10
    )


def _bound_or_value(row: Row, end: str) -> float:
    """Return an end of a row's interval, or the value without an interval."""
    bound = row.get(end)
    return float(row["value"] if bound is None else bound)
