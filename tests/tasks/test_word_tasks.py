"""Tasks of words: positions, columns of the corpus, and labels that are numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.builtin_tasks.column import (
    ColumnTask,
    DependencyRelation,
    FineGrainedTag,
    Label,
    SentenceLabel,
    UniversalPartOfSpeech,
)
from probing.builtin_tasks.position import Position, PositionFromEnd, PositionInWord
from safetensors import safe_open
from transformers import AutoModel, AutoTokenizer

from conftest import BARE
from probing import Run, SentenceTask, Task, WandbOptions, compare, fit, rank, sweep
from probing.__main__ import COMMANDS
from probing.cli.commandline import run as main_run
from probing.data.examples import Examples, read
from probing.data.labelling import choose_classes, label
from probing.errors import UserError
from probing.text import Corpus, from_words, load_corpus
from probing.text.tasks import Covariate, labels_of, load_task
from probing.text.tokens import Tokens
from synthetic import CORPUS, make_store, make_tokens

NO_WANDB = WandbOptions(mode="disabled")
# Labels of words need a weaker penalty than positions to be told apart.
WEAKLY = {**BARE, "probe": {"l2": 1e-4}}

# "un|like|ly dogs" and "he barks" with [CLS] and [SEP], the second without its last word.
WORDS = [-1, 0, 0, 0, 1, -1, -1, 0, -1]
TOKENS = Tokens(np.array([6, 3], np.int32), np.arange(9, dtype=np.int32), np.array(WORDS, np.int16))
COLUMN_CORPUS = from_words(
    "bank.conllu",
    [("unlikely", "dogs"), ("he", "barks")],
    {
        "upos": [("ADJ", "NOUN"), ("PRON", "VERB")],
        "feats": [("_", "Number=Plur|Gloss=a"), ("_", "_")],
        "misc": [("SpaceAfter=No|NER=B", "NER=O"), ("Gloss=b|plain", "_")],
    },
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
    assert UniversalPartOfSpeech(pieces=pieces).labels(TOKENS, COLUMN_CORPUS).tolist() == expected
    assert UniversalPartOfSpeech(pieces=pieces).word_means == (pieces == "mean")


def test_what_is_unspecified_is_no_label() -> None:
    expected = [""] * 4 + ["Number=Plur|Gloss=a"] + [""] * 4
    assert ColumnTask(column="feats").labels(TOKENS, COLUMN_CORPUS).tolist() == expected


def test_a_key_of_feats_or_misc_is_read_as_a_column() -> None:
    for key, expected in {"NER": ["", "B", "", "", "O"], "Number": ["", "", "", "", "Plur"]}.items():
        assert ColumnTask(column=key).labels(TOKENS, COLUMN_CORPUS).tolist() == expected + [""] * 4
    assert Covariate("NER").task_in(COLUMN_CORPUS, UniversalPartOfSpeech()) == ColumnTask(column="NER")
    for column, message in {
        "misc": r"the column misc has several values in a cell, such as `SpaceAfter=No\|NER=B`; .*_args.column NER`",
        "Gloss": "has the key Gloss in feats and misc; rename it",
        "ner": r"misc \(with the keys NER, SpaceAfter, Gloss\) \(did you mean `NER`\?\); give `--task upos`, or a key",
    }.items():
        with pytest.raises(UserError, match=message):
            ColumnTask(column=column).labels(TOKENS, COLUMN_CORPUS)


def test_a_column_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(
        UserError,
        match=r"`--corpus bank.conllu`: .* column xpos and the corpus has upos, feats .*; give `--task upos`",
    ):
        FineGrainedTag().labels(TOKENS, COLUMN_CORPUS)
    for column, task in {"label": "label", "tone": "column --task_args.column tone"}.items():
        words = Corpus(
            "words.tsv",
            COLUMN_CORPUS.sentences,
            words=COLUMN_CORPUS.words,
            columns={column: COLUMN_CORPUS.columns["upos"]},
        )
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


@pytest.mark.slow
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
    from probing.text import assign_splits

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


def test_positions_count_from_zero_with_special_tokens_counted_but_left_out() -> None:
    tokens = make_tokens([4, 3, 5])
    assert Position().labels(tokens, CORPUS).tolist() == [-1, 1, 2, -1, -1, 1, -1, -1, 1, 2, 3, -1]


def test_special_tokens_are_examples_where_included() -> None:
    tokens = make_tokens([4, 3])
    assert Position(special_tokens="include").labels(tokens, CORPUS).tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_without_special_tokens_the_first_word_is_at_zero() -> None:
    assert Position().labels(make_tokens([3, 2], special=False), CORPUS).tolist() == [0, 1, 2, 0, 1]


def test_tokens_that_are_set_aside_have_no_label_whatever_a_task_says_of_special_ones() -> None:
    for special in (True, False):
        tokens = make_tokens([4, 3], special=special).without_first()
        labels = labels_of(Position(special_tokens="include"), tokens, CORPUS)
        assert labels.tolist() == [-1, 1, 2, 3, -1, 1, 2]


def test_asking_for_labels_leaves_the_table_as_it_was() -> None:
    tokens = make_tokens([4, 3])
    Position().labels(tokens, CORPUS)[:] = 99
    Position(special_tokens="include").labels(tokens, CORPUS)[:] = 99
    assert tokens.positions.tolist() == [0, 1, 2, 3, 0, 1, 2]


@pytest.mark.parametrize(
    ("n_sentences", "expected"), [(0, 5), (100, 5), (119, 5), (120, 6), (500, 25), (1000, 50), (1_000_000, 50)]
)
def test_a_class_needs_50_examples_or_a_twentieth_of_the_sentences_but_never_under_5(
    n_sentences: int, expected: int
) -> None:
    assert Position().threshold(n_sentences) == expected


def test_a_bar_that_is_set_is_the_bar() -> None:
    assert Position(min_count=3).threshold(1_000_000) == 3


def test_positions_with_enough_examples_are_classes_in_ascending_order() -> None:
    labels = np.repeat([7, 2, 4, -1], [6, 5, 4, 90])
    assert Position().classes(labels, 100).tolist() == [2, 7]
    assert Position(min_count=4).classes(labels, 100).tolist() == [2, 4, 7]
    assert Position(min_count=4, max_position=4).classes(labels, 100).tolist() == [2, 4]


def test_no_examples_give_no_classes() -> None:
    assert Position().classes(np.array([-1, -1]), 10).tolist() == []


def test_the_task_is_installed_under_its_name() -> None:
    assert load_task("position", {"max_position": 9}) == Position(max_position=9)


# --- its kin ---


def test_from_the_end_the_last_token_is_at_zero() -> None:
    tokens = make_tokens([4, 3, 5])
    assert PositionFromEnd().labels(tokens, CORPUS).tolist() == [-1, 2, 1, -1, -1, 1, -1, -1, 3, 2, 1, -1]
    everything = PositionFromEnd(special_tokens="include").labels(tokens, CORPUS)
    assert everything.tolist() == [3, 2, 1, 0, 2, 1, 0, 4, 3, 2, 1, 0]


def test_from_both_ends_the_distances_make_up_the_sentence() -> None:
    tokens = make_tokens([7, 2, 9, 5])
    both = sum(task(special_tokens="include").labels(tokens, CORPUS) for task in (Position, PositionFromEnd))
    assert (both == np.repeat(tokens.lengths - 1, tokens.lengths)).all()


def test_pieces_are_counted_within_their_word() -> None:
    lengths, words = [7, 4, 3], [-1, 0, 0, 0, 1, 2, -1, -1, 0, 0, -1, 0, 0, 1]
    tokens = Tokens(np.array(lengths, np.int32), np.arange(14, dtype=np.int32), np.array(words, np.int16))
    # The last sentence has no special tokens, and begins with a word of the number that the one before ended with.
    assert PositionInWord().labels(tokens, CORPUS).tolist() == [-1, 0, 1, 2, 0, 0, -1, -1, 0, 1, -1, 0, 1, 0]


@pytest.mark.parametrize(
    ("name", "task"),
    [("position_from_end", PositionFromEnd(max_position=9)), ("position_in_word", PositionInWord(None, 9))],
)
def test_its_kin_are_installed_under_their_names(name: str, task: Position) -> None:
    assert load_task(name, {"max_position": 9}) == task


NUMBER_TOKENS = make_tokens([3, 4])
NUMBER_CORPUS = Corpus(
    "two.jsonl", ("a b", "c d"), sentence_columns={"score": (0.5, None), "tone": ("1e3", "warm")},
    words=(("a", "b"), ("c", "d")), columns={"reading": (("1.5", "_"), ("nan", "2"))},
)  # fmt: skip


class Length(SentenceTask):
    """The number of characters of a sentence."""

    numbers = True

    def labels(self, tokens: Tokens, corpus: Corpus) -> Sequence[Any]:
        return [len(text) for text in corpus.sentences]


@dataclass(frozen=True)
class Depth(Task):
    """The log of a token's place in its sentence, counted from 1; special tokens have none."""

    numbers = True

    def labels(self, tokens: Tokens, corpus: Corpus) -> Sequence[Any]:
        return [None if special else float(np.log1p(p)) for special, p in zip(tokens.special, tokens.positions)]  # noqa: B905


