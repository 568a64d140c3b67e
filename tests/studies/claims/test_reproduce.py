"""`reproduce` on a tiny model: plans, runs, resumes, and writes the table of claims."""

from __future__ import annotations

import csv
import json
import shutil
from html import escape
from pathlib import Path
from typing import Any

import pytest

from probing import Result, load_run, report, reproduce
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.studies.geometry import command as geometry_module

NO_WANDB: Any = {"mode": "disabled"}
# Two runs of `geometry`, of which each takes a second.
CLAIMS = "1-5,19,34-37,52"


@pytest.fixture(scope="module")
def place(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with one table of claims."""
    folder = tmp_path_factory.mktemp("reproduce") / "runs"
    made = reproduce(**options(checkpoints, corpus_file, folder), name="first")
    assert made is not None
    return folder


def options(checkpoints: dict[str, Path], corpus_file: Path, folder: Path, **others: Any) -> dict[str, Any]:
    usual = {
        "paper": "luo2021", "models": str(checkpoints["bert"]), "claims": "1-5,34-37,52", "corpus": str(corpus_file),
        "runs": str(folder), "quiet": True, "wandb": NO_WANDB,
    }  # fmt: skip
    return {**usual, **others}


def test_the_table_has_a_row_for_each_claim_and_model(place: Path, checkpoints: dict[str, Path]) -> None:
    made = load_run(place / "first")
    assert isinstance(made, Result)
    rows = {(row["id"], row["model"]): row for row in made.claims}
    other = str(checkpoints["bert"])
    assert [number for number, model in rows if model == other] == [1, 2, 3, 4, 5, 34, 35, 36, 37, 52]
    assert {model for number, model in rows if number == 34} == {other, "bert", "roberta"}
    assert {model for number, model in rows if number == 3} == {other, "roberta"}
    measured = rows[34, other]
    assert measured["verdict"] == "analogue"
    assert -1 <= measured["measured"] <= 1
    assert measured["met"] in ("yes", "no")
    assert measured["criterion"] == "> 0.8"
    assert measured["command"].startswith("python -m probing geometry --model ")
    assert rows[34, "bert"]["verdict"] == "not testable here"
    assert "google-bert/bert-base-cased" in rows[34, "bert"]["lacking"]
    assert rows[52, other]["lacking"] == "`--other_corpus`"
    with (place / "first" / "claims.csv").open(encoding="utf-8") as file:
        assert next(csv.reader(file))[:11] == [
            "id", "claim", "where", "published", "model", "measured", "low", "high", "control", "verdict", "command",
        ]  # fmt: skip


def test_no_verdict_on_the_paper_is_given_by_another_model(place: Path) -> None:
    made = load_run(place / "first")
    assert {row["verdict"] for row in made.claims} == {"analogue", "not testable here"}
    assert not any("met" in row for row in made.claims if row["verdict"] != "analogue")
    assert any("nothing follows for the paper" in line for line in made.conclusions())


def test_the_markdown_table_is_the_same(place: Path) -> None:
    lines = (place / "first" / "claims.md").read_text(encoding="utf-8").splitlines()
    made = load_run(place / "first")
    assert lines[0] == made.results["title"]
    cells = [line.strip("| ").split(" | ") for line in lines[4:]]
    assert [int(row[0]) for row in cells] == [row["id"] for row in made.claims]
    assert {len(line.replace("\\|", "").split("|")) for line in lines[2:]} == {11}


def test_finished_runs_are_taken_and_what_a_killed_command_left_is_made(
    place: Path, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The first run is there, and the second is interrupted; the same command then makes it and nothing else."""
    runs = tmp_path / "runs"
    shutil.copytree(place, runs)
    with_other = options(checkpoints, corpus_file, runs, other_corpus=str(corpus_file), cache=str(place / "cache"))
    before = {path.name for path in runs.iterdir()}

    def interrupted(*args: Any, **keywords: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(geometry_module, "_measured", interrupted)
        with pytest.raises(KeyboardInterrupt, match="the same command goes on with the others"):
            reproduce(**with_other)
    whole = {path.name for path in runs.iterdir() if path.suffix != ".partial"}
    assert whole == before
    capsys.readouterr()
    made = reproduce(**{**with_other, "quiet": False})
    assert made is not None
    said = capsys.readouterr().err
    assert said.count(": read from ") == 1
    assert "run 1 of 1: python -m probing geometry " in said
    (row,) = (row for row in made.claims if row["id"] == 52 and row["verdict"] == "analogue")
    assert abs(row["measured"]) < 1
    again = reproduce(**with_other)
    assert again is not None
    assert again.results["runs"] == made.results["runs"]
    assert [row for row in again.claims if row["id"] == 52] == [row for row in made.claims if row["id"] == 52]


def test_a_dry_run_makes_nothing(
    place: Path, checkpoints: dict[str, Path], corpus_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in place.iterdir())
    assert reproduce(**options(checkpoints, corpus_file, place, claims=CLAIMS, dry_run=True)) is None
    said = " ".join(capsys.readouterr().out.split())
    assert "1 run to make: about 1 min with nothing else on this machine, and 0.00 GB of activations added" in said
    assert "probing fit" in said
    assert "needs `--other_corpus`" in said
    assert "google-bert/bert-base-cased, which is not on this machine" in said
    assert sorted(path.name for path in place.iterdir()) == before


def test_a_folder_may_hold_a_model_of_the_paper_which_then_has_a_verdict(
    place: Path, checkpoints: dict[str, Path], corpus_file: Path
) -> None:
    """That a tiny model is not BERT is the user's to know; its width says it where neurons are named."""
    named = f"bert={checkpoints['bert']}"
    made = reproduce(**options(checkpoints, corpus_file, place, models=named, claims="1,34"))
    assert made is not None
    rows = {(row["id"], row["model"]): row for row in made.claims}
    assert set(rows) == {(1, "bert"), (34, "bert"), (34, "roberta")}
    assert rows[34, "bert"]["verdict"] in ("confirmed", "not confirmed")
    assert rows[1, "bert"]["lacking"] == "the model has no neuron 557"
    assert made.results["runs"]["bert"] == load_run(place / "first").results["runs"][str(checkpoints["bert"])]
    (line,) = made.conclusions()
    assert "2 not testable here" in line


@pytest.mark.slow
def test_sentences_with_labels_are_read_for_the_claim_on_them(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentences = corpus_file.read_text(encoding="utf-8").splitlines()
    middle = sorted(map(len, sentences))[len(sentences) // 2]
    rows = [{"text": sentence, "label": "long" if len(sentence) > middle else "short"} for sentence in sentences]
    labels = tmp_path / "labels.jsonl"
    labels.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    asked = options(checkpoints, corpus_file, tmp_path / "runs", claims="47", labels=str(labels), quiet=False)
    for made_or_read in ("run 1 of 1", ": read from "):
        found = reproduce(**asked)
        assert found is not None
        assert made_or_read in capsys.readouterr().err
        (row,) = (row for row in found.claims if row["model"] not in ("bert", "roberta"))
        # None of 16 neurons can be beyond 5 standard deviations of all.
        assert row["lacking"] == "no layer has an outlier that could be clipped"


def test_models_of_the_paper_that_cannot_be_reached_are_no_error(place: Path, corpus_file: Path) -> None:
    words = ["luo2021", "--models", "roberta", "--claims", "3,34", "--corpus", str(corpus_file), "--runs", str(place)]
    assert run(COMMANDS, ["reproduce", *words, "--quiet", "--wandb.mode", "disabled"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "`reproduce` takes a paper: bertology, kovaleva2019, luo2021"),
        (["luo2020"], "did you mean `luo2021`"),
        (["luo2021", "--claims", "0"], "--claims 0"),
        (["luo2021", "--models", "no/such/model"], "`--models no/such/model`"),
        (["luo2021", "--models", "minilm,minilm"], "minilm is there twice"),
        (["luo2021", "--corpus", "no.txt"], "no.txt"),
        (["luo2021", "--corpus", "-"], "standard input can be read only once"),
        (["luo2021", "kovaleva2019"], "takes one paper"),
    ],
)
def test_bad_input_is_refused_in_a_sentence(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(COMMANDS, ["reproduce", *words, "--runs", str(tmp_path / "runs")]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_the_report_has_a_row_for_each_claim_that_was_measured(place: Path, tmp_path: Path) -> None:
    page = report([str(place / "first")], output=str(tmp_path / "claims.html")).read_text(encoding="utf-8")
    made = load_run(place / "first")
    there = [row for row in made.claims if "measured" in row]
    assert there
    assert "<h1>Claims of luo2021</h1>" in page
    assert page.count('class="range-axis"') == len(there)
    for row in there:
        assert escape(row["claim"]) in page
        assert f"by the claim {escape(row['criterion'])}" in page
        assert escape(row["command"]) in page
    for row in made.claims:
        assert escape(row.get("lacking", "")) in page
