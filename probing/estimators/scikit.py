"""All that is used of scikit-learn, imported in one place, which says what to install where it is missing."""

from __future__ import annotations

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
