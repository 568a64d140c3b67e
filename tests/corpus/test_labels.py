"""What a cell or a label says is told by one rule, and comes out of a run as the same text."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from probing.builtin_tasks.column import Label, SentenceLabel
from safetensors import safe_open
from transformers import AutoTokenizer

from conftest import BARE
from probing import Run, WandbOptions, fit
from probing.data.labelling import warn_missing_labels
from probing.errors import UserError
from probing.runs.loading import load_run
from probing.text import (
    Corpus,
    Couple,
    from_pairs,
    from_sentences,
    from_words,
    hold_out,
    load_corpus,
    read_couples,
    read_pairs,
)
from probing.text.columns import check_label, check_text, label_of, number_of, score_of, text_of, truth_of
from probing.text.tasks import LabelWording, Task, class_values, labels_of
from probing.text.tokens import Tokens
from synthetic import make_tokens
from written import read_csv, write_csv

# Cells and the class that each names, by no code of the program.
TEXTS = {
    "": "", "  ": "", "_": "", "-1": "", "-100": "", " punct": "punct", "punct ": "punct", "01": "01", "1": "1",
    "1.0": "1.0", "007": "007", "--5": "--5", "-": "-", "-1.5": "-1.5", "NA": "NA", "None": "None", "null": "null",
    "nan": "nan", "inf": "inf", "B-LOC": "B-LOC", "नी": "नी", "$x$": "$x$", "a,b": "a,b", '"a"': '"a"', "#": "#",
    "<b>": "<b>", "=1+1": "=1+1", "١": "١", "²": "²", "True": "True",
}  # fmt: skip
OTHERS: list[tuple[Any, str]] = [
    (None, ""), (math.nan, ""), (math.inf, ""), (-100, ""), (-1, ""), (-1.0, ""), (0, "0"), (1, "1"), (1.0, "1"),
    (12.0, "12"), (0.5, "0.5"), (True, "True"), (False, "False"), (2**60, str(2**60)),
]  # fmt: skip
CELLS = [*TEXTS.items(), *OTHERS]
# What a test draws its labels from; a label of a column is any text without a surrogate, NUL or the end of a line.
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r\t\ufeff"), max_size=6)


def expected(text: str) -> str:
    """Return the class that a text names, by the rule in the words of the docs."""
    text = text.strip()
    is_below_zero = text.startswith("-") and text[1:].isdigit() and text.isascii()
    return "" if text in ("", "_") or is_below_zero else text


def expected_in_column(texts: list[str]) -> list[str]:
    """Return the class that each text of a column names: among numbers `1.0` is `1`, and cases of true are `True`."""
    there = {text.strip() for text in texts} - {"", "_"}
    if all(re.fullmatch(r"-?(0|[1-9][0-9]*)([.][0-9]+)?", text) for text in there):
        texts = [re.sub(r"[.]0+$", "", text.strip()) for text in texts]
    elif {text.lower() for text in there} <= {"true", "false"}:
        texts = [text.strip().title() for text in texts]
    return [expected(text) for text in texts]


@pytest.mark.parametrize(("cell", "label"), CELLS, ids=repr)
def test_a_cell_names_a_class_or_is_missing(cell: Any, label: str) -> None:
    assert label_of(cell) == label


def test_scalars_of_numpy_are_those_of_python() -> None:
    for cell in (np.float64(2), np.float32(2), np.float16(2), np.int8(2), np.uint64(2), "2"):
        assert label_of(cell) == "2"
    assert [text_of(cell) for cell in (np.float32("nan"), np.float64("inf"), np.bool_(True))] == [None, None, "True"]


@pytest.mark.parametrize(
    ("cell", "number"),
    [
        (" 1.5 ", 1.5), ("1e3", 1000.0), (-100, -100.0), ("-1", -1.0), ("01", 1.0), (np.float32(0.5), 0.5), ("", None),
        (None, None), ("_", None), ("nan", None), ("-inf", None), (math.nan, None), (-math.inf, None), ("1e999", None),
    ],
)  # fmt: skip
def test_a_cell_holds_a_number_or_is_missing(cell: Any, number: float | None) -> None:
    assert number_of(cell) == number


@pytest.mark.parametrize(
    ("cell", "score"),
    [
        ("3.04", 3.04), (0, 0.0), ("1e300", 1e300), (5e-324, 5e-324), (-1, None), ("-1", None), (-100.0, None),
        ("nan", None), (math.nan, None), (math.inf, None), ("-inf", None), ("", None), (None, None), ("_", None),
    ],
)  # fmt: skip
def test_a_score_is_finite_and_not_below_0_or_missing(cell: Any, score: float | None) -> None:
    assert score_of(cell) == score


@pytest.mark.parametrize("missing", [None, math.nan, -1, -100, "-1", -1.0, "-1.0", "", " ", "_", "nan"])
def test_yes_and_no_are_told_in_all_spellings(missing: Any) -> None:
    spellings: list[tuple[Any, Any]] = [
        ("T", "F"), ("true", "False"), (True, False), (np.True_, np.False_), (1, 0), (1.0, 0.0), ("1", " 0 "),
        ("1.0", "0.0"), (np.int64(1), np.float32(0)),
    ]  # fmt: skip
    for yes, no in spellings:
        assert (truth_of(yes), truth_of(no)) == (True, False)
    assert truth_of(missing) is None


@pytest.mark.parametrize(
    ("read", "cells"),
    [
        (number_of, ["NA", "one", True, np.bool_(False), "1_000", "1,5", "0x10", "-"]),
        (score_of, ["high", -0.5, "-2.5", True, [1.0]]),
        (truth_of, ["yes", 2, 0.5, "same", [1]]),
    ],
)
def test_what_is_no_number_no_score_or_neither_yes_nor_no_is_refused(
    read: Callable[[Any], object], cells: list[Any]
) -> None:
    for cell in cells:
        with pytest.raises(ValueError):  # noqa: PT011  the caller says where
            read(cell)


def test_text_that_no_file_can_hold_is_refused() -> None:
    check_text("\0 is text", "x")
    with pytest.raises(UserError, match=r"^x has one half of a character, a lone surrogate \('\\ud83d' in 'a\\ud83d'"):
        check_text("a\ud83d", "x")
    with pytest.raises(UserError, match=r"^x has the character U\+0000"):
        check_label("a\0", "x")


# --- the same rule for all sources ---


def labels_in(corpus: Corpus) -> list[str]:
    """Return the label of each word of a corpus, tokenised into its words."""
    tokens = Tokens(
        np.array([len(words) for words in corpus.words or ()], np.int32),
        np.zeros(sum(map(len, corpus.words or ())), np.int32),
        np.concatenate([np.arange(len(words)) for words in corpus.words or ()]).astype(np.int16),
    )
    return list(labels_of(Label(), tokens, corpus).tolist())


def of_file(name: str, text: str) -> Corpus:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text, encoding="utf-8", newline="")
        return load_corpus(str(path))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(ANY_TEXT | st.sampled_from(sorted(TEXTS)), min_size=1, max_size=8)
    | st.lists(st.sampled_from(["1", "1.0", "0", "-1.0", "2.50", "", "true", "TRUE"]), min_size=1, max_size=5)
)
def test_a_label_is_the_same_class_in_every_source(labels: list[str]) -> None:
    words = [f"w{i}" for i in range(len(labels))]
    wanted = expected_in_column(labels)
    tsv = of_file("a.tsv", "".join(f"{word}\t{label}\n" for word, label in zip(words, labels, strict=True)))
    lines = of_file("a.jsonl", json.dumps({"words": words, "labels": labels}) + "\n")
    assert labels_in(tsv) == labels_in(lines) == wanted
    found, is_known = class_values(labels, LabelWording("`y` has", "give", "row", ""))
    assert found.tolist() == [expected(label) for label in labels]
    assert is_known.tolist() == [bool(expected(label)) for label in labels]
    of_sentences = "".join(json.dumps({"text": w, "label": y}) + "\n" for w, y in zip(words, labels, strict=True))
    assert SentenceLabel().labels(make_tokens([3]), of_file("s.jsonl", of_sentences)) == wanted


def test_a_treebank_has_the_same_labels() -> None:
    cells = [(text, label) for text, label in TEXTS.items() if text.strip()]
    rows = [f"{i}\tw{i}\t_\t_\t_\t_\t0\t{text}\t_\t_   \n" for i, (text, _) in enumerate(cells, 1)]
    corpus = of_file("a.conllu", "".join(rows))
    assert [label_of(value) for value in corpus.columns["deprel"][0]] == [label for _, label in cells]


def test_values_of_any_type_are_the_same_classes_in_json_and_in_lists() -> None:
    numbers = [cell for cell, _ in OTHERS]
    corpus = of_file("a.jsonl", json.dumps({"words": [f"w{i}" for i in range(len(numbers))], "labels": numbers}))
    assert labels_in(corpus) == [label for _, label in OTHERS]


# --- what is left out is counted ---


class Told(Task):
    """Gives the labels that it is told to."""

    def labels(self, tokens: Tokens, corpus: Corpus) -> Any:
        return self.values  # type: ignore[attr-defined]


def said_of(task: Task, tokens: Tokens, corpus: Corpus) -> list[str]:
    said: list[str] = []
    warn_missing_labels(tokens, corpus, task, said.append)
    return said


def test_missing_labels_are_counted_with_what_stands_in_their_place() -> None:
    rows = [("-100", "a", "_"), ("b", "", "-100")]
    corpus = from_words("few.tsv", [["x", "y", "z"], ["u", "v", "w"]], {"label": rows})
    tokens = make_tokens([5, 5])  # three words and two special tokens each
    said = said_of(Label(), tokens, corpus)
    assert said == [
        "few.tsv: 4 of 6 words have no label (`-100`, empty: numbers below 0 stand for none) and are left out"
    ]
    assert said_of(Label(), tokens, from_words("few.tsv", corpus.words or (), {"label": [["a"] * 3] * 2})) == []


def test_labels_that_a_class_of_ones_own_leaves_out_are_counted_by_word() -> None:
    task = Told()
    object.__setattr__(task, "values", [None, "a", "a", math.nan, None, None, "b", "b", "b", None])
    assert said_of(task, make_tokens([5, 5]), Corpus("few", ("x y z", "u v w"))) == [
        "few: 1 of 6 words have no label and are left out"
    ]


def test_repeated_sentences_with_other_labels_are_counted() -> None:
    words = [["x", "y"], ["x", "y"], ["x", "y"], ["u"]]
    corpus = from_words(
        "few.tsv", words, {"label": [("a", "b"), ("a", "b"), ("a", "c"), ("a",)], "tag": [("t", "t")] * 3 + [("t",)]}
    )
    assert (corpus.n_repeated, corpus.relabelled) == (2, {"label": 1})
    assert said_of(Label(), make_tokens([4, 3]), corpus) == [
        "few.tsv: 1 of the 2 repeated sentences have other values of label than their first occurrence, whose values "
        "are used"
    ]


def test_lines_that_begin_documents_are_no_sentences() -> None:
    corpus = of_file("a.tsv", "-DOCSTART-\tO\n\nx\tA\n\n-DOCSTART-\tO\n\ny\tB\n\nz\tB\n")
    assert corpus.sentences == ("x", "y", "z")
    assert corpus.documents == (0, 1, 1)


def test_a_lone_surrogate_is_refused_when_a_corpus_is_read() -> None:
    for row in ({"text": "a \ud83d"}, {"text": "a", "label": "\ud83d"}, {"words": ["a\ud83d"]}):
        with pytest.raises(UserError, match=r"`--corpus .*\.jsonl`: .* one half of a character"):
            of_file("a.jsonl", json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"`corpus a list of 1 sentences`: sentence 1 has one half of a character"):
        load_corpus(["a \ud83d"])


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
    # As docs/results.md says.
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


def test_a_file_has_a_pair_in_each_line(tmp_path: Path) -> None:
    text = "She  left. \t He stayed.\n\nOne.\tTwo.\nShe left.\tHe stayed.\nOne. Two.\tThree.\n"
    (path := tmp_path / "pairs.tsv").write_text(text, encoding="utf-8")
    corpus = read_pairs(str(path))
    assert corpus.sentences == ("She left. He stayed.", "One. Two.", "One. Two. Three.")
    assert corpus.seconds == (10, 5, 10)
    assert [text[start:] for text, start in zip(corpus.sentences, corpus.seconds, strict=True)] == [
        "He stayed.", "Two.", "Three.",
    ]  # fmt: skip
    assert (corpus.n_repeated, corpus.unit) == (1, "pairs")
    (packed := tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress(text.encode()))
    assert read_pairs(str(packed)).fingerprint == corpus.fingerprint
    assert corpus.subset([2]).seconds == (10,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a\tb\nno tab here\n",
            "line 2: expected two sentences with a tab between them, found no tab; write for example",
        ),
        ("a\tb\n\n1\ta\tb\n", "line 3: expected two sentences with a tab between them, found 3 columns"),
        ("a\t \n", "line 1: the second sentence is empty; write one on both sides of the tab"),
        ("\tb\n", "line 1: the first sentence is empty"),
        ("\n \n", "holds no pair: it is empty or blank; give lines"),
    ],
)
def test_what_is_no_pair_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (path := tmp_path / "pairs.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_pairs(str(path))
    assert message in str(caught.value)
    assert f"--pairs {path}" in str(caught.value)


def test_pairs_are_told_from_text_and_from_other_divisions_of_it() -> None:
    pairs = [[("a b", "c")], [("a", "b c")], [("a b", "c"), ("d", "e")], [("d", "e"), ("a b", "c")]]
    others = [from_sentences("x", ["a b c"]), from_words("x", [["a b", "c"]]), from_words("x", [["a", "b", "c"]])]
    found = [from_pairs("x", some).fingerprint for some in pairs] + [one.fingerprint for one in others]
    assert len(set(found)) == len(found)
    assert from_pairs("y", pairs[0]).fingerprint == found[0]


def test_pairs_have_columns_of_which_a_repeated_pair_keeps_the_first() -> None:
    corpus = from_pairs("x", [("a", "b"), ("b", "a"), ("a", "b"), ("c", "c")], {"label": ["p", None, "q", " r "]})
    assert corpus.pairs == [("a", "b"), ("b", "a"), ("c", "c")]
    assert corpus.sentence_columns == {"label": ("p", None, "r")}
    assert (corpus.n_repeated, corpus.relabelled) == (1, {"label": 1})


def test_training_has_no_pair_that_is_tested_on_in_either_order() -> None:
    main = from_pairs("main", [("A b.", "c"), ("d", "e"), ("a", "b c"), ("f", "c")], {"label": [1, 2, 3, 4]})
    kept, left_out = hold_out(main, from_pairs("test", [("C", "a b"), ("e", "d"), ("f", "d")]))
    assert kept.pairs == [("a", "b c"), ("f", "c")]
    assert kept.sentence_columns == {"label": (3, 4)}
    assert left_out == ["A b. c", "d e"]
    with pytest.raises(UserError, match="`--test_pairs test` holds every pair of `--pairs main`, such as `d e`"):
        hold_out(main.subset([1]), from_pairs("test", [("e", "d")]))


def test_couples_are_sentences_or_texts_with_masks_and_a_word_for_each(tmp_path: Path) -> None:
    (path := tmp_path / "pairs.tsv").write_text("A  dog.\tDogs.\n\nA dog.\tDogs.\nDogs.\tA dog.\n", encoding="utf-8")
    assert read_couples(str(path)) == [Couple("A dog.", "Dogs."), Couple("Dogs.", "A dog.")]
    path.write_text("A dog [MASK].\tDogs [MASK].\truns\t run \n", encoding="utf-8")
    assert read_couples(str(path)) == [Couple("A dog [MASK].", "Dogs [MASK].", ("runs", "run"))]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\na\ta\n", "line 2: `a` stands on both sides of a tab; give two different sentences"),
        ("a\tb\tc\n", "line 1: expected 2 columns, or 4 with words, found 3; give lines `sentence TAB counterfactual`"),
        ("\na\tb\n[MASK]\t[MASK] c\td\te\n", "line 3: expected 2 columns as in the lines above, found 4"),
        ("a [MASK]\tb\tc\td\n", "line 1: `b` has [MASK] 0 times; write it once, where the word belongs"),
        ("a [MASK]\t[MASK] [MASK]\tc\td\n", "has [MASK] 2 times"),
        ("a [MASK]\tb [MASK]\tc\tc\n", "expected two different words after the two texts, found `c` and `c`"),
        ("a [MASK]\tb [MASK]\tc\t\n", "found `c` and ``"),
        ("a [MASK]\ta [MASK]\tc\td\n", "stands on both sides of a tab"),
        (
            " \n",
            "holds no pair: it is empty or blank; give lines `sentence TAB counterfactual`, or of texts with [MASK]",
        ),
    ],
)
def test_what_is_no_couple_is_refused_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    (path := tmp_path / "pairs.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_couples(str(path))
    assert message in str(caught.value)
    assert f"--pairs {path}" in str(caught.value)


def test_a_file_that_is_not_there_is_refused_with_what_a_file_of_pairs_has(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be read \(no such file.*\); give lines `sentence TAB counter"):
        read_couples(str(tmp_path / "nowhere.tsv"))
    with pytest.raises(UserError, match=r"cannot be read \(no such file.*\); give lines `first sentence TAB"):
        read_pairs(str(tmp_path / "nowhere.tsv"))
