"""Probes of the columns of an array, for the estimators, which import this file, and with it torch, when they fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cli.options import ProbeOptions
from probing.data.arrays import activations_of_arrays, warn_of_rounding
from probing.data.examples import Examples, Sides
from probing.data.labelling import check_size, check_varies
from probing.data.module import layer_moments
from probing.probes.closed_forms import Decomposed, NumberFit, choose_ridge_penalty
from probing.probes.evidence import Directions, rotation_comparison
from probing.probes.rankings import class_magnitudes, mean_contribution
from probing.probes.solvers import problem_of_layer
from probing.probes.training import LayerFit, PenaltyPath, penalised, train_problems
from probing.probes.transforms import centred, moments_with_constant, of_neurons, with_constant
from probing.runtime import quiet_libraries
from probing.runtime.trainer import preserve_algorithms
from probing.statistics.moments import Moments

# An array is a single layer.
_LAYERS = (0,)

# What is said of Lightning, and torch's choice of algorithms, are those of the whole process: threads that fit wait for
# one another.
_ONE_AT_A_TIME = Lock()


@dataclass(frozen=True)
class ProbeFitConfig:
    """Settings of a fit; `is_validation` marks rows for the choice of the penalty, shape (n_rows,), if any."""

    options: ProbeOptions
    is_validation: NDArray[np.bool_] | None
    n_rotations: int
    seed: int


@dataclass(frozen=True)
class Fitted:
    """A probe of the columns of an array.

    Args:
        weight: Weight of each class, or of the predicted number, on raw columns, shape (n_classes or 1, n_columns).
        intercept: Logit of each class, or the number, where all columns are 0, shape (n_classes or 1,).
        contribution: Mean contribution of each column on the rows, shape (n_columns,).
        gap: Upper bound on the objective's distance to its minimum.
        tried: Cross-entropy in nats, or R², on the held-out rows by penalty; empty if the penalty was given.
    """

    weight: NDArray[np.float64]
    intercept: NDArray[np.float64]
    contribution: NDArray[np.float64]
    gap: float
    converged: bool
    n_passes: int
    l2: float
    tried: dict[float, float]
    compare: Callable[[], Directions] | None


class _Rows:
    """The rows of an array with the class of each, or the index of its number in `values`, shape (n_rows,).

    If the probe has an intercept, columns that float32 rounds are centred before rounding.
    """

    def __init__(
        self,
        X: NDArray[Any],
        labels: NDArray[np.int64],
        n_classes: int,
        config: ProbeFitConfig,
        values: NDArray[np.float64] | None = None,
    ) -> None:
        self.config, self.origin = config, np.zeros(X.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            if config.options.bias and not np.array_equal(X, X.astype(np.float32)):
                self.origin = X.mean(0)
                X = X - self.origin
            store = activations_of_arrays(X)
            warn_of_rounding(store)
            self.store = store.of_layers({0: np.require(X, np.float32, ["C", "W"])})
        self.labels, self.n_classes, self.values = labels.astype(np.int32), n_classes, values

    def read(self, is_validation: NDArray[np.bool_] | None = None) -> _Read:
        """Return the rows as a probe reads them: as training examples, and held-out rows as validation examples."""
        none = np.full_like(self.labels, -1)
        validation = np.zeros(len(none), dtype=bool) if is_validation is None else is_validation
        parts = [np.where(validation, none, self.labels), np.where(validation, self.labels, none), none]
        train, held_out, test = (Examples(self.store, part, unit="row", values=self.values) for part in parts)
        sides = Sides(train, held_out, test, np.arange(self.n_classes), False)
        origin = torch.from_numpy(self.origin)
        if not self.config.options.bias:
            return _Read(self.config, sides, origin)
        sides, _, transforms = centred(sides, {}, _LAYERS)
        return _Read(self.config, sides, origin + transforms[0].shift)


class _Read(NamedTuple):
    """Inputs of a probe: its sides, and the mean that was subtracted, shape (n_columns,), 0 without an intercept."""

    config: ProbeFitConfig
    sides: Sides
    mean: Tensor

    def with_constant(self) -> tuple[Sides, list[Moments]]:
        """Return the sides, with the constant appended to the neurons if the probe has an intercept, and moments."""
        moments = layer_moments(self.sides.train, _LAYERS)
        if not self.config.options.bias:
            return self.sides, moments
        read, _ = with_constant(self.sides, {})
        return read, [moments_with_constant(of_layer) for of_layer in moments]

    def fitted(self, fit: LayerFit | NumberFit, at_mean: Tensor, l2: float, path: PenaltyPath | None) -> Fitted:
        """Return a probe of these examples as a probe of the columns; `at_mean` has the logits at the mean."""
        sums = class_magnitudes(self.sides.train, _LAYERS, [fit.moments.mean], len(self.sides.classes) or None)
        weight, config, compare = fit.weight.double(), self.config, None
        if config.n_rotations and fit.converged:
            how = config.options.penalty_space, config.n_rotations, config.seed
            compare = rotation_comparison(self.sides.train, 0, fit.weight, fit.moments, *how)
        return Fitted(
            weight.numpy(),
            (at_mean.double() - weight @ self.mean).numpy(),
            mean_contribution(fit.weight, sums[0]).numpy(),
            fit.optimality_gap,
            fit.converged,
            fit.n_passes,
            l2,
            {} if path is None else dict(zip(path.l2, path.scores[:, 0].tolist(), strict=True)),
            compare,
        )


def fit_classes(X: NDArray[Any], labels: NDArray[np.int64], n_classes: int, config: ProbeFitConfig) -> Fitted:
    """Fit a probe of classes by lbfgs to all rows of X, shape (n_rows, n_columns), with labels from 0.

    Raises:
        UserError: If a value is not finite in float32, or all are too large or small.
    """
    rows = _Rows(X, labels, n_classes, config)
    with _ONE_AT_A_TIME, quiet_libraries(), preserve_algorithms():
        read = rows.read(config.is_validation)
        sides, moments = read.with_constant()
        path, training = penalised(config.options, 0, sides, _LAYERS, moments, {})
        if path is not None:  # the probe itself is of all rows
            read = rows.read()
            sides, moments = read.with_constant()
        (fit,) = train_problems(sides, _LAYERS, moments, [problem_of_layer(0, 0, training.penalty)], training)
    fit = of_neurons(fit) if config.options.bias else fit
    at_mean = torch.zeros(n_classes) if fit.intercept is None else fit.intercept
    return read.fitted(fit, at_mean, training.penalty.l2, path)


def fit_numbers(X: NDArray[Any], numbers: NDArray[np.float64], config: ProbeFitConfig) -> Fitted:
    """Fit a ridge probe of numbers to all rows of X, shape (n_rows, n_columns).

    Raises:
        UserError: As in `fit_classes`, or if the numbers do not vary.
    """
    l2, space, is_validation = config.options.l2, config.options.penalty_space, config.is_validation
    check_size(numbers, "`y`")
    check_varies(np.unique(numbers if is_validation is None else numbers[~is_validation]), "`y`", "rows")
    values, index = np.unique(numbers, return_inverse=True)
    rows, path = _Rows(X, index, 0, config, values), None
    if l2 == "auto":
        part = Decomposed.of(rows.read(is_validation).sides, _LAYERS, space)
        path = choose_ridge_penalty(part.sides, _LAYERS, part.spectra, part.products)
        l2 = path.chosen
    read = rows.read()
    (fit,) = Decomposed.of(read.sides, _LAYERS, space).train(l2)
    return read.fitted(fit, torch.tensor([fit.standard.mean], dtype=torch.float64), l2, path)
