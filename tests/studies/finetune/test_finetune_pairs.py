"""`finetune` on pairs of sentences: planted labels, what is fed, files of a run, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from probing import UserError, compare, finetune, load_run
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.downstream.sentence_vectors import spearman
from probing.downstream.sts_dataset import read_sts
from probing.runs.study import study_of
from small_data import entailment_of, marked_pairs, sentence_pairs, word_pairs, write_benchmark, write_sick
from small_data import write_wic as written_wic
from typed import assert_same_files, processes_of

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

FAST: dict[str, Any] = {"learning_rate": 1e-2, "epochs": 8, "batch_tokens": 400}
OPTIONS: dict[str, Any] = {
    "seeds": 1, "orders": 1, "starts": "pretrained", "quiet": True, "wandb": {"mode": "disabled"}
}  # fmt: skip
ENTAILMENT, RELATEDNESS = {"column": "entailment"}, {"column": "relatedness"}


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> str:
    """SICK's training part, in which the sentences of half the pairs share a word."""
    folder = tmp_path_factory.mktemp("planted")
    write_sick(folder, "train", pairs := marked_pairs(400), entailment_of(pairs))
    return str(folder)


@pytest.fixture(scope="module")
def made(one_block: Path, sick: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return finetune(
        model=str(one_block), pairs=sick, task_args=ENTAILMENT, runs=str(tmp_path_factory.mktemp("runs")),
        name="planted", tuning=FAST, **{**OPTIONS, "orders": 2},
    )  # fmt: skip


def test_a_word_that_both_sentences_have_is_learnt_and_is_not_in_the_second_alone(made: Any) -> None:
    assert [row["score"] for row in made.tunings] == [1.0, 1.0]
    assert [row["answer"] for row in made.scores] == ["pretrained", "majority", "bag", "second"]
    above = {row["against"]: row["low"] for row in made.differences if row["answer"] == "pretrained"}
    assert above["majority"] > 0.2
    assert above["second"] > 0.05
    by_answer = {row["answer"]: row for row in made.scores}
    assert by_answer["bag"]["score"] == 1.0  # |u - v| is 0 in the directions of the word
    assert 0.5 < by_answer["second"]["score"] < 0.9
    said = made.conclusions()
    assert any("is above the majority class" in line and "the second sentence alone" in line for line in said)
    assert any(line.startswith("The second sentence alone is") for line in said)


def test_shuffled_labels_of_pairs_stay_at_the_majority(one_block: Path, tmp_path: Path) -> None:
    pairs = marked_pairs(400)
    write_sick(tmp_path, "train", pairs, np.random.default_rng(0).permutation(entailment_of(pairs)).tolist())
    found = finetune(
        model=str(one_block), pairs=str(tmp_path), task_args=ENTAILMENT, runs=str(tmp_path / "runs"),
        tuning={**FAST, "epochs": 6}, **{**OPTIONS, "seeds": 3},
    )  # fmt: skip
    (row,) = [row for row in found.differences if (row["answer"], row["against"]) == ("pretrained", "majority")]
    assert row["low"] <= 0 <= row["high"]
    for tuned in found.tunings:
        assert tuned["score_low"] < 0.55


def test_the_score_of_a_pair_is_predicted_as_a_number(one_block: Path, sick: str, tmp_path: Path) -> None:
    found = finetune(
        model=str(one_block),
        pairs=sick,
        task_args=RELATEDNESS,
        runs=str(tmp_path),
        tuning={**FAST, "epochs": 5},
        **OPTIONS,
    )
    assert found.config["task_args"] == {"column": "relatedness", "numbers": True}
    (tuned,) = found.tunings
    assert tuned["score"] > 0.9
    # True numbers are two, so that ranks are right at most so far as ties allow.
    assert tuned["pearson"] > 0.95
    assert 0.8 < tuned["spearman"] <= 1
    by_answer = {row["answer"]: row for row in found.scores}
    assert by_answer["bag"]["pearson"] > 0.9 > by_answer["second"]["pearson"]
    assert "spearman" not in by_answer["mean"] or by_answer["mean"]["spearman"] is None
    assert "Spearman's correlation" in found.answer()[0]
    console = Console(width=80, file=(shown := StringIO()))
    for table in study_of("finetune").tables(found):
        console.print(table)
    assert "Spearman" in next(line for line in shown.getvalue().splitlines() if line.startswith(" answer"))


def test_a_checkpoint_reads_a_pair_as_two_segments(made: Any, sick: str) -> None:
    """Plain transformers, given both sentences, has the score that was noted."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from probing.downstream.labelled_pairs import pair_text, read_parts

    folder = made.folder / "checkpoints" / "pretrained-seed0-order1"
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    text = pair_text(sick, read_parts(sick, "--pairs", print), None, 0, "auto", print)
    ((corpus,), (splits,)) = text.corpora, text.splits
    right = []
    for pair, label, side in zip(corpus.pairs, corpus.sentence_columns["entailment"], splits, strict=True):
        if side == "test":
            given = tokenizer(*pair, return_tensors="pt", return_token_type_ids=True)
            assert set(given["token_type_ids"].flatten().tolist()) == {0, 1}
            logits = model.eval()(**given).logits
            right.append(model.config.id2label[int(logits.argmax())] == label)
    assert np.mean(right) == made.tunings[1]["score"]
    assert len(right) == made.results["n_examples"]["test"]


def test_the_correlations_are_those_of_the_models_answers(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """STS-B with parts of its own: dev is tested on, and plain transformers has the same ranks."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    for seed, part in enumerate(("train", "dev")):
        write_benchmark(tmp_path / "stsb", part, sentence_pairs(120, seed))
    found = finetune(
        model=str(checkpoints["bert"]), pairs=str(tmp_path / "stsb"), runs=str(tmp_path / "runs"),
        tuning={**FAST, "epochs": 2}, **OPTIONS,
    )  # fmt: skip
    assert found.config["task_args"] == {"column": "similarity", "numbers": True}
    assert found.results["n_examples"]["test"] == 120
    folder = found.folder / "checkpoints" / "pretrained-seed0-order0"
    model, tokenizer = AutoModelForSequenceClassification.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    dev = next(one for one in read_sts([str(tmp_path / "stsb")]) if one.part == "dev")
    texts = dev.corpus.sentences
    given = [tokenizer(texts[i], texts[j], return_tensors="pt", return_token_type_ids=True) for i, j in dev.sentences]
    answers = np.array([model.eval()(**one).logits.item() for one in given])
    assert found.tunings[0]["spearman"] == pytest.approx(spearman(answers, dev.gold), abs=1e-3)
    assert found.tunings[0]["pearson"] == pytest.approx(np.corrcoef(answers, dev.gold)[0, 1], abs=1e-4)


def test_senses_of_words_are_tuned_on_in_the_parts_of_the_data_set(
    checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written_wic(tmp_path / "wic", "train", word_pairs(200, 0))
    written_wic(tmp_path / "wic", "dev", word_pairs(60, 1))
    found = finetune(
        model=str(checkpoints["roberta"]), pairs=tmp_path / "wic", runs=str(tmp_path / "runs"),
        tuning={**FAST, "epochs": 1}, **{**OPTIONS, "quiet": False},
    )  # fmt: skip
    assert found.results["classes"] == ["False", "True"]
    assert found.config["task_args"] == {"column": "same_sense"}
    assert found.results["n_examples"]["test"] == 60
    assert found.results["intervals_over"] == {"unit": "pair", "n": 60}
    assert "trained on WiC train, tested on WiC dev" in capsys.readouterr().err


def test_cut_pairs_are_said_and_counted(
    checkpoints: dict[str, Path], sick: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**OPTIONS, "quiet": False, "runs": str(tmp_path), "tuning": {"epochs": 0}}
    found = finetune(model=str(checkpoints["bert"]), pairs=sick, task_args=ENTAILMENT, max_length=9, **options)
    assert found.results["n_truncated"] > 300
    assert f"{found.results['n_truncated']} pairs were longer than the model accepts" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"`--max_length 4`: .* takes 5 to"):
        finetune(model=str(checkpoints["bert"]), pairs=sick, task_args=ENTAILMENT, max_length=4, **options)


def test_the_results_of_pairs_are_read_again(made: Any) -> None:
    again = load_run(made.folder)
    assert [dict(row) for row in again.scores] == [dict(row) for row in made.scores]
    assert again.answer() == made.answer()
    assert again.conclusions() == made.conclusions()
    assert "and pairs)" in again.answer()[0]
    page = again.report().read_text(encoding="utf-8")
    assert "second sentence" in page
    assert "The second sentence alone is" in page


def test_two_recipes_on_pairs_are_compared(
    made: Any, one_block: Path, sick: str, tmp_path: Path
) -> None:  # fmt: skip
    bare = finetune(
        model=str(one_block), pairs=sick, task_args=ENTAILMENT, runs=str(tmp_path), name="bare",
        tuning={**FAST, "epochs": 0}, **{**OPTIONS, "orders": 2},
    )  # fmt: skip
    found = compare([made, bare], runs=str(tmp_path), quiet=True, wandb={"mode": "disabled"})
    (row,) = found.recipes
    assert (row["verdict"], row["score_a"], row["score_b"]) == ("a", 1.0, pytest.approx(bare.scores[0]["score"]))
    assert "over seeds, orders and test pairs" in found.answer()[0]
    assert {one["option"] for one in found.options} == {"tuning.epochs"}


def test_a_run_on_pairs_is_repeated_by_its_file(one_block: Path, sick: str, tmp_path: Path) -> None:
    model, tuning = str(one_block), {**FAST, "epochs": 1}
    options = {**OPTIONS, "orders": 2, "tuning": tuning}
    first = finetune(model=model, pairs=sick, task_args=ENTAILMENT, runs=str(tmp_path), name="first", **options)
    args = ["finetune", "--config", str(first.folder / "config.yaml"), "--runs", str(tmp_path), "--name", "again"]
    assert run(COMMANDS, args) == 0
    for name in ("scores.csv", "tunings.csv", "differences.csv"):
        assert (tmp_path / "again" / name).read_bytes() == (first.folder / name).read_bytes(), name
    assert_same_files(first.folder, tmp_path / "again")


def arguments(model: Path, sick: str, runs: Path, name: str, *more: str) -> list[str]:
    return [
        "finetune", "--model", str(model), "--pairs", sick, "--task_args.column", "entailment", "--runs", str(runs),
        "--name", name, "--seeds", "1", "--starts", "pretrained", "--wandb.mode", "disabled", "--quiet",
        "--trainer.accelerator", "cpu", *more,
    ]  # fmt: skip


def test_a_killed_run_on_pairs_goes_on_and_ends_in_the_same_bytes(one_block: Path, sick: str, tmp_path: Path) -> None:
    def args(place: str) -> list[str]:
        return arguments(
            one_block, sick, tmp_path / place, "killed", "--orders", "2", "--tuning.epochs", "2",
            "--tuning.save_every", "5", "--tuning.batch_tokens", "200",
        )  # fmt: skip

    assert run(COMMANDS, args("whole")) == 0
    assert processes_of(args("broken"), ("-order1.ckpt", True), {}) == [-signal.SIGKILL]
    assert list((tmp_path / "broken" / "killed.partial" / "state").glob("*-order1.ckpt"))
    assert run(COMMANDS, args("broken")) == 0
    assert_same_files(tmp_path / "whole" / "killed", tmp_path / "broken" / "killed")


@pytest.mark.several
def test_two_processes_share_the_pairs_of_each_batch(one_block: Path, sick: str, tmp_path: Path) -> None:
    more = [f"--tuning.{name}={value}" for name, value in FAST.items()]
    args = arguments(
        one_block, sick, tmp_path, "two", "--orders", "1", "--trainer.devices", "2", "--trainer.strategy=ddp",
        *more,
    )  # fmt: skip
    command = [sys.executable, "-m", "probing", *args]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = load_run(tmp_path / "two")
    assert found.tunings[0]["score"] > 0.9
    assert {row["answer"] for row in found.scores} == {"pretrained", "majority", "bag", "second"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"has several labels; give `--task_args.column relatedness` or `--task_args.column entailment`"),
        ({"task_args": {"column": "label"}}, r"has no label; give `--task_args.column relatedness` or"),
        ({"task": "label", "task_args": {}}, r"`--task label` labels tokens, and `--pairs` are labelled as a whole"),
        ({"task_args": {**ENTAILMENT, "pooling": "cls"}}, r"`--task_args.pooling cls`"),
        ({"task_args": {**ENTAILMENT, "min_count": 10_000}}, r"`--pairs`: \d+ training pairs leave 0 classes"),
        ({"task_args": ENTAILMENT, "corpus": "words.txt"}, r"`--pairs .*` and `--corpus`: a model is tuned on"),
        ({"task_args": ENTAILMENT, "test_corpus": "words.txt"}, r"`--pairs .*` and `--test_corpus`"),
        ({"pairs": None, "test_pairs": "SICK"}, r"`--test_pairs SICK`: there are no --pairs to train on"),
        ({"pairs": "nowhere"}, r"`--pairs nowhere` cannot be read \(no such file .*STS-B.*WiC"),
    ],
)
def test_what_cannot_be_tuned_on_is_refused_and_leaves_nothing(
    options: dict[str, Any], words: str, checkpoints: dict[str, Path], sick: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        finetune(**{"model": str(checkpoints["bert"]), "pairs": sick, "runs": str(tmp_path), **OPTIONS, **options})
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]
