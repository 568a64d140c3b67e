"""Sentences and words that a model's vocabulary does not know: their vectors tell nothing of what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.downstream.pooling import has_pieces

# SentencePiece writes the blank before a word as this piece where the word itself is unknown.
_BLANK = "▁"


def known_tokens(tokens: Tokens, tokenizer: Any) -> NDArray[np.bool_]:
    """Return which tokens stand for text of the sentence that the vocabulary knows, shape (n_tokens,).

    Args:
        tokens: The token table.
        tokenizer: The model's tokenizer.
    """
    if (unknown := tokenizer.unk_token_id) is None:
        return ~tokens.special
    return ~tokens.special & ~np.isin(tokens.input_ids, [unknown, tokenizer.convert_tokens_to_ids(_BLANK)])


def unknown_sentences(tokens: Tokens, tokenizer: Any) -> NDArray[np.bool_]:
    """Return which sentences have no token that the vocabulary knows, special tokens aside, shape (n_sentences,)."""
    known = tokens.sentences[known_tokens(tokens, tokenizer)]
    return np.bincount(known, minlength=tokens.n_sentences) == 0


def unknown_words(tokens: Tokens, tokenizer: Any, wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which words have no piece that the vocabulary knows, shape (n,).

    Args:
        tokens: The token table.
        tokenizer: The model's tokenizer.
        wanted: Sentence and word index of each word, shape (n, 2).
    """
    return ~has_pieces(tokens, wanted, known_tokens(tokens, tokenizer))
