"""The probe of classes as a classifier of scikit-learn."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax

from probing.estimators.base import USUAL, Asked, Fitted, ProbeEstimator
from probing.estimators.scikit import ClassifierMixin, check_classification_targets


class ProbeClassifier(ClassifierMixin, ProbeEstimator):
    """Softmax probe of classes, with its neurons ranked and a bound on its distance to the optimum.

    It minimises the mean cross-entropy of the rows, in nats, plus l1 |U|_1 + l2 |U|^2, where U are the weights on
    columns that are divided by their standard deviations. A column that does not vary has the weight 0.

    With two classes, the probe has weights u and -u, and `coef_` is their difference 2 u in one row, as the classifiers
    of scikit-learn have it: `decision_function` is the logarithm of the ratio of both probabilities.

    Args:
        l2: Strength of the squared l2 penalty, above 0. `auto` chooses it by the cross-entropy of rows that are held
            out, on a grid of half decades, and then fits the probe to all rows.
        l1: Strength of the l1 penalty.
        fit_intercept: Whether the probe has an intercept; columns are then centred, and their contributions are to the
            difference from the mean. Without one, a probability depends on where the columns have their 0.
        penalty_space: What each column is divided by before its weights are penalised: its standard deviation (sd),
            its root mean square (rms), or 1 (raw).
        tolerance: Training stops when the bound on the distance to the optimum is at most this, in nats.
        validation_fraction: Share of the groups that `l2="auto"` holds out, at least one.
        rotations: Number of random rotations whose directions the columns are compared with, on the training rows; at
            least 19, or 0 for none. They are measured when first asked for. With `l1`, the probe is the optimum of the
            basis of columns alone, which favours columns.
        random_state: Seed of which are held out, and of the rotations: nothing else is random.

    Attributes:
        classes_: The classes, ascending.
        coef_: Weights on the columns as they are, shape (n_classes, n_features), or (1, n_features) of two classes.
        intercept_: Logit of each class where all columns are 0, shape (n_classes,), or (1,) of two classes.
        contributions_: Mean over the rows of |weight x activation| for the row's class, in logit units, weights centred
            over classes, shape (n_features,).
        neurons_: The columns ranked by it, with their shares of the sum, with `direction_p`, the share of the rotations
            whose largest direction contributes as much, and with `above_directions`, whether that is at most .05.
        basis_: How concentrated contributions are on columns, and on the directions of random rotations: a row for
            contributions as they are, and one for those without the columns' means, as in `basis.csv`. Empty without
            rotations, and where the probe is not at its optimum.
        gap_: Upper bound on the objective's distance to its minimum, in nats.
        l2_: The penalty that was used.
        validation_scores_: Cross-entropy of the rows held out, in nats, by each penalty that was tried; None unless
            `l2="auto"`.
        split_: Indices of the rows that were kept and held out for it, as `cv=[split_]` takes them; None likewise.
        n_iter_: Number of passes over the rows.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, where X had names.
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
            X: Activations, shape (n_rows, n_features); read as float32, as everywhere in this package.
            y: Label of each row: text, numbers, or true and false.
            groups: Group of each row, such as its sentence: where `l2="auto"` holds out rows, those of a group are held
                out together, and otherwise it has no effect. If None, every row is a group of its own.

        Raises:
            ValueError: If there is only one class, a value is not finite in float32, or a parameter is out of range.
        """
        from probing.estimators.fitting import fit_classes

        X, y = self._read(X, y=y)
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise ValueError(f"`y` has only one class, {classes[0]}, and a probe tells at least two apart.")

        def fit(asked: Asked) -> Fitted:
            return fit_classes(X, labels, len(classes), asked)

        names = {
            "l1": self.l1, "l2": self.l2, "bias": self.fit_intercept, "penalty_space": self.penalty_space,
            "tolerance": self.tolerance,
        }  # fmt: skip
        found = self._fit(fit, names, groups, len(X), labels)
        self.classes_, self.coef_, self.intercept_ = classes, found.weight, found.intercept
        if len(classes) == 2:
            self.coef_, self.intercept_ = np.diff(self.coef_, axis=0), np.diff(self.intercept_)
        return self

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return the logit of each class, shape (n_rows, n_classes); of two classes, the difference, shape (n_rows,).

        The logit of two classes is that of the second class minus that of the first one.
        """
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
