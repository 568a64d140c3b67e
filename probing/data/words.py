"""Activations of words and of sentences: means over word pieces, pooled tokens, and words of two tokenizations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.store import Plan, Shard
from probing.cache.tokens import Tokens, first_pieces
from probing.statistics.chance import mix
from probing.tasks import Pooling

if TYPE_CHECKING:
    from probing.data.examples import Activations


def type_keys(tokens: Tokens, of_words: bool) -> NDArray[np.integer]:
    """Return what identifies each token, the same in every table: its id, or of words all pieces; shape (n_tokens,)."""
    return word_keys(tokens) if of_words else tokens.input_ids


def word_keys(tokens: Tokens) -> NDArray[np.uint64]:
    """Return a number for all pieces of each token's word, in order, the same in every table; shape (n_tokens,).

    A special token is a word of its own.
    """
    begins = tokens.first_pieces | tokens.special
    first, word = np.flatnonzero(begins), begins.cumsum() - 1
    indices = mix((np.arange(tokens.n_tokens) - first[word]).astype(np.uint64))
    found: NDArray[np.uint64] = np.add.reduceat(mix(indices + tokens.input_ids.astype(np.uint64)), first)[word]
    return found


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


# Maximum size of the pooled vectors that are kept in memory; other vectors are pooled again in every pass.
KEPT_BYTES = 2**30


def one_token_each(tokens: Tokens) -> Tokens:
    """Return a table with one token for each sentence; each token is a word of its own.

    Its id is a number that depends on the sentence's tokens, so that different sentences are different types.
    """
    keys = np.zeros(tokens.n_sentences, dtype=np.uint64)
    places = tokens.positions.astype(np.uint64) << np.uint64(32)
    np.add.at(keys, tokens.sentences, mix(places + tokens.input_ids.astype(np.uint64)))
    ids = (mix(keys) >> np.uint64(33)).astype(np.int32)
    return Tokens(np.ones(len(ids), np.int32), ids, np.zeros(len(ids), np.int16), tokens.n_truncated)


class SentenceVectors:
    """Behaves like a store with one token for each sentence, whose hidden state is pooled over the sentence's tokens.

    Args:
        base: The store whose tokens are pooled.
        pooling: `mean` and `max` are over the tokens that are not special; `cls` takes the first token.
    """

    def __init__(self, base: Activations, pooling: Pooling) -> None:
        self.base, self.pooling = base, pooling
        self.tokens: Tokens = one_token_each(base.tokens)
        shards = tuple(replace(shard, n_tokens=shard.n_sentences) for shard in base.plan.shards)
        self.plan: Plan = replace(base.plan, shards=shards)
        self._kept: dict[tuple[int, int], Tensor] = {}
        self._kept_bytes = 0

    def shard_tokens(self, shard: Shard) -> slice:
        """Return the shard's rows of the table of tokens."""
        return self.tokens.of_sentences(shard.first_sentence, shard.n_sentences)

    def read(self, layer: int, shard: int) -> Tensor:
        """Return the vectors of a shard's sentences, shape (n_sentences_in_shard, d_model), float32."""
        if (kept := self._kept.get((layer, shard))) is not None:
            return kept
        found = self._pooled(layer, shard)
        if self._kept_bytes + found.nbytes <= KEPT_BYTES:
            self._kept[layer, shard] = found
            self._kept_bytes += found.nbytes
        return found

    def _pooled(self, layer: int, index: int) -> Tensor:
        shard, tokens = self.base.plan.shards[index], self.base.tokens
        here = self.base.shard_tokens(shard)
        states = self.base.read(layer, index)
        if self.pooling == "cls":
            first = tokens.offsets[shard.first_sentence : shard.first_sentence + shard.n_sentences] - here.start
            return states[torch.from_numpy(first)].float()
        taken = torch.from_numpy(~tokens.special[here])
        sentence = torch.from_numpy(tokens.sentences[here].astype(np.int64) - shard.first_sentence)[taken]
        pooled = torch.zeros(shard.n_sentences, states.shape[1])
        if self.pooling == "mean":
            pooled.index_add_(0, sentence, states[taken].float())
            return pooled / sentence.bincount(minlength=shard.n_sentences).clamp(min=1)[:, None]
        # Tokens are in the order of sentences; torch's own reductions by index are in beta.
        those, first_of = np.unique(sentence.numpy(), return_index=True)
        if len(those):
            pooled[torch.from_numpy(those)] = torch.from_numpy(
                np.maximum.reduceat(states[taken].float().numpy(), first_of, axis=0)
            )
        return pooled


def exchanged(store: Activations, change: Callable[[Activations], Activations]) -> Activations:
    """Replace the activations of a store; if the store pools sentences, replace those that it pools."""
    return SentenceVectors(change(store.base), store.pooling) if isinstance(store, SentenceVectors) else change(store)
