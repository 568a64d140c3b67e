"""Neurons held at their mean in the queries and keys of one head alone, against random sets of as many neurons.

Queries and keys are linear in the state, so that a held neuron changes them by its deviation from the mean times a
column of W_Q or W_K: the scores of many sets follow from those of the intact head by products of k columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Sets of as many neurons that each set is compared with, of either kind.
DRAWS = 100
# Neurons among which one of a matched set is drawn: those with the nearest standard deviations.
NEAREST = 20
# Most numbers of a tensor of scores at a time.
_MOST_NUMBERS = 2**22


def top_neurons(scores: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Return the k neurons with the largest scores, ties by lower index, ascending by index."""
    return np.sort(np.argsort(-scores, kind="stable")[:k])


def random_sets(n_neurons: int, k: int, generator: np.random.Generator, n: int = DRAWS) -> NDArray[np.int64]:
    """Draw sets of k distinct neurons among all, shape (n, k): also among those that they are compared with.

    A set that is itself random is thus one of n + 1 sets of the same distribution, and its p-value by rank is exact.
    """
    return np.sort(np.argsort(generator.random((n, n_neurons)), axis=1)[:, :k], axis=1)


def matched_sets(
    sd: NDArray[np.float64], neurons: NDArray[np.int64], generator: np.random.Generator, n: int = DRAWS
) -> NDArray[np.int64]:
    """Draw sets in which each neuron stands for one of `neurons` with nearly the same standard deviation.

    Args:
        sd: Standard deviation of each neuron, shape (n_neurons,).
        neurons: The neurons to be matched, shape (k,).
        generator: Source of the draws.
        n: Number of sets.

    Returns:
        Shape (n, k), each row of distinct neurons.
    """
    order = np.argsort(sd, kind="stable")
    rank = np.empty(len(sd), dtype=np.int64)
    rank[order] = np.arange(len(sd))
    found, taken = np.empty((n, len(neurons)), dtype=np.int64), np.zeros((n, len(sd)), dtype=bool)
    draws = np.arange(n)
    for i in generator.permutation(len(neurons)):
        distance = np.where(taken, np.inf, np.abs(rank - rank[neurons[i]]))
        near = np.argsort(distance, axis=1, kind="stable")[:, :NEAREST]
        n_near = min(NEAREST, len(sd) - int(taken[0].sum()))
        found[:, i] = near[draws, generator.integers(n_near, size=n)]
        taken[draws, found[:, i]] = True
    return np.sort(found, axis=1)


def as_masks(sets: Sequence[NDArray[np.int64]] | NDArray[np.int64], n_neurons: int) -> Tensor:
    """Return for each set whether each neuron is in it, shape (n_sets, n_neurons)."""
    mask = torch.zeros(len(sets), n_neurons, dtype=torch.bool)
    for row, members in zip(mask, sets, strict=True):
        row[torch.from_numpy(members)] = True
    return mask


@dataclass(frozen=True)
class HeadScores:
    """One head on some sentences, whose attention among words is computed again with neurons held at their mean.

    Args:
        states: States of the words less their mean, shape (n_sentences, length, d_model); 0 where there is no word.
        is_word: Whether there is a word, shape (n_sentences, length).
        query: W_Q of the head times the scale of its scores, shape (d_model, d_head).
        key: W_K of the head, not scaled.
        query_of_mean: Query of the mean, scaled, with its bias, shape (d_head,). (The key of the mean moves all scores
            of a query alike, and is left out.)
        offset: In tokens, from query to key.
        is_causal: Whether a word sees no later one.
    """

    states: Tensor
    is_word: Tensor
    query: Tensor
    key: Tensor
    query_of_mean: Tensor
    offset: int
    is_causal: bool = False

    def word_mass(self, sets: NDArray[np.int64]) -> Tensor:
        """Return the mean attention to the word at the offset among words, for sets of neurons that are held.

        Args:
            sets: Each of k neurons, shape (n_sets, k); k may be 0.

        Returns:
            Shape (n_sets,), float64.
        """
        n_sentences, length, _ = self.states.shape
        chunk = max(1, _MOST_NUMBERS // max(1, n_sentences * length * length))
        parts = [self._of_some(torch.from_numpy(sets[i : i + chunk])) for i in range(0, len(sets), chunk)]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)

    def _of_some(self, sets: Tensor) -> Tensor:
        n_sets, (n, length, _) = len(sets), self.states.shape
        flat = self.states.flatten(0, 1)
        held = flat.T[sets]  # sets, k, words
        queries, keys = (
            (flat @ matrix)[None] - torch.einsum("skw,skd->swd", held, matrix[sets])
            for matrix in (self.query, self.key)
        )
        queries = (queries + self.query_of_mean).view(n_sets * n, length, -1)
        scores = (queries @ keys.view(n_sets * n, length, -1).transpose(1, 2)).view(n_sets, n, length, length)
        seen = self.is_word[:, None, :] & self.is_word[:, :, None]
        if self.is_causal:
            seen = seen.tril()
        scores.masked_fill_(~seen, -torch.inf)
        there = seen.diagonal(self.offset, 1, 2)
        # Rows without a word have no finite score; their value is not read.
        log_mass = scores.diagonal(self.offset, 2, 3) - _of_queries(scores.logsumexp(3), self.offset)
        mass = torch.where(there, log_mass.exp(), 0.0)
        return mass.sum((1, 2), dtype=torch.float64) / there.sum()


def _of_queries(values: Tensor, offset: int) -> Tensor:
    """Return the values of those queries that have a key at the offset, as `diagonal` orders them."""
    length = values.shape[2]
    first = max(0, -offset)
    return values[:, :, first : first + max(0, length - abs(offset))]
