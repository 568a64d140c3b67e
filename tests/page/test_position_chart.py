"""Charts with a band: of a neuron's mean by position, and of sorted contributions over those of directions."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from probing.page.run import BOTTOM, HEIGHT, LEFT, MOST_RANKS, RIGHT, TOP, WIDTH, directions_chart, position_chart


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.56, -0.0206, 0.5], ["1.56", "-0.0206"]),  # 0 lies at the lowest value
        ([0.01, -3.0], ["0.01", "-3"]),
        ([1.0, -1.0], ["1", "-1", "0"]),
        ([2.0, 0.0], ["2", "0"]),
        ([-2.0, -1.0], ["-1", "-2"]),
        ([0.0, 0.0], ["0"]),
    ],
)
def test_the_number_of_0_stands_where_there_is_room(values: list[float], shown: list[str]) -> None:
    chart = str(position_chart([{"index": i, "value": value} for i, value in enumerate(values, 1)]))
    *numbers, last = re.findall(r"text-anchor=\"end\" font-size=\"12\">([^<]+)<", chart)
    assert (numbers, last) == (shown, str(len(values)))


def contributions(n: int) -> list[dict[str, Any]]:
    return [
        {"contribution": 3 / rank, "direction_lowest": 1 / rank, "direction_highest": 2 / rank,
         "above_directions": "yes" if rank < 4 else "no"}
        for rank in range(1, n + 1)
    ]  # fmt: skip


def points(path: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r"([\d.e+-]+) ([\d.e+-]+)", path)]


@pytest.mark.parametrize("n", [1, 2, 30, 5000])
def test_the_line_is_of_neurons_and_the_band_of_directions_of_the_same_rank(n: int) -> None:
    chart = str(directions_chart(contributions(n)))
    band, line = map(points, re.findall(r' d="M([^"z]+)z?"', chart))
    low, high = 1 / n, 3.0

    def at(rank: int, value: float) -> tuple[float, float]:
        share = math.log(rank) / math.log(n) if n > 1 else 0
        return LEFT + share * (WIDTH - LEFT - RIGHT), TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low)

    ranks = [round(n ** ((x - LEFT) / (WIDTH - LEFT - RIGHT))) for x, _ in line]
    assert min(n, 30) <= len(ranks) <= MOST_RANKS
    assert ({*range(1, 11)} & {*range(1, n + 1)}) | {n} <= {*ranks}
    expected = [at(rank, 3 / rank) for rank in ranks]
    expected_band = [at(rank, 2 / rank) for rank in ranks] + [at(rank, 1 / rank) for rank in reversed(ranks)]
    tolerance = 0.1 if n < 100 else 2  # ranks far out are of coordinates with four digits
    for (x, y), (x_expected, y_expected) in zip(line + band, expected + expected_band, strict=True):
        assert x == pytest.approx(x_expected, abs=tolerance)
        assert y == pytest.approx(y_expected, abs=0.1)
    rings = [(float(x), float(y)) for x, y in re.findall(r'<circle cx="([^"]+)" cy="([^"]+)"', chart)]
    assert rings == [pytest.approx(at(rank, 3 / rank), abs=0.1) for rank in range(1, min(n, 3) + 1)]
    assert f'aria-label="contribution by rank, {low:.3g} to 3"' in chart
    ticks = re.findall(r'y="145" text-anchor="\w+" font-size="12">([^<]+)<', chart)
    named = {1: ["rank 1"], 2: ["rank 1", "2"], 30: ["rank 1", "10", "30"]}
    assert ticks == named.get(n, ["rank 1", "10", "100", "1000", "5000"])
