"""`reproduce` with claims on attention: runs that read pairs in place of the corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from families import masked_lm
from probing import Result, reproduce
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from tiny_models import other_queries, tuned

NO_WANDB: Any = {"mode": "disabled"}
PAIRS = [f"word {'ab' * i} goes\tthe next one is {i}" for i in range(1, 26)]


def made(model: Path, corpus: Path, folder: Path, **others: Any) -> Result:
    found = reproduce(
        **{
            "paper": "kovaleva2019", "models": str(model), "claims": "1,2,6,7", "corpus": str(corpus),
            "runs": str(folder), "wandb": NO_WANDB, **others,
        }
    )  # fmt: skip
    assert found is not None
    return found


@pytest.mark.slow
def test_pairs_are_read_in_place_of_the_corpus_and_known_by_their_content(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("\n".join(PAIRS), encoding="utf-8")
    options: dict[str, Any] = {"model": checkpoints["bert"], "corpus": corpus_file, "folder": tmp_path / "runs"}
    first = made(**options, pairs=str(pairs))
    rows = {row["id"]: row for row in first.claims if row["model"] == str(checkpoints["bert"])}
    assert {number for number, row in rows.items() if "measured" in row} == {1, 2, 7}
    assert 0 <= rows[1]["low"] <= rows[1]["measured"] <= rows[2]["measured"] <= 1
    assert rows[2]["command"].endswith(f"--pairs {pairs} --parts classes")
    assert "--corpus" not in rows[2]["command"]
    assert rows[6]["lacking"].startswith("a treebank as `--corpus`")
    capsys.readouterr()
    again = made(**options, pairs=str(pairs))
    assert capsys.readouterr().err.count(": read from ") == 2
    assert again.results["runs"] == first.results["runs"]
    pairs.write_text("\n".join(PAIRS[1:]), encoding="utf-8")
    changed = made(**options, pairs=str(pairs))
    said = capsys.readouterr().err
    assert said.count(": read from ") == 1
    assert "run 1 of 1" in said
    assert changed.results["runs"] != first.results["runs"]
    without = made(**options)
    assert {row["lacking"] for row in without.claims if row["id"] in (1, 2) and row["model"] != "own"} == {"`--pairs`"}


@pytest.mark.slow
def test_a_model_is_compared_with_the_one_that_it_was_tuned_from(
    tmp_path: Path, corpus_file: Path, capsys: pytest.CaptureFixture[str], sentences: list[str]
) -> None:
    # The last two of three blocks read what the second one, whose queries were changed, makes of the text.
    before = masked_lm(tmp_path / "before", "bert", sentences)
    options: dict[str, Any] = {
        "model": tuned(before, other_queries),
        "corpus": corpus_file,
        "folder": tmp_path / "runs",
    }
    for made_or_read in ("run 1 of 1", ": read from "):
        found = made(**options, claims="4", untuned=str(before))
        assert made_or_read in capsys.readouterr().err
        (row,) = (row for row in found.claims if row["model"] != "own")
        assert row["met"] == "yes"
        assert row["measured"] > 0
        assert row["control"] > 0
    same = made(**{**options, "model": before}, claims="4", untuned=str(before))
    (row,) = (row for row in same.claims if row["model"] != "own")
    assert (row["measured"], row["met"]) == (0, "no")


def test_pairs_that_are_none_are_refused_before_anything_is_run(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("one sentence\n", encoding="utf-8")
    words = ["kovaleva2019", "--models", str(checkpoints["bert"]), "--corpus", str(corpus_file), "--pairs", str(pairs)]
    assert run(COMMANDS, ["reproduce", *words, "--runs", str(tmp_path / "runs")]) == 2
    assert f"`--pairs {pairs}`, line 1: expected two sentences" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
