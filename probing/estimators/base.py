"""What both estimators have in common: their options, the rows that are held out, and their neurons, ranked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cli.arguments import PYTHON, checked
from probing.cli.options import ProbeOptions
from probing.cli.python_calls import as_plain
from probing.errors import UserError, refuse
from probing.estimators.schema import RANKED
from probing.estimators.scikit import (
    BaseEstimator,
    ConvergenceWarning,
    check_consistent_length,
    check_is_fitted,
    check_random_state,
    validate_data,
)
from probing.results.rows import Table
from probing.statistics.rank_similarity import ranked

USUAL = ProbeOptions()
# Names of options of `fit` that scikit-learn has another word for.
_NAMES = {"bias": "fit_intercept"}
# Types of X that are read as they are.
_TYPES = [np.float64, np.float32]


@dataclass(frozen=True)
class Fitted:
    """A probe of the columns of an array.

    Args:
        weight: Weight of each class, or of the number that is predicted, on raw columns, shape (n_classes or 1,
            n_columns), float64.
        intercept: Logit of each class, or the number, where all columns are 0, shape (n_classes or 1,), float64.
        contribution: Mean contribution of each column on the rows, shape (n_columns,), float64.
        gap: Upper bound on the objective's distance to its minimum.
        converged: Whether it is within the tolerance.
        n_passes: Number of passes over the rows.
        l2: The penalty.
        tried: What each penalty of the path gives on the rows held out: cross-entropy in nats, or R²; empty if the
            penalty was given.
    """

    weight: NDArray[np.float64]
    intercept: NDArray[np.float64]
    contribution: NDArray[np.float64]
    gap: float
    converged: bool
    n_passes: int
    l2: float
    tried: dict[float, float]


class ProbeEstimator(BaseEstimator):
    """Takes parameters and X as scikit-learn gives them, and ranks what was fitted."""

    contributions_: NDArray[np.float64]
    coef_: NDArray[np.float64]
    intercept_: Any
    gap_: float
    n_iter_: int
    l2_: float
    validation_scores_: dict[float, float] | None
    split_: tuple[NDArray[np.int64], NDArray[np.int64]] | None

    @property
    def neurons_(self) -> Table:
        """The columns of X, ranked by contribution, each with its share of the sum; equal ones share a rank."""
        names = getattr(self, "feature_names_in_", None)
        total = self.contributions_.sum()
        return Table(
            (
                {
                    "rank": rank,
                    "neuron": i,
                    **({} if names is None else {"feature": str(names[i])}),
                    "contribution": float(self.contributions_[i]),
                    "share": float(self.contributions_[i] / total) if total else 0.0,
                }
                for rank, i in ranked(self.contributions_)
            ),
            RANKED,
        )

    def _read(self, X: Any, **options: Any) -> Any:
        """Return X, and y where it is given, as scikit-learn checks them, which knows no masks and few tensors."""
        if np.ma.is_masked(X):
            raise ValueError("`X` has masked values; leave the rows out, or fill them with `X.filled(...)`.")
        if hasattr(X, "detach"):
            X = X.detach().cpu().float().numpy()
        return validate_data(self, X, dtype=_TYPES, **options)

    def _outputs(self, X: Any) -> NDArray[np.float64]:
        """Return X times the weights plus the intercept, shape (n_rows, n_outputs)."""
        check_is_fitted(self)
        return self._read(X, reset=False).astype(np.float64, copy=False) @ np.atleast_2d(self.coef_).T + self.intercept_

    def _fit(
        self,
        fit: Callable[[ProbeOptions, NDArray[np.bool_] | None], Fitted],
        names: Mapping[str, Any],
        groups: Any,
        n_rows: int,
        labels: NDArray[np.int64] | None,
    ) -> Fitted:
        """Fit the probe, and set all that both estimators have.

        Args:
            fit: Fits a probe, given its options and the rows that are held out.
            names: The options, by their names in `ProbeOptions`.
            groups: Group of each row, or None.
            n_rows: Number of rows.
            labels: Class of each row, if classes are predicted.

        Raises:
            ValueError: If an option is out of range, or X or y cannot be read.
        """
        try:
            options = self._options(names)
            held_out = self._held_out(groups, n_rows, labels) if options.l2 == "auto" else None
            found = fit(options, held_out)
        except UserError as error:
            raise ValueError(_in_python(str(error))) from None
        self.contributions_, self.gap_, self.n_iter_ = found.contribution, found.gap, found.n_passes
        self.l2_ = found.l2
        self.validation_scores_ = self.split_ = None
        if held_out is not None:
            self.validation_scores_, self.split_ = found.tried, (np.flatnonzero(~held_out), np.flatnonzero(held_out))
        if not found.converged:
            warnings.warn(
                f"the probe may be {found.gap:.1g} nats above its optimum, and expected was at most "
                f"{options.tolerance:g}; give a higher `tolerance`, or a higher `l2`.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return found

    def _options(self, names: Mapping[str, Any]) -> ProbeOptions:
        options = ProbeOptions(**checked(ProbeOptions, as_plain(names), type(self).__name__, PYTHON))
        refuse(options.problems())
        return options

    def _held_out(self, groups: Any, n_rows: int, labels: NDArray[np.int64] | None) -> NDArray[np.bool_]:
        from probing.data.arrays import groups_of_rows
        from probing.estimators.held_out import hold_out

        share, seed = self.validation_fraction, self.random_state
        if not isinstance(share, int | float | np.floating) or not 0 < share < 1:
            raise UserError(f"`validation_fraction={share}`: expected a number between 0 and 1.")
        if groups is not None:
            check_consistent_length(groups, np.empty(n_rows))
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(2**31)
        names, group_of_row = groups_of_rows(None if groups is None else np.asarray(groups), n_rows)
        return hold_out(names, group_of_row, labels, float(share), int(seed))


def _in_python(message: str) -> str:
    """Return a message about options of the command line as one about parameters of an estimator."""
    message = re.sub(r"--probe\.(\w+) (true|false)\b", lambda found: f"{found[1]}={found[2].title()}", message)
    message = re.sub(r"--probe\.(\w+) ", r"\1=", message)
    for option, parameter in _NAMES.items():
        message = message.replace(f"`{option}=", f"`{parameter}=")
    return message
