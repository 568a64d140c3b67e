"""Values that are held fixed: those of tokens, words, tasks and rows, and labels permuted within them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from probing.builtin_tasks.position import Position
from probing.builtin_tasks.sentence_label import SentenceLabel
from probing.builtin_tasks.upos import UniversalPartOfSpeech

from probing.cache.tokens import Tokens
from probing.corpus import Corpus, from_words
from probing.data.given_values import check_given, permuted_within, values_of, with_given
from probing.errors import UserError
from probing.tasks.given import HeldFixed
from synthetic import make_store, make_tokens, sides

pytestmark = pytest.mark.numeric

# "un|like|ly dogs" and "dogs un|ly" with special tokens around them.
IDS = [1, 7, 8, 9, 5, 2, 1, 5, 7, 9, 2]
WORDS = [-1, 0, 0, 0, 1, -1, -1, 0, 1, 1, -1]
TOKENS = Tokens(np.array([6, 5], np.int32), np.array(IDS, np.int32), np.array(WORDS, np.int16))
CORPUS = from_words("bank", [("unlikely", "dogs"), ("dogs", "unly")], {"upos": [("ADJ", "NOUN"), ("NOUN", "X")]})
OF_WORDS = UniversalPartOfSpeech()


def test_a_token_is_its_id_and_a_word_its_pieces() -> None:
    token = HeldFixed("token", None)
    assert values_of(token, TOKENS, CORPUS, Position()).tolist() == IDS
    of_means = UniversalPartOfSpeech(pieces="mean")
    assert values_of(token, TOKENS, CORPUS, of_means).tolist() == [-1, 0, -1, -1, 1, -1, -1, 1, 2, -1, -1]


@pytest.mark.parametrize("pieces", ["first", "last", "mean"])
def test_a_word_has_its_value_at_all_of_its_pieces(pieces: Any) -> None:
    found = values_of(HeldFixed("upos", UniversalPartOfSpeech(pieces=pieces)), TOKENS, CORPUS, Position())
    assert found.tolist() == [-1, 0, 0, 0, 1, -1, -1, 1, 2, 2, -1]


def test_what_gives_no_value_is_refused() -> None:
    unlabelled = replace(CORPUS, name="plain", columns={"upos": (("_", "_"), ("_", "_"))})
    with pytest.raises(UserError, match="`--given upos`: it gives no token of `plain` a label"):
        values_of(HeldFixed("upos", OF_WORDS), TOKENS, unlabelled, OF_WORDS)


def test_labels_are_permuted_among_equal_values_and_sides_keep_theirs(tmp_path: Path) -> None:
    tokens = make_tokens([8] * 60)
    planted = sides(make_store(tmp_path / "store", [np.zeros((tokens.n_tokens, 2))], tokens))
    values = np.random.default_rng(0).integers(-1, 5, tokens.n_tokens)
    for side in ("train", "test"):
        before = getattr(with_given(planted, [values]), side)
        after = permuted_within(before, seed=1)
        kept = before.labels >= 0
        assert np.array_equal(after.labels >= 0, kept)
        assert (after.labels != before.labels)[kept].mean() > 0.5
        for value in range(-1, 5):
            here = kept & (values == value)
            assert sorted(after.labels[here]) == sorted(before.labels[here])
        assert np.array_equal(permuted_within(before, seed=1).labels, after.labels)
        assert not np.array_equal(permuted_within(before, seed=2).labels, after.labels)


def test_the_test_corpus_has_its_own_values(tmp_path: Path) -> None:
    tokens = make_tokens([8] * 60)
    planted = sides(make_store(tmp_path / "store", [np.zeros((tokens.n_tokens, 2))], tokens))
    one, other = np.zeros(3, dtype=np.int64), np.ones(4, dtype=np.int64)
    found = with_given(planted, [one, other])
    assert found.train.given is one
    assert found.validation.given is one
    assert found.test.given is other


def test_values_that_determine_the_label_are_refused() -> None:
    labels = np.array([0, 1, 0, -1])
    check_given(np.array([0, 0, 1, 1]), labels, "--given x", "token")
    with pytest.raises(UserError, match="`--given x`: no two training tokens with the same value have different"):
        check_given(np.array([0, 1, 0, 0]), labels, "--given x", "token")


# --- the option ---


def test_a_task_a_column_or_the_token_is_held_fixed() -> None:
    assert HeldFixed.of(None) is None
    assert HeldFixed.of("token") == HeldFixed("token")
    assert HeldFixed.of("upos") == HeldFixed("upos", OF_WORDS)
    of_column = HeldFixed.of("genre")
    assert of_column == HeldFixed("genre")
    corpus = replace(CORPUS, columns={"genre": (("a", "b"), ("a", "a"))})
    assert of_column is not None
    assert values_of(of_column, TOKENS, corpus, Position()).tolist() == [-1, 0, 0, 0, 1, -1, -1, 0, 0, 0, -1]


@pytest.mark.parametrize(
    ("typed", "of", "message"),
    [
        ("genre", Position(), r"is neither token, nor a task \(.*upos.*\), nor a column of `bank`, which has upos"),
        ("token", SentenceLabel(), "the task labels sentences, which have many; give a label of sentences"),
        ("upos", SentenceLabel(), "it labels tokens, and the probed task sentences; give a label of sentences"),
    ],
)
def test_what_cannot_be_held_fixed_is_refused(typed: str, of: Any, message: str) -> None:
    given = HeldFixed.of(typed)
    assert given is not None
    with pytest.raises(UserError, match=f"`--given {typed}`:? {message}"):
        values_of(given, TOKENS, CORPUS, of)


def test_numbers_are_not_held_fixed() -> None:
    with pytest.raises(UserError, match="`--given x`: of its numbers hardly two are equal"):
        HeldFixed("x", SentenceLabel(numbers=True)).task_in(CORPUS, Position())


def test_a_task_that_cannot_be_loaded_is_named_as_it_was_typed() -> None:
    with pytest.raises(UserError, match=r"`--given nowhere\.py:X`"):
        HeldFixed.of("nowhere.py:X")


def test_a_label_of_sentences_is_that_of_all_their_tokens() -> None:
    corpus = Corpus("topics", ("a", "b"), sentence_columns={"label": ("x", "y")})
    for given in (HeldFixed("sentence_label", SentenceLabel()), HeldFixed("label")):
        assert values_of(given, TOKENS, corpus, Position()).tolist() == [0] * 6 + [1] * 5
        assert values_of(given, TOKENS, corpus, SentenceLabel()).tolist() == [0, 1]
