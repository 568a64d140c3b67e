"""What goes in as a label comes out of every file and frame of a run as the same text, or is refused or counted."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from transformers import AutoTokenizer

from conftest import BARE
from probing import Run, UserError, WandbOptions, fit, load_run
from written import read_csv, write_csv

# Labels that look like numbers, like nothing, like a formula, like markup, or that end a line.
LABELS = [
    "1", "01", "007", "7", "--5", "NA", "None", "nan", "$x$ $", "carriage\rreturn", "a,b", '"q"', "<b>&", "नी",
    "[bold]x",
]  # fmt: skip
ABSENT: list[Any] = ["-100", None, "_", " "]
NO_WANDB = WandbOptions(mode="disabled")


def rows_of(n: int, sentences: list[str]) -> list[dict[str, Any]]:
    """Return sentences of words whose labels are all of `LABELS` in turn, and now and then none."""
    rows, at = [], 0
    for i, sentence in enumerate(sentences[:n]):
        words = sentence.split()
        labels = [LABELS[(at + k) % len(LABELS)] for k in range(len(words))]
        at += len(words)
        rows.append({"words": [*words, "word"], "labels": [*labels, ABSENT[i % len(ABSENT)]]})
    return rows


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def made(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Run, list[dict[str, Any]], str]:
    """A run with those labels, the rows of its corpus, and what was said of them."""
    from contextlib import redirect_stderr
    from io import StringIO

    place = tmp_path_factory.mktemp("labels")
    rows = rows_of(160, sentences)
    with redirect_stderr(StringIO()) as said:
        run = fit(
            model=str(checkpoints["bert"]), corpus=str(written(place / "words.jsonl", rows)), task="label", layer=1,
            runs=str(place), name="labels", task_args={"min_count": 5}, wandb=WandbOptions(mode="offline"), **BARE,
        )  # fmt: skip
    assert run is not None
    return run, rows, said.getvalue()


def test_labels_keep_their_text_in_every_file_and_frame(made: tuple[Run, list[dict[str, Any]], str]) -> None:
    run, _, _ = made
    expected = sorted(LABELS)
    assert json.loads((run.folder / "results.json").read_text(encoding="utf-8"))["classes"] == expected
    with safe_open(run.folder / "probe.safetensors", framework="numpy") as file:
        assert json.loads(file.metadata()["classes"]) == expected
    with (run.folder / "classes.csv").open(newline="", encoding="utf-8") as table:
        assert list(dict.fromkeys(row["class"] for row in csv.DictReader(table))) == expected
    again = load_run(run.folder)
    assert list(dict.fromkeys(row["class"] for row in again.classes)) == expected
    assert {row["predicted"] for row in again.predict(["the layer of a model", "every word reads"])} <= set(LABELS)
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "<b>&" not in page.replace("&lt;b&gt;&amp;", "")


def test_labels_keep_their_text_in_pandas_and_parquet(
    made: tuple[Run, list[dict[str, Any]], str], tmp_path: Path
) -> None:
    pandas, parquet = pytest.importorskip("pandas"), pytest.importorskip("pyarrow.parquet")
    run, _, _ = made
    expected = [row["class"] for row in run.classes]
    assert run.classes.to_pandas()["class"].tolist() == expected
    run.classes.to_parquet(tmp_path / "classes.parquet")
    assert parquet.read_table(tmp_path / "classes.parquet")["class"].to_pylist() == expected
    # As docs/files.md says.
    read = pandas.read_csv(run.folder / "classes.csv", dtype={"class": str}, keep_default_na=False)
    assert read["class"].tolist() == expected


def test_all_tokens_are_used_or_counted(
    made: tuple[Run, list[dict[str, Any]], str], checkpoints: dict[str, Path]
) -> None:
    run, rows, said = made
    names = ("n_example_tokens", "n_dropped_tokens", "n_unlabelled_tokens", "n_special_tokens")
    used, dropped, unlabelled, special = (sum(run.results[name].values()) for name in names)
    tokenizer = AutoTokenizer.from_pretrained(checkpoints["bert"])
    n_words = sum(len(row["words"]) for row in rows)
    assert used + dropped + unlabelled + special == sum(
        len(tokenizer(" ".join(row["words"])).input_ids) for row in rows
    )
    assert (special, used + dropped) == (2 * len(rows), n_words - len(rows))
    assert run.results["n_example_tokens"]["test"] == run.accuracy[0]["n_test_tokens"]
    assert f"words.jsonl: {len(rows)} of {n_words} words have no label (" in said


def test_whole_numbers_stay_whole_numbers(checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path) -> None:
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), layer=1, runs=str(tmp_path), name="positions",
        task_args={"max_position": 5}, wandb=NO_WANDB, quiet=True, **BARE,
    )  # fmt: skip
    assert run is not None
    assert {type(row["class"]) for row in load_run(run.folder).classes} == {int}
    assert str(run.classes.to_pandas()["class"].dtype) == "int64"


def test_labels_of_the_test_corpus_that_training_lacks_are_named(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def corpus(name: str, part: list[str], of: Any) -> str:
        rows = [{"words": line.split(), "labels": [of(i) for i, _ in enumerate(line.split())]} for line in part]
        return str(written(tmp_path / name, rows))

    train = corpus("train.jsonl", sentences[:60], lambda i: "AB"[i % 2])
    options: dict[str, Any] = {
        "model": str(checkpoints["bert"]), "corpus": train, "task": "label", "layer": 1, "runs": str(tmp_path),
        "wandb": NO_WANDB, **BARE,
    }  # fmt: skip
    with pytest.raises(UserError, match=r"none of the 20 sentences .* \(classes: A, B; its labels: B-A, B-B\)"):
        fit(test_corpus=corpus("other.jsonl", sentences[60:80], lambda i: ("B-A", "B-B")[i % 2]), **options)
    fit(test_corpus=corpus("new.jsonl", sentences[60:80], lambda i: ("A", "B", "NEW")[i % 3]), **options)
    said = capsys.readouterr().err
    assert "in test: their labels (NEW) do not occur in training" in said
    assert "too rare" not in said


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1, max_size=5))
def test_any_text_is_the_same_in_any_reader_of_a_table(tmp_path_factory: Any, cells: list[str]) -> None:
    pandas = pytest.importorskip("pandas")
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    write_csv(path, [{"class": f"a{cell}", "n": 1} for cell in cells], ["class", "n"])
    expected = [f"a{cell}" for cell in cells]
    assert [row["class"] for row in read_csv(path)] == expected
    assert pandas.read_csv(path, dtype={"class": str}, keep_default_na=False)["class"].tolist() == expected


def test_what_has_no_label_is_said_before_there_are_too_few_classes(
    checkpoints: dict[str, Path], sentences: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"text": line, "label": (-1, 1)[i % 2]} for i, line in enumerate(sentences[:60])]
    with pytest.raises(
        UserError, match=r"all labels of the \d+ training sentences are 1, and .* give text with another label"
    ):
        fit(
            model=str(checkpoints["bert"]), corpus=str(written(tmp_path / "tone.jsonl", rows)), task="sentence_label",
            layer=1, runs=str(tmp_path), wandb=NO_WANDB, **BARE,
        )  # fmt: skip
    assert (
        "tone.jsonl: 30 of 60 sentences have no label (`-1`: numbers below 0 stand for none)" in capsys.readouterr().err
    )
