"""The vectors of texts, and what is taken from them after the model: a mean, position parts, and neurons."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import nn

from probing.cache import ActivationStore
from probing.cache.tokens import Tokens
from probing.downstream.names import Pooling
from probing.downstream.sentence_vectors import sentence_vectors
from probing.statistics.two_way import TwoWaySums
from probing.statistics.two_way_design import MOST_POSITIONS, Design

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A position of fewer tokens has the part of the last one before it that has as many; less where there are fewer texts.
LEAST = 10


def bag_of_words(tokens: Tokens, table: nn.Module) -> Floats:
    """Return the mean of the word embeddings of each text's tokens that are not special, shape (n_texts, width).

    No position and no other token plays a role in it. It is zero for a text without such tokens.

    Args:
        tokens: The table of tokens.
        table: The model's table of word embeddings.
    """
    kept = ~tokens.special
    ids, at = np.unique(tokens.input_ids[kept], return_inverse=True)
    device = next(table.parameters()).device
    with torch.inference_mode():
        rows = table(torch.from_numpy(ids.astype(np.int64)).to(device)).cpu().double().numpy()
    where = tokens.sentences[kept], at
    counts = csr_matrix((np.ones(len(at)), where), shape=(tokens.n_sentences, len(ids)))
    return np.asarray(counts @ rows / np.maximum(counts.sum(1).reshape(-1, 1), 1))


@dataclass(frozen=True)
class Pooled:
    """The vectors of texts, and which of their tokens these are the means of.

    Args:
        vectors: The vectors, shape (n_texts, d_model).
        first: Position of the first token that is pooled, shape (n_texts,).
        stop: Position behind the last one, shape (n_texts,).
    """

    vectors: Floats
    first: Ints
    stop: Ints

    @classmethod
    def of(cls, store: ActivationStore, layer: int, pooling: Pooling) -> Pooled:
        """Pool the hidden states of a layer.

        Args:
            store: Store of the activations.
            layer: Layer number.
            pooling: `mean`, `mean_special` or `cls`.
        """
        tokens = store.tokens
        first, stop = np.zeros(tokens.n_sentences, dtype=np.int64), tokens.lengths.astype(np.int64)
        if pooling == "cls":
            stop = first + 1
        elif pooling == "mean":  # special tokens are at the ends
            positions = np.where(tokens.special, -1, tokens.positions)
            stop = np.maximum.reduceat(positions, tokens.offsets[:-1]) + 1
            positions = np.where(tokens.special, tokens.n_tokens, tokens.positions)
            first = np.minimum.reduceat(positions, tokens.offsets[:-1])
            first = np.minimum(first, stop)
        return cls(sentence_vectors(store, layer, pooling).double().numpy(), first.astype(np.int64), stop)


@dataclass(frozen=True)
class PositionPart:
    """What the position adds to hidden states, estimated on some texts by a two-way analysis of variance.

    Args:
        means: Mean of all tokens and position part of each position, shape (n_positions, d_model).
        mean: Mean of all tokens, shape (d_model,).
        shares: Share of each neuron's variance over tokens that are not special which positions explain beyond what
            texts do and beyond chance, shape (d_model,); 0 for a neuron that does not vary.
    """

    means: Floats
    mean: Floats
    shares: Floats

    @classmethod
    def of(cls, store: ActivationStore, layer: int, with_special: bool = True) -> PositionPart:
        """Estimate it.

        Args:
            store: Store of the activations of the texts.
            layer: Layer number.
            with_special: Whether the means are over special tokens, too.
        """
        tokens = store.tokens
        near, words = tokens.positions < MOST_POSITIONS, ~tokens.special
        sums, of_words = (
            _summed(store, layer, near if with_special else near & words),
            _summed(store, layer, near & words),
        )
        design, origin = sums.design, sums.origin
        assert origin is not None  # there are tokens
        n, positions = design.whole.n, design.values
        mean = origin.numpy() + sums.by_position.sum((0, 1)) / n.sum()
        enough = np.flatnonzero(n >= min(LEAST, tokens.n_sentences))
        at = np.searchsorted(positions[enough], np.arange(positions[-1] + 1), side="right") - 1
        part = sums.position_part(design.whole)[enough[np.maximum(at, 0)]]
        return cls(mean + part, mean, np.nan_to_num(of_words.shares(by_neuron=True)[0].excess["position"]))

    def over(self, first: Ints, stop: Ints) -> Floats:
        """Return the mean of `means` from one position up to another, of each text, shape (n, d_model).

        Positions behind the last one that is known have its mean.
        """
        n_more = max(int(stop.max()) - len(self.means), 0)
        means = np.concatenate([self.means, np.repeat(self.means[-1:], n_more, axis=0)])
        until = np.concatenate([np.zeros((1, means.shape[1])), np.cumsum(means, axis=0)])
        return np.asarray((until[stop] - until[first]) / np.maximum(stop - first, 1)[:, None])

    def first_neurons(self, n: int) -> list[int]:
        """Return the neurons with the largest share of position, of equal ones the lower first."""
        return [int(i) for i in np.argsort(-self.shares, kind="stable")[:n]]

    def centred(self, texts: Pooled) -> Floats:
        """Return vectors less the mean of all tokens."""
        return np.asarray(texts.vectors - self.mean)

    def removed(self, texts: Pooled) -> Floats:
        """Return vectors less the mean and the position parts of their tokens, as if taken from each token."""
        return np.asarray(texts.vectors - self.over(texts.first, texts.stop))

    def held(self, texts: Pooled, neurons: Sequence[int]) -> Floats:
        """Return vectors in which some neurons have the mean of all tokens, as if held there in each token."""
        found = texts.vectors.copy()
        found[:, list(neurons)] = self.mean[list(neurons)]
        return found


def _summed(store: ActivationStore, layer: int, kept: NDArray[np.bool_]) -> TwoWaySums:
    """Return the sums over some of the tokens of a layer."""
    tokens = store.tokens
    design = Design(tokens.sentences[kept], tokens.positions[kept])
    sums = TwoWaySums(design, store.read(layer, 0).shape[1])
    for shard in store.plan.shards:
        sums.update(store.read(layer, shard.index)[torch.from_numpy(kept[store.shard_tokens(shard)])])
    return sums
