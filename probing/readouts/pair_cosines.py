"""Pairs of sentences or words, read by the cosine of their vectors in the last layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.downstream.pooling import cosines
from probing.readouts.readout import Loss
from probing.readouts.text import Padded, Text

Array = NDArray[np.float64]


def draw_pairs(sentences: NDArray[np.int64], lengths: NDArray[np.int32], at_most: int, seed: int) -> NDArray[np.int64]:
    """Draw pairs until the next would exceed a number of tokens, and return their indices, ascending.

    Args:
        sentences: The sentences of each pair, shape (n_pairs, 2).
        lengths: Number of tokens of each sentence, shape (n_sentences,).
        at_most: Most tokens that are drawn; one pair is drawn even if it has more.
        seed: Seed of the draw.
    """
    order = np.random.default_rng(seed).permutation(len(sentences))
    n = max(1, int((np.cumsum(lengths[sentences[order]].sum(1), dtype=np.int64) <= at_most).sum()))
    return np.sort(order[:n])


@dataclass(frozen=True, eq=False)
class Mentions:
    """Words or whole sentences, each of which has the mean of its tokens' hidden states as its vector.

    Args:
        text: The sentences.
        of_token: The mention that each token belongs to, shape (n_tokens,); -1 for tokens of none.
        sentences: The sentence of each mention in the text, shape (n_mentions,).
    """

    text: Text
    of_token: NDArray[np.int64]
    sentences: NDArray[np.int64]

    @cached_property
    def n_tokens(self) -> Tensor:
        """Number of tokens of each mention, at least 1, shape (n_mentions, 1)."""
        counts = np.bincount(self.of_token[self.of_token >= 0], minlength=len(self.sentences))
        return torch.from_numpy(counts).clamp_min(1)[:, None]

    def add(self, sums: Tensor, states: Tensor, rows: Tensor) -> None:
        """Add the hidden states of some tokens to the sums of the mentions that they belong to.

        Args:
            sums: The sums, shape (n_mentions, d_model).
            states: Hidden states, shape (n, d_model).
            rows: Index of each token in the text, shape (n,).
        """
        mention = torch.from_numpy(self.of_token)[rows.cpu()]
        there = mention >= 0
        sums.index_add_(0, mention[there], states.float().cpu()[there])

    def vectors(self, layer: int) -> Tensor:
        """Return the vectors that the intact model gives, from the cache, shape (n_mentions, d_model)."""
        states = self.text.states(layer)
        sums = torch.zeros(len(self.sentences), states.shape[1])
        self.add(sums, states, torch.arange(len(states)))
        return sums / self.n_tokens


@dataclass(frozen=True, eq=False)
class PairsReadout:
    """The readout of pairs by the cosines of their vectors.

    Args:
        name: Its name in tables.
        mentions: The words or sentences.
        pairs: The mentions of each pair, shape (n_pairs, 2).
        last: The layer that is read.
        score: Takes the cosine of each pair and returns a number for each pair; the measure is their mean.
        error: Takes the cosine of each pair and returns its loss, through which gradients flow.
        gold: What `score` and `error` were made of, for the keys of caches.
    """

    name: str
    mentions: Mentions
    pairs: NDArray[np.int64]
    last: int
    score: Callable[[Array], Array]
    error: Callable[[Tensor], Tensor]
    gold: Array

    @property
    def text(self) -> Text:
        """The sentences that are read."""
        return self.mentions.text

    @cached_property
    def n(self) -> NDArray[np.int64]:
        """1 for each pair."""
        return np.ones(len(self.pairs), dtype=np.int64)

    @property
    def content(self) -> tuple[NDArray[Any], ...]:
        """The token ids, the pairs and what is known of them."""
        tokens = self.text.tokens
        return tokens.input_ids, tokens.lengths, self.mentions.of_token, self.pairs, self.gold

    def layers(self, block: int) -> list[int]:
        """Return the last layer."""
        return [self.last]

    def begin(self, layers: Sequence[int]) -> _Reading:
        """Begin a reading of the last layer."""
        return _Reading(self)

    def scores(self, vectors: Tensor) -> Array:
        """Return the measure as a number for each pair, shape (n_pairs,).

        Args:
            vectors: The vector of each mention, shape (n_mentions, d_model).
        """
        first, second = torch.from_numpy(self.pairs).T
        return self.score(cosines(vectors[first], vectors[second]))

    @cached_property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sentence of the first and of the second mention of each pair, which is an item."""
        return self.mentions.sentences[self.pairs.ravel()], np.repeat(np.arange(len(self.pairs)), 2)

    @cached_property
    def _pull(self) -> Tensor:
        """The gradient of each pair's loss with respect to its two vectors, shape (2 n_pairs, d_model), float64."""
        with torch.inference_mode(False), torch.enable_grad():
            vectors = self.mentions.vectors(self.last).double()[torch.from_numpy(self.pairs)].requires_grad_()
            cosine = torch.nn.functional.cosine_similarity(vectors[:, 0], vectors[:, 1])
            (pull,) = torch.autograd.grad(self.error(cosine).sum(), vectors)
        return pull.flatten(0, 1)

    def loss(self, batch: Padded, occurrences: NDArray[np.int64]) -> Loss:
        """Return a function whose gradients, added over the two sentences of a pair, are those of the pair's loss.

        A pair's loss depends on two sentences, which may be in different batches. By the chain rule, the gradient of
        the loss is a sum over both sentences. The term of a sentence is the gradient of its vector's product with a
        constant, the gradient of the loss with respect to this vector.
        """
        device = batch.mask.device
        mention = torch.from_numpy(self.pairs.ravel()[occurrences]).to(device)
        taken = batch.mask & (torch.from_numpy(self.mentions.of_token).to(device)[batch.rows] == mention[:, None])
        share = taken / taken.sum(1, keepdim=True).clamp_min(1)
        pull = self._pull[torch.from_numpy(occurrences)]

        def loss(states: Tensor) -> Tensor:
            vectors = (states * share.to(states.dtype)[..., None]).sum(1)
            return (vectors * pull.to(states)).sum(1)

        return loss


class _Reading:
    def __init__(self, readout: PairsReadout) -> None:
        self.readout = readout
        self.vectors = torch.zeros(len(readout.mentions.sentences), readout.text.store.plan.d_model)

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        # All tokens of a mention are in one batch, so that no other thread adds to it.
        self.readout.mentions.add(self.vectors, states[self.readout.last][batch.mask], batch.rows[batch.mask])

    def sums(self) -> Tensor:
        return torch.from_numpy(self.readout.scores(self.vectors / self.readout.mentions.n_tokens))[None]
