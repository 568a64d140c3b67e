"""Probes as scikit-learn estimators: options, held-out rows, and ranked neurons."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from probing.cli.arguments import OptionSource, checked
from probing.cli.commandline import as_plain
from probing.cli.options import LAST_SEED, ProbeOptions, problems_of, rotation_problems
from probing.errors import UserError, in_python, out_of_range, refuse, spelled
from probing.results import Schema, Table, number, text, whole
from probing.statistics import ranked
from probing.tables import BASIS_COLUMNS
from probing.tables.schema import NEURONS
from probing.text import hashed

if TYPE_CHECKING:
    from probing.probes.array_fits import Fitted, ProbeFitConfig
    from probing.probes.evidence import Directions

try:
    from sklearn.base import BaseEstimator as BaseEstimator
    from sklearn.base import ClassifierMixin as ClassifierMixin
    from sklearn.base import RegressorMixin as RegressorMixin
    from sklearn.exceptions import ConvergenceWarning as ConvergenceWarning
    from sklearn.utils import check_random_state as check_random_state
    from sklearn.utils.multiclass import check_classification_targets as check_classification_targets
    from sklearn.utils.validation import check_consistent_length as check_consistent_length
    from sklearn.utils.validation import check_is_fitted as check_is_fitted
    from sklearn.utils.validation import validate_data as validate_data
except ImportError as error:
    raise ImportError(
        "`ProbeClassifier` and `ProbeRegressor` need scikit-learn 1.6 or later, which is not installed; "
        "`pip install 'neuron-probing[sklearn]'`."
    ) from error


def hold_out(
    names: Sequence[str], group_of_row: NDArray[np.int64], labels: NDArray[np.int64] | None, share: float, seed: int
) -> NDArray[np.bool_]:
    """Return which rows are held out, shape (n_rows,): rows of the groups whose names have the largest hashes.

    A group that has all remaining rows of a class is not held out, so that every class can be learnt; nor is the last
    group. `labels` is None if numbers are predicted; `share` is of the groups, at least one group.

    Raises:
        UserError: If no group can be held out.
    """
    labels = np.zeros(len(group_of_row), dtype=np.int64) if labels is None else labels
    remaining, n_groups = np.bincount(labels), max(1, round(share * len(names)))
    by_group = np.split(np.argsort(group_of_row, kind="stable"), np.bincount(group_of_row).cumsum()[:-1])
    validation_groups: list[int] = []
    for group in sorted(range(len(names)), key=lambda i: hashed(names[i], seed), reverse=True):
        classes, counts = np.unique(labels[by_group[group]], return_counts=True)
        if (remaining[classes] > counts).all():
            remaining[classes] -= counts
            validation_groups.append(group)
        if len(validation_groups) == n_groups:
            break
    if not validation_groups:
        raise UserError(
            "`l2=auto` chooses the penalty on rows that are held out, and each group of rows has all rows of a class; "
            "give more rows or groups, or a number, such as `l2=1e-3`."
        )
    return np.isin(group_of_row, validation_groups)


RANKED = Schema("neurons", "a row per neuron, ranked", (
    NEURONS["rank"],
    NEURONS["neuron"],
    text("feature", "Name of the column, where X had names of columns."),
    number("contribution", "Mean over the training rows of |weight × activation| for the true class, in logit units, "
           "weights centred over classes; of a probe of numbers, for its prediction, in their unit.", form=".4f"),
    NEURONS["share"],
    NEURONS["direction_p"], NEURONS["direction_p_centred"], NEURONS["above_directions"],
))  # fmt: skip

# All but the last column of `basis.csv`: these are no test tokens.
BASIS = Schema("basis", "a row per kind of contribution", (
    *BASIS_COLUMNS[:-1],
    whole("n_rows", "Number of training rows that contributions were measured on: all, or 4,000 drawn evenly."),
))  # fmt: skip

USUAL = ProbeOptions()

# Names of options of `fit` that scikit-learn has another word for.
_NAMES = {"bias": "fit_intercept", "seed": "random_state"}

# Types of X that are read as they are.
_TYPES = [np.float64, np.float32]


class ProbeEstimator(BaseEstimator):
    """Base of both estimators: reads parameters and X as scikit-learn passes them, and ranks the columns."""

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
        """The columns of X, ranked by contribution, each with its share of the sum; equal columns share a rank."""
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
        """Concentration on columns of X and on directions of random rotations; empty without rotations."""
        from probing.probes.evidence import basis_table

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
        """Return X, and y if given, as scikit-learn checks them; it does not support masks and most tensors."""
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
        fit: Callable[[ProbeFitConfig], Fitted],
        groups: Any,
        n_rows: int,
        labels: NDArray[np.int64] | None = None,
    ) -> Fitted:
        """Fit the probe and set the attributes of both estimators."""
        from probing.probes.array_fits import ProbeFitConfig

        try:
            seed = self._seed()
            with spelled(_as_parameter):
                options = self._options(seed)
            is_validation = self._validation_rows(groups, n_rows, labels, seed) if options.l2 == "auto" else None
            fitted = fit(ProbeFitConfig(options, is_validation, int(self.rotations), seed))
        except UserError as error:
            raise ValueError(str(error)) from None
        self.contributions_, self.gap_, self.n_iter_ = fitted.contribution, fitted.gap, fitted.n_passes
        self.l2_, self._compared = fitted.l2, fitted.compare
        self.validation_scores_ = self.split_ = None
        if is_validation is not None:
            self.validation_scores_, self.split_ = (
                fitted.tried,
                (np.flatnonzero(~is_validation), np.flatnonzero(is_validation)),
            )
        if not fitted.converged:
            warnings.warn(
                f"the probe may be {fitted.gap:.1g} nats above its optimum, and expected was at most "
                f"{options.tolerance:g}; give a higher `tolerance`, or a higher `l2`."
                + " Neurons were not compared with directions, which takes the optimum."
                * bool(self.rotations),
                ConvergenceWarning,
                stacklevel=3,
            )
        return fitted

    def _seed(self) -> int:
        seed = self.random_state
        return int(seed) if isinstance(seed, Integral) else int(check_random_state(seed).randint(2**31))

    def _options(self, seed: int) -> ProbeOptions:
        parameters, names = self.get_params(), [field.name for field in fields(ProbeOptions)]
        values = {name: parameters[of] for name in names if (of := _NAMES.get(name, name)) in parameters}
        options = ProbeOptions(**checked(ProbeOptions, as_plain(values), type(self).__name__, _Parameters("", "=")))
        if not isinstance(self.rotations, Integral) or isinstance(self.rotations, bool):
            raise UserError(f"`rotations={self.rotations}`: expected a whole number.")
        problems = [*problems_of(options, "probe."), *rotation_problems(int(self.rotations))]
        refuse(problems + out_of_range("seed", seed, 0, LAST_SEED))
        return options

    def _validation_rows(
        self, groups: Any, n_rows: int, labels: NDArray[np.int64] | None, seed: int
    ) -> NDArray[np.bool_]:
        from probing.data.arrays import groups_of_rows

        share = self.validation_fraction
        if not isinstance(share, int | float | np.floating) or not 0 < share < 1:
            raise UserError(f"`validation_fraction={share}`: expected a number between 0 and 1.")
        if groups is not None:
            check_consistent_length(groups, np.empty(n_rows))
        names, group_of_row = groups_of_rows(None if groups is None else np.asarray(groups), n_rows)
        return hold_out(names, group_of_row, labels, float(share), seed)


class _Parameters(OptionSource):
    """Parameters of an estimator as the source of options of a probe."""

    def value(self, name: str, value: Any) -> str:
        """Return a parameter with its value as in the call."""
        return super().value(_NAMES.get(name, name), value)


def _as_parameter(option: str, *value: Any) -> str:
    """Return an option of the command line as the parameter of an estimator that it is."""
    name = option.removeprefix("probe.")
    return in_python(_NAMES.get(name, name), *value)


class ProbeClassifier(ClassifierMixin, ProbeEstimator):
    """Softmax probe of classes, with ranked neurons and a bound on its distance to the optimum.

    It minimises the mean cross-entropy of the rows, in nats, plus l1 |U|_1 + l2 |U|^2, where U are the weights on
    columns divided by their standard deviations. A column that does not vary has the weight 0.

    With two classes, the probe has weights u and -u, and `coef_` is their difference 2 u in a single row, as in
    scikit-learn: `decision_function` is the logarithm of the ratio of both probabilities.

    Args:
        l2: Strength of the squared l2 penalty, above 0. `auto` chooses it by the cross-entropy of held-out rows, on a
            grid of half decades, and then fits the probe to all rows.
        l1: Strength of the l1 penalty.
        fit_intercept: Whether the probe has an intercept; columns are then centred, and contributions are relative to
            the mean. Without an intercept, a probability depends on the origin of the columns.
        penalty_space: Divisor of each column before its weights are penalised: its standard deviation (sd), its root
            mean square (rms), or 1 (raw).
        tolerance: Bound on the distance to the optimum at which training stops, in nats.
        validation_fraction: Share of the groups that `l2="auto"` holds out, at least one group.
        rotations: Number of random rotations whose directions the columns are compared with, on the training rows; at
            least 19, or 0 for none. They are measured at the first access. With `l1`, the probe is the optimum in the
            basis of columns only, which favours columns.
        random_state: Seed of the held-out groups and of the rotations; nothing else is random.

    Attributes:
        classes_: The classes, ascending.
        coef_: Weights on raw columns, shape (n_classes, n_features), or (1, n_features) for two classes.
        intercept_: Logit of each class where all columns are 0, shape (n_classes,), or (1,) for two classes.
        contributions_: Mean over the rows of |weight x activation| for the row's class, in logit units, weights centred
            over classes, shape (n_features,).
        neurons_: The columns ranked by contribution, with shares of the sum, `direction_p` (share of the rotations
            whose largest direction contributes as much), and `above_directions` (whether it is at most .05).
        basis_: Concentration of contributions on columns and on directions of random rotations: a row for raw
            contributions and a row without the columns' means, as in `basis.csv`. Empty without rotations, or if the
            probe is not at its optimum.
        gap_: Upper bound on the objective's distance to its minimum, in nats.
        l2_: The penalty used.
        validation_scores_: Cross-entropy of the held-out rows, in nats, by penalty; None unless `l2="auto"`.
        split_: Indices of the training rows and of the held-out rows, as `cv=[split_]` takes them; None unless
            `l2="auto"`.
        n_iter_: Number of passes over the rows.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if X had names.
    """

    classes_: NDArray[Any]

    def __init__(
        self,
        *,
        l2: float | Literal["auto"] = USUAL.l2,
        l1: float = USUAL.l1,
        fit_intercept: bool = USUAL.bias,
        penalty_space: Literal["sd", "rms", "raw"] = USUAL.penalty_space,
        tolerance: float = USUAL.tolerance,
        validation_fraction: float = 0.1,
        rotations: int = 20,
        random_state: Any = 0,
    ) -> None:
        self.l2 = l2
        self.l1 = l1
        self.fit_intercept = fit_intercept
        self.penalty_space = penalty_space
        self.tolerance = tolerance
        self.validation_fraction = validation_fraction
        self.rotations = rotations
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> ProbeClassifier:
        """Fit the probe to the rows of X.

        Args:
            X: Activations, shape (n_rows, n_features), read as float32.
            y: Label of each row: text, numbers, or booleans.
            groups: Group of each row, such as its sentence, used only by `l2="auto"`: the rows of a group are held out
                together. If None, every row is a group.

        Raises:
            ValueError: If there is a single class, a value is not finite in float32, or a parameter is out of range.
        """
        from probing.probes.array_fits import fit_classes

        X, y = self._read(X, y=y)
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"`y` has only one class, {classes[0]}, and a probe tells at least two apart.")
        fitted = self._fit(lambda config: fit_classes(X, labels, len(classes), config), groups, len(X), labels)
        self.classes_, self.coef_, self.intercept_ = classes, fitted.weight, fitted.intercept
        if len(classes) == 2:
            self.coef_, self.intercept_ = np.diff(self.coef_, axis=0), np.diff(self.intercept_)
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the logit of each class, (n_rows, n_classes); for two classes, second minus first, (n_rows,)."""
        logits = self._outputs(X)
        return logits[:, 0] if logits.shape[1] == 1 else logits

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row with the highest logit, shape (n_rows,)."""
        logits = self.decision_function(X)
        index = (logits > 0).astype(np.int64) if logits.ndim == 1 else logits.argmax(1)
        return self.classes_[index]

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of the probability of each class, shape (n_rows, n_classes)."""
        logits = self.decision_function(X)
        both = np.stack([np.zeros_like(logits), logits], 1) if logits.ndim == 1 else logits
        return log_softmax(both, axis=1)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class, shape (n_rows, n_classes)."""
        return np.exp(self.predict_log_proba(X))


class ProbeRegressor(RegressorMixin, ProbeEstimator):
    """Ridge probe of numbers in closed form, with ranked neurons.

    It minimises the mean squared error of the standardised numbers plus l2 |u|^2, where u are the weights on columns
    divided by their standard deviations. A column that does not vary has the weight 0. A prediction is the mean of the
    numbers plus the weights times the columns, which are centred only with `fit_intercept=True`.

    Args:
        l2: Strength of the squared l2 penalty, above 0. `auto` chooses it by R² on held-out rows, on a grid of half
            decades, and then fits the probe to all rows.
        fit_intercept: Whether columns are centred; contributions are then relative to the mean.
        penalty_space: Divisor of each column before its weights are penalised: its standard deviation (sd), its root
            mean square (rms), or 1 (raw).
        validation_fraction: Share of the groups that `l2="auto"` holds out, at least one group.
        rotations: Number of random rotations whose directions the columns are compared with, on the training rows; at
            least 19, or 0 for none. They are measured at the first access.
        random_state: Seed of the held-out groups and of the rotations; nothing else is random.

    Attributes:
        coef_: Weights on raw columns, shape (n_features,).
        intercept_: Prediction where all columns are 0; without `fit_intercept`, the mean of the numbers.
        contributions_: Mean over the rows of |weight x activation|, in the unit of the numbers, shape (n_features,).
        neurons_: The columns ranked by contribution; see `ProbeClassifier`.
        basis_: Concentration of contributions; see `ProbeClassifier`.
        gap_: Upper bound on the objective's distance to its minimum, as a share of the numbers' variance.
        l2_: The penalty used.
        validation_scores_: R² on the held-out rows by penalty, relative to the mean of the other rows as the constant
            answer; None unless `l2="auto"`.
        split_: Indices of the training rows and of the held-out rows, as `cv=[split_]` takes them; None unless
            `l2="auto"`.
        n_iter_: Number of passes, which is 1.
        n_features_in_: Number of columns.
        feature_names_in_: Names of the columns, if X had names.
    """

    def __init__(
        self,
        *,
        l2: float | Literal["auto"] = USUAL.l2,
        fit_intercept: bool = USUAL.bias,
        penalty_space: Literal["sd", "rms", "raw"] = USUAL.penalty_space,
        validation_fraction: float = 0.1,
        rotations: int = 20,
        random_state: Any = 0,
    ) -> None:
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.penalty_space = penalty_space
        self.validation_fraction = validation_fraction
        self.rotations = rotations
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> ProbeRegressor:
        """Fit the probe to the rows of X.

        Args:
            X: Activations, shape (n_rows, n_features), read as float32.
            y: Number of each row.
            groups: As for `ProbeClassifier`.

        Raises:
            ValueError: If the numbers do not vary, a value is not finite in float32, or a parameter is out of range.
        """
        from probing.probes.array_fits import fit_numbers

        X, y = self._read(X, y=y, y_numeric=True, ensure_min_samples=2)
        fitted = self._fit(lambda config: fit_numbers(X, y.astype(np.float64), config), groups, len(X))
        self.coef_, self.intercept_ = fitted.weight[0], float(fitted.intercept[0])
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the predicted number of each row, shape (n_rows,)."""
        return self._outputs(X)[:, 0]
