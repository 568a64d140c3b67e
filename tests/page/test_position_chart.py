"""The chart of a neuron's mean by position: no number stands on another one."""

from __future__ import annotations

import re

import pytest

from probing.page.neuron_blocks import position_chart


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
