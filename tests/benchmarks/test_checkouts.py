"""The comparison of two checkouts: what counts as the same answer, and what is said of the times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.checkouts import BEFORE, NOW, Answer, differences, main, told
from benchmarks.harness import Run

Change = Callable[[dict[str, str]], None]


def answer(change: Change | None = None) -> Answer:
    """Return tables of one layer of 30 neurons, of which the first was removed."""
    neurons = [
        {
            "layer": "0", "rank": str(i + 1), "neuron": str(i), "contribution": str(1 / (i + 1)),
            "removed": "" if i else "top", "cross_entropy_without": "" if i else "0.02",
            "cross_entropy_without_low": "" if i else "0.01", "cross_entropy_without_high": "" if i else "0.03",
        }
        for i in range(30)
    ]  # fmt: skip
    layer = {"layer": "0", "accuracy": "0.5", "cross_entropy": "1.5", "shuffled_accuracy": "0.04", "flag": ""}
    if change is not None:
        for row in (*neurons, layer):
            change(row)
    return Answer(neurons, [layer])


def broken(change: Change) -> list[str]:
    return [check.what for check in differences(answer(change), answer()) if not check.held]


def setting(column: str, value: str, where: str = "0") -> Change:
    def change(row: dict[str, str]) -> None:
        if column in row and row.get("neuron", where) == where:
            row[column] = value

    return change


def test_equal_answers_differ_in_nothing() -> None:
    assert {check.difference for check in differences(answer(), answer())} == {0}


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        (setting("contribution", "1.02"), "contribution of the first 20"),
        (setting("accuracy", "0.502"), "accuracy"),
        (setting("cross_entropy", "1.501"), "cross_entropy"),
        (setting("shuffled_accuracy", "0.044"), "shuffled_accuracy"),
        (setting("cross_entropy_without", "0.031"), "cross_entropy_without"),
        (setting("cross_entropy_without_high", "0.036"), "width of that interval"),
    ],
)
def test_a_difference_beyond_what_is_allowed_is_named(change: Change, begins: str) -> None:
    (found,) = broken(change)
    assert found.startswith(begins)


def test_a_removal_may_differ_within_its_interval() -> None:
    assert broken(setting("cross_entropy_without", "0.024")) == []


def test_other_neurons_at_the_top_are_counted() -> None:
    def reversed_order(row: dict[str, str]) -> None:
        if "rank" in row:
            row["rank"] = str(31 - int(row["rank"]))

    (found,) = [c for c in differences(answer(reversed_order), answer()) if "only one has" in c.what]
    assert found.difference == 10
    assert not found.held


def test_ratios_are_those_of_each_pair() -> None:
    times = {BEFORE: [10.0, 30.0, 20.0], NOW: [5.0, 10.0, 20.0]}
    runs = [Run(name, i, {"seconds": t, "processor_s": 2 * t}) for name in times for i, t in enumerate(times[name])]
    wall, processor = told(runs)
    assert wall.startswith("wall time: before 20.0 s, now 10.0 s")
    assert wall.endswith("of 3 pairs: least 1.00, median 2.00, largest 3.00")
    assert processor.startswith("processor time: before 40.0 s, now 20.0 s")


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert f"{tmp_path} is no checkout" in capsys.readouterr().err
