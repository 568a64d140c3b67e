"""Tasks that read a column of the corpus, and words of several pieces."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.builtin_tasks.column import Column
from probing.builtin_tasks.deprel import DependencyRelation
from probing.builtin_tasks.label import Label
from probing.builtin_tasks.upos import UniversalPartOfSpeech
from probing.builtin_tasks.xpos import FineGrainedTag
from safetensors import safe_open
from transformers import AutoModel, AutoTokenizer

from conftest import BARE
from probing import Run, WandbOptions, fit
from probing.cache.tokens import Tokens
from probing.corpus import Corpus, from_words, load_corpus
from probing.data.examples import Examples, read
from probing.data.labelling import choose_classes, label
from probing.errors import UserError
from probing.tasks import load_task
from synthetic import make_store

NO_WANDB = WandbOptions(mode="disabled")
# Labels of words need a weaker penalty than positions to be told apart.
WEAKLY = {**BARE, "probe": {"l2": 1e-4}}

# "un|like|ly dogs" and "he barks" with [CLS] and [SEP], the second without its last word.
WORDS = [-1, 0, 0, 0, 1, -1, -1, 0, -1]
TOKENS = Tokens(np.array([6, 3], np.int32), np.arange(9, dtype=np.int32), np.array(WORDS, np.int16))
CORPUS = from_words(
    "bank.conllu",
    [("unlikely", "dogs"), ("he", "barks")],
    {"upos": [("ADJ", "NOUN"), ("PRON", "VERB")], "feats": [("_", "Number=Plur"), ("_", "_")]},
)


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ("first", ["", "ADJ", "", "", "NOUN", "", "", "PRON", ""]),
        ("last", ["", "", "", "ADJ", "NOUN", "", "", "PRON", ""]),
        ("mean", ["", "ADJ", "", "", "NOUN", "", "", "PRON", ""]),
    ],
)
def test_a_word_has_its_label_at_one_piece(pieces: Any, expected: list[str]) -> None:
    assert UniversalPartOfSpeech(pieces=pieces).labels(TOKENS, CORPUS).tolist() == expected
    assert UniversalPartOfSpeech(pieces=pieces).word_means == (pieces == "mean")


def test_what_is_unspecified_is_no_label() -> None:
    assert Column(column="feats").labels(TOKENS, CORPUS).tolist() == [""] * 4 + ["Number=Plur"] + [""] * 4


def test_a_column_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(
        UserError, match=r"`--corpus bank.conllu`: .* column xpos and the corpus has upos, feats; give `--task upos`"
    ):
        FineGrainedTag().labels(TOKENS, CORPUS)
    for column, task in {"label": "label", "tone": "column --task_args.column tone"}.items():
        words = Corpus("words.tsv", CORPUS.sentences, words=CORPUS.words, columns={column: CORPUS.columns["upos"]})
        with pytest.raises(
            UserError, match=f"the corpus has {column}; for the labels of {column}, give `--task {task}`"
        ):
            UniversalPartOfSpeech().labels(TOKENS, words)
    with pytest.raises(UserError, match=r"`--corpus plain`: .* column deprel and the corpus has none; give a .conllu"):
        DependencyRelation().labels(TOKENS, Corpus("plain", ("unlikely dogs", "he barks")))
    with pytest.raises(UserError, match=r"`--task column` needs the column's name"):
        load_task("column", {})


@pytest.mark.parametrize(
    ("name", "task"),
    [("upos", UniversalPartOfSpeech), ("xpos", FineGrainedTag), ("deprel", DependencyRelation), ("label", Label)],
)
def test_each_is_installed_under_its_name(name: str, task: type) -> None:
    assert load_task(name, {"pieces": "mean", "min_count": 3}) == task(min_count=3, pieces="mean")
    assert load_task("column", {"column": name}).labels.__func__ is task.labels  # type: ignore[attr-defined]


# --- means over pieces ---


def test_means_over_pieces_equal_a_loop_over_words(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(4, 12, 40)
    words = np.concatenate([[-1, *np.sort(generator.integers(0, 4, n - 2)), -1] for n in lengths]).astype(np.int16)
    tokens = Tokens(lengths.astype(np.int32), np.zeros(len(words), np.int32), words)
    states = generator.standard_normal((len(words), 3)).astype(np.float32)
    store = make_store(tmp_path, [states], tokens, shard_tokens=60)
    assert len(store.plan.shards) > 3
    labels = np.where(tokens.first_pieces & (tokens.sentences % 3 == 0), words, -1)
    found = {}
    for batch in read(Examples(store, labels.astype(np.int64), word_means=True), [0]):
        for state, of_word, row in zip(batch.hidden_states[0], batch.labels, batch.rows.tolist(), strict=True):
            if of_word >= 0:
                assert of_word == labels[row]
                found[int(tokens.sentences[row]), int(words[row])] = state.numpy()
    assert len(found) == (labels >= 0).sum() > 20
    for (sentence, word), mean in found.items():
        pieces = (tokens.sentences == sentence) & (words == word)
        np.testing.assert_allclose(mean, states[pieces].mean(0), rtol=1e-5, atol=1e-6)


# --- the whole path ---


def kind(word: str) -> str:
    """A label that depends on the word alone: its length, in classes; none for the longest."""
    return "short" if len(word) < 5 else "middle" if len(word) < 7 else "long" if len(word) < 15 else "_"


@pytest.fixture(scope="module")
def bank(sentences: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bank") / "words.tsv"
    rows = [re.findall(r"\w+|[.,?!]", text) for text in sentences]
    path.write_text("\n".join("".join(f"{word}\t{kind(word)}\n" for word in words) for words in rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("pieces", ["first", "last", "mean"])
def test_words_are_probed_as_the_plain_forward_pass_has_them(
    pieces: str, bank: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    made = fit(
        model=str(checkpoints["bert"]), corpus=str(bank), task="label", task_args={"pieces": pieces}, layer=2,
        runs=str(tmp_path), name="words", quiet=True, wandb=NO_WANDB, **WEAKLY,
    )  # fmt: skip
    assert isinstance(made, Run)
    assert made.results["classes"] == ["long", "middle", "short"]
    assert "within_one" not in made.accuracy[0]
    assert made.accuracy[0]["accuracy"] > made.accuracy[0]["majority_accuracy"]
    with safe_open(made.folder / "probe.safetensors", "pt") as file:
        weight = file.get_tensor("weight")[0]
        assert file.metadata()["classes"] == '["long", "middle", "short"]'
    right, n_words = _correct_words(checkpoints["bert"], bank, weight, pieces)
    assert n_words == made.accuracy[0]["n_test_tokens"]
    assert right / n_words == pytest.approx(made.accuracy[0]["accuracy"], abs=1.01 / n_words)


def _correct_words(checkpoint: Path, bank: Path, weight: torch.Tensor, pieces: str) -> tuple[int, int]:
    """Predict the test words sentence by sentence, pooled word by word."""
    from probing.corpus.splits import assign_splits

    tokenizer, model = AutoTokenizer.from_pretrained(checkpoint), AutoModel.from_pretrained(checkpoint).eval()
    corpus, right, n_words = load_corpus(str(bank)), 0, 0
    assert corpus.words is not None
    for words, labels, side in zip(
        corpus.words, corpus.columns["label"], assign_splits(corpus.sentences, 0), strict=True
    ):
        if side != "test":
            continue
        inputs = tokenizer(list(words), is_split_into_words=True, return_tensors="pt")
        with torch.inference_mode():
            states = model(**inputs, output_hidden_states=True).hidden_states[2][0]
        ids = inputs.word_ids()
        for i, of_word in enumerate(labels):
            at = [place for place, word in enumerate(ids) if word == i]
            if of_word != "_" and at:
                chosen = {"first": states[at[0]], "last": states[at[-1]], "mean": states[at].mean(0)}[pieces]
                right += ["long", "middle", "short"][int((weight @ chosen).argmax())] == of_word
                n_words += 1
    return right, n_words


def test_labels_of_the_test_corpus_that_are_no_class_are_left_out(
    bank: Path, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = tmp_path / "test.tsv"
    test.write_text(
        "the\tshort\nlayer\tmiddle\nreads\tunheard-of\n\nuntranslatable\tlong\nthat\tunheard-of\n", encoding="utf-8"
    )
    made = fit(
        model=str(checkpoints["bert"]), corpus=str(bank), test_corpus=str(test), task="label", layer=1,
        runs=str(tmp_path), name="words", wandb=NO_WANDB, **BARE,
    )  # fmt: skip
    assert made is not None
    assert made.accuracy[0]["n_test_tokens"] == 3
    said = "tokens are left out, 2 of the 5 in test: their labels (unheard-of) do not occur in training"
    assert said in capsys.readouterr().err


def test_the_classes_of_labels_do_not_depend_on_their_order(bank: Path, tmp_path: Path) -> None:
    corpus = load_corpus(str(bank))
    tokens = Tokens(
        np.array([len(words) for words in corpus.words or ()], np.int32),
        np.zeros(sum(map(len, corpus.words or ())), np.int32),
        np.concatenate([np.arange(len(words)) for words in corpus.words or ()]).astype(np.int16),
    )
    store = make_store(tmp_path, [np.ones((tokens.n_tokens, 2))], tokens, shard_tokens=1000)
    task = load_task("label", {})
    classes = choose_classes(tokens, corpus, task, ["train"] * tokens.n_sentences)
    assert classes.tolist() == ["long", "middle", "short"]
    examples = label(store, corpus, task, ["train"] * tokens.n_sentences, classes, "train")
    flat = [value for row in corpus.columns["label"] for value in row]
    assert [classes[i] if i >= 0 else "_" for i in examples.labels] == flat


# --- files of words and labels ---


def test_a_file_of_words_and_labels_is_a_corpus(tmp_path: Path) -> None:
    path = tmp_path / "words.tsv"
    path.write_text("The\tDT\ndog\tNN\n\n\n# \tsign \nNew York\tNNP\r\n\nThe\tXX\ndog\tXX\n", encoding="utf-8")
    corpus = load_corpus(str(path))
    assert corpus.words == (("The", "dog"), ("#", "New York"))
    assert corpus.columns["label"] == (("DT", "NN"), ("sign", "NNP"))
    assert corpus.n_repeated == 1


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("dog", "has 1 column (found 'dog'), where 2, as in most lines, were expected"),
        ("dog\tNN\tNP", "has 3 columns (found 'dog NN NP'), where 2,"),
        ("dog NN", "has 1 column (found 'dog NN'), where 2,"),
        ("\tNN", "has no word in column 1"),
    ],
)
def test_lines_that_are_not_a_word_and_a_label_are_named(tmp_path: Path, line: str, found: str) -> None:
    path = tmp_path / "words.tsv"
    path.write_text(f"The\tDT\n{line}\n", encoding="utf-8")
    with pytest.raises(UserError, match=rf"words.tsv`: line 2 {re.escape(found)}"):
        load_corpus(str(path))
