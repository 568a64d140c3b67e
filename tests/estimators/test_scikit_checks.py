"""Both estimators pass the checks that scikit-learn has for estimators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from probing import ProbeClassifier, ProbeRegressor


# One check is skipped, `check_array_api_input`: scikit-learn makes it only where $SCIPY_ARRAY_API is set, and only of
# estimators that compute on other arrays than those of NumPy, which these do not.
@parametrize_with_checks([ProbeClassifier(l2=1e-2), ProbeRegressor()])  # type: ignore[untyped-decorator]
def test_it_is_an_estimator(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [ProbeClassifier(), ProbeClassifier(l2=1e-2, fit_intercept=True), ProbeRegressor(l2=1e-2, fit_intercept=True)]
)  # type: ignore[untyped-decorator]
def test_it_is_one_with_an_intercept_and_where_it_chooses_the_penalty(
    estimator: Any, check: Callable[[Any], None]
) -> None:
    check(estimator)
