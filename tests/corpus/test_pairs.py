"""Pairs of sentences: what is read, what is refused, and what makes two corpora differ."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from probing.corpus import from_pairs, from_sentences, from_words
from probing.corpus.splits import Couple, hold_out, read_couples, read_pairs
from probing.errors import UserError


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
