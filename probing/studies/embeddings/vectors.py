"""The vectors of texts, and what is taken from them after the model: a mean, position means, and neurons."""

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
from probing.downstream.pooling import sentence_vectors

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A position that fewer tokens have has the mean of the last one that has as many; less where there are fewer texts.
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
        rows = table(torch.from_numpy(ids.astype(np.int64)).to(device)).double().cpu().numpy()
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
    """The mean hidden state of each position, estimated on some texts.

    Args:
        means: Mean of the tokens at each position, shape (n_positions, d_model).
        mean: Mean of all tokens, shape (d_model,).
        eta_squared: Share of each neuron's variance that lies between positions, over tokens that are not special,
            shape (d_model,); 0 for a neuron that does not vary.
    """

    means: Floats
    mean: Floats
    eta_squared: Floats

    @classmethod
    def of(cls, store: ActivationStore, layer: int, with_special: bool = True) -> PositionPart:
        """Estimate it.

        Args:
            store: Store of the activations of the texts.
            layer: Layer number.
            with_special: Whether the means are over special tokens, too.
        """
        width = store.read(layer, 0).shape[1]
        n_positions = int(store.tokens.lengths.max())
        sums, words = np.zeros((n_positions, width)), np.zeros((n_positions, width))
        counts, n_words, squares = np.zeros(n_positions), np.zeros(n_positions), np.zeros(width)
        for shard in store.plan.shards:
            here = store.shard_tokens(shard)
            states = store.read(layer, shard.index).double().numpy()
            positions, special = store.tokens.positions[here], store.tokens.special[here]
            np.add.at(words, positions[~special], states[~special])
            n_words += np.bincount(positions[~special], minlength=n_positions)
            squares += (states[~special] ** 2).sum(0)
            kept = np.ones(len(states), dtype=bool) if with_special else ~special
            np.add.at(sums, positions[kept], states[kept])
            counts += np.bincount(positions[kept], minlength=n_positions)
        return cls(_filled(sums, counts, store.tokens.n_sentences), sums.sum(0) / counts.sum(),
                   _eta_squared(words, n_words, squares))  # fmt: skip

    def over(self, first: Ints, stop: Ints) -> Floats:
        """Return the mean of the position means from one position up to another, of each text, shape (n, d_model).

        Positions behind the last one that is known have its mean.
        """
        n_more = max(int(stop.max()) - len(self.means), 0)
        means = np.concatenate([self.means, np.repeat(self.means[-1:], n_more, axis=0)])
        until = np.concatenate([np.zeros((1, means.shape[1])), np.cumsum(means, axis=0)])
        return np.asarray((until[stop] - until[first]) / np.maximum(stop - first, 1)[:, None])

    def first_neurons(self, n: int) -> list[int]:
        """Return the neurons with the largest eta squared, of equal ones the lower first."""
        return [int(i) for i in np.argsort(-self.eta_squared, kind="stable")[:n]]

    def centred(self, texts: Pooled) -> Floats:
        """Return vectors less the mean of all tokens."""
        return np.asarray(texts.vectors - self.mean)

    def removed(self, texts: Pooled) -> Floats:
        """Return vectors less the mean of the position means of their tokens, as if taken from each token."""
        return np.asarray(texts.vectors - self.over(texts.first, texts.stop))

    def held(self, texts: Pooled, neurons: Sequence[int]) -> Floats:
        """Return vectors in which some neurons have the mean of all tokens, as if held there in each token."""
        found = texts.vectors.copy()
        found[:, list(neurons)] = self.mean[list(neurons)]
        return found


def _filled(sums: Floats, counts: Floats, n_texts: int) -> Floats:
    """Return the mean of each position; where there are few tokens, that of the last position before with enough."""
    enough = np.flatnonzero(counts >= min(LEAST, n_texts))
    before = enough[np.maximum(np.searchsorted(enough, np.arange(len(counts)), side="right") - 1, 0)]
    return np.asarray(sums[before] / counts[before][:, None])


def _eta_squared(sums: Floats, counts: Floats, squares: Floats) -> Floats:
    there = counts > 0
    n, total = counts[there], sums.sum(0)
    grand = total**2 / n.sum()
    between, whole = (sums[there] ** 2 / n[:, None]).sum(0) - grand, squares - grand
    varies = whole > 1e-9 * squares
    return np.where(varies, between / np.where(varies, whole, 1), 0.0)
