"""The axis of steps: logarithmic, with step 0 apart."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from probing.checkpoints.emergence import Thresholds, emergence
from probing.checkpoints.figures import coordinates, curves


def test_steps_stand_at_their_logarithms_and_step_0_to_the_left_of_them() -> None:
    assert coordinates([1, 10, 1000]) == pytest.approx([0, 1, 3])
    zero, *others = coordinates([0, 10, 1000])
    assert others == pytest.approx([1, 3])
    assert zero == pytest.approx(0.7)
    assert coordinates([0]) == [0.0]


def test_every_measure_has_a_panel_and_the_way_from_step_0_is_dotted() -> None:
    steps = [0, 10, 100]
    rows: list[dict[str, Any]] = [
        {"step": step, "layer": layer, "measure": measure, "value": float(step > 10), "low": float(step > 10)}
        for step in steps for layer in (0, 1) for measure in ("accuracy", "token_accuracy", "above_token")
    ]  # fmt: skip
    rows += [{"step": step, "measure": "held_out_loss", "value": 5.0 - step / 25} for step in steps]
    tables = {"series": rows, "emergence": emergence(rows, [{} for _ in steps], steps, Thresholds())}
    curves(figure := Figure(), tables, "tiny")
    assert [axes.get_title(loc="center") or axes.get_title(loc="left") for axes in figure.axes] == [
        "held-out loss", "position by a linear probe",
    ]  # fmt: skip
    loss, position = figure.axes
    dotted = [line for line in loss.lines if line.get_linestyle() == ":"]
    assert [list(map(float, line.get_ydata())) for line in dotted] == [[5.0, 4.6]]  # type: ignore[arg-type]
    marks = [line.get_xdata()[0] for line in position.lines if line.get_linestyle() == "-."]  # type: ignore[index]
    assert marks == pytest.approx([2.0])
