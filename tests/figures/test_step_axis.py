"""The axis of steps: logarithmic, with step 0 apart, and labels where there is room."""

from __future__ import annotations

from itertools import pairwise

import pytest

from probing.figures.style import coordinates, labels, name, short


def test_steps_stand_at_their_logarithms_and_step_0_to_the_left_of_them() -> None:
    assert coordinates([1, 10, 1000]) == pytest.approx([0, 1, 3])
    zero, *others = coordinates([0, 10, 1000])
    assert others == pytest.approx([1, 3])
    assert zero == pytest.approx(0.7)
    assert coordinates([0]) == [0.0]
    assert (name([0, 10]), name([10])) == ("step (logarithmic, 0 apart)", "step (logarithmic)")


def test_a_step_is_labelled_where_there_is_room() -> None:
    assert labels([0, 10, 100, 1000], 28) == ["0", "10", "100", "1k"]
    dense = [0, *(2**i for i in range(11)), 1500]
    assert labels(dense, 28) == ["0", "1", "", "4", "", "16", "", "64", "", "256", "", "", "1.5k"]
    # The last step is named, and not 1024 before it, where there is room for one of them.
    assert labels(dense, 68)[-4:] == ["256", "512", "", "1.5k"]
    assert labels(dense, 200) == [short(step) for step in dense]
    assert labels([7], 28) == ["7"]


@pytest.mark.parametrize("steps", [list(range(0, 3000, 100)), [1000 * i for i in range(1, 144)]])
def test_no_label_runs_into_the_next(steps: list[int]) -> None:
    at = coordinates(steps)
    character = (at[-1] - at[0]) / 28
    named = [(place, label) for place, label in zip(at, labels(steps, 28), strict=True) if label]
    assert len(named) > 3
    for (place, label), (following, other) in pairwise(named):
        assert following - place > character * (len(label) + len(other)) / 2


def test_large_steps_are_short() -> None:
    assert [short(step) for step in (0, 512, 1000, 1500, 1024, 143_000, 2_500_000)] == [
        "0", "512", "1k", "1.5k", "1024", "143k", "2.5M",
    ]  # fmt: skip
