"""Fits one probe to rows of an array by what `fit` and `probe` train with, without a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
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
from probing.estimators.base import Asked, Fitted
from probing.evidence.directions import comparison
from probing.probes.intercept import centred, moments_with_constant, of_neurons, with_constant
from probing.probes.penalty_path import penalised
from probing.probes.ridge import Decomposed, NumberFit, choose_ridge_penalty
from probing.probes.solvers import problem_of_layer
from probing.probes.training import LayerFit, train_problems
from probing.rankings.contributions import class_magnitudes, mean_contribution
from probing.runtime.libraries import quiet_libraries
from probing.runtime.trainer import algorithms_kept
from probing.statistics.moments import Moments

# An array is a single layer.
_LAYERS = (0,)
# What is said of Lightning, and torch's choice of algorithms, are those of the whole process: threads that fit wait for
# one another.
_ONE_AT_A_TIME = Lock()


class _Rows:
    """The rows of an array with the class of each, or the number.

    Args:
        X: The array, shape (n_rows, n_columns).
        labels: Class of each row, or the place of its number among the values, shape (n_rows,).
        n_classes: Number of classes; 0 where numbers are predicted.
        values: The different numbers, ascending, where they are predicted.
        is_centred: Whether the probe has an intercept. Columns that float32 rounds are then centred before.
    """

    def __init__(
        self,
        X: NDArray[Any],
        labels: NDArray[np.int64],
        n_classes: int,
        values: NDArray[np.float64] | None = None,
        is_centred: bool = False,
    ) -> None:
        self.origin = np.zeros(X.shape[1])
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            if is_centred and not np.array_equal(X, X.astype(np.float32)):
                self.origin = X.mean(0)
                X = X - self.origin
            store = activations_of_arrays(X)
            warn_of_rounding(store)
            self.store = store.of_layers({0: np.require(X, np.float32, ["C", "W"])})
        self.labels, self.n_classes, self.values = labels.astype(np.int32), n_classes, values

    def sides(self, held_out: NDArray[np.bool_] | None = None) -> Sides:
        """Return the rows as training examples, those that are held out as validation examples."""
        none = np.full_like(self.labels, -1)
        here = np.zeros(len(none), dtype=bool) if held_out is None else held_out
        parts = [np.where(here, none, self.labels), np.where(here, self.labels, none), none]
        examples = [Examples(self.store, part, unit="row", values=self.values) for part in parts]
        return Sides(examples[0], examples[1], examples[2], np.arange(self.n_classes), False)


class _Read(NamedTuple):
    """What a probe reads.

    Args:
        sides: Examples whose neurons are centred on their training mean, if the probe has an intercept.
        mean: The mean that was subtracted, shape (n_columns,), float64; 0 for a probe without an intercept.
    """

    sides: Sides
    mean: Tensor

    @classmethod
    def of(cls, rows: _Rows, options: ProbeOptions, held_out: NDArray[np.bool_] | None = None) -> _Read:
        """Return the rows as they are read by a probe with these options."""
        sides, origin = rows.sides(held_out), torch.from_numpy(rows.origin)
        if not options.bias:
            return cls(sides, origin)
        sides, _, transforms = centred(sides, {}, _LAYERS)
        return cls(sides, origin + transforms[0].shift)

    def with_constant(self, options: ProbeOptions) -> tuple[Sides, list[Moments]]:
        """Return the sides with the constant beside their neurons, if the probe has an intercept, and the moments."""
        moments = layer_moments(self.sides.train, _LAYERS)
        if not options.bias:
            return self.sides, moments
        read, _ = with_constant(self.sides, {})
        return read, [moments_with_constant(own) for own in moments]

    def fitted(
        self, fit: LayerFit | NumberFit, at_mean: Tensor, l2: float, tried: Mapping[float, float], asked: Asked
    ) -> Fitted:
        """Return a probe of these examples as one of the columns of the array.

        Args:
            fit: The probe.
            at_mean: Logits, or the number, where all columns have the mean that was subtracted, shape (n_outputs,).
            l2: Its penalty.
            tried: What the penalties of the path gave.
            asked: The rotations, which are left out unless the probe is at its optimum.
        """
        sums = class_magnitudes(self.sides.train, _LAYERS, [fit.moments.mean], len(self.sides.classes) or None)
        weight = fit.weight.double()
        intercept = at_mean.double() - weight @ self.mean
        contribution = mean_contribution(fit.weight, sums[0])
        how = fit.weight, fit.moments, asked.options.penalty_space, asked.n_rotations, asked.seed
        compare = comparison(self.sides.train, 0, *how) if asked.n_rotations and fit.converged else None
        return Fitted(
            weight.numpy(), intercept.numpy(), contribution.numpy(), fit.optimality_gap, fit.converged, fit.n_passes,
            l2, dict(tried), compare,
        )  # fmt: skip


def fit_classes(X: NDArray[Any], labels: NDArray[np.int64], n_classes: int, asked: Asked) -> Fitted:
    """Fit a probe of classes to all rows.

    Args:
        X: The array, shape (n_rows, n_columns).
        labels: Class of each row, shape (n_rows,), from 0.
        n_classes: Number of classes.
        asked: How the probe is trained, by lbfgs, and what neurons are compared with.

    Raises:
        UserError: If a value is not finite in float32, or all are too large or small.
    """
    options = asked.options
    rows = _Rows(X, labels, n_classes, is_centred=options.bias)
    tried: dict[float, float] = {}
    with _ONE_AT_A_TIME, quiet_libraries(), algorithms_kept():
        if options.l2 == "auto":
            part, moments = _Read.of(rows, options, asked.held_out).with_constant(options)
            path, _ = penalised(options, 0, part, _LAYERS, moments, {})
            assert path is not None
            options = replace(options, l2=path.chosen)
            tried = dict(zip(path.l2, path.cross_entropy[:, 0].tolist(), strict=True))
        read = _Read.of(rows, options)
        sides, moments = read.with_constant(options)
        _, training = penalised(options, 0, sides, _LAYERS, moments, {})
        problem = problem_of_layer(0, 0, training.penalty)
        (fit,) = train_problems(sides, _LAYERS, moments, [problem], training)
    fit = of_neurons(fit) if options.bias else fit
    at_mean = torch.zeros(n_classes) if fit.intercept is None else fit.intercept
    return read.fitted(fit, at_mean, training.penalty.l2, tried, asked)


def fit_numbers(X: NDArray[Any], numbers: NDArray[np.float64], asked: Asked) -> Fitted:
    """Fit a ridge probe of numbers to all rows.

    Args:
        X: The array, shape (n_rows, n_columns).
        numbers: Number of each row, shape (n_rows,).
        asked: The l2 penalty, its space, whether there is an intercept, and what neurons are compared with.

    Raises:
        UserError: As in `fit_classes`, or if the numbers do not vary.
    """
    options, held_out = asked.options, asked.held_out
    check_size(numbers, "`y`")
    check_varies(np.unique(numbers if held_out is None else numbers[~held_out]), "`y`", "rows")
    values, index = np.unique(numbers, return_inverse=True)
    rows, l2 = _Rows(X, index, 0, values, options.bias), options.l2
    tried: dict[float, float] = {}
    if l2 == "auto":
        part = Decomposed.of(_Read.of(rows, options, held_out).sides, _LAYERS, options.penalty_space)
        path = choose_ridge_penalty(part.sides, _LAYERS, part.spectra, part.products)
        l2, tried = path.chosen, dict(zip(path.l2, path.r2[:, 0].tolist(), strict=True))
    read = _Read.of(rows, options)
    (fit,) = Decomposed.of(read.sides, _LAYERS, options.penalty_space).train(l2)
    return read.fitted(fit, torch.tensor([fit.standard.mean], dtype=torch.float64), l2, tried, asked)
