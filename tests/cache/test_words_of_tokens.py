"""Words of tokens, where the tokenizer does not say them, and where words have no token."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probing.cache.tokens import assign, count_words, tokenize, tokenize_pairs
from probing.corpus import from_pairs, from_sentences, from_words

pytestmark = pytest.mark.numeric

TEXT = ["the cat sat on the mat", "in the hat of the big cat", "on the mat"]


@cache
def tokenizer_of(kind: str) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    if kind == "between blanks":  # pieces do not cross a blank, as in the vocabulary of Gemma
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    elif kind == "across blanks":
        tokenizer.normalizer = normalizers.Replace("\ufe0f", "")
    trainer = trainers.BpeTrainer(vocab_size=45, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT * 5, trainer)
    if kind == "between blanks":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_a_tokenizer_that_says_no_words_has_those_between_blanks() -> None:
    tokenizer, corpus = tokenizer_of("between blanks"), from_sentences("x", TEXT)
    assert {word for text in TEXT for word in tokenizer(text).word_ids()} == {0}
    table = tokenize(tokenizer, corpus.sentences, 99)
    listed = tokenize(tokenizer, corpus.sentences, 99, [text.split() for text in TEXT])
    assert table.words.tolist() == listed.words.tolist()
    assert list(dict.fromkeys(table.word_texts(corpus))) == list(dict.fromkeys(" ".join(TEXT).split()))
    pairs = from_pairs("x", [(TEXT[0], TEXT[1])])
    assert pairs.seconds is not None
    words = tokenize_pairs(tokenizer, pairs.sentences, pairs.seconds, 99).words
    assert sorted(set(words.tolist())) == list(range(13))


@pytest.mark.parametrize("kind", ["between blanks", "across blanks"])
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["the", "cat", "on", "a", "\ufe0f", "big", ""]), min_size=1), min_size=1),
    st.integers(3, 20),
)
def test_every_word_has_a_token_or_a_reason_why_not(kind: str, lists: list[list[str]], max_length: int) -> None:
    corpus = from_words("x", [["the", *words] for words in lists])
    table = tokenize(tokenizer_of(kind), corpus.sentences, max_length, corpus.words)
    counts = count_words(table, corpus)
    assert counts is not None
    assert counts.n_words == sum(map(len, corpus.words or ()))
    assert counts.n_words == counts.n_with_token + counts.n_left_out + counts.n_cut
    assert counts.n_with_token == len(set(zip(table.sentences.tolist(), table.words.tolist(), strict=True)))
    assert counts.n_cut == 0 or table.n_truncated
    assert table.in_words(corpus.sentences, corpus.words).words.tolist() == table.words.tolist()


def test_a_token_of_several_words_belongs_to_the_first_without_one() -> None:
    corpus = from_words("x", [["the", "cat", "\ufe0f", "sat", "on"]])
    table = tokenize(tokenizer_of("across blanks"), corpus.sentences, 99, corpus.words)
    counts = count_words(table, corpus)
    assert counts is not None
    assert "\ufe0f" in counts.examples
    assert (counts.n_without_token, counts.n_cut) == (1, 0)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 2), (2, 5), (5, 8)], [0, 1, 2]),  # the blank belongs to the second word
        ([(0, 5), (5, 8)], [0, 2]),  # `ab cd` lies in two words: the first has no token yet
        ([(0, 2), (0, 5), (3, 8)], [0, 1, 2]),
        ([(0, 5), (2, 8)], [0, 1]),
        ([(0, 2), (2, 3), (3, 5)], [0, 1, 1]),
    ],
)
def test_a_token_belongs_to_a_word_by_its_characters(spans: list[tuple[int, int]], expected: list[int]) -> None:
    n = len(spans)
    found = assign(np.array(spans), np.zeros(n, int), np.ones(n, bool), ["ab cd ef"], [["ab", "cd", "ef"]])
    assert found.words.tolist() == expected


@pytest.mark.parametrize("listed", [False, True])
def test_a_first_token_that_is_set_aside_has_its_characters_and_the_others_their_whole_word(listed: bool) -> None:
    texts = ["hatmat on the cat", "gib cats"]
    words = [text.split() for text in texts] if listed else None
    corpus = from_sentences("x", texts) if words is None else from_words("x", words)
    table = tokenize(tokenizer_of("between blanks"), corpus.sentences, 99, words)
    expected, pieces = table.word_texts(corpus), table.piece_texts(corpus)
    first = table.offsets[:-1]
    assert (table.words[first + 1] == 0).any()  # a first word of several pieces
    found = table.without_first().word_texts(corpus)
    assert found[first].tolist() == pieces[first].tolist()
    assert np.delete(found, first).tolist() == np.delete(expected, first).tolist()
