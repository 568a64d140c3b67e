"""When checkpoints are written, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from probing.studies.pretrain.arms import checkpoint_folder, checkpoint_steps


@pytest.mark.parametrize(
    ("steps", "factor", "expected"),
    [
        (10, 2.0, [0, 1, 2, 4, 8, 10]),
        (8, 2.0, [0, 1, 2, 4, 8]),
        (1, 2.0, [0, 1]),
        (100, 10.0, [0, 1, 10, 100]),
        (5, 1.3, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_steps_are_powers_with_the_first_and_the_last(steps: int, factor: float, expected: list[int]) -> None:
    assert checkpoint_steps(steps, factor) == expected


def test_names_sort_as_steps_do() -> None:
    names = [checkpoint_folder(Path(), "none", 1, step, 2000).name for step in (0, 1, 16, 128, 2000)]
    assert names == sorted(names)
    assert names[0] == "step0000"
    assert checkpoint_folder(Path("c"), "none", 1, 4, 2000).parent == Path("c/none-seed1")
