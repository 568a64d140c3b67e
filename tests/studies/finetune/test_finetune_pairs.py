"""`finetune` on pairs of sentences: their parts and sides, what is fed, and in which batches."""

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
import torch
from rich.console import Console

from probing import compare, finetune
from probing.__main__ import COMMANDS
from probing.activations import Request, tokens_of
from probing.cli.commandline import run
from probing.data.examples import read
from probing.data.labelling import IGNORED, is_target, label_sides
from probing.downstream import read_sts
from probing.downstream.labelled_pairs import PairText, groups_of, pair_text, read_parts, task_of
from probing.downstream.sentence_vectors import spearman
from probing.errors import UserError
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import word_table
from probing.runs import study_of
from probing.runs.loading import load_run
from probing.studies.finetune.training import Side, TokenTable, TuningData, epoch_of, labelled, static_pairs
from probing.text import compared
from probing.text.tokens import Tokens
from small_data import entailment_of, marked_pairs, sentence_pairs, word_pairs, write_benchmark, write_sick
from small_data import write_wic as written_wic
from typed import assert_same_files, processes_of

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_cut_pairs_are_said_and_counted(
    checkpoints: dict[str, Path], sick: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {**OPTIONS, "quiet": False, "runs": str(tmp_path), "tuning": {"epochs": 0}}
    found = finetune(model=str(checkpoints["bert"]), pairs=sick, task_args=ENTAILMENT, max_length=9, **options)
    assert found.results["n_truncated"] > 300
    assert f"{found.results['n_truncated']} pairs were longer than the model accepts" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"`max_length=4`: .* takes 5 to"):
        finetune(model=str(checkpoints["bert"]), pairs=sick, task_args=ENTAILMENT, max_length=4, **options)


