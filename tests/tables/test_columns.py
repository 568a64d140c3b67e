"""What a layer is flagged by: the lower end of an interval, and nothing without one."""

from __future__ import annotations

import math

import pytest

from probing.tables.columns import UNINFORMATIVE, accuracy_flag, r2_flag


@pytest.mark.parametrize(("low", "flag"), [(0.01, ""), (0.0, UNINFORMATIVE), (-0.01, UNINFORMATIVE)])
def test_a_probe_is_informative_where_the_whole_interval_is_above_a_constant_answer(low: float, flag: str) -> None:
    assert accuracy_flag({"information": 0.5, "information_low": low}) == flag
    assert r2_flag({"r2": 0.5, "r2_low": low}) == flag


def test_without_an_interval_nothing_is_called_informative() -> None:
    assert accuracy_flag({"information": 0.5, "information_low": math.nan}) == UNINFORMATIVE
    assert r2_flag({"r2": 0.5, "r2_low": math.nan}) == UNINFORMATIVE
