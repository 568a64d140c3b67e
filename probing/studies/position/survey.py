"""The survey of the position part of each layer, in two passes whose memory does not grow with the corpus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import HiddenStateSource
from probing.errors import UserError
from probing.probes.outliers import SpecialTokens, is_included
from probing.results import count, layers_named, without_nan
from probing.runtime.progress import stage
from probing.statistics import accuracy_interval
from probing.statistics.chance import random_rotation, rank_p
from probing.statistics.two_way import (
    ALONE,
    MOST_POSITIONS,
    PARTS,
    Design,
    PositionSolution,
    TwoWaySums,
    VarianceShares,
    jackknife_interval,
)
from probing.studies.position import RAW, SCALES, SCHEMAS, STANDARDISED, SUFFIX
from probing.text.tokens import Tokens

Array = NDArray[np.float64]
Rows = list[dict[str, Any]]

# --------------------------------------------------------------------------------------------------------------------
# The spectrum of the position part, and its change along the positions.
#
# The position part is estimated with noise, which lies in all directions: its spectrum always has many. The number of
# directions is therefore judged by held-out sentences. The part of the other sentences is cut to its first k
# directions, and the sum of squares that it explains within the held-out sentences is
#
#     gain(k) = sum over directions of 2 <b, p> - <p, A p>,
#
# with b and A of the held-out sentences: a direction of noise has a negative gain.
# --------------------------------------------------------------------------------------------------------------------

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


def low_frequencies(sums: TwoWaySums, folds: Folds, seed: int) -> dict[str, float] | None:
    """Return the share of the position part that changes slowly along the positions.

    `value` is the share of its sum of squares in the lowest frequencies, without noise: by products of two halves.
    `chance` is the mean of this share over all orders of the positions, and `p_value` the share of shuffled orders, and
    of the true one, with at least this share. None with fewer than eight positions, or if halves share nothing.

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
    return {"value": low_share, "chance": n_low / (n - 1), "p_value": rank_p(low_share, shuffled)}


def overlap(first: Array, second: Array) -> tuple[float, float]:
    """Return the mean squared cosine of the principal angles, and the least in degrees, of two bases (d_model, k)."""
    cosines = np.clip(np.linalg.svd(first.T @ second, compute_uv=False), 0, 1)
    return float(np.square(cosines).mean()), float(np.degrees(np.arccos(cosines[0])))


def random_subspace(d_model: int, k: int, generator: np.random.Generator) -> Array:
    """Return orthonormal columns of a subspace drawn uniformly, shape (d_model, k)."""
    return np.asarray(np.linalg.qr(generator.standard_normal((d_model, k)))[0])


# --------------------------------------------------------------------------------------------------------------------
# Whether position is in neurons or in directions: how few neurons have the position part, beside random directions.
# --------------------------------------------------------------------------------------------------------------------


# As many as beside the contributions of neurons: p is at most .05 where all are less concentrated.
ROTATIONS = 20
NUMBERS = (1, 5, 10, 20, 50)
# Sums of equal parts differ in the last bits alone.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Concentration:
    """The spread of a layer's position part over neurons, with each neuron's share, mean of two halves, (d_model,).

    `prefix_shares` has a row for the first k neurons of each order, as in `position_held.csv`: the orders are `fit`,
    `eta_squared`, `part` (by share), `random`, `rotated` and `directions`; of draws, the share is the median. `half` is
    the number of neurons with half of the part, and `half_rotated` of the directions of each rotation, shape
    (ROTATIONS,). `n_live` neurons vary, and are rotated; `k` is the number of directions of the part.
    """

    by_neuron: Array
    prefix_shares: Rows
    half: int
    half_rotated: NDArray[np.int64]
    n_live: int
    k: int

    @property
    def p_value(self) -> float:
        """Share of the rotations, and of the neurons, of which at most as many have half."""
        return rank_p(-self.half, -self.half_rotated.astype(np.float64))


