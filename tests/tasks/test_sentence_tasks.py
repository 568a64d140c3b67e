"""Tasks of whole sentences: one vector and one label for each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.builtin_tasks.sentence_label import SentenceLabel
from transformers import AutoModel, AutoTokenizer

from conftest import BARE
from probing import Run, SentenceTask, WandbOptions, compare, fit, rank
from probing.cache.tokens import Tokens
from probing.corpus import Corpus, load_corpus
from probing.corpus.splits import assign_splits
from probing.data.examples import Sides
from probing.data.labelling import choose_classes, label
from probing.errors import UserError
from probing.page.run import question
from probing.page.sources import source_of
from probing.rankings.methods import shuffled_among_types
from probing.runs.finished import probe_weight
from probing.tasks import labels_of, load_task
from synthetic import make_splits, make_store, make_tokens

NO_WANDB = WandbOptions(mode="disabled")
TOKENS = Tokens(np.array([4, 2], np.int32), np.arange(6, dtype=np.int32), np.array([-1, 0, 1, -1, -1, -1], np.int16))
CORPUS = Corpus("two.jsonl", ("two words", "\x01"), sentence_columns={"label": ("a", "b"), "score": (0.5, 1.0)})


class Long(SentenceTask):
    """Whether a sentence has more than 20 words."""

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[bool]:
        return [text.count(" ") > 20 for text in corpus.sentences]


class Two(SentenceTask):
    """The wrong number of labels."""

    def labels(self, tokens: Tokens, corpus: Corpus) -> Sequence[Any]:
        return ["a"] * tokens.n_tokens


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory, long_corpus_file: Path) -> Path:
    """A .jsonl file of sentences labelled by their number of words."""
    path = tmp_path_factory.mktemp("labelled") / "sentences.jsonl"
    texts = long_corpus_file.read_text(encoding="utf-8").splitlines()
    rows = [{"text": text, "label": "long" if text.count(" ") > 20 else "short", "n": 0.5} for text in texts]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def made(checkpoints: dict[str, Path], corpus: Path, runs: Path, **how: Any) -> Run:
    options: dict[str, Any] = {
        "model": str(checkpoints["bert"]), "corpus": str(corpus), "runs": str(runs), "task": "sentence_label",
        "layer": "0,2", "quiet": True, "wandb": NO_WANDB, **BARE,
    }  # fmt: skip
    run = fit(**{**options, **how})
    assert run is not None
    return run


# --- labels ---


def test_a_sentence_of_special_tokens_alone_is_no_example() -> None:
    assert labels_of(SentenceLabel(), TOKENS, CORPUS).tolist() == ["a", ""]
    assert labels_of(Long(), TOKENS, CORPUS).tolist() == ["False", ""]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (
            Two(),
            "the task Two: `labels` returned 6 labels for the 2 sentences of `two.jsonl`; return one ",
        ),
        (
            SentenceLabel(column="tone"),
            "`--corpus two.jsonl`: the task reads the column tone of its",
        ),
        (
            SentenceLabel(column="score"),
            "the column score has numbers with a fraction, such as 0.5",
        ),
    ],
)
def test_what_is_wrong_is_said(task: SentenceTask, message: str) -> None:
    with pytest.raises(UserError, match=message):
        labels_of(task, TOKENS, CORPUS)


def test_the_first_token_must_be_special_to_stand_for_the_sentence() -> None:
    plain = make_tokens([3, 4], special=False)
    assert labels_of(SentenceLabel(), plain, CORPUS).tolist() == ["a", "b"]
    with pytest.raises(UserError, match=r"`--task_args.pooling cls`: the model's tokenizer puts no special token"):
        labels_of(SentenceLabel(pooling="cls"), plain, CORPUS)
    with pytest.raises(UserError, match=r"`--task_args.pooling median`: expected mean, cls or max"):
        load_task("sentence_label", {"pooling": "median"})


# --- runs ---


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_the_probe_reads_the_pooled_vectors_of_the_plain_forward_pass(
    pooling: str, checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    run = made(checkpoints, labelled, tmp_path / "runs", task_args={"pooling": pooling})
    corpus = load_corpus(str(labelled))
    test = [i for i, side in enumerate(assign_splits(corpus.sentences, 0)) if side == "test"]
    model, tokenizer = (kind.from_pretrained(checkpoints["bert"]) for kind in (AutoModel, AutoTokenizer))
    right = np.zeros(2)
    for i in test:
        with torch.no_grad():
            states = model.eval()(**tokenizer(corpus.sentences[i], return_tensors="pt"), output_hidden_states=True)
        for at, layer in enumerate((0, 2)):
            own = states.hidden_states[layer][0]
            vector = {"mean": own[1:-1].mean(0), "max": own[1:-1].amax(0), "cls": own[0]}[pooling]
            predicted = run.results["classes"][int((probe_weight(run)[at] @ vector).argmax())]
            right[at] += predicted == corpus.sentence_columns["label"][i]
    assert [row["n_test_tokens"] for row in run.accuracy] == [len(test)] * 2
    # One sentence may be so near the boundary that the other order of sums changes its class.
    assert [row["accuracy"] for row in run.accuracy] == pytest.approx(right / len(test), abs=1.01 / len(test))
    if pooling == "mean":
        assert run.accuracy[1]["accuracy"] > run.accuracy[1]["majority_accuracy"]


def test_controls_that_make_sense_are_held_against_it(
    checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    how = {"layer": 2, "controls": "all", "evidence": "all", "replicates": 2}
    run = made(checkpoints, labelled, tmp_path / "runs", **how)
    (row,) = run.accuracy
    assert {"shuffled_accuracy", "token_accuracy", "untrained_accuracy"} <= set(row)
    assert not {"control_task_accuracy", "permuted_positions_accuracy", "within_one"} & set(row)
    assert row["accuracy"] > row["shuffled_accuracy"]
    assert run.results["pooling"] == "mean"
    assert {"rank_low", "eta_squared_z", "cross_entropy_without"} <= set(run.neurons[0])
    assert not run.positions
    assert "token" not in question(source_of(run).subjects[0])
    with pytest.raises(UserError, match="`--controls control_task`: it gives each word type a random label, and this"):
        made(checkpoints, labelled, tmp_path / "runs", controls="control_task")


def test_token_embeddings_are_averaged_where_the_first_token_stands_for_the_sentence(
    checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    rows = [
        made(
            checkpoints, labelled, tmp_path / "runs", name=pooling, layer=2, controls="token",
            task_args={"pooling": pooling},
        ).accuracy[0]
        for pooling in ("cls", "mean")
    ]  # fmt: skip
    assert rows[0]["token_accuracy"] == rows[1]["token_accuracy"] > rows[0]["majority_accuracy"]


class Tens(SentenceTask):
    """The tens of a sentence's number of words."""

    ordinal = True

    def labels(self, tokens: Tokens, corpus: Corpus) -> list[int]:
        return [text.count(" ") // 10 for text in corpus.sentences]


def test_numbers_have_their_distances_but_no_positions(
    checkpoints: dict[str, Path], labelled: Path, corpus_file: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.txt"
    few.write_text(
        "".join(f"{text} Indeed.\n" for text in corpus_file.read_text(encoding="utf-8").splitlines()[:40]),
        encoding="utf-8",
    )
    run = made(checkpoints, labelled, tmp_path / "runs", layer=2, task=Tens(), test_corpus=str(few))
    (row,) = run.accuracy
    assert run.results["classes"] == [0, 1, 2, 3]
    assert row["n_test_tokens"] + run.results["n_dropped_tokens"]["test"] == 40
    assert row["within_one"] >= row["accuracy"]
    assert not run.positions
    assert not (run.folder / "positions.csv").exists()


@pytest.mark.slow
def test_a_run_is_ranked_and_compared_as_others_are(
    checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    runs = [made(checkpoints, labelled, tmp_path / "runs", seed=seed, name=f"seed{seed}", layer=2) for seed in (0, 1)]
    ranked = rank(str(runs[0].folder), method="anova", evaluate=True, quiet=True, wandb=NO_WANDB)
    assert len(ranked.rankings["anova"]) == len(runs[0].neurons)
    compared = compare(
        [str(run.folder) for run in runs], null_draws=2, quiet=True, runs=str(tmp_path / "runs"), wandb=NO_WANDB
    )
    assert compared is not None


def test_an_own_task_of_sentences_gives_what_a_column_gives(
    checkpoints: dict[str, Path], labelled: Path, tmp_path: Path
) -> None:
    by_column = made(checkpoints, labelled, tmp_path / "runs", name="column")
    by_task = made(checkpoints, labelled, tmp_path / "runs", name="own", task=Long())
    assert by_task.results["classes"] == ["False", "True"]  # short and long, in the other order
    assert [row["accuracy"] for row in by_task.accuracy] == [row["accuracy"] for row in by_column.accuracy]
    pairs = zip(by_task.neurons, by_column.neurons, strict=True)
    assert all(a["contribution"] == pytest.approx(b["contribution"], rel=1e-3) for a, b in pairs)


def test_labels_of_a_null_ranking_change_sentences(tmp_path: Path) -> None:
    tokens = make_tokens([5] * 100)
    store = make_store(tmp_path / "store", [np.zeros((tokens.n_tokens, 4))], tokens)
    column = tuple("ab"[i % 2] for i in range(100))
    corpus, task = Corpus("planted", ("x",) * 100, sentence_columns={"label": column}), SentenceLabel(min_count=2)
    splits = make_splits(100)
    classes = choose_classes(tokens, corpus, task, splits)
    train, validation, test = (
        label(store, corpus, task, splits, classes, side) for side in ("train", "validation", "test")
    )
    (drawn,) = shuffled_among_types(Sides(train, validation, test, classes, ordinal=False), 1, 0)
    changed = (drawn.train.labels != train.labels)[train.labels >= 0]
    assert 0.3 < changed.mean() < 0.7
    assert ((drawn.train.labels >= 0) == (train.labels >= 0)).all()
