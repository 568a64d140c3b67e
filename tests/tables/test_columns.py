"""What a layer is flagged by, and how ends of intervals are written."""

from __future__ import annotations

import math

import pytest

from probing.results.rows import Table
from probing.results.schema import Schema, interval, measured, number, shown
from probing.tables.columns import UNINFORMATIVE, accuracy_flag, r2_flag


@pytest.mark.parametrize(("low", "flag"), [(0.01, ""), (0.0, UNINFORMATIVE), (-0.01, UNINFORMATIVE)])
def test_a_probe_is_informative_where_the_whole_interval_is_above_a_constant_answer(low: float, flag: str) -> None:
    assert accuracy_flag({"information": 0.5, "information_low": low}) == flag
    assert r2_flag({"r2": 0.5, "r2_low": low}) == flag


def test_without_an_interval_nothing_is_called_informative() -> None:
    assert accuracy_flag({"information": 0.5, "information_low": math.nan}) == UNINFORMATIVE
    assert r2_flag({"r2": 0.5, "r2_low": math.nan}) == UNINFORMATIVE


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (2e-5, ".4f", "2e-05"), (-2e-5, ".4f", "-2e-05"), (0.0003, ".3f", "0.0003"), (0.00004, "+.4f", "+4e-05"),
        (0.00006, ".4f", "0.0001"), (0.0, ".4f", "0.0000"), (-0.0, ".3f", "0.000"), (0.02, ".1f", "0.02"),
        (0.3, ".0f", "0.3"), (12.0, ".4f", "12.0000"), (0.0003, ".1%", "0.03%"), (-4e-5, "+.1%", "-0.004%"),
        (0.004, ".0%", "0.4%"), (0.0, ".1%", "0.0%"),
    ],
)  # fmt: skip
def test_what_is_not_0_never_looks_like_0(value: float, form: str, text: str) -> None:
    assert shown(value, form) == text


@pytest.mark.parametrize(("value", "text"), [(4e-12, "4e-12"), (0.0, "0.000"), (-0.0, "0.000"), (0.0312, "0.031")])
def test_a_cell_that_is_not_0_never_looks_like_0(value: float, text: str) -> None:
    assert number("p_value", "Its p-value.").show({"p_value": value}) == text


def test_an_interval_in_percent_stays_in_percent() -> None:
    mass = measured("mass", "Attention.", form=".1%")
    row = {"mass": 0.0123, "mass_low": 0.0003, "mass_high": 0.03}
    table = Table([row], Schema("t", "", [mass]))
    assert "0.03\\%--3.0\\%" in table.to_latex(["mass*"])


def test_an_interval_that_leaves_out_0_is_seen_to_do_so() -> None:
    row = {"x_low": 2e-5, "x_high": 0.0036}
    assert interval(row, "x", " to ", ".4f") == "2e-05 to 0.0036"
    assert interval(row, "x", " to ", ".4f", times=-1) == "-0.0036 to -2e-05"
    assert interval({"x_low": math.nan, "x_high": math.nan}, "x") == ""
