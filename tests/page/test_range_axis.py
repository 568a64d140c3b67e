"""The axis of a claim: value, interval, expected range and published value at their places."""

from __future__ import annotations

import math
import re

import pytest

from probing.studies.claims.tables import INSET, WIDTH, expected, range_axis


def places(drawn: str) -> dict[str, float]:
    """Return where each part is drawn."""
    rect = re.search(r'<rect x="([\d.]+)" y="4" width="([\d.]+)"', drawn)
    bar = re.search(r'd="M([\d.]+) 11H([\d.]+)" class="line"', drawn)
    dot = re.search(r'cx="([\d.]+)"', drawn)
    assert rect
    assert bar
    assert dot
    left, width = map(float, rect.groups())
    tick = re.search(r'd="M([\d.]+) 3V', drawn)
    return {
        "left": left, "right": left + width, "low": float(bar[1]), "high": float(bar[2]), "value": float(dot[1]),
        **({"other": float(tick[1])} if tick else {}),
    }  # fmt: skip


def test_places_are_proportional_to_the_values() -> None:
    found = places(range_axis(2.0, (1.0, 3.0), (4.0, 5.0), 6.0, "t"))
    step = found["high"] - found["value"]
    assert step > 0
    assert found["value"] - found["low"] == pytest.approx(step, abs=0.02)
    assert found["left"] - found["high"] == pytest.approx(step, abs=0.02)
    assert found["other"] - found["right"] == pytest.approx(step, abs=0.02)


def test_an_open_range_reaches_the_end_of_the_axis() -> None:
    assert places(range_axis(2.0, (2.0, 2.0), (5.0, math.inf), None, "t"))["right"] == WIDTH - INSET
    assert places(range_axis(2.0, (2.0, 2.0), (-math.inf, 5.0), None, "t"))["left"] == INSET


def test_a_single_point_is_drawn_in_the_middle() -> None:
    found = places(range_axis(0.0, (0.0, 0.0), (0.0, 0.0), None, "t"))
    assert found["value"] == WIDTH / 2
    assert "other" not in found


@pytest.mark.parametrize(
    ("criterion", "ends"),
    [
        ("> 0.5", (0.5, math.inf)), ("<= -0.5", (-math.inf, -0.5)), ("= 2", (2, 2)), ("-0.3 to 0.5", (-0.3, 0.5)),
        ("< 1e-05", (-math.inf, 1e-5)),
    ],
)  # fmt: skip
def test_a_criterion_is_read_as_it_is_written(criterion: str, ends: tuple[float, float]) -> None:
    assert expected(criterion) == ends
