"""Values that are held fixed: those of tokens, words, tasks and rows, and labels permuted within them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probing.builtin_tasks.position import Position
from probing.builtin_tasks.sentence_label import SentenceLabel
from probing.builtin_tasks.upos import UniversalPartOfSpeech

from probing.cache.tokens import Tokens
from probing.corpus import Corpus, from_words
from probing.data.examples import check_given, permuted_within, type_keys, values_of, with_given
from probing.errors import UserError
from probing.tasks import labels_of, labels_words
from probing.tasks.loading import HeldFixed
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
    assert values_of(token, TOKENS, CORPUS, Position()).tolist() == np.unique(IDS, return_inverse=True)[1].tolist()
    for pieces in ("first", "last", "mean"):
        found = values_of(token, TOKENS, CORPUS, UniversalPartOfSpeech(pieces=pieces))
        words = [found[at].tolist() for at in ([1, 2, 3], [4], [7], [8, 9])]
        unlikely, dogs, dogs_again, unly = (set(word) for word in words)
        assert [len(word) for word in (unlikely, dogs, unly)] == [1, 1, 1]
        assert dogs == dogs_again
        assert len(unlikely | dogs | unly) == 3


@given(st.lists(st.lists(st.lists(st.integers(5, 7), min_size=1, max_size=3), max_size=4), min_size=1, max_size=5),
       st.sampled_from(["first", "last", "mean"]))  # fmt: skip
@settings(max_examples=40, deadline=None, derandomize=True)
def test_two_words_are_the_same_exactly_if_all_their_pieces_are(sentences: list[Any], pieces: Any) -> None:
    """Against words in a dictionary, in the stratum and by the keys that the controls use."""
    ids = [id for words in sentences for id in (1, *(piece for word in words for piece in word), 2)]
    of = [k for words in sentences for k in (-1, *(k for k, word in enumerate(words) for _ in word), -1)]
    lengths = [sum(map(len, words)) + 2 for words in sentences]
    tokens = Tokens(np.array(lengths, np.int32), np.array(ids, np.int32), np.array(of, np.int16))
    texts = [tuple("-".join(map(str, word)) for word in words) for words in sentences]
    corpus = replace(CORPUS, words=tuple(texts), sentences=(" ",) * len(texts),
                     columns={"upos": tuple(("X",) * len(words) for words in texts)})  # fmt: skip
    labelled = np.flatnonzero(labels_of(task := UniversalPartOfSpeech(pieces=pieces), tokens, corpus) != "")
    expected: dict[str, int] = {}
    words = [expected.setdefault(word, len(expected)) for words in texts for word in words]
    for values in (values_of(HeldFixed("token"), tokens, corpus, task), type_keys(tokens, of_words=True)):
        found = values[labelled]
        assert len(found) == len(words)
        same = [[one == other for other in words] for one in words]
        assert (found[:, None] == found[None]).tolist() == same


def test_a_task_that_labels_several_pieces_of_a_word_or_special_tokens_is_of_tokens() -> None:
    assert not labels_words(Position(), TOKENS, CORPUS)
    single = Tokens(np.array([3, 3], np.int32), np.array([1, 5, 2] * 2, np.int32), np.array([-1, 0, -1] * 2, np.int16))
    assert labels_words(Position(), single, CORPUS)
    assert not labels_words(Position(special_tokens="include"), single, CORPUS)
    assert not labels_words(SentenceLabel(), single, replace(CORPUS, sentence_columns={"label": ("a", "b")}))


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
    for fixed in (HeldFixed("sentence_label", SentenceLabel()), HeldFixed("label")):
        assert values_of(fixed, TOKENS, corpus, Position()).tolist() == [0] * 6 + [1] * 5
        assert values_of(fixed, TOKENS, corpus, SentenceLabel()).tolist() == [0, 1]
