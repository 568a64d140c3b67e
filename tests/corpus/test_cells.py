"""What a cell says is told by one rule: in files of words, files of sentences, data sets, arrays and classes."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from probing.builtin_tasks.label import Label
from probing.builtin_tasks.sentence_label import SentenceLabel

from probing.cache.tokens import Tokens
from probing.corpus import Corpus, from_words, load_corpus
from probing.corpus.columns import check_label, check_text, label_of, number_of, score_of, text_of, truth_of
from probing.data.labelling import say_what_has_no_label
from probing.errors import UserError
from probing.tasks import Task, labels_of
from probing.tasks.values import Given, class_values
from synthetic import make_tokens

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


@pytest.mark.parametrize("cell", ["NA", "one", True, np.bool_(False), "1_000", "1,5", "0x10", "-"])
def test_a_word_is_no_number(cell: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the caller says where
        number_of(cell)


@pytest.mark.parametrize(
    ("cell", "score"),
    [
        ("3.04", 3.04), (0, 0.0), ("1e300", 1e300), (5e-324, 5e-324), (-1, None), ("-1", None), (-100.0, None),
        ("nan", None), (math.nan, None), (math.inf, None), ("-inf", None), ("", None), (None, None), ("_", None),
    ],
)  # fmt: skip
def test_a_score_is_finite_and_not_below_0_or_missing(cell: Any, score: float | None) -> None:
    assert score_of(cell) == score


@pytest.mark.parametrize("cell", ["high", -0.5, "-2.5", True, [1.0]])
def test_what_is_no_score_is_refused(cell: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the caller says where
        score_of(cell)


@pytest.mark.parametrize("missing", [None, math.nan, -1, -100, "-1", -1.0, "-1.0", "", " ", "_", "nan"])
def test_yes_and_no_are_told_in_all_spellings(missing: Any) -> None:
    spellings: list[tuple[Any, Any]] = [
        ("T", "F"), ("true", "False"), (True, False), (np.True_, np.False_), (1, 0), (1.0, 0.0), ("1", " 0 "),
        ("1.0", "0.0"), (np.int64(1), np.float32(0)),
    ]  # fmt: skip
    for yes, no in spellings:
        assert (truth_of(yes), truth_of(no)) == (True, False)
    assert truth_of(missing) is None


@pytest.mark.parametrize("cell", ["yes", 2, 0.5, "same", [1]])
def test_what_is_neither_yes_nor_no_is_refused(cell: Any) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  the caller says where
        truth_of(cell)


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
    found, is_known = class_values(labels, Given("`y` has", "give", "row", ""))
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
    say_what_has_no_label(tokens, corpus, task, said.append)
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
