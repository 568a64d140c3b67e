"""The comparison of the results of two checkouts: a changed number is seen, and renames are translated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.same_results import CALLS, LAST, PROGRAMS, calls, main


def write(place: Path, table: str = "accuracy", column: str = "accuracy", value: str = "0.5", time: int = 1) -> None:
    """Write the results of a run, as a checkout leaves them."""
    run = place / "runs" / "position"
    run.mkdir(parents=True)
    (run / f"{table}.csv").write_text(f"layer,{column}\n0,{value}\n", encoding="utf-8")
    (run / "results.json").write_text(json.dumps({"kind": "x", "timings": {"total_s": time}}), encoding="utf-8")
    (place / "position-fit.txt").write_text(f"The {column} is {value}. Done in {time} s\n", encoding="utf-8")
    (place / "public_names.list").write_text(f"fit --layer\nfit: {table}.csv {column}\n", encoding="utf-8")


def test_equal_results_differ_in_nothing_but_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "before")
    write(tmp_path / "after", time=2)
    assert main(["compare", str(tmp_path), "before", "after"]) == 0
    assert "0 of 3 files differ" in (shown := capsys.readouterr().out)
    assert "1 of 1 tables compared" in shown


def test_a_changed_number_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "before")
    write(tmp_path / "after", value="0.5000001")
    assert main(["compare", str(tmp_path), "before", "after"]) == 2
    assert "+0,0.5000001" in capsys.readouterr().out


def test_a_table_that_no_call_wrote_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for label in ("before", "after"):
        write(tmp_path / label)
    names = tmp_path / "after" / "public_names.list"
    names.write_text(names.read_text(encoding="utf-8") + "rank: evaluation.csv k\n", encoding="utf-8")
    assert main(["compare", str(tmp_path), "before", "after"]) == 1
    assert "1 of 2 tables compared, not rank: evaluation" in capsys.readouterr().out


def test_renamed_tables_and_columns_are_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "before")
    write(tmp_path / "after", table="scores", column="test_accuracy")
    renames = tmp_path / "renames.json"
    renames.write_text(json.dumps({"columns": {"accuracy": "test_accuracy"}, "texts": {}}), encoding="utf-8")
    # The table's file still has its old name, which is the same word as the column's.
    assert main(["compare", str(tmp_path), "before", "after", "--renames", str(renames)]) > 0
    capsys.readouterr()
    (tmp_path / "before" / "runs" / "position" / "accuracy.csv").rename(
        tmp_path / "before" / "runs" / "position" / "quality.csv"
    )
    renames.write_text(
        json.dumps({"tables": {"quality": "scores"}, "columns": {"accuracy": "test_accuracy"}}), encoding="utf-8"
    )
    assert main(["compare", str(tmp_path), "before", "after", "--renames", str(renames)]) == 0


def test_commands_and_options_are_called_by_their_new_names() -> None:
    (call,) = (call for call in calls(CALLS) if call.name == "disabled")
    new = call.arguments({"commands": {"disable": "ablate"}, "options": {"--units": "--what", "--prune": "--cut"}})
    assert new[:3] == ["-m", "probing", "ablate"]
    assert "--cut" in new
    assert "--prune" not in new


def test_every_call_has_its_name_once_and_every_program_is_called() -> None:
    names = [call.name for call in (*calls(CALLS), *calls(LAST)) if call.name != "-"]
    assert len(names) == len({*names})
    assert {call.name for call in (*calls(CALLS), *calls(LAST)) if call.words == ["python"]} == {*PROGRAMS}
