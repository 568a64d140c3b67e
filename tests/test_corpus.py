"""Sentences in, and which side of the split they are on."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from probing.corpus import Corpus, assign_splits, builtin_sentences, from_sentences, hold_out, load_corpus, split_key
from probing.errors import UserError


def test_the_builtin_corpus_is_english_prose() -> None:
    sentences = load_corpus("builtin").sentences
    assert len(sentences) > 1500
    assert len(set(sentences)) == len(sentences)
    assert not [s for s in sentences if "::=" in s or ">>>" in s or "+--" in s or "====" in s]
    assert sum(s[-1] in ".!?:\"')" for s in sentences) == len(sentences)
    assert "Assert statements are a convenient way to insert debugging assertions into a program:" in sentences


def test_the_builtin_corpus_is_the_same_in_every_process() -> None:
    assert builtin_sentences() == builtin_sentences()


def test_blank_lines_marks_and_repetitions_are_cleaned_away(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes("\ufeffOne  two.\r\n\r\n  \tThree\tfour. \r\nOne two.\r\n".encode())
    corpus = load_corpus(str(path))
    assert corpus.sentences == ("One two.", "Three four.")
    assert corpus.n_repeated == 1


def test_standard_input_is_a_corpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"One.\nTwo.\n")))
    assert load_corpus("-").sentences == ("One.", "Two.")


def test_text_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"plain\ncaf\xe9 au lait\n")
    with pytest.raises(UserError, match=r"latin\.txt` is not UTF-8 \(line 2"):
        load_corpus(str(path))


@pytest.mark.parametrize("content", [b"", b"\n \n\t\n"])
def test_an_empty_corpus_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match="holds no sentence"):
        load_corpus(str(path))


def test_missing_files_folders_and_unknown_types_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--test_corpus .*cannot be read"):
        load_corpus(str(tmp_path / "missing.txt"), "--test_corpus")
    with pytest.raises(UserError, match="cannot be read"):
        load_corpus(str(tmp_path))
    with pytest.raises(UserError, match=r"a file of type \.pdf is not read"):
        load_corpus("paper.pdf")


def test_the_fingerprint_depends_on_sentences_and_order() -> None:
    ab, ba = from_sentences("x", ["a b", "c d"]), from_sentences("x", ["c d", "a b"])
    assert ab.fingerprint == from_sentences("another name", ["a b", "c d"]).fingerprint
    assert ab.fingerprint != ba.fingerprint
    assert ab.fingerprint != from_sentences("x", ["a b c d"]).fingerprint


def test_a_sentence_keeps_its_side_when_the_corpus_grows() -> None:
    sentences = [f"sentence number {i} of a corpus" for i in range(1000)]
    before = dict(zip(sentences[:500], assign_splits(sentences[:500], seed=0), strict=True))
    after = dict(zip(reversed(sentences), assign_splits(sentences[::-1], seed=0), strict=True))
    assert all(after[sentence] == side for sentence, side in before.items())


def test_the_split_is_80_10_10_and_depends_on_the_seed() -> None:
    sentences = [f"sentence number {i} of a corpus" for i in range(10_000)]
    sides = assign_splits(sentences, seed=0)
    # Four binomial standard errors at n = 10,000.
    for side, share in (("train", 0.8), ("validation", 0.1), ("test", 0.1)):
        assert abs(sides.count(side) / len(sides) - share) < 4 * (share * (1 - share) / len(sides)) ** 0.5
    assert sides != assign_splits(sentences, seed=1)


def test_near_duplicates_are_on_one_side() -> None:
    pairs = [(f"Line {i}: it works!", f"line {i} - It Works") for i in range(300)]
    for seed in range(3):
        left, right = (assign_splits(side, seed) for side in zip(*pairs, strict=True))
        assert left == right
    assert split_key("...") == "..."


def test_what_is_tested_on_leaves_the_training_corpus() -> None:
    main, test = from_sentences("main", ["A b.", "C d.", "E f."]), from_sentences("test", ["c D!"])
    assert hold_out(main, test).sentences == ("A b.", "E f.")
    with pytest.raises(UserError, match="nothing is left to train on"):
        hold_out(Corpus("main", ("C d.",)), test)
