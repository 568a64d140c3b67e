"""The structural probe as a convex problem: a metric whose squared distances are those of trees, with a certificate.

Hewitt & Manning (2019) look for a matrix B such that |B (h_i - h_j)|^2 is the distance of two words in the tree, or
|B h_i|^2 the depth of a word. Both are linear in M = B'B. Over positive semidefinite M,

    min  mean over sentences of the mean squared error  +  l trace(M)

is convex. It is solved in the factor B by L-BFGS, which is cheap since the trace keeps the rank low. Short rows of the
factor move little under its gradient, so that L-BFGS sees each row in units of its length (Tong, Ma & Chi 2021). A
point of the dual problem bounds how far the objective is above the optimum; while the bound is too large, directions in
which the objective falls fastest join the factor (Burer & Monteiro 2003).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

Target = Literal["distance", "depth"]
TARGETS: tuple[Target, ...] = ("distance", "depth")

# The gap of a solution is at most this share of its objective, and at most so many times the factor is extended.
TOLERANCE, MOST_ROUNDS = 1e-3, 200
# Directions that an empty factor begins with, those that join it at a time, and iterations of L-BFGS between two
# certificates.
FIRST_DIRECTIONS, NEW_DIRECTIONS, ITERATIONS = 48, 16, 15
# Directions of the factor with a smaller share of the trace are dropped.
NEGLIGIBLE = 1e-7
# Share of the mean variance that is added to all variances where L-BFGS works in whitened coordinates, and share of the
# largest squared length of a row that is added to all where it works in units of the lengths.
DAMPING, ROW_DAMPING = 1.0, 1e-2


@dataclass(frozen=True)
class Group:
    """Sentences of one length: vectors (n_sentences, n_words, d) and gold (n_sentences, n_words[, n_words]).

    `indices` are their places among all sentences. `weight` is what each squared error counts: the mean is over words
    or pairs, then over sentences.
    """

    indices: Sequence[int]
    vectors: Tensor
    gold: Tensor
    weight: float

    def predicted(self, factor: Tensor) -> tuple[Tensor, Tensor]:
        """Return the words' vectors in the space of a factor (k, d), and the squared distances, or lengths."""
        mapped = self.vectors @ factor.T
        squares = mapped.square().sum(-1)
        if self.gold.ndim == 2:
            return mapped, squares
        products = mapped @ mapped.transpose(1, 2)
        distances = squares[:, :, None] + squares[:, None] - 2 * products
        return mapped, distances.clamp_(min=0.0)

    def pull(self, dual: Tensor, vectors: Tensor) -> Tensor:
        """Return, for each word, the sum over pairs of `dual` times the difference of vectors, twice; or its share."""
        if self.gold.ndim == 2:
            return dual[..., None] * vectors
        return 2 * (dual.sum(-1, keepdim=True) * vectors - dual @ vectors)


