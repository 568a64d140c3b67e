"""Growth of the farthest mean, against a planted line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from probing.studies.pretrain.results import growth_of

pytestmark = pytest.mark.numeric

STEPS = [0, 1, 16, 64, 128, 256, 512, 1024]


def rows_of(slopes: list[float], at_end: float = 3.0) -> list[dict[str, Any]]:
    """Return rows in which the farthest mean of layer 2 is a line in log2 of the steps, from step 64 on."""
    return [
        {
            "arm": "learned", "seed": seed, "step": step, "layer": layer,
            "max_mean_sd": (
                at_end + slope * (math.log2(step) - 10) if layer == 2 and step >= 64 else 1.0 + 8 * (layer == 0)
            ),
        }
        for seed, slope in enumerate(slopes) for step in STEPS for layer in (0, 1, 2)
    ]  # fmt: skip


def test_a_planted_line_is_found_and_extrapolated() -> None:
    found = growth_of(rows_of([0.4, 0.4]))
    assert found is not None
    assert found["first_step"] == 64
    assert found["slope"] == pytest.approx(0.4)
    assert found["now"] == pytest.approx(3.0)
    assert found["steps"] == pytest.approx(1024 * 2 ** (2.0 / 0.4))
    assert found["steps_low"] == pytest.approx(found["steps"])


def test_the_interval_is_students_over_seeds() -> None:
    slopes = [0.3, 0.4, 0.5]
    found = growth_of(rows_of(slopes))
    assert found is not None
    reach = 4.302652729911275 * np.std(slopes, ddof=1) / math.sqrt(3)  # Student's t at .975 with 2 degrees of freedom
    assert found["slope_low"] == pytest.approx(0.4 - reach)
    assert found["steps_low"] == pytest.approx(1024 * 2 ** (2.0 / (0.4 + reach)))
    assert found["steps_high"] == pytest.approx(1024 * 2 ** (2.0 / (0.4 - reach)))


def test_without_growth_there_is_no_step() -> None:
    falling, unsure = growth_of(rows_of([-0.1, -0.2])), growth_of(rows_of([0.9, 0.1]))
    assert falling is not None
    assert unsure is not None
    assert falling["steps"] is None
    assert unsure["steps"] is not None
    assert unsure["steps_high"] is None


def test_one_seed_has_no_interval_and_one_checkpoint_no_growth() -> None:
    found = growth_of(rows_of([0.4]))
    assert found is not None
    assert found["steps"] is not None
    assert found["slope_low"] is None
    assert growth_of([row for row in rows_of([0.4]) if row["step"] in (0, 1024)]) is None
    assert growth_of(rows_of([0.4]), "none") is None


def test_an_outlier_that_is_there_needs_no_more_steps() -> None:
    found = growth_of(rows_of([0.4], at_end=6.0))
    assert found is not None
    assert found["steps"] == 1024
