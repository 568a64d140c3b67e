"""`reproduce` with claims on words at a mask and on disabled heads, of a model with its head and one without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from families import masked_lm
from probing import Result, reproduce

NO_WANDB: Any = {"mode": "disabled"}
PAIRS = "The [MASK] reads a layer.\tprobe\ttoken\taffirmative\nA probe reads the [MASK].\ttoken\tprobe\tnegated\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, sentences: list[str]) -> Path:
    return masked_lm(tmp_path_factory.mktemp("bertology") / "bert", "bert", sentences)


def made(model: str, corpus: Path, runs: Path, claims: str, **others: Any) -> Result:
    found = reproduce(
        "bertology", models=model, claims=claims, corpus=str(corpus), runs=str(runs), wandb=NO_WANDB, **others
    )
    assert found is not None
    return found


def of(found: Result, model: str) -> dict[int, dict[str, Any]]:
    return {row["id"]: row for row in found.claims if row["model"] == model}


def test_words_at_a_mask_are_measured_and_their_runs_are_taken_again(
    model: Path, corpus_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text(PAIRS, encoding="utf-8")
    options: dict[str, Any] = {"corpus": corpus_file, "runs": tmp_path / "runs", "claims": "6,11,26-28,35"}
    rows = of(made(str(model), **options, cloze=str(pairs)), str(model))
    assert {number for number, row in rows.items() if "measured" in row} == {6, 26, 27}
    assert {rows[26]["measured"], rows[27]["measured"]} <= {0, 1}
    assert rows[27]["control"] == rows[26]["measured"]
    assert rows[6]["low"] <= rows[6]["measured"] <= rows[6]["high"]
    assert rows[26]["command"] == f"python -m probing cloze --model {model} {pairs}"
    assert rows[6]["command"] == f"python -m probing cloze --model {model} --corpus {corpus_file}"
    assert rows[11]["lacking"] == "pairs of the group `agreement` in the file that `--cloze` names"
    assert rows[28]["lacking"].startswith("a treebank as `--corpus`")
    assert "LAMA" in rows[35]["lacking"]
    capsys.readouterr()
    again = of(made(str(model), **options, cloze=str(pairs)), str(model))
    assert capsys.readouterr().err.count(": read from ") == 2
    assert again == rows
    pairs.write_text(PAIRS.splitlines()[0], encoding="utf-8")
    changed = of(made(str(model), **options, cloze=str(pairs)), str(model))
    said = capsys.readouterr().err
    assert said.count(": read from ") == said.count("run 1 of 1") == 1
    assert "measured" not in changed[27]


@pytest.mark.slow
def test_heads_of_a_model_of_the_survey_are_judged_by_masked_words_and_of_others_by_positions(
    model: Path, corpus_file: Path, tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    own = of(made(f"bert-uncased={model}", corpus_file, tmp_path, "29,30"), "bert-uncased")
    assert own[29]["measure"] == "spare_heads_of_words"
    assert own[29]["verdict"] in ("confirmed", "not confirmed", "unclear")
    assert own[29]["command"].endswith("--kinds zero --retrain 0 --readouts mlm")
    other = of(made(str(checkpoints["bert"]), corpus_file, tmp_path, "29,30"), str(checkpoints["bert"]))
    assert other[29]["measure"] == "spare_heads_of_positions"
    for rows in (own, other):
        assert 0 <= rows[29]["low"] <= rows[29]["measured"] <= rows[29]["high"] <= 1
        assert "more text" in rows[30]["lacking"]  # a half of the test sentences has no interval


def test_what_a_model_or_a_text_does_not_have_is_said(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    bare = str(checkpoints["bert"])
    rows = of(made(bare, corpus_file, tmp_path, "6-9,14,16,24,26", quiet=True), bare)
    assert {row["verdict"] for row in rows.values()} == {"not testable here"}
    assert rows[24]["lacking"] == "`--sts`"
    for number in (6, 26):
        assert "masked-language-model head" in rows[number]["lacking"]
    for number in (7, 8, 9, 14, 16):
        assert rows[number]["lacking"].startswith("a treebank as `--corpus`")
