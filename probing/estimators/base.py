"""What both estimators have in common: their options, the rows that are held out, and their neurons, ranked."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probing.cli.arguments import PYTHON, checked
from probing.cli.commandline import as_plain
from probing.cli.option_types import option_problems
from probing.cli.options import ProbeOptions
from probing.errors import UserError, refuse
from probing.estimators.schema import BASIS, RANKED
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

if TYPE_CHECKING:
    from probing.evidence.directions import Directions

USUAL = ProbeOptions()
# Names of options of `fit` that scikit-learn has another word for.
_NAMES = {"bias": "fit_intercept", "seed": "random_state"}
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
        compare: Measures neurons beside directions; None without rotations.
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


@dataclass(frozen=True)
class Asked:
    """What a probe is fitted with.

    Args:
        options: How it is trained.
        held_out: Rows on which the penalty is chosen, by probes of the other rows, shape (n_rows,); None if the options
            have a penalty.
        n_rotations: Number of random rotations whose directions neurons are compared with.
        seed: Seed of the rotations.
    """

    options: ProbeOptions
    held_out: NDArray[np.bool_] | None
    n_rotations: int
    seed: int


class ProbeEstimator(BaseEstimator):
    """Takes parameters and X as scikit-learn gives them, and ranks what was fitted."""

    rotations: int
    _compared: Callable[[], Directions] | Directions | None
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
        total, directions = self.contributions_.sum(), self._directions
        beside = {} if directions is None else directions.columns
        return Table(
            (
                {
                    "rank": rank,
                    "neuron": i,
                    **({} if names is None else {"feature": str(names[i])}),
                    "contribution": float(self.contributions_[i]),
                    "share": float(self.contributions_[i] / total) if total else 0.0,
                    **{name: column[i] for name, column in beside.items()},
                }
                for rank, i in ranked(self.contributions_)
            ),
            RANKED,
        )

    @property
    def basis_(self) -> Table:
        """Columns of X beside directions of random rotations; empty without them."""
        from probing.evidence.directions import basis_table

        rows = [{**row, "n_rows": row["n_test_tokens"]} for row in basis_table([(0, self._directions)])]
        return Table(({name: row[name] for name in BASIS.types} for row in rows), BASIS)

    @property
    def _directions(self) -> Directions | None:
        if callable(self._compared):  # not yet measured: it takes longer than most fits, and a search needs none
            self._compared = self._compared()
        return self._compared

    def __getstate__(self) -> Any:
        """Return the state, without the training rows that directions are measured on."""
        if hasattr(self, "_compared"):
            _ = self._directions
        return super().__getstate__()

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
        fit: Callable[[Asked], Fitted],
        names: Mapping[str, Any],
        groups: Any,
        n_rows: int,
        labels: NDArray[np.int64] | None,
    ) -> Fitted:
        """Fit the probe, and set all that both estimators have.

        Args:
            fit: Fits a probe.
            names: The options, by their names in `ProbeOptions`.
            groups: Group of each row, or None.
            n_rows: Number of rows.
            labels: Class of each row, if classes are predicted.

        Raises:
            ValueError: If an option is out of range, or X or y cannot be read.
        """
        try:
            seed = self._seed()
            options = self._options(names, seed)
            held_out = self._held_out(groups, n_rows, labels, seed) if options.l2 == "auto" else None
            found = fit(Asked(options, held_out, int(self.rotations), seed))
        except UserError as error:
            raise ValueError(_in_python(str(error))) from None
        self.contributions_, self.gap_, self.n_iter_ = found.contribution, found.gap, found.n_passes
        self.l2_, self._compared = found.l2, found.compare
        self.validation_scores_ = self.split_ = None
        if held_out is not None:
            self.validation_scores_, self.split_ = found.tried, (np.flatnonzero(~held_out), np.flatnonzero(held_out))
        if not found.converged:
            warnings.warn(
                f"the probe may be {found.gap:.1g} nats above its optimum, and expected was at most "
                f"{options.tolerance:g}; give a higher `tolerance`, or a higher `l2`."
                + " Neurons were not compared with directions, which takes the optimum."
                * bool(self.rotations),
                ConvergenceWarning,
                stacklevel=3,
            )
        return found

    def _seed(self) -> int:
        seed = self.random_state
        return int(seed) if isinstance(seed, Integral) else int(check_random_state(seed).randint(2**31))

    def _options(self, names: Mapping[str, Any], seed: int) -> ProbeOptions:
        options = ProbeOptions(**checked(ProbeOptions, as_plain(names), type(self).__name__, PYTHON))
        if not isinstance(self.rotations, Integral) or isinstance(self.rotations, bool):
            raise UserError(f"`rotations={self.rotations}`: expected a whole number.")
        refuse(option_problems(options, seed, None, None, 0, int(self.rotations)))
        return options

    def _held_out(self, groups: Any, n_rows: int, labels: NDArray[np.int64] | None, seed: int) -> NDArray[np.bool_]:
        from probing.data.arrays import groups_of_rows
        from probing.estimators.held_out import hold_out

        share = self.validation_fraction
        if not isinstance(share, int | float | np.floating) or not 0 < share < 1:
            raise UserError(f"`validation_fraction={share}`: expected a number between 0 and 1.")
        if groups is not None:
            check_consistent_length(groups, np.empty(n_rows))
        names, group_of_row = groups_of_rows(None if groups is None else np.asarray(groups), n_rows)
        return hold_out(names, group_of_row, labels, float(share), seed)


def _in_python(message: str) -> str:
    """Return a message about options of the command line as one about parameters of an estimator."""
    message = re.sub(r"--probe\.(\w+) (true|false)\b", lambda found: f"{found[1]}={found[2].title()}", message)
    message = re.sub(r"--(?:probe\.)?(\w+) ", r"\1=", message)
    for option, parameter in _NAMES.items():
        message = message.replace(f"`{option}=", f"`{parameter}=")
    return message
