"""The division of a corpus into shards, fixed before any work so that every process follows the same plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Increased whenever the layout on disk or the meaning of the values changes.
FORMAT = 1
DTYPES = ("float32", "bfloat16", "float16")
# Size of one shard's activations of all layers, which extraction holds in memory at a time.
SHARD_BYTES = 128 * 2**20
MIN_SHARD_TOKENS = 1024


@dataclass(frozen=True)
class Shard:
    """Consecutive sentences whose activations of a layer are in one file."""

    index: int
    first_sentence: int
    n_sentences: int
    n_tokens: int


@dataclass(frozen=True)
class Plan:
    """The division of a corpus into shards.

    Args:
        key: Everything that changes the values (model, weights, tokenizer, corpus, dtype, ...).
        n_layers: Number of blocks of the model; layers are numbered 0..n_layers.
        d_model: Width of a hidden state.
        dtype: Dtype of the stored activations, by its name in torch.
        batch_tokens: Padded tokens in one forward pass.
        shards: The shards, in corpus order.
    """

    key: Mapping[str, Any]
    n_layers: int
    d_model: int
    dtype: str
    batch_tokens: int
    shards: tuple[Shard, ...]

    @property
    def n_tokens(self) -> int:
        """Number of tokens of the corpus."""
        return sum(shard.n_tokens for shard in self.shards)


def fingerprint(key: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of a key, independent of the order of its items."""
    return hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()


def shard_tokens(n_layers: int, d_model: int, itemsize: int) -> int:
    """Return the number of tokens per shard at which all layers together fill `SHARD_BYTES`."""
    return max(MIN_SHARD_TOKENS, SHARD_BYTES // ((n_layers + 1) * d_model * itemsize))


def divide(lengths: NDArray[np.int32], max_tokens: int) -> tuple[Shard, ...]:
    """Group consecutive sentences into shards of at most `max_tokens` tokens, or of one longer sentence."""
    shards: list[Shard] = []
    first, filled = 0, 0
    for sentence, length in enumerate(lengths.tolist()):
        if filled and filled + length > max_tokens:
            shards.append(Shard(len(shards), first, sentence - first, filled))
            first, filled = sentence, 0
        filled += length
    return (*shards, Shard(len(shards), first, len(lengths) - first, filled))


def batches(lengths: NDArray[np.int32], batch_tokens: int, with_padding: bool = True) -> Iterator[NDArray[np.int64]]:
    """Yield a shard's sentences, longest first, in batches of at most `batch_tokens` padded tokens, or of one sentence.

    Args:
        lengths: Number of tokens of each sentence, shape (n_sentences,); sentences without tokens are in no batch.
        batch_tokens: Most padded tokens in a batch.
        with_padding: Whether sentences of different lengths may share a batch.
    """
    order = np.argsort(-lengths, kind="stable")
    order = order[lengths[order] > 0]
    while len(order):
        longest = int(lengths[order[0]])
        size = max(1, batch_tokens // longest)
        if not with_padding:
            size = min(size, int((lengths[order] == longest).sum()))
        yield order[:size]
        order = order[size:]
