"""Where test sentences are too few for an interval: what is written, shown and drawn instead."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing import ProbeOptions, Run, UserError, WandbOptions, fit
from probing.corpus.splits import assign_splits
from probing.figures.probes import error_bars
from probing.page.lines import Line, line_chart
from probing.results import rows as csv_files
from probing.results.schema import Column, Schema, ends, in_brackets, interval, without_nan
from probing.statistics.intervals import MIN_SENTENCES
from probing.tables.conclusions import conclusion
from probing.tables.probes import result_line

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NAN = math.nan
REASON = "There are no 95% intervals: "


@pytest.fixture(scope="module")
def shown_run(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, str]:
    """A run with fewer test sentences than an interval takes, and what the terminal showed of it."""
    from contextlib import redirect_stdout
    from io import StringIO

    place = tmp_path_factory.mktemp("few")
    few = place / "few.txt"
    few.write_text("\n".join(corpus_file.read_text(encoding="utf-8").splitlines()[:120]), encoding="utf-8")
    with redirect_stdout(StringIO()) as shown:
        made = fit(
            model=str(checkpoints["bert"]), corpus=str(few), runs=str(place), name="few", layer="0,2", replicates=0,
            controls="shuffled", evidence="none", task_args={"min_count": 5},
            wandb=WandbOptions(mode="disabled"), probe=ProbeOptions(tolerance=1e-3, l2=1e-4),
        )  # fmt: skip
    assert made is not None
    assert made.results["n_sentences"]["test"] < MIN_SENTENCES
    return made, shown.getvalue()


def test_a_run_on_few_test_sentences_has_empty_cells_in_place_of_intervals(shown_run: tuple[Run, str]) -> None:
    run, _ = shown_run
    with (run.folder / "accuracy.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = [column for column in rows[0] if column.endswith(("_low", "_high"))]
    assert columns == [
        "accuracy_low",
        "accuracy_high",
        "information_low",
        "information_high",
        "above_majority_low",
        "above_majority_high",
        "above_shuffled_low",
        "above_shuffled_high",
    ]
    assert {row[column] for row in rows for column in columns} == {""}
    assert all(math.isnan(row["accuracy_low"]) and math.isnan(row["above_shuffled_high"]) for row in run.accuracy)
    text = (run.folder / "results.json").read_text(encoding="utf-8")
    for row in json.loads(text, parse_constant=pytest.fail)["layers"]:  # NaN is no JSON
        assert row["accuracy_low"] is row["above_shuffled_high"] is None
        assert 0 < row["accuracy"] < 1


def test_terminal_and_report_say_why_there_is_no_interval_and_say_it_once(shown_run: tuple[Run, str]) -> None:
    run, shown = shown_run
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    for text in (shown, page):
        assert text.count(REASON + f"{run.results['n_sentences']['test']} test sentences are too few") == 1
    assert "nan" not in shown.casefold()
    visible = page.partition("<script")[0]
    assert "nan" not in visible.replace("nano", "").casefold()
    assert f"{run.accuracy[-1]['accuracy']:.3f} in layer 2" in visible
    assert "compare it with the majority class" in visible
    assert "95% interval" not in visible.replace(REASON, "")


def test_a_line_of_results_and_a_conclusion_leave_the_interval_out(shown_run: tuple[Run, str]) -> None:
    run, _ = shown_run
    row = run.accuracy[0]
    assert f"accuracy {row['accuracy']:.3f}, majority" in result_line(row, run.top(0, 5))
    rows = [{**row, "removed": "", "flag": ""} for row in run.top(0, 16)]
    removed = {"removed": "top", "cross_entropy_without": 0.01}
    assert "loses 0.0100 nats" in conclusion([{**rows[0], **removed}, *rows[1:]], "position")
    assert "nan" not in conclusion([{**rows[0], **removed}, *rows[1:]], "position")
    known = {**removed, "cross_entropy_without_low": 0.005, "cross_entropy_without_high": 0.02}
    assert "loses 0.0100 nats (0.0050 to 0.0200)" in conclusion([{**rows[0], **known}, *rows[1:]], "position")


# --- rows ---


@pytest.mark.parametrize("row", [{}, {"a_low": NAN, "a_high": NAN}, {"a_low": "", "a_high": ""}, {"a_low": None}])
def test_a_row_without_an_interval_has_no_ends_and_no_text(row: dict[str, float]) -> None:
    assert ends(row, "a") is None
    assert interval(row, "a") == ""
    assert in_brackets(interval(row, "a")) == ""
    assert in_brackets(interval(row, "a"), "p = 1") == " (p = 1)"


def test_an_interval_is_found_under_what_it_is_of() -> None:
    row = {"low": 0.0, "high": 1, "gain_low": -0.5, "gain_high": 0.25}
    assert ends(row) == (0, 1)
    assert interval(row, "gain", " to ", "+.1f", 100) == "-50.0 to +25.0"


def test_files_have_empty_cells_where_an_end_is_not_a_number_and_these_are_read_as_such(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"layer": 0, "accuracy_low": NAN, "share": NAN, "flag": ""},
        {"layer": 1, "accuracy_low": 0.5, "share": 1},
    ]
    columns = (Column("layer", int), Column("accuracy_low"), Column("share"), Column("flag", str, may_be_empty=True))
    schema = Schema("a", "a row", columns)
    csv_files.write_csv(tmp_path / "a.csv", rows, schema)
    assert (tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()[1:] == ["0,,nan,", "1,0.5,1,"]
    read = csv_files.read_csv(tmp_path / "a.csv", schema)
    assert [without_nan(row) for row in read] == [
        {"layer": 0, "accuracy_low": None, "share": None, "flag": ""},
        {"layer": 1, "accuracy_low": 0.5, "share": 1, "flag": ""},
    ]


# --- figures ---


def test_error_bars_reach_from_the_values_and_are_left_out_where_nothing_has_an_interval() -> None:
    rows = [{"low": 0.25, "high": 0.75}, {"low": NAN, "high": NAN}]
    assert error_bars(rows[1:], np.array([0.5])) is None
    found = error_bars(rows, np.array([50.0, 50]), times=100)
    assert found is not None
    np.testing.assert_allclose(found, [[25, 0], [25, 0]])


def test_a_chart_draws_bars_only_where_there_are_intervals() -> None:
    drawn = str(line_chart([Line("probe", [0, 1], [0.5, 0.6], [(0.4, 0.6), None])], "title"))
    assert drawn.count('class="bar"') == 1
    assert "0.500 (0.400 to 0.600)" in drawn
    assert "layer 1: 0.600<" in drawn


def test_sentences_of_a_part_without_labels_are_counted(checkpoints: dict[str, Path], corpus_file: Path) -> None:
    sentences = corpus_file.read_text(encoding="utf-8").splitlines()
    lines = []
    for sentence, side in zip(sentences, assign_splits(sentences, 0), strict=True):
        lines += [f"{word}\t{'_' if side == 'validation' else word[0] < 'n'}" for word in sentence.split()] + [""]
    labelled = corpus_file.with_name("without-validation.tsv")
    labelled.write_text("\n".join(lines), encoding="utf-8")
    options: dict[str, Any] = {"corpus": str(labelled), "task": "label", "runs": str(corpus_file.parent)}
    with pytest.raises(UserError, match=r"none of the 22 sentences of the validation part has a token of any class"):
        fit(model=str(checkpoints["bert"]), wandb=WandbOptions(mode="disabled"), quiet=True, **options)
