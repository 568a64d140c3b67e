"""When something came to stay: planted courses, and none in a flat series."""

from __future__ import annotations

import math
from typing import Any

import pytest

from probing.studies.series.tables import LOST, UNIGRAM, Course, Thresholds, conclusions, emergence, stays_from

STEPS = [0, 1, 10, 100, 1000]


@pytest.mark.parametrize(
    ("is_past", "expected"),
    [("00000", None), ("11111", 0), ("01011", 3), ("11110", None), ("00001", 4), ("10000", None), ("", None)],
)
def test_something_stays_from_where_it_is_there_in_every_later_checkpoint(is_past: str, expected: int | None) -> None:
    assert stays_from([one == "1" for one in is_past]) == expected


def test_a_course_tells_what_was_seen_what_stays_and_where_half_the_way_is_made() -> None:
    # Past .5 at step 1, not at 10, and for good from 100 on; half of the way from 0 to 1 is .5.
    values = [0.0, 0.6, 0.1, 0.55, 1.0]
    row = Course(values, [value > 0.5 for value in values]).row(STEPS)
    assert row == {
        "first_value": 0.0, "last_value": 1.0, "first_seen": 1, "step_before": 10, "step": 100, "half_step": 100,
    }  # fmt: skip
    falling = [8.0, 7.9, 5.0, 3.2, 3.0]
    row = Course(falling, [value < 3.5 for value in falling]).row(STEPS)
    assert (row["step_before"], row["step"], row["half_step"]) == (10, 100, 10)
    assert "step" not in Course([1.0, 0.0], [True, False]).row([0, 1])
    assert Course([1.0, 1.0], [True, True]).row([0, 1]) == {
        "first_value": 1.0, "last_value": 1.0, "first_seen": 0, "step": 0,
    }  # fmt: skip


def rows_of(**measures: list[float]) -> list[dict[str, Any]]:
    """Rows of one layer, or of the whole model for a loss."""
    return [
        {"step": step, "measure": name, "value": value} | ({} if "loss" in name else {"layer": 1})
        for name, values in measures.items()
        for step, value in zip(STEPS, values, strict=True)
    ]


def came(rows: list[dict[str, Any]], deviations: list[dict[int, list[float]]] | None = None) -> dict[str, Any]:
    found = emergence(rows, deviations or [{} for _ in STEPS], STEPS, Thresholds())
    return {row["quantity"]: row.get("step") for row in found}


def test_each_quantity_has_its_threshold() -> None:
    rows = rows_of(
        held_out_loss=[7.0, 4.9, 4.0, 3.9, 3.0], unigram_loss=[5.0] * 5, n_position_heads=[0, 0, 0, 0, 2],
        above_token=[0.0, 0.2, 0.2, 0.2, 0.2],
    )  # fmt: skip
    assert came(rows) == {"loss": 10, "position": 1, "position heads": 1000}
    # With the interval, not the value alone; without an interval, the value.
    for row in rows:
        if row["measure"] == "above_token":
            row["low"], row["high"] = (0.04, 0.3) if row["step"] < 100 else (math.nan, math.nan)
    assert came(rows)["position"] == 100
    # Without the entropy of words, the loss is compared with that of the first checkpoint.
    rows = [row for row in rows if row["measure"] == LOST]
    assert came(rows) == {"loss": 1}
    (row,) = emergence(rows, [{} for _ in STEPS], STEPS, Thresholds(loss=3.5))
    assert row["threshold"] == 3.5
    assert row["step"] == 1000
    assert came([row for row in rows if row["step"]]) == {}  # not of every checkpoint
    assert UNIGRAM == "unigram_loss"


def test_an_outlier_stays_if_the_same_neuron_does() -> None:
    flicker = [{2: [6.0, 0.0]}, {2: [0.0, -6.0]}, {2: [6.0, 0.0]}, {2: [0.0, -6.0]}, {2: [5.0, -6.0]}]
    rows = emergence([], flicker, STEPS, Thresholds())
    assert [(row["layer"], row["neuron"], row["first_seen"], row.get("step")) for row in rows] == [
        (2, 0, 0, None), (2, 1, 1, 100),
    ]  # fmt: skip
    assert rows[1]["last_value"] == -6.0


def test_a_flat_series_finds_no_emergence() -> None:
    flat = rows_of(held_out_loss=[5.0] * 5, unigram_loss=[5.0] * 5, n_position_heads=[0.0] * 5, above_token=[0.01] * 5)
    deviations = [{1: [1.0, -4.0]} for _ in STEPS]
    rows = emergence(flat, deviations, STEPS, Thresholds())
    assert [row["quantity"] for row in rows] == ["loss", "position", "position heads", "outliers"]
    assert not any("step" in row or "first_seen" in row for row in rows)
    lines = conclusions({"series": flat, "emergence": rows})
    assert lines[-1] == "Nothing came to stay in this series."
    assert sum("at no step for good." in line for line in lines) == 4


def test_the_order_is_told_as_far_as_the_checkpoints_tell_it() -> None:
    made = rows_of(
        held_out_loss=[7.0, 4.0, 4.0, 3.9, 3.0], unigram_loss=[5.0] * 5, n_position_heads=[0, 0, 0, 1, 2],
        above_token=[0.5] * 5,
    )  # fmt: skip
    deviations = [{1: [0.0, 0.0], 2: [0.0, -9.0 * (i > 2)]} for i in range(5)]
    rows = emergence(made, deviations, STEPS, Thresholds())
    lines = conclusions({"series": made, "emergence": rows})
    assert lines[0] == "The held-out loss is at most 4.00 nats from step 1 on (not yet at step 0)."
    assert "more than 5 points from step 0 on (the first checkpoint), in layer 1." in lines[1]
    assert lines[3].endswith("from step 100 on (not yet at step 10): neuron 1 in layer 2.")
    assert lines[4].startswith("There at the first checkpoint (step 0) and in all later ones: position;")
    assert lines[5] == (
        "Order: loss (step 1), then position heads and outliers (step 100). What came at one step, these checkpoints "
        "cannot put in order."
    )
    one = [row for row in made if row["step"] == 0 and row["measure"] != LOST]
    lines = conclusions({"series": one, "emergence": emergence(one, deviations[:1], [0], Thresholds())})
    assert lines[-1] == "One checkpoint (step 0) tells no order; give several."
    assert lines[-2] == "The loss is left out: it is not told for every checkpoint."
