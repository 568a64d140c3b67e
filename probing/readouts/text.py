"""The sentences that are read, in batches, and the hidden states that the cache has of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.extraction import padded_index
from probing.cache.store import batches
from probing.cache.tokens import Tokens
from probing.data.examples import Activations


@dataclass(frozen=True)
class Padded:
    """Sentences that are read together, the shorter ones padded at the end.

    Args:
        sentences: Index of each sentence in the text, shape (batch,).
        rows: Index of each token in the text, shape (batch, sequence); 0 for padding.
        mask: Whether there is a token, shape (batch, sequence).
        input_ids: Token ids, shape (batch, sequence).
        token_types: Which sentence of a pair each token is of, as the model takes it, shape (batch, sequence); None
            where it is not told.
    """

    sentences: Tensor
    rows: Tensor
    mask: Tensor
    input_ids: Tensor
    token_types: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the encoder takes."""
        types = {} if self.token_types is None else {"token_type_ids": self.token_types}
        return {"input_ids": self.input_ids, "attention_mask": self.mask.long(), **types}


def padded(tokens: Tokens, sentences: NDArray[np.int64], pad_token_id: int, device: Any = "cpu") -> Padded:
    """Return some sentences as a batch; one may be there several times.

    Args:
        tokens: The table of tokens.
        sentences: Index of each sentence, shape (batch,).
        pad_token_id: Id of the padding token.
        device: Where the batch is put.
    """
    rows, mask = padded_index(tokens.lengths, sentences)
    ids = torch.where(mask, torch.from_numpy(tokens.input_ids[rows.numpy()].astype(np.int64)), pad_token_id)
    types = None
    if tokens.token_types is not None:
        types = torch.where(mask, torch.from_numpy(tokens.token_types[rows.numpy()].astype(np.int64)), 0).to(device)
    return Padded(torch.from_numpy(sentences).to(device), rows.to(device), mask.to(device), ids.to(device), types)


def padded_batches(
    tokens: Tokens, batch_tokens: int, pad_token_id: int, with_padding: bool, device: Any = "cpu"
) -> list[Padded]:
    """Return all sentences in batches of similar length.

    Args:
        tokens: The table of tokens.
        batch_tokens: Most tokens in a batch, padding included.
        pad_token_id: Id of the padding token.
        with_padding: Whether sentences of different lengths may share a batch.
        device: Where the batches are put.
    """
    order = batches(tokens.lengths, batch_tokens, with_padding)
    return [padded(tokens, sentences, pad_token_id, device) for sentences in order]


@dataclass(frozen=True, eq=False)
class Text:
    """Some sentences of a corpus.

    Args:
        store: The activations of the corpus.
        kept: Index of each sentence in the corpus, ascending.
        n_types: Of pairs, how many token types the model is given; 0 if none.
    """

    store: Activations
    kept: NDArray[np.int64]
    n_types: int = 0

    @cached_property
    def of_corpus(self) -> NDArray[np.int64]:
        """Row of each token of the text in the corpus's table of tokens, shape (n_tokens,)."""
        return np.flatnonzero(np.isin(self.store.tokens.sentences, self.kept))

    @cached_property
    def tokens(self) -> Tokens:
        """The text's own table of tokens."""
        whole, rows = self.store.tokens, self.of_corpus
        types = whole.types_for(self.n_types)
        return Tokens(
            whole.lengths[self.kept], whole.input_ids[rows], whole.words[rows],
            token_types=None if types is None else types[rows],
        )  # fmt: skip

    def batches(self, batch_tokens: int, pad_token_id: int, with_padding: bool, device: Any = "cpu") -> list[Padded]:
        """Return the sentences in batches of similar length.

        Args:
            batch_tokens: Most tokens in a batch, padding included.
            pad_token_id: Id of the padding token.
            with_padding: Whether sentences of different lengths may share a batch.
            device: Where the batches are put.
        """
        return padded_batches(self.tokens, batch_tokens, pad_token_id, with_padding, device)

    def states(self, layer: int) -> Tensor:
        """Return the cached hidden states of a layer, shape (n_tokens, d_model), float32."""
        rows = self.of_corpus
        states = torch.empty(len(rows), self.store.plan.d_model)
        for shard in self.store.plan.shards:
            here = self.store.shard_tokens(shard)
            inside = np.flatnonzero((rows >= here.start) & (rows < here.stop))
            if len(inside):
                picked = torch.from_numpy(rows[inside] - here.start)
                states[torch.from_numpy(inside)] = self.store.read(layer, shard.index).index_select(0, picked).float()
        return states


def draw_text(store: Activations, candidates: NDArray[np.bool_], at_most: int, seed: int, n_types: int = 0) -> Text:
    """Draw sentences, whole ones, until the next would exceed a number of tokens.

    Args:
        store: The activations of the corpus.
        candidates: Which of its sentences may be drawn, shape (n_sentences,); one is drawn even if it is longer.
        at_most: Most tokens that are drawn.
        seed: Seed of the draw.
        n_types: Of pairs, how many token types the model is given; 0 if none.
    """
    lengths = store.tokens.lengths
    there = np.flatnonzero(candidates & (lengths > 0))
    order = np.random.default_rng(seed).permutation(there)
    n = max(1, int((np.cumsum(lengths[order], dtype=np.int64) <= at_most).sum()))
    return Text(store, np.sort(order[:n]), n_types)


def draw_others(sentences: NDArray[Any], others: NDArray[Any], is_same_text: bool, seed: int) -> NDArray[np.int64]:
    """Draw for each token a token of another sentence that replaces it.

    Args:
        sentences: Index of the sentence of each token, shape (n,).
        others: The same of the tokens that are drawn from, shape (n_others,).
        is_same_text: Whether both are the same sentences; tokens of a token's own sentence are then not drawn for it.
        seed: Seed of the draw.

    Returns:
        Index of the token that is drawn for each, shape (n,).
    """
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(others), size=len(sentences))
    if is_same_text and len(np.unique(others)) > 1:
        while (same := sentences == others[drawn]).any():
            drawn[same] = generator.integers(len(others), size=int(same.sum()))
    return drawn