def concentration(
    halves: Sequence[Array], live: NDArray[np.bool_], orders: Mapping[str, Sequence[Sequence[int]]], *seeds: int
) -> Concentration:
    """Return the spread of the position part over neurons.

    `halves` has the part of each half of the sentences: its principal directions as rows, each as long as the root of
    its sum of squares, shape (k, d_model). `live` is a mask of the neurons that vary, shape (d_model,). `orders` has
    the first neurons of each ranking, by either half. The rotations depend on `seeds`.
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
    prefix_shares: Rows = []

    def add(order: str, n: int, share: float, low: float | None = None, high: float | None = None) -> None:
        prefix_shares.append({"order": order, "k": n, "value": share, "low": low, "high": high})

    for n in sorted({*(n for n in NUMBERS if n < d_model), k}):
        for name, (first, second) in orders.items():
            if len(first) >= n:
                add(name, n, float(shares[1, first[:n]].sum() + shares[0, second[:n]].sum()) / 2)
        add("part", n, float(part[n - 1]))
        for name, drawn in (("random", random), ("rotated", rotated)):
            of_draws = drawn[:, min(n, drawn.shape[1]) - 1]
            add(name, n, float(np.median(of_draws)), float(of_draws.min()), float(of_draws.max()))
        add("directions", n, float(directions[min(n, k) - 1]))
    return Concentration(shares.mean(0), prefix_shares, int(_half(part)), _half(rotated), int(live.sum()), k)


def crossed(shares: Array) -> Array:
    """Return shares of the first 1 to n units, ordered by one half of `shares`, (2, n), and measured on the other."""
    orders = np.argsort(-shares, axis=1, kind="stable")
    return np.asarray(np.take_along_axis(shares[::-1], orders, 1).cumsum(1).mean(0))


def _half(sums: Array) -> NDArray[np.int64]:
    """Return the number of first units with half, of cumulative shares in the last axis."""
    return np.asarray((sums < 0.5 - ROUNDING).sum(-1) + 1)


def _of_directions(rows: Sequence[Array]) -> Array:
    """Return the share of one half's part in the other's first 1 to k principal directions, mean of both ways."""
    lengths = [np.linalg.norm(half, axis=1, keepdims=True) for half in rows]
    axes = [np.divide(half, length, out=np.zeros_like(half), where=length > 0)
            for half, length in zip(rows, lengths, strict=True)]  # fmt: skip
    shares = [np.square(other @ half_axes.T).sum(0) for half_axes, other in zip(axes, rows[::-1], strict=True)]
    return np.asarray(np.mean(shares, axis=0).cumsum())


# --------------------------------------------------------------------------------------------------------------------
# How well positions are read in the directions of the position part: by the nearest mean, in sentences left out.
# --------------------------------------------------------------------------------------------------------------------

ORDERS = 20
# Tokens whose position is read at a time.
BLOCK = 4096


def read_positions(
    states: Array, design: Design, means: Array, fitted: NDArray[np.bool_], judged: NDArray[np.bool_], seed: int
) -> dict[str, dict[str, float]] | None:
    """Decode the positions of some tokens by the means of others; None if there are none of either.

    Return the `accuracy`, with its 95% interval over sentences, NaN with few sentences, and the `error`, the mean
    distance of the decoded position from the true one, in tokens. `chance` is the mean of either if the tokens of every
    sentence are in random order, and `p_value` the share of such orders, and of the true one, with at least this
    accuracy.

    A token is decoded as the position with the largest density of a normal distribution about the position's mean,
    whose covariance is over all fitted tokens about the means of their positions, times the position's frequency.
    `states` are the tokens in the directions that are read, shape (n_tokens, k), and `means` the position part there,
    shape (n_positions, k); the fitted tokens' mean is computed here. `fitted` and `judged` are masks of tokens, shape
    (n_tokens,).
    """
    index = design.index
    if not fitted.any() or not judged.any() or states.shape[1] == 0:
        return None
    counts = np.bincount(index[fitted], minlength=design.n_positions)
    seen = counts > 0
    about = states[fitted] - means[index[fitted]]
    mean = about.mean(0)
    covariance = np.atleast_2d(np.cov(about, rowvar=False))
    eigenvalues, axes = np.linalg.eigh(covariance)
    whiten = axes / np.sqrt(np.maximum(eigenvalues, 1e-12 * max(float(eigenvalues[-1]), 1e-300)))
    tokens, centres = (states[judged] - mean) @ whiten, means[seen] @ whiten
    bias = np.log(counts[seen]) - 0.5 * np.square(centres).sum(1)
    nearest = [(tokens[at : at + BLOCK] @ centres.T + bias).argmax(1) for at in range(0, len(tokens), BLOCK)]
    read = design.values[seen][np.concatenate(nearest)]
    sentences = np.unique(design.of_token[judged], return_inverse=True)[1].reshape(-1)
    true = design.values[index[judged]]
    right = np.bincount(sentences, read == true).astype(np.float64)
    sizes = np.bincount(sentences)
    generator = np.random.default_rng([seed, 14])
    chance = np.empty((ORDERS, 2))
    for draw in range(ORDERS):
        # Within each sentence, in random order.
        shuffled = true[np.lexsort((generator.random(len(true)), sentences))]
        chance[draw] = (read == shuffled).mean(), np.abs(read - shuffled).mean()
    accuracy = float((read == true).mean())
    low, high = accuracy_interval(right, sizes)
    p_value = rank_p(accuracy, chance[:, 0])
    by_chance, error_by_chance = (float(chance[:, column].mean()) for column in range(2))
    return {
        "accuracy": {"value": accuracy, "low": low, "high": high, "chance": by_chance, "p_value": p_value},
        "error": {"value": float(np.abs(read - true).mean()), "chance": error_by_chance},
    }


# Components whose curves are written, and most directions in which positions are read.
COMPONENTS, READ = 3, 20
# Draws of random subspaces.
DRAWS = 200
# Share of a neuron's variance below which its position part is rounding.
ZERO = 1e-24


def check_position(tokens: Tokens, special_tokens: SpecialTokens) -> None:
    """Raise a `UserError` for a corpus with too few sentences, positions or tokens to split, or too many positions."""
    counts = is_included(tokens, special_tokens)
    n_tokens, n_sentences = int(counts.sum()), len(np.unique(tokens.sentences[counts]))
    n = len(np.unique(tokens.positions[counts]))
    if n > MOST_POSITIONS:
        raise UserError(
            f"`--corpus`: sentences have {n} positions, and at most {MOST_POSITIONS} are split; give "
            f"`--max_length {MOST_POSITIONS}`."
        )
    if n < 2 or n_sentences < 3 or n_tokens <= n_sentences + n:
        raise UserError(
            f"`--corpus`: {count(n_tokens, 'token')} of {count(n_sentences, 'sentence')} at {count(n, 'position')} "
            "are too few to tell means of positions from means of sentences; give more sentences of several tokens."
        )


class PositionSample:
    """The tokens that are split, in the mask `counts`, shape (n_tokens,), and their design for all layers."""

    def __init__(self, store: HiddenStateSource, special_tokens: SpecialTokens, seed: int) -> None:
        tokens, counts = store.tokens, is_included(store.tokens, special_tokens)
        self.store, self.counts, self.seed = store, counts, seed
        self.design = Design(tokens.sentences[counts], tokens.positions[counts], seed)
        self.folds = Folds(self.design)

    @cached_property
    def is_short(self) -> NDArray[np.bool_]:
        """Mask of the selected tokens of sentences of at most median length, shape (n,)."""
        return (self.design.sizes <= np.median(self.design.sizes))[self.design.of_token]

    @cached_property
    def short(self) -> Design | None:
        """The design of these sentences; None if they are too few or all."""
        is_short = self.is_short
        if is_short.all() or len(np.unique(self.design.of_token[is_short])) < 3:
            return None
        design = self.design
        short_design = Design(
            design.of_token[is_short].astype(np.int32), design.values[design.index[is_short]].astype(np.int32)
        )
        return short_design if short_design.n_positions > 1 else None

    def states(self, layer: int) -> Iterator[tuple[slice, Tensor]]:
        """Yield the rows of the selected tokens, and their states, shape (n, d_model), shard by shard."""
        first = 0
        for shard in self.store.plan.shards:
            counted = torch.from_numpy(np.flatnonzero(self.counts[shard.rows(self.store.tokens)]))
            states = self.store.read(layer, shard.index).index_select(0, counted)
            yield slice(first, first + len(counted)), states
            first += len(counted)


def survey_position(
    sample: PositionSample, layers: Sequence[int], ranked: Mapping[int, Sequence[int]]
) -> dict[str, Rows]:
    """Return the rows of all tables, for ascending layers; `ranked` has neurons in the order of a run of `fit`."""
    tables: dict[str, Rows] = {schema.name: [] for schema in SCHEMAS}
    below: tuple[int, Array] | None = None
    with stage(f"position in {layers_named(layers)}", len(layers)) as advance:
        for layer in layers:
            of_layer, directions = _of_layer(
                sample, layer, ranked.get(layer, ()), below[1] if below and below[0] == layer - 1 else None
            )
            for name, rows in of_layer.items():
                tables[name] += rows
            below = layer, directions
            advance(1)
    return tables


def _of_layer(
    sample: PositionSample, layer: int, ranked: Sequence[int], below: Array | None
) -> tuple[dict[str, Rows], Array]:
    """Return the rows of a layer's tables, and the directions of its position part, (d_model, k), k = 0 without a part.

    `below` are the directions in the layer below, None if that was not surveyed.
    """
    sums, short = _summed(sample, layer)
    by_neuron, variance = sums.shares(by_neuron=True)[0], sums.variance
    split = [row for scale in SCALES for row in _split_rows(scale, sums)]
    scales = {RAW: np.ones_like(variance), STANDARDISED: np.sqrt(np.where(variance > 0, variance, 1.0))}
    spectra = {scale: spectrum(sums, sample.folds, divided_by) for scale, divided_by in scales.items()}
    # A part is there where the interval of its share does not hold 0, or there is no interval.
    resolved = {(row["scale"], row["part"]) for row in split if row["low"] is None or row["low"] > 0}
    counted = {
        scale: scale_result.n_directions if (scale, "position") in resolved else 0
        for scale, scale_result in spectra.items()
    }
    spread = {
        scale: of_scale
        for scale, divided_by in scales.items()
        if (of_scale := _spread(sample, layer, sums, counted[scale], divided_by, ranked))
    }
    directions = spectra[RAW].directions[:, : counted[RAW]]
    shape: Rows = []
    for scale, scale_result in spectra.items():
        shape.append({"measure": f"directions{SUFFIX[scale]}", "value": float(counted[scale])})
        in_sample = float(scale_result.n_directions_in_sample)
        shape.append({"measure": f"directions_in_sample{SUFFIX[scale]}", "value": in_sample})
    if counted[RAW]:
        if (low := low_frequencies(sums, sample.folds, sample.seed)) is not None:
            shape.append({"measure": "low_frequencies", **low})
        shape += _subspaces(sample, sums, directions, below, (RAW, "context") in resolved)
        shape += _readings(sample, layer, sums, short, counted[RAW])
    absent = dict.fromkeys(("low", "high", "chance", "p_value", "k")) | {"n_tokens": len(sample.design.index)}
    part = sums.position_part(sample.design.whole)
    n_nonzero = int((sample.design.whole.n @ np.square(part) > ZERO * len(sample.design.index) * variance).sum())
    tables = {
        "position_split": split,
        "position_spectrum": [row for scale, of in spectra.items() for row in _spectrum_rows(scale, of)],
        "position_curves": _curve_rows(sample, sums, spectra[RAW]),
        "position_shape": [absent | row for row in shape if np.isfinite(row["value"])],
        "position_basis": [_basis_row(scale, of, n_nonzero) for scale, of in spread.items()],
        "position_held": [{"scale": scale, **row} for scale, of in spread.items() for row in of.prefix_shares],
        "position_by_neuron": _neuron_rows(variance, by_neuron, spread),
    }
    return {name: [{"layer": layer, **row} for row in rows] for name, rows in tables.items()}, directions


def _summed(sample: PositionSample, layer: int) -> tuple[TwoWaySums, TwoWaySums | None]:
    """Return the sums of a layer, and the sums of its short sentences; None where these cannot be separated."""
    d_model = sample.store.plan.d_model
    sums = TwoWaySums(sample.design, d_model, with_covariance=True)
    short = TwoWaySums(sample.short, d_model) if sample.short is not None else None
    for rows, states in sample.states(layer):
        sums.update(states)
        if short is not None:
            short.update(states[torch.from_numpy(sample.is_short[rows])])
    return sums, short


def _split_rows(scale: str, sums: TwoWaySums) -> Rows:
    design, shares = sums.design, sums.shares(standardised=scale == STANDARDISED)
    rows = []
    for part in (*PARTS, *ALONE):
        low, high = jackknife_interval(
            np.array([float(jackknife_share.excess[part]) for jackknife_share in shares]), design.n_sentences
        )
        rows.append(without_nan({
            "scale": scale, "part": part, "value": float(shares[0].excess[part]), "low": low,
            "high": high, "share": float(shares[0].observed[part]), "chance": float(shares[0].chance[part]),
            "n_sentences": design.n_sentences, "n_tokens": len(design.index),
        }))  # fmt: skip
    return rows


def _subspaces(
    sample: PositionSample, sums: TwoWaySums, directions: Array, below: Array | None, has_context: bool
) -> Iterator[dict[str, Any]]:
    """Yield the overlaps of the part's subspace with the contexts', between halves, and with the layer below."""
    d_model, k = directions.shape
    generator = np.random.default_rng([sample.seed, 15])
    drawn = [overlap(directions, random_subspace(d_model, k, generator)) for _ in range(DRAWS)]

    def p_value(value: float, which: int, sign: int) -> float:
        return rank_p(sign * value, [sign * draw[which] for draw in drawn])

    if has_context:
        context, _ = sums.covariances()
        _, axes = np.linalg.eigh(context)
        with_context, angle = overlap(directions, axes[:, ::-1][:, :k])
        of_overlap = {"chance": k / d_model, "p_value": p_value(with_context, 0, 1)}
        of_angle = {"chance": float(np.mean([draw[1] for draw in drawn])), "p_value": p_value(angle, 1, -1)}
        yield {"measure": "context_overlap", "value": with_context, **of_overlap, "k": k}
        yield {"measure": "context_angle", "value": angle, **of_angle, "k": k}
    halves = [axes for _, axes in principal_halves(sums, sample.folds, k)]
    if min(half.shape[1] for half in halves) == k:
        yield {"measure": "halves_overlap", "value": overlap(*halves)[0], "chance": k / d_model, "k": k}
    if below is not None and (common := min(k, below.shape[1])):
        below_overlap, _ = overlap(directions[:, :common], below[:, :common])
        yield {"measure": "below_overlap", "value": below_overlap, "chance": common / d_model, "k": common}


def _readings(
    sample: PositionSample, layer: int, sums: TwoWaySums, short: TwoWaySums | None, k: int
) -> Iterator[dict[str, Any]]:
    """Yield accuracies of position in held-out sentences, and in sentences longer than all fitted ones."""
    design, origin = sample.design, sums.origin
    assert origin is not None
    k = min(k, READ)
    (fitted, solution), (judged, _) = sample.folds.fitted_and_judged[0]
    part = sums.position_part(solution, fitted)
    _, directions = principal(part, solution.n)
    directions = directions[:, :k]
    means = {"read": part @ directions}
    axes = [directions]
    if short is not None and sample.short is not None:
        short_part = short.position_part(sample.short.whole)
        _, of_short = principal(short_part, sample.short.whole.n)
        of_short = of_short[:, :k]
        short_means = np.zeros((design.n_positions, of_short.shape[1]))
        short_means[np.searchsorted(design.values, sample.short.values)] = short_part @ of_short
        means["read_longer"], axes = short_means, [directions, of_short]
    turn = torch.from_numpy(np.hstack(axes))
    states = np.empty((len(design.index), turn.shape[1]))
    for rows, x in sample.states(layer):
        # Kept results between large blocks that are freed would leave gaps in memory, which grow with the text.
        states[rows] = ((x.double() - origin) @ turn).numpy()
    in_judged = np.isin(design.groups, judged)[design.of_token]
    readings = [("read", states[:, : directions.shape[1]], ~in_judged, in_judged)]
    if "read_longer" in means:
        assert sample.short is not None
        known = np.isin(design.values, sample.short.values)[design.index]
        readings.append(("read_longer", states[:, directions.shape[1] :], sample.is_short, ~sample.is_short & known))
    for name, projected, of_fit, of_judged in readings:
        read = read_positions(projected, design, means[name], of_fit, of_judged, sample.seed)
        for measure, cells in (read or {}).items():
            n_tokens = int(of_judged.sum())
            yield {"measure": f"{name}_{measure}", **cells, "k": projected.shape[1], "n_tokens": n_tokens}


def _spectrum_rows(scale: str, of_scale: PartSpectrum) -> Rows:
    if not of_scale.total > 0:
        return []
    return [
        {
            "scale": scale, "component": i + 1, "share": float(of_scale.squares[i] / of_scale.total),
            "held_out": float(of_scale.gain_shares[i]),
        }
        for i in range(len(of_scale.squares))
    ]  # fmt: skip


def _curve_rows(sample: PositionSample, sums: TwoWaySums, raw_spectrum: PartSpectrum) -> Rows:
    """Return the first components as curves over the positions, with the jackknife's interval at each position."""
    design = sample.design
    n = min(COMPONENTS, raw_spectrum.part.shape[1])
    directions = raw_spectrum.directions[:, :n]
    signs = np.sign((oriented(raw_spectrum.part[:, :n]) * raw_spectrum.part[:, :n]).sum(0))
    without = []
    for g, solution in enumerate(design.without):
        groups = [h for h in range(design.n_groups) if h != g]
        without.append(sums.position_part(solution, groups) @ directions)
    curves = np.stack([raw_spectrum.part[:, :n], *without]) * np.where(signs == 0, 1.0, signs)
    rows = []
    for t, position in enumerate(design.values.tolist()):
        for i in range(n):
            # A position that only the sentences of one group have is not there without them.
            is_estimable = all(solution.n[t] > 0 for solution in design.without)
            low, high = jackknife_interval(curves[:, t, i], design.n_sentences) if is_estimable else (np.nan, np.nan)
            rows.append(without_nan({
                "position": position, "component": i + 1, "value": float(curves[0, t, i]), "low": low,
                "high": high, "n_tokens": int(design.whole.n[t]),
            }))  # fmt: skip
    return rows


