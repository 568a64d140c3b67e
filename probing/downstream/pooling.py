"""Pool the hidden states of tokens, shard by shard, into one vector for a sentence or a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.data.examples import Activations, pool_words
from probing.downstream.names import Pooling
from probing.errors import UserError

# The layer that `first_last` averages with the requested one: the first block's output (Su et al. 2021); SimCSE takes
# the embeddings instead.
FIRST = 1


def sentence_vectors(store: Activations, layer: int, pooling: Pooling) -> Tensor:
    """Return a vector for each sentence.

    Args:
        store: Store of the activations.
        layer: Layer number.
        pooling: `mean` averages the tokens that are not special, `mean_special` all tokens; `cls` takes the first
            token; `first_last` averages the means of layer 1 and of this layer, without special tokens.

    Returns:
        Shape (n_sentences, d_model), float32; zeros for a sentence without the tokens needed.
    """
    if pooling == "first_last":
        return (sentence_vectors(store, FIRST, "mean") + sentence_vectors(store, layer, "mean")) / 2
    return torch.cat([_pooled(store, layer, pooling, shard) for shard in range(len(store.plan.shards))])


def _pooled(store: Activations, layer: int, pooling: Pooling, index: int) -> Tensor:
    shard, tokens = store.plan.shards[index], store.tokens
    here = store.shard_tokens(shard)
    states = store.read(layer, index)
    if pooling == "cls":
        first = tokens.offsets[shard.first_sentence : shard.first_sentence + shard.n_sentences] - here.start
        return states[torch.from_numpy(first)].float()
    taken = np.ones(shard.n_tokens, dtype=bool) if pooling == "mean_special" else ~tokens.special[here]
    sentence = torch.from_numpy((tokens.sentences[here][taken] - shard.first_sentence).astype(np.int64))
    sums = torch.zeros(shard.n_sentences, states.shape[1])
    sums.index_add_(0, sentence, states[torch.from_numpy(taken)].float())
    return sums / sentence.bincount(minlength=shard.n_sentences).clamp(min=1)[:, None]


def has_first_special(tokens: Tokens) -> bool:
    """Whether every sentence begins with a special token, such as [CLS]."""
    return bool(tokens.special[tokens.offsets[:-1]].all())


def word_vectors(store: Activations, layers: Sequence[int], wanted: NDArray[np.int64]) -> list[Tensor]:
    """Return a vector for each requested word, the mean of its pieces.

    Args:
        store: Store of the activations.
        layers: Layer numbers.
        wanted: Sentence and word index of each word, shape (n, 2); every word must have a token (see `has_pieces`).

    Returns:
        A tensor for each layer, shape (n, d_model), float32.
    """
    keys = _keys(wanted[:, 0], wanted[:, 1])
    found_keys: list[NDArray[np.int64]] = []
    found: list[list[Tensor]] = [[] for _ in layers]
    for shard in store.plan.shards:
        here = store.shard_tokens(shard)
        words, sentences = store.tokens.words[here], store.tokens.sentences[here]
        at = np.flatnonzero((words >= 0) & np.isin(_keys(sentences, words), keys))
        rows = torch.from_numpy(at)
        pooled = pool_words([store.read(k, shard.index)[rows] for k in layers], words[at], sentences[at])
        found_keys.append(_keys(*pooled.keys.T))
        for of_layer, states in zip(found, pooled.hidden_states, strict=True):
            of_layer.append(states.float())
    # Sentences ascend from shard to shard, and words within a sentence, so the keys are sorted.
    order = torch.from_numpy(np.searchsorted(np.concatenate(found_keys), keys))
    return [torch.cat(states)[order] for states in found]


def has_pieces(
    tokens: Tokens, wanted: NDArray[np.int64], among: NDArray[np.bool_] | None = None
) -> NDArray[np.bool_]:  # fmt: skip
    """Return which words have a token, shape (n,); a word has none where the sentence was truncated before it.

    Args:
        tokens: The token table.
        wanted: Sentence and word index of each word, shape (n, 2).
        among: Which tokens count, shape (n_tokens,); None for all.
    """
    pieces = tokens.words >= 0 if among is None else among & (tokens.words >= 0)
    return np.isin(_keys(wanted[:, 0], wanted[:, 1]), _keys(tokens.sentences[pieces], tokens.words[pieces]))


def _keys(sentences: NDArray[np.integer], words: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return a number that identifies each word of each sentence; a sentence has fewer than 2^16 words."""
    return sentences.astype(np.int64) * 2**16 + words


def cosines(first: Tensor, second: Tensor) -> NDArray[np.float64]:
    """Return the cosine of each pair of rows, rounded to 7 decimals; 0 where one of them is all zeros.

    A word at the same position in two sentences has the same embedding except for rounding errors. Without the rounding
    to 7 decimals, these errors would order such pairs at random.

    Args:
        first: First vector of each pair, shape (n, d_model).
        second: Second vector of each pair, shape (n, d_model).

    Raises:
        UserError: If a vector is not finite.
    """
    a, b = first.double(), second.double()
    lengths = a.norm(dim=1) * b.norm(dim=1)
    if not lengths.isfinite().all():
        raise UserError(
            "a vector that is compared has values that are not finite in float32, so that it has no cosine; leave out "
            "the transform or the replacement that makes it so large."
        )
    return torch.where(lengths > 0, (a * b).sum(1) / lengths.clamp(min=1e-300), 0.0).round(decimals=7).numpy()


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