@pytest.mark.slow
def test_the_results_of_pairs_are_read_again(made: Any) -> None:
    again = load_run(made.folder)
    assert [dict(row) for row in again.scores] == [dict(row) for row in made.scores]
    assert again.answer() == made.answer()
    assert again.conclusions() == made.conclusions()
    assert "and pairs)" in again.answer()[0]
    page = again.report().read_text(encoding="utf-8")
    assert "second sentence" in page
    assert "The second sentence alone is" in page


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, r"has several labels; give `task_args={.column.: .relatedness.}` or `task_args={.column.: .entailment.}`"),
        ({"task_args": {"column": "label"}}, r"has no label; give `task_args={.column.: .relatedness.}` or"),
        ({"task": "label", "task_args": {}}, r"`task=.label.` labels tokens, and `pairs` are labelled as a whole"),
        ({"task_args": {**ENTAILMENT, "pooling": "cls"}}, r"`task_args={.pooling.: .cls.}`"),
        ({"task_args": {**ENTAILMENT, "min_count": 10_000}}, r"`pairs`: \d+ training pairs leave 0 classes"),
        ({"task_args": ENTAILMENT, "corpus": "words.txt"}, r"`pairs=.*` and `corpus`: a model is tuned on"),
        ({"task_args": ENTAILMENT, "test_corpus": "words.txt"}, r"`pairs=.*` and `test_corpus`"),
        ({"pairs": None, "test_pairs": "SICK"}, r"`test_pairs=.SICK.`: there are no `pairs` to train on"),
        ({"pairs": "nowhere"}, r"`pairs=.nowhere.` cannot be read \(no such file .*STS-B.*WiC"),
    ],
)
def test_what_cannot_be_tuned_on_is_refused_and_leaves_nothing(
    options: dict[str, Any], words: str, checkpoints: dict[str, Path], sick: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        finetune(**{"model": str(checkpoints["bert"]), "pairs": sick, "runs": str(tmp_path), **OPTIONS, **options})
    assert not [path for path in tmp_path.iterdir() if path.name != "cache"]


def text_of(source: Path, other: Path | None = None, group_by: Any = "auto") -> tuple[PairText, list[str]]:
    said: list[str] = []
    tested = None if other is None else (str(other), read_parts(str(other), "--test_pairs", said.append))
    text = pair_text(str(source), read_parts(str(source), "--pairs", said.append), tested, 0, group_by, said.append)
    return text, said


def pairs_of(text: PairText, side: str) -> list[tuple[str, str]]:
    return [
        pair
        for corpus, splits in zip(text.corpora, text.splits, strict=True)
        for pair, own in zip(corpus.pairs, splits, strict=True)
        if own == side
    ]


def chained(n: int, length: int) -> list[tuple[str, str, float]]:
    """Return pairs in `n` groups of `length`, each of which shares a sentence with the next one of its group."""
    return [(f"Text {i} {j}.", f"text {i} {j + 1}", float(j)) for j in range(length) for i in range(n)]


def test_groups_are_linked_by_sentences_in_either_place_whatever_their_case() -> None:
    pairs = [("a b", "c"), ("d", "e"), ("C.", "f"), ("g", "A b!"), ("e", "e"), ("h", "i")]
    assert groups_of(pairs).tolist() == [0, 1, 0, 0, 1, 2]


def test_no_sentence_is_on_two_sides_of_a_split_by_seed(tmp_path: Path) -> None:
    write_sick(tmp_path, "train", pairs := chained(100, 4))
    text, said = text_of(tmp_path)
    (corpus,) = text.corpora
    assert sorted(corpus.pairs) == sorted((a, b) for a, b, _ in pairs)
    sentences = {
        side: {compared(one) for pair in pairs_of(text, side) for one in pair}
        for side in ("train", "validation", "test")
    }
    assert all(sentences.values())
    assert not sentences["train"] & sentences["test"]
    assert not sentences["train"] & sentences["validation"]
    assert text.n_sharing == 0
    assert said == [f"{tmp_path}: pairs that share a sentence are on the same side of the split (100 groups)"]
    score = {(a, b): score for a, b, score in pairs}
    assert [score[pair] for pair in corpus.pairs] == list(corpus.sentence_columns["relatedness"])
    again, _ = text_of(tmp_path)
    assert again.splits == text.splits


def test_pairs_divided_one_by_one_are_said_to_share_sentences(tmp_path: Path) -> None:
    write_sick(tmp_path, "train", chained(100, 4))
    text, said = text_of(tmp_path, group_by="sentence")
    known = {compared(one) for pair in pairs_of(text, "train") for one in pair}
    n = sum(any(compared(one) in known for one in pair) for pair in pairs_of(text, "test"))
    assert text.n_sharing == n > 10
    assert said[-1].startswith(f"{n} of {len(pairs_of(text, 'test'))} test pairs have a sentence that training pairs")
    assert said[-1].endswith("--group_by document keeps such pairs together")


def test_a_group_that_is_too_large_to_be_tested_on_is_trained_on(tmp_path: Path) -> None:
    large = [(f"hub {i}", "hub", 1.0) for i in range(150)]
    write_sick(tmp_path, "train", [*large, *chained(100, 2)])
    for seed in range(30):
        parts = read_parts(str(tmp_path), "--pairs", print)
        text = pair_text(str(tmp_path), parts, None, seed, "auto", print)
        assert {(a, b) for a, b, _ in large} <= {*pairs_of(text, "train")}


def test_pairs_that_are_all_linked_have_no_groups(tmp_path: Path) -> None:
    write_sick(tmp_path, "train", [(f"hub {i}", "hub", float(i % 5)) for i in range(150)])
    with pytest.raises(UserError, match=r"`--group_by document`: all pairs of .* are linked by sentences"):
        text_of(tmp_path, group_by="document")
    text, _ = text_of(tmp_path)
    assert text.n_sharing == len(pairs_of(text, "test")) > 5


def test_parts_of_a_data_set_are_its_sides_and_training_has_no_test_pair(tmp_path: Path) -> None:
    train, dev, test = (sentence_pairs(60, seed) for seed in range(3))
    (a, b, score), (c, d, other) = test[:2]
    write_benchmark(tmp_path, "train", [*train, (b, a, score), (c, d, other)])
    write_benchmark(tmp_path, "dev", dev)
    text, said = text_of(tmp_path)
    assert len(pairs_of(text, "validation")) < 20  # without a test part, dev is the test part
    assert {*pairs_of(text, "test")} == {(a, b) for a, b, _ in dev}
    assert any("trained on STS-B train, tested on STS-B dev" in line for line in said)
    write_benchmark(tmp_path, "test", test)
    text, said = text_of(tmp_path)
    for side, pairs in (("train", train), ("validation", dev), ("test", test)):
        assert sorted(pairs_of(text, side)) == sorted((a, b) for a, b, _ in pairs), side
    assert "2 pairs that are also in" in said[0]


def test_test_pairs_are_given_apart_and_all_parts_are_trained_on(tmp_path: Path) -> None:
    train, test = sentence_pairs(60, 0), sentence_pairs(30, 1)
    write_sick(tmp_path, "train", train)
    write_sick(tmp_path / "other", "test", test)
    text, _ = text_of(tmp_path / "SICK_train.txt", tmp_path / "other" / "SICK_test.txt")
    assert len(pairs_of(text, "test")) == 30
    assert len(pairs_of(text, "train")) + len(pairs_of(text, "validation")) == 60
    write_benchmark(tmp_path / "stsb", "test", test)
    sources = {
        "--pairs a": read_parts(str(tmp_path / "SICK_train.txt"), "--pairs", print),
        "--test_pairs b": read_parts(str(tmp_path / "stsb"), "--test_pairs", print),
    }
    with pytest.raises(UserError, match=r"`--test_pairs b` has no relatedness; give `--task_args.column similarity`"):
        task_of("sentence_label", {"column": "relatedness"}, sources)


def test_one_data_set_is_read_at_a_time(tmp_path: Path) -> None:
    write_sick(tmp_path / "a", "train", sentence_pairs(5, 0))
    write_benchmark(tmp_path / "b", "dev", sentence_pairs(5, 1))
    with pytest.raises(UserError, match=r"`--pairs .*` holds STS-B, SICK-R; give the folder or file of one of them"):
        read_parts(str(tmp_path), "--pairs", print)
    (tmp_path / "a" / "SICK_trial.txt").write_text("sentence_A\tsentence_B\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"`--pairs .*SICK_trial.txt`: its first line names no column relatedness"):
        read_parts(str(tmp_path / "a"), "--pairs", print)


def test_the_contexts_of_a_word_are_a_pair(tmp_path: Path) -> None:
    written_wic(tmp_path, "train", made := word_pairs(20, 0))
    (part,) = read_parts(str(tmp_path), "--pairs", print).values()
    assert list(part.pairs) == [(" ".join(a), " ".join(b)) for a, b, *_ in made]
    assert part.columns == {"same_sense": [same for *_, same in made]}
    task, options = task_of("sentence_label", None, {"--pairs x": {"train": part}})
    assert options == {"column": "same_sense"}
    assert not task.numbers  # type: ignore[attr-defined]


def test_baselines_read_the_means_of_both_sentences_and_their_differences(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    write_sick(tmp_path, "train", pairs := marked_pairs(60), entailment_of(pairs))
    text, _ = text_of(tmp_path)
    source = resolve_model(str(checkpoints["bert"]))
    tokenizer, encoder = load_tokenizer(source), load_encoder(source)
    tables = [TokenTable(tokens_of(Request(source, corpus, [0]), tokenizer)) for corpus in text.corpora]
    task, _ = task_of("sentence_label", {"column": "entailment"}, {"x": read_parts(str(tmp_path), "--pairs", print)})
    sides = label_sides(tables, text.corpora, text.splits, task)
    table: Any = word_table(encoder)

    def mean(sentence: str) -> torch.Tensor:
        return table.weight[tokenizer(sentence, add_special_tokens=False, return_tensors="pt")["input_ids"][0]].mean(0)

    for second_alone in (False, True):
        found = static_pairs(sides, encoder, second_alone)
        features = torch.cat([batch.hidden_states[0] for batch in read(found.train, [0])])
        trained = [(mean(a), mean(b)) for a, b in pairs_of(text, "train")]
        expected = [v if second_alone else torch.cat([u, v, (u - v).abs(), u * v]) for u, v in trained]
        torch.testing.assert_close(features, torch.stack(expected).detach())


@pytest.mark.parametrize("family", ["bert", "distilbert", "gpt2"])
def test_a_batch_has_both_sentences_and_their_types_where_the_model_takes_these(
    family: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    write_sick(tmp_path, "train", pairs := marked_pairs(200), entailment_of(pairs))
    text, _ = text_of(tmp_path)
    source = resolve_model(str(checkpoints[family]))
    parts = read_parts(str(tmp_path), "--pairs", print)
    task, _ = task_of("sentence_label", {"column": "entailment"}, {"x": parts})
    said: list[str] = []
    made = labelled(source, text.corpora, text.splits, task, "auto", None, said.append)
    assert any("puts no token between the two sentences" in line for line in said) is (family == "gpt2")
    assert made.are_pairs
    tokenizer = load_tokenizer(source)
    chosen = made.train.sentences[:5]
    batch = made.train.batch(chosen)
    for row, i in enumerate(chosen.tolist()):
        given = tokenizer(*text.corpora[0].pairs[i], return_token_type_ids=True)
        n = int(batch.inputs["attention_mask"][row].sum())
        assert batch.inputs["input_ids"][row, :n].tolist() == given["input_ids"]
        if family == "bert":
            assert batch.inputs["token_type_ids"][row, :n].tolist() == given["token_type_ids"]
            assert {0, 1} == {*given["token_type_ids"]}
    assert ("token_type_ids" in batch.inputs) is (family == "bert")
    assert np.isin(batch.targets.numpy(), [0, 1]).all()


LENGTHS = np.random.default_rng(0).integers(3, 40, 300).astype(np.int32)


@pytest.mark.parametrize("batch_tokens", [1, 64, 500, 10**6])
def test_an_epoch_has_each_sentence_once_within_the_limit(batch_tokens: int) -> None:
    batches = epoch_of(LENGTHS, batch_tokens, 0, 0)
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(len(LENGTHS)))
    for chosen in batches:
        assert len(chosen) == 1 or int(LENGTHS[chosen].max()) * len(chosen) <= batch_tokens


def test_the_order_depends_on_its_seed_and_the_epoch_alone() -> None:
    def flat(order: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_of(LENGTHS, 128, order, epoch)).tolist()

    torch.manual_seed(1)
    first = flat(0, 0)
    torch.manual_seed(2)
    assert flat(0, 0) == first
    assert flat(0, 1) != first
    assert flat(1, 0) != first


def side() -> Side:
    n = int(LENGTHS.sum())
    tokens = Tokens(LENGTHS, np.arange(n, dtype=np.int32), np.zeros(n, np.int16))
    targets = torch.arange(n).where(torch.arange(n) % 3 == 0, IGNORED)
    made = Side(tokens, None, targets, "tokens", {"input_ids": torch.arange(n)}, -1)  # type: ignore[arg-type]
    object.__setattr__(made, "sentences", np.arange(len(LENGTHS)))
    return made


@pytest.mark.parametrize(("n_ranks", "n_accumulated"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_processes_and_accumulated_parts_share_the_targets_of_each_step(n_ranks: int, n_accumulated: int) -> None:
    own = side()
    data = TuningData(own, 90, 2, 0, n_accumulated)
    assert data.ends == [len(data.steps) // 2, len(data.steps)] or data.ends[-1] == len(data.steps)
    parts = [list(data.batches(0, rank, n_ranks)) for rank in range(n_ranks)]
    assert {len(one) for one in parts} == {len(data.steps) * n_accumulated}
    for step, sentences in enumerate(data.steps):
        here = [batch for one in parts for batch in one[step * n_accumulated : (step + 1) * n_accumulated]]
        found = torch.cat([batch.targets[is_target(batch.targets)] for batch in here]).sort().values
        whole = own.batch(sentences)
        assert torch.equal(found, whole.targets[is_target(whole.targets)].sort().values)
        assert {batch.n for batch in here} == {len(found)}
    # A continued training begins with the step that was not made.
    (later,) = [next(iter(data.batches(5)))] if n_ranks == n_accumulated == 1 else [None]
    if later is not None:
        assert torch.equal(later.sentences, torch.from_numpy(data.steps[5]))