def _spread(
    sample: PositionSample, layer: int, sums: TwoWaySums, k: int, scale: Array, ranked: Sequence[int]
) -> Concentration | None:
    """Return the spread of the position part, cut to k directions, over scaled neurons; None if a half has no part."""
    halves = principal_halves(sums, sample.folds, k, scale)
    rows = [np.sqrt(squares)[:, None] * directions.T for squares, directions in halves]
    if not all(squares.any() for squares, _ in halves):
        return None
    etas = [sums.eta_squared(groups, solution) for groups, solution in sample.folds.halves]
    by_eta = [np.argsort(-eta, kind="stable").tolist() for eta in etas]
    orders = {"fit": [ranked, ranked], "eta_squared": by_eta}
    return concentration(rows, sums.variance > 0, orders, sample.seed, layer)


def _basis_row(scale: str, spread: Concentration, n_nonzero: int) -> dict[str, Any]:
    return {
        "scale": scale, "half": spread.half, "half_directions": float(np.median(spread.half_rotated)),
        "half_lowest": int(spread.half_rotated.min()), "half_highest": int(spread.half_rotated.max()),
        "half_p": spread.p_value, "n_directions": spread.k, "n_nonzero": n_nonzero, "n_live": spread.n_live,
        "n_neurons": len(spread.by_neuron), "n_rotations": len(spread.half_rotated),
    }  # fmt: skip


def _neuron_rows(variance: Array, shares: VarianceShares, spread: Mapping[str, Concentration]) -> Rows:
    rows = []
    for k in range(len(variance)):
        row = {
            "neuron": k, "variance": float(variance[k]),
            "eta_squared": float(shares.observed["position_alone"][k]), "share": float(shares.observed["position"][k]),
            "chance": float(shares.chance["position"][k]), "value": float(shares.excess["position"][k]),
        }  # fmt: skip
        for scale, of_scale in spread.items():
            row["held" if scale == RAW else "held_standardised"] = float(of_scale.by_neuron[k])
        rows.append(without_nan(row))
    return rows