def grouped(vectors: Sequence[Tensor], gold: Sequence[NDArray[np.floating]]) -> list[Group]:
    """Return sentences grouped by length; vectors of shape (n_words, d), gold (n_words, n_words) or (n_words,)."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, of_sentence in enumerate(vectors):
        by_length[len(of_sentence)].append(i)
    n_sentences = len(vectors)
    return [
        Group(
            chosen,
            torch.stack([vectors[i] for i in chosen]),
            torch.from_numpy(np.stack([gold[i] for i in chosen])).to(vectors[0].dtype),
            1.0 / (n_sentences * length ** gold[chosen[0]].ndim),
        )
        for length, chosen in sorted(by_length.items())
    ]


@dataclass(frozen=True)
class Metric:
    """A solution: M = factor' factor, its objective and the bound on how far this is above the optimum.

    `factor` has shape (rank, d), its rows orthogonal, the longest first.
    """

    factor: Tensor
    objective: float
    gap: float
    penalty: float

    @property
    def rank(self) -> int:
        """Number of directions."""
        return len(self.factor)


def mean_error(groups: Sequence[Group], factor: Tensor) -> float:
    """Return the mean squared error of the predictions: over pairs or words, then over sentences."""
    return sum(
        group.weight * float((group.predicted(factor)[1] - group.gold).square().sum(dtype=torch.float64))
        for group in groups
    )


def solve(groups: Sequence[Group], penalty: float, start: Tensor | None = None, tolerance: float = TOLERANCE) -> Metric:
    """Return the metric with the least objective at a penalty, up to a gap of `tolerance` times the objective.

    The gap is larger, and says so, if it is not reached within `MOST_ROUNDS` rounds.

    Args:
        start: Factor of a similar problem, shape (k, d).
    """
    d = groups[0].vectors.shape[2]
    factor = torch.zeros(0, d, dtype=groups[0].vectors.dtype) if start is None else start
    whitening = _whitening(groups)
    for remaining_rounds in reversed(range(MOST_ROUNDS)):
        if len(factor):
            factor = _compressed(_descended(groups, factor, penalty, whitening))
        adjoint, linear, square = _dual(groups, factor)
        objective = mean_error(groups, factor) + penalty * float(factor.double().square().sum())
        values, vectors = torch.linalg.eigh(adjoint)
        # Scaled by a number from 0, the residuals are feasible: no direction gains more than the penalty.
        feasible = penalty / float(values[-1]) if values[-1] > 0 else math.inf
        scale = max(min(feasible, linear / (2 * square) if square else 1.0), 0.0)
        gap = objective - (scale * linear - scale**2 * square)
        if gap <= tolerance * objective or not remaining_rounds:
            break
        most = NEW_DIRECTIONS if len(factor) else FIRST_DIRECTIONS
        n_new = min(most, max(int((values > penalty).sum()), 1))
        factor = torch.cat([factor, _extension(groups, factor, vectors[:, -n_new:].T.to(factor), penalty)])
    return Metric(factor, objective, max(gap, 0.0), penalty)


def _dual(groups: Sequence[Group], factor: Tensor) -> tuple[Tensor, float, float]:
    """Return the adjoint of the map M -> predictions at the residuals' dual point (d, d), float64, and the two sums.

    The dual point is theta = 2 w (gold - predicted). Of the dual objective along it, c linear - c^2 square, these are
    the sums over theta gold and theta^2 / 4w.
    """
    duals = []
    linear = square = 0.0
    for group in groups:
        residual = group.gold - group.predicted(factor)[1]
        duals.append(2 * group.weight * residual)
        linear += float((duals[-1] * group.gold).sum(dtype=torch.float64))
        square += group.weight * float(residual.square().sum(dtype=torch.float64))
    return _adjoint(groups, duals), linear, square


def _adjoint(groups: Sequence[Group], duals: Iterable[Tensor]) -> Tensor:
    """Return the sum over words h, or over differences D of words, of dual times h h' or D D', (d, d), float64."""
    d = groups[0].vectors.shape[2]
    total = torch.zeros(d, d, dtype=torch.float64)
    for group, dual in zip(groups, duals, strict=True):
        pulled = group.pull(dual, group.vectors)
        total += (group.vectors.flatten(0, 1).T @ pulled.flatten(0, 1)).double()
    return (total + total.T) / 2


def _whitening(groups: Sequence[Group]) -> tuple[Tensor, Tensor]:
    """Return the damped square root (d, d) of the second moments of words, or of their differences, and its inverse."""
    moments = _adjoint(groups, (torch.full_like(group.gold, group.weight) for group in groups))
    variances, axes = torch.linalg.eigh(moments)
    mean = float(variances.mean())
    root = (variances.clamp(min=0) + DAMPING * mean).sqrt() if mean > 0 else torch.ones_like(variances)
    return (axes * root) @ axes.T, (axes / root) @ axes.T


def _descended(groups: Sequence[Group], factor: Tensor, penalty: float, whitening: tuple[Tensor, Tensor]) -> Tensor:
    """Return a factor after some iterations of L-BFGS, which sees it in whitened coordinates and scaled rows."""
    root, inverse = whitening
    _, lengths, directions = torch.linalg.svd(factor.double() @ root, full_matrices=False)
    # The gradient of a row is proportional to its length; in these units, the curvatures of all rows are similar.
    unit = ((lengths / lengths[0]).square() + ROW_DAMPING).rsqrt()[:, None]

    def rows(flat: NDArray[np.float64]) -> Tensor:
        return unit * torch.from_numpy(flat.reshape(directions.shape)) @ inverse

    def objective(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        exact = rows(flat)
        at = exact.to(factor.dtype)
        value, gradient = penalty * float(exact.square().sum()), 2 * penalty * exact
        for group in groups:
            mapped, predicted = group.predicted(at)
            residual = predicted - group.gold
            value += group.weight * float(residual.square().sum(dtype=torch.float64))
            pulled = group.pull(4 * group.weight * residual, mapped)
            gradient += (pulled.flatten(0, 1).T @ group.vectors.flatten(0, 1)).double()
        return value, (unit * (gradient @ inverse)).numpy().ravel()

    start = (lengths[:, None] * directions / unit).numpy().ravel()
    options = {"maxiter": ITERATIONS, "maxcor": 20, "ftol": 1e-12, "gtol": 0.0}
    return rows(minimize(objective, start, jac=True, method="L-BFGS-B", options=options).x).to(factor.dtype)


def _compressed(factor: Tensor) -> Tensor:
    """Return a factor of the same metric with orthogonal rows, without negligible ones."""
    _, lengths, directions = torch.linalg.svd(factor.double(), full_matrices=False)
    large = lengths.square() > NEGLIGIBLE * lengths.square().sum()
    return (lengths[large, None] * directions[large]).to(factor.dtype)


def _extension(groups: Sequence[Group], factor: Tensor, directions: Tensor, penalty: float) -> Tensor:
    """Return unit directions (n, d) scaled so that the objective is least along their sum of squares."""
    slope = penalty * len(directions)
    curvature = 0.0
    for group in groups:
        residual = group.predicted(factor)[1] - group.gold
        added = group.predicted(directions)[1]
        slope += 2 * group.weight * float((residual * added).sum(dtype=torch.float64))
        curvature += 2 * group.weight * float(added.square().sum(dtype=torch.float64))
    step = max(-slope / curvature, 1e-8) if curvature else 1e-8
    return directions * step**0.5


def contributions(groups: Sequence[Group], factor: Tensor) -> tuple[Tensor, Tensor]:
    """Return each neuron's part of the predicted distances, or depths: mean size and mean, shape (d,), float64.

    The part of neuron k is D_k (M D)_k, where D is the difference of two words' vectors, or a word's vector. The parts
    of all neurons add up to the prediction. Means are over all pairs, or words.
    """
    size, mean = torch.zeros(2, groups[0].vectors.shape[2], dtype=torch.float64)
    n = 0
    for group in groups:
        for vectors in group.vectors:
            differences = vectors if group.gold.ndim == 2 else _differences(vectors)
            parts = differences * (differences @ factor.T @ factor)
            size += parts.abs().sum(0, dtype=torch.float64)
            mean += parts.sum(0, dtype=torch.float64)
            n += len(differences)
    return size / max(n, 1), mean / max(n, 1)


def _differences(vectors: Tensor) -> Tensor:
    first, second = torch.triu_indices(len(vectors), len(vectors), offset=1)
    return vectors[first] - vectors[second]
