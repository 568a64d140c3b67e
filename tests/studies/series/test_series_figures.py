"""The figure of a series: a panel for each measure, with step 0 apart."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from probing.studies.series.survey import curves
from probing.studies.series.tables import Thresholds, emergence


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
    # The loss of token frequencies is not told; the layers lead the legend, and every step has a label here.
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["layer 0", "layer 1", "threshold", "the token alone"]
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "10", "100"]
        assert list(axes.get_xticks(minor=True)) == []


def test_no_line_lies_on_the_border_of_its_panel() -> None:
    rows: list[dict[str, Any]] = [
        {"step": step, "layer": 1, "measure": measure, "value": value}
        for measure, values in {"special_mass": (0.0706, 0.0707), "largest_deviation": (3.0, 4.9)}.items()
        for step, value in zip((1, 2), values, strict=True)
    ]
    outliers = [{"quantity": "outliers", "layer": 1, "measure": "deviation", "threshold": 5.0}]
    curves(figure := Figure(), {"series": rows, "emergence": outliers}, "tiny")
    assert [axes.get_ylim() for axes in figure.axes] == [
        pytest.approx((0, 1.05 * 5.0)), pytest.approx((0, 1.05 * 0.0707)),
    ]  # fmt: skip
