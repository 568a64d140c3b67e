"""Activations of sentences: one vector for each, pooled over its tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from probing.cache.plan import Plan, Shard
from probing.cache.tokens import Tokens
from probing.statistics.permutation import mix
from probing.tasks import Pooling

if TYPE_CHECKING:
    from probing.data.examples import Activations

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
