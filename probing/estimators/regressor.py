"""The ridge probe of numbers as a regressor of scikit-learn."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probing.estimators.base import USUAL, Asked, Fitted, ProbeEstimator
from probing.estimators.scikit import RegressorMixin


class ProbeRegressor(RegressorMixin, ProbeEstimator):
    """Ridge probe of numbers in closed form, with its neurons ranked.

    It minimises the mean squared error of the standardised numbers plus l2 |u|^2, where u are the weights on columns
    that are divided by their standard deviations. A column that does not vary has the weight 0. A prediction is the
    mean of the numbers plus the weights times the columns, which are centred only with `fit_intercept=True`.

    Args:
        l2: Strength of the squared l2 penalty, above 0. `auto` chooses it by R² on rows that are held out, on a grid of
            half decades, and then fits the probe to all rows.
        fit_intercept: Whether columns are centred; their contributions are then to the difference from the mean.
        penalty_space: What each column is divided by before its weights are penalised: its standard deviation (sd),
            its root mean square (rms), or 1 (raw).
        validation_fraction: Share of the groups that `l2="auto"` holds out, at least one.
        rotations: Number of random rotations whose directions the columns are compared with, on the training rows; at
            least 19, or 0 for none. They are measured when first asked for.
        random_state: Seed of which are held out, and of the rotations: nothing else is random.

    Attributes:
        coef_: Weights on the columns as they are, shape (n_features,).
        intercept_: Prediction where all columns are 0; without `fit_intercept`, the mean of the numbers.
        contributions_: Mean over the rows of |weight x activation|, in the unit of the numbers, shape (n_features,).
        neurons_: The columns ranked by it, with their shares of the sum, with `direction_p`, the share of the rotations
            whose largest direction contributes as much, and with `above_directions`, whether that is at most .05.
        basis_: How concentrated contributions are on columns, and on the directions of random rotations: a row for
            contributions as they are, and one for those without the columns' means, as in `basis.csv`. Empty without
            rotations, and where the probe is not at its optimum.
        gap_: Upper bound on the objective's distance to its minimum, as a share of the numbers' variance.
        l2_: The penalty that was used.
        validation_scores_: R² on the rows held out by each penalty, the mean of the other rows as the constant answer;
            None unless `l2="auto"`.
        split_: Indices of the rows that were kept and held out for it, as `cv=[split_]` takes them; None likewise.
        n_iter_: Number of passes, which is 1.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, where X had names.
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
            X: Activations, shape (n_rows, n_features); read as float32, as everywhere in this package.
            y: Number of each row.
            groups: As for `ProbeClassifier`.

        Raises:
            ValueError: If the numbers do not vary, a value is not finite in float32, or a parameter is out of range.
        """
        from probing.estimators.fitting import fit_numbers

        X, y = self._read(X, y=y, y_numeric=True, ensure_min_samples=2)

        def fit(asked: Asked) -> Fitted:
            return fit_numbers(X, y.astype(np.float64), asked)

        names = {"l2": self.l2, "bias": self.fit_intercept, "penalty_space": self.penalty_space}
        found = self._fit(fit, names, groups, len(X), None)
        self.coef_, self.intercept_ = found.weight[0], float(found.intercept[0])
        return self

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the predicted number of each row, shape (n_rows,)."""
        return self._outputs(X)[:, 0]
