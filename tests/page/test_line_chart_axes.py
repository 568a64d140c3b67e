"""Axes of line charts: round values that hold all lines, and steps on a logarithmic scale."""

from __future__ import annotations

import math
import re

import pytest

from probing.page.lines import BY_STEP, SHARES, Line, Up, line_chart, x, y

STEPS = [0, 1, 10, 100]


@pytest.mark.parametrize(
    ("values", "from_zero", "ticks"),
    [
        ([2.65, 4.87], False, [2.5, 3.0, 3.5, 4.0, 4.5, 5.0]),
        ([2.65, 4.87], True, [0, 1, 2, 3, 4, 5]),
        ([0.03, 0.24], True, [0, 0.05, 0.1, 0.15, 0.2, 0.25]),
        ([-1.0, 2.0], True, [-1.0, -0.5, 0, 0.5, 1.0, 1.5, 2.0]),
        ([3.0, float("nan")], False, [3.0, 3.5]),
        ([0.0], True, [0, 0.2]),
        ([], False, [0, 0.2]),
    ],
)
def test_an_axis_has_round_ends_that_hold_all_values(values: list[float], from_zero: bool, ticks: list[float]) -> None:
    up = Up.of(values, from_zero)
    assert list(up.ticks) == pytest.approx(ticks)
    assert (up.low, up.high) == pytest.approx((ticks[0], ticks[-1]))


def test_steps_stand_at_their_logarithms_and_values_between_the_ends() -> None:
    places = [x(step, STEPS, BY_STEP) for step in STEPS]
    assert places[2] - places[1] == pytest.approx(places[3] - places[2])
    assert places[1] - places[0] < places[2] - places[1]
    up = Up.of([2.5, 5.0])
    assert y(3.75, up) == pytest.approx((y(2.5, up) + y(5.0, up)) / 2) == pytest.approx(y(0.5, SHARES))
    assert y(9.0, up) == y(5.0, up)


def test_lines_of_one_label_look_alike_and_are_told_apart_by_pointing_at_them() -> None:
    lines = [
        Line("learned", STEPS, [4.0, 3.5, 3.0, 2.5], which="seed 0"),
        Line("none", STEPS, [4.0, 3.9, 3.8, 3.7], which="seed 0"),
        Line("learned", STEPS, [4.0, 3.6, 3.1, math.e], which="seed 1"),
    ]
    made = line_chart(lines, "title", BY_STEP, Up.of([2.5, 4.0]))
    assert re.findall(r'<g class="look-(\d)">', made) == ["0", "1", "0"]
    legend = made.split("</svg>", 1)[1]
    assert re.findall(r"</svg>(\w+)</li>", legend) == ["learned", "none"]
    assert "learned, seed 1, step 100: 2.718" in made
    assert re.findall(r'text-anchor="middle">([^<]+)<', made) == ["0", "1", "10", "100", "step (logarithmic, 0 apart)"]


def test_charts_beside_each_other_share_their_looks() -> None:
    made = line_chart([Line("layer 2", STEPS, [0.1] * 4)], "title", BY_STEP, labels=["layer 0", "layer 2"])
    assert set(re.findall(r'class="look-(\d)"', made)) == {"1"}
    assert "layer 0" not in made
