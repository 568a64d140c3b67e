"""Activations of words: means over word pieces, and matching the words of two tokenizations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import first_pieces


class Words(NamedTuple):
    """The words of some sentences.

    Args:
        keys: Index of the sentence and of the word in it, for each row, ascending, shape (n_words, 2), int64.
        hidden_states: Activations of each layer, shape (n_words, d_model), float32 or wider.
    """

    keys: NDArray[np.int64]
    hidden_states: tuple[Tensor, ...]


def pool_words(hidden_states: Sequence[Tensor], words: NDArray[np.integer], sentences: NDArray[np.integer]) -> Words:
    """Return the mean of each word's activations over its pieces.

    Args:
        hidden_states: Hidden states of one or more layers, each of shape (n_tokens, d_model); they are not changed.
        words: Index of each token's word in its sentence, shape (n_tokens,); negative for special tokens, which are
            left out. The pieces of a word must be adjacent.
        sentences: Index of each token's sentence, ascending, shape (n_tokens,).

    Raises:
        ValueError: If the numbers of tokens differ.
    """
    n_tokens = {len(words), len(sentences), *(len(states) for states in hidden_states)}
    if len(n_tokens) > 1:
        raise ValueError(f"hidden_states, words and sentences must agree in their number of tokens: {sorted(n_tokens)}")
    begins, pieces = first_pieces(words, sentences), np.flatnonzero(words >= 0)
    keys = np.stack([sentences[begins], words[begins]], axis=1).astype(np.int64)
    word = begins[pieces].cumsum() - 1
    at, into = torch.from_numpy(pieces), torch.from_numpy(word)
    size, first = into.bincount(minlength=len(keys)), torch.from_numpy(np.flatnonzero(begins))
    return Words(keys, tuple(_means(states, at, into, size, first) for states in hidden_states))


def common_words(keys_a: NDArray[np.int64], keys_b: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows of the words that both have, in the order of their keys; sentences may be cut at different words.

    Both tokenizers must have tokenised the same list of words (`is_split_into_words`). In running text each tokenizer
    finds its own words ("don't" is three for BERT, two for RoBERTa), and the same index means another word. If a
    sentence is cut within a word, that word is the mean of its remaining pieces.

    Args:
        keys_a: Index of the sentence and of the word, for each row of the first tokenization, without repetition,
            shape (n_a, 2).
        keys_b: The same for the second tokenization, shape (n_b, 2).
    """
    both, of_key = np.unique(np.concatenate([keys_a, keys_b]), axis=0, return_inverse=True)
    of_key = of_key.reshape(-1)
    rows = np.full((2, len(both)), -1, dtype=np.intp)
    rows[0, of_key[: len(keys_a)]] = np.arange(len(keys_a))
    rows[1, of_key[len(keys_a) :]] = np.arange(len(keys_b))
    rows_a, rows_b = rows[:, (rows >= 0).all(0)]
    return rows_a, rows_b


def _means(states: Tensor, pieces: Tensor, into: Tensor, size: Tensor, first: Tensor) -> Tensor:
    """Return the mean of each word's states, shape (n_words, d_model), float32 or wider.

    Most words have a single piece, whose state is copied; only the others are added up.

    Args:
        states: Hidden states, shape (n_tokens, d_model).
        pieces: Row of each piece, shape (n_pieces,).
        into: Index of each piece's word, ascending, shape (n_pieces,).
        size: Number of pieces of each word, shape (n_words,).
        first: Row of each word's first piece, shape (n_words,).
    """
    # The cache may be in half precision; sums are in float32.
    wide = torch.promote_types(states.dtype, torch.float32)
    means = states.index_select(0, first).to(wide)
    if len(longer := (size > 1).nonzero().squeeze(1)):
        there = (size > 1)[into]
        index = torch.searchsorted(longer, into[there])
        added = states.index_select(0, pieces[there]).to(wide)
        sums = added.new_zeros(len(longer), added.shape[1]).index_add_(0, index, added)
        means[longer] = sums / size[longer, None]
    return means
