"""Sentences and words that a vocabulary does not know are found, and those without a vector have no direction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from families import make_tokenizer
from probing.cache.tokens import tokenize
from probing.downstream.sentence_vectors import known_tokens, unknown_sentences, unknown_words

pytestmark = pytest.mark.numeric

SENTENCES = ["the cat sat", "☃ ☂", "☃ cat", "the ☂"]


@pytest.fixture(params=["wordpiece", "unigram"])
def tokenizer(request: pytest.FixtureRequest, sentences: list[str]) -> Any:
    return make_tokenizer(request.param, [*sentences, "the cat sat"])


def test_what_the_vocabulary_does_not_know_is_found_in_words_and_sentences(tokenizer: Any) -> None:
    tokens = tokenize(tokenizer, SENTENCES, 50, [sentence.split() for sentence in SENTENCES])
    assert unknown_sentences(tokens, tokenizer).tolist() == [False, True, False, False]
    wanted = np.array([[0, 0], [0, 2], [1, 0], [1, 1], [2, 0], [2, 1], [3, 1]])
    assert unknown_words(tokens, tokenizer, wanted).tolist() == [False, False, True, True, True, False, True]
    assert not known_tokens(tokens, tokenizer)[tokens.special].any()


def test_a_sentence_without_tokens_is_unknown_and_a_vocabulary_of_bytes_knows_all(sentences: list[str]) -> None:
    wordpiece = make_tokenizer("wordpiece", sentences)
    assert unknown_sentences(tokenize(wordpiece, ["​", "it"], 50), wordpiece).tolist() == [True, False]
    of_bytes = make_tokenizer("byte-level alone", sentences)
    assert not unknown_sentences(tokenize(of_bytes, SENTENCES, 50), of_bytes).any()
