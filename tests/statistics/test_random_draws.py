from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import t

from probing.statistics.intervals import widened

pytestmark = pytest.mark.numeric


def test_an_interval_of_no_width_becomes_students() -> None:
    draws = [0.1, 0.3, 0.2, 0.25]
    reach = t.ppf(0.975, 3) * np.std(draws, ddof=1) / 2
    low, high = widened(0.5, (0.5, 0.5), draws)
    assert (low, high) == pytest.approx((0.5 - reach, 0.5 + reach))


def test_distances_are_added_as_squares_at_each_end() -> None:
    draws = [0.1, 0.3, 0.2, 0.25]
    reach = t.ppf(0.975, 3) * np.std(draws, ddof=1) / 2
    low, high = widened(0.5, (0.4, 0.7), draws)
    assert (0.5 - low) ** 2 == pytest.approx(0.1**2 + reach**2)
    assert (high - 0.5) ** 2 == pytest.approx(0.2**2 + reach**2)


@pytest.mark.parametrize("draws", [[0.2], [0.2] * 5])
def test_what_does_not_show_how_draws_vary_leaves_the_interval_as_it_is(draws: list[float]) -> None:
    assert widened(0.5, (0.4, 0.7), draws) == pytest.approx((0.4, 0.7))


def test_where_there_is_no_interval_there_is_none() -> None:
    assert np.isnan(widened(0.5, (np.nan, np.nan), [0.1, 0.2])).all()


@pytest.mark.parametrize("of_draws", [0.0, 0.5, 1.0, 5.0])
def test_it_covers_the_truth_as_often_as_it_says_however_much_draws_vary(of_draws: float) -> None:
    """A value that errs by its sentences, by a standard error of 1, and by the mean over five draws."""
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(3000):
        draws = of_draws * 5**0.5 * generator.standard_normal(5)
        value = generator.standard_normal() + draws.mean()
        low, high = widened(value, (value - 1.96, value + 1.96), draws.tolist())
        covered += low <= 0 <= high
    # 95% with a standard error of .4%; Student's t for five draws is wide where sentences share the error.
    assert 0.935 < covered / 3000 < 0.985
