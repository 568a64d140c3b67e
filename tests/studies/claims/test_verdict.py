"""Ranges, and what a value with its interval and its control says of a claim."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from probing.studies.claims.verdict import Measured, Range, judge


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("> 0.5", (0.51, 9), (0.2, 0.5)),
        (">= 0.5", (0.5, 9), (0.2, 0.49)),
        ("< 0.5", (-9, 0.49), (0.5, 0.6)),
        ("<= 0.5", (-9, 0.5), (0.51, 0.6)),
        ("= 2", (2, 2), (2.1, 2.2)),
        ("0.3 to 0.5", (0.3, 0.5), (0.51, 0.52)),
        ("-0.3 to 0.5", (-0.3, 0.5), (-0.5, -0.31)),
        ("< -0.8", (-1, -0.81), (-0.8, 0)),
    ],
)
def test_a_range_is_read_and_holds_what_it_says(
    text: str, inside: tuple[float, float], outside: tuple[float, float]
) -> None:
    found = Range.parse(text)
    assert found.holds(*inside)
    assert not found.excludes(*inside)
    assert found.excludes(*outside)
    assert not found.holds(*outside)
    assert str(found) == text
    across = min(inside[0], outside[0]), max(inside[1], outside[1])
    assert not found.holds(*across)
    assert not found.excludes(*across)


@pytest.mark.parametrize("text", ["", "0.5", ">0.5", "> half", "0.5 to 0.3", "1 to", "> 0.5 to 0.6"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no range"):
        Range.parse(text)


def test_a_gain_that_is_exactly_0_does_not_confirm_that_there_is_one() -> None:
    assert judge(Measured.exact(0.0), Range.parse("> 0")) == "not confirmed"
    assert judge(Measured(0.0, 0.0, 0.1), Range.parse("> 0")) == "unclear"


def test_only_a_control_in_its_range_confirms() -> None:
    criterion, control = Range.parse("> 0.5"), Range.parse("< 0.1")
    assert judge(Measured(0.7, 0.6, 0.8, control=0.05), criterion, control) == "confirmed"
    assert judge(Measured(0.7, 0.6, 0.8, control=0.1), criterion, control) == "unclear"
    assert judge(Measured(0.7, 0.6, 0.8), criterion, control) == "unclear"
    assert judge(Measured(0.7, 0.6, 0.8), criterion) == "confirmed"


@pytest.mark.parametrize("ends", [(1.0, 0.0), (math.nan, 1.0), (0.0, math.inf)])
def test_an_interval_is_two_numbers_in_order(ends: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="no interval"):
        Measured(0.5, *ends)


def test_the_forms_that_an_error_names_are_read() -> None:
    with pytest.raises(ValueError, match="such as") as raised:
        Range.parse("?")
    forms = str(raised.value).partition("such as ")[2].split(", ")
    assert len(forms) == 6
    assert all(Range.parse(form) for form in forms)


def test_the_module_needs_nothing_but_the_standard_library() -> None:
    text = Path(judge.__code__.co_filename).read_text(encoding="utf-8")
    assert "import numpy" not in text
    assert "probing" not in text.split("class ")[0]
