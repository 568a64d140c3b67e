"""`disable --readouts task=RUN` of a model that was tuned on pairs, against the plain model on the same pairs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conftest import make_sentences
from probing import Result, UserError, disable, finetune
from probing.downstream.labelled_pairs import pair_text, read_parts
from small_data import entailment_of, marked_pairs, sentence_pairs, write_sick

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]

OPTIONS: dict[str, Any] = {"quiet": True, "wandb": {"mode": "disabled"}}
TUNED: dict[str, Any] = {"seeds": 1, "orders": 1, "starts": "pretrained", "name": "tuned", **OPTIONS}
TUNING = {"learning_rate": 3e-3, "batch_tokens": 200}
CHECKPOINT = "checkpoints/pretrained-seed0-order0"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tuned-pairs")


@pytest.fixture(scope="module")
def sick(place: Path) -> Path:
    """SICK's training part, in which the sentences of half the pairs share a word."""
    write_sick(place / "sick", "train", pairs := marked_pairs(400), entailment_of(pairs))
    return place / "sick"


@pytest.fixture(scope="module")
def tuned(checkpoints: dict[str, Path], sick: Path, place: Path) -> Result:
    made = finetune(
        model=str(checkpoints["bert"]), pairs=str(sick), task_args={"column": "entailment"}, runs=str(place / "bert"),
        tuning={**TUNING, "epochs": 5}, **TUNED,
    )  # fmt: skip
    assert made is not None
    return made


@pytest.fixture(scope="module")
def found(tuned: Result, place: Path) -> Result:
    made = disable(readouts=f"task={tuned.folder}", kinds="zero", runs=str(place), name="found", **OPTIONS)
    assert made is not None
    return made


def plain_score(tuned: Result, sick: Path, without: tuple[int, int] | None = None) -> float:
    """Return the accuracy of the checkpoint by transformers alone, pair by pair, possibly without a block's head."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    folder = tuned.folder / CHECKPOINT
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    if without is not None:
        block, head = without
        dense = model.base_model.encoder.layer[block - 1].attention.output.dense
        d_head = dense.in_features // model.config.num_attention_heads
        with torch.no_grad():
            dense.weight[:, (head - 1) * d_head : head * d_head] = 0
    text = pair_text(str(sick), read_parts(str(sick), "--pairs", print), None, 0, "auto", print)
    corpus, sides = text.corpora[-1], text.splits[-1]
    right = []
    for (first, second), label, side in zip(
        corpus.pairs, corpus.sentence_columns["entailment"], sides, strict=True
    ):  # fmt: skip
        if side == "test":
            given = tokenizer(first, second, return_tensors="pt", return_token_type_ids=True)
            assert set(given["token_type_ids"].flatten().tolist()) == {0, 1}
            right.append(model.config.id2label[int(model.eval()(**given).logits.argmax())] == label)
    return float(np.mean(right))


def test_intact_it_has_the_score_of_its_run(tuned: Result, found: Result, sick: Path) -> None:
    (score,) = [row["score"] for row in tuned.tunings]
    assert {row["intact"] for row in found.disabled} == {score}
    assert score == plain_score(tuned, sick)
    assert found.results["tuned"]["score"] == score
    assert found.disabled[0]["n"] == tuned.results["n_examples"]["test"]


def test_without_a_head_it_has_the_score_of_the_plain_model_without_it(
    tuned: Result, found: Result, sick: Path
) -> None:
    rows = {row["unit"]: row for row in found.disabled if "-" in row["unit"]}
    assert len(rows) == 6
    for unit, row in rows.items():
        block, head = (int(number) for number in unit.split("-"))
        assert row["intact"] + row["effect"] == pytest.approx(plain_score(tuned, sick, (block, head))), unit
    assert len({row["effect"] for row in rows.values()}) > 1
    assert len(found.importance) == 6
    assert max(row["importance"] for row in found.importance) > 0


@pytest.mark.parametrize("family", ["roberta", "distilbert", "gpt2"])
def test_models_without_token_types_are_read_too(
    family: str, checkpoints: dict[str, Path], sick: Path, place: Path
) -> None:
    made = finetune(
        model=str(checkpoints[family]), pairs=str(sick), task_args={"column": "entailment"}, runs=str(place / family),
        tuning={**TUNING, "epochs": 1}, **TUNED,
    )  # fmt: skip
    lost = disable(readouts=f"task={made.folder}", units="layers", kinds="zero", layer=2, runs=str(place), **OPTIONS)
    assert {row["intact"] for row in lost.disabled} == {made.tunings[0]["score"]}


def test_published_parts_and_numbers_are_read_as_the_run_read_them(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """The relatedness of SICK, of which the training part and the trial part are given."""
    for part, n in (("train", 120), ("trial", 40)):
        write_sick(tmp_path / "sick", part, pairs := sentence_pairs(n, n), entailment_of(pairs))
    made = finetune(
        model=str(checkpoints["bert"]), pairs=str(tmp_path / "sick"), task_args={"column": "relatedness"},
        runs=str(tmp_path), tuning={**TUNING, "epochs": 2}, **TUNED,
    )  # fmt: skip
    lost = disable(readouts=f"task={made.folder}", units="layers", kinds="zero", layer=2, runs=str(tmp_path), **OPTIONS)
    assert {row["readout"] for row in lost.disabled} == {"tuned_r2"}
    assert lost.disabled[0]["intact"] == pytest.approx(made.tunings[0]["score"], abs=1e-6)


def test_moved_pairs_are_named_and_others_refused(tuned: Result, sick: Path, tmp_path: Path) -> None:
    usual: dict[str, Any] = {"units": "layers", "kinds": "zero", "layer": 2, "runs": str(tmp_path), **OPTIONS}
    moved = shutil.copytree(sick, tmp_path / "moved")
    lost = disable(readouts=f"task={tuned.folder}", corpus=str(moved), **usual)
    assert {row["intact"] for row in lost.disabled} == {tuned.tunings[0]["score"]}
    write_sick(tmp_path / "others", "train", pairs := marked_pairs(80), entailment_of(pairs))
    with pytest.raises(UserError, match="are others than those that the run read; give their folder or file with"):
        disable(readouts=f"task={tuned.folder}", corpus=str(tmp_path / "others"), **usual)
    single = tmp_path / "single.txt"
    single.write_text("\n".join(make_sentences(30)), encoding="utf-8")
    with pytest.raises(UserError, match="`--corpus "):
        disable(readouts=f"task={tuned.folder}", corpus=str(single), **usual)