class Given(SentenceTask):
    """Returns what it is given."""

    numbers = True
    given: Any = None

    def labels(self, tokens: Tokens, corpus: Corpus) -> Any:
        return self.given


def of(values: Any, **more: Any) -> Given:
    task = Given()
    for name, value in {"given": values, **more}.items():
        object.__setattr__(task, name, value)
    return task


# --- labels ---


def test_numbers_are_taken_in_every_form_and_none_is_the_absence_of_one() -> None:
    for values in ([1, 2.5], (1.0, 2.5), np.array([1, 2.5], np.float32), [np.float32(1), np.float64(2.5)]):
        np.testing.assert_array_equal(labels_of(of(values), NUMBER_TOKENS, NUMBER_CORPUS), [1, 2.5])
    for given in ([None, -3], [float("nan"), -3], np.array([np.inf, -3]), np.ma.array([9, -3], mask=[True, False])):
        np.testing.assert_array_equal(labels_of(of(given), NUMBER_TOKENS, NUMBER_CORPUS), [np.nan, -3])
    np.testing.assert_array_equal(
        labels_of(SentenceLabel(column="score", numbers=True), NUMBER_TOKENS, NUMBER_CORPUS), [0.5, np.nan]
    )


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (of(["1", "2"]), "returned '1' of the type str for sentence 0, counted from 0, and `numbers` says"),
        (of([True, False]), "returned True of the type bool"),
        (of(None), "`labels` returned nothing; return a list or an array with one finite number"),
        (of(np.ones((2, 1))), r"an array of shape \(2, 1\)"),
        (of([1.0]), "`labels` returned 1 labels for the 2 sentences of `two.jsonl`; return one finite number"),
        (of([1.0, 2.0], ordinal=True), "has `numbers = True` and `ordinal = True`"),
        (of(np.array([0.5, 1]), numbers=False), "numbers with a fraction, such as 0.5; .* or set `numbers = True`"),
        (SentenceLabel(column="tone", numbers=True), "the column tone of `two.jsonl` has 'warm', which is no number"),
        (SentenceLabel(column="score"), "has numbers with a fraction, .* or `--task_args.numbers true` to have"),
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused(task: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        labels_of(task, NUMBER_TOKENS, NUMBER_CORPUS)


def test_a_least_size_of_classes_does_not_apply() -> None:
    with pytest.raises(UserError, match=r"`--task_args\.min_count`: the task predicts numbers, which form no classes"):
        Length(min_count=5)


# --- runs ---


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory, long_corpus_file: Path) -> Path:
    """A .jsonl file of sentences with their number of words as score, null for the first."""
    path = tmp_path_factory.mktemp("scored") / "sentences.jsonl"
    texts = long_corpus_file.read_text(encoding="utf-8").splitlines()
    rows = [{"text": text, "label": text.count(" ") / 2 if i else None} for i, text in enumerate(texts)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def made(checkpoints: dict[str, Path], corpus: Path, runs: Path, **how: Any) -> Run:
    options: dict[str, Any] = {
        "model": str(checkpoints["bert"]), "corpus": str(corpus), "runs": str(runs), "layer": "0,2", "quiet": True,
        "replicates": 0, "controls": "none", "evidence": "none", "wandb": NO_WANDB,
    }  # fmt: skip
    return fit(**{**options, **how})


@pytest.fixture(scope="module")
def run(checkpoints: dict[str, Path], scored: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with controls and evidence."""
    return made(
        checkpoints, scored, tmp_path_factory.mktemp("runs"), task="sentence_label", task_args={"numbers": True},
        controls="all", evidence="all", replicates=2,
    )  # fmt: skip


def test_sentences_with_numbers_have_r_squared_controls_and_evidence(run: Run) -> None:
    row = run.accuracy[-1]
    assert row["r2"] > max(row["shuffled_r2"], 0.1)
    assert {"token_r2", "untrained_r2", "above_token_low", "bootstrap_overlap", "more_penalty_overlap"} <= set(row)
    assert not {"accuracy", "control_task_r2", "n_classes", "cross_entropy", "macro_accuracy"} & set(row)
    assert {"correlation", "r2_without", "rank_low", "unique", "eta_squared_q"} <= set(run.neurons[0])
    assert "cross_entropy_without" not in run.neurons[0]
    assert run.results["pooling"] == "mean"
    assert run.results["classes"] == []
    assert run.results["penalty"]["l2"] in run.results["penalty"]["tried"]
    assert run.weight.shape == (2, 1, len(run.neurons) // 2)
    assert run.config["task_args"] == {"numbers": True}


def test_its_page_speaks_of_numbers(run: Run) -> None:
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "R² by layer" in page
    assert "to predict a number from" in page
    assert "contribution to the predicted number" in page.lower()
    assert "R² is " in page


def test_the_terminal_shows_r_squared(
    checkpoints: dict[str, Path], scored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["fit", "--model", str(checkpoints["bert"]), "--corpus", str(scored), "--runs", str(tmp_path), "--layer=2"]
    given += ["--task=sentence_label", "--task_args.numbers=true", "--replicates=0", "--wandb.mode=disabled"]
    assert main_run(COMMANDS, [*given, "--controls=shuffled", "--task_args.pooling=max", "--verbose"]) == 0
    shown = capsys.readouterr().out
    for words in ("Test R² by layer", "Controls: test R²", "contribution to the predicted number", "highest mean R²"):
        assert words in shown
    assert main_run(COMMANDS, [*given, "--quiet", "--controls=none", "--evidence=none"]) == 0
    assert "layer 2: R² " in capsys.readouterr().out


@pytest.mark.slow
def test_tokens_may_have_numbers_too(checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path) -> None:
    run = made(checkpoints, corpus_file, tmp_path, task=Depth(), controls="shuffled", name="depth")
    first, last = run.accuracy
    # Embeddings tell the place, but when numbers are shuffled within sentences, those of a sentence alone are told.
    assert first["r2"] > 0.1
    assert first["above_shuffled_low"] > 0
    assert first["shuffled_r2"] < 0.1
    assert first["n_test_tokens"] > run.results["n_sentences"]["test"]
    assert last["relative_gradient"] < 1e-9
    again = made(checkpoints, corpus_file, tmp_path, task=Depth(), transform="standardise", layer=2, site="mlp")
    assert "untransformed_r2" in again.accuracy[0]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"controls": "control_task", "task": Depth()},
            "`controls=.control_task.`: it gives each word type a random class, and this",
        ),
        ({"mdl": True}, "`mdl` does not apply: the task predicts numbers"),
        ({"probe": {"solver": "adam", "l1": 0.5}}, '`probe.l1=0.5` does not apply.*`probe.solver="adam"` does not'),
        ({"trainer": {"max_time": "00:01:00:00"}}, '`trainer.max_time="00:01:00:00"` does not apply'),
        (
            {"task": of([1.0] * 190)},
            "the training sentences all have the number 1, and a probe needs numbers that vary",
        ),
        (
            {"task": of([1.0, 1e-300, 1e300, 0, 2] * 38)},
            r"a number to predict has the size 1e\+300, where at most 1e\+30",
        ),
        (
            {"task": of([0.0, 1e-300, 5e-324, 0, 0] * 38)},
            "the training sentences differ by 1e-300 at most, and at least 1e-30",
        ),
    ],
)
def test_what_does_not_apply_to_numbers_is_refused_before_any_work(
    how: dict[str, Any], message: str, checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few.txt"
    few.write_text("\n".join(corpus_file.read_text(encoding="utf-8").splitlines()[:400]), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        made(checkpoints, few, tmp_path / "runs", **{"task": Length(), **how})
    assert not [*tmp_path.glob("runs/*.partial")]


def test_commands_that_read_classes_refuse_it(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="predicts numbers, and `rank` and `compare` take runs that predict classes"):
        rank(str(run.folder), wandb=NO_WANDB)
    with pytest.raises(UserError, match="predicts numbers"):
        compare([str(run.folder), str(run.folder)], wandb=NO_WANDB)
    file = tmp_path / "sweep.yaml"
    file.write_text(
        "method: grid\nprogram: probing\nparameters:\n  task: {value: sentence_label}\n"
        "  task_args.numbers: {value: true}\n  probe.l2: {values: [0.1, 0.01]}\n",
        encoding="utf-8",
    )
    with pytest.raises(UserError, match="`task sentence_label`: it predicts numbers, and a sweep compares accuracies"):
        sweep(str(file), runs=str(tmp_path / "runs"), wandb=NO_WANDB)
