"""Holds neurons at their mean in the queries and keys of a single head, and compares with random sets of equal size.

Queries and keys are linear in the state, so that a held neuron changes them by its deviation from the mean times a
column of W_Q or W_K: the scores of many sets follow from those of the intact head by products of k columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Number of random sets, and of matched sets, that each set is compared with.
DRAWS = 100
# A neuron of a matched set is drawn among this many neurons, those with the nearest standard deviations.
NEAREST = 20
# Most numbers of a tensor of scores at a time.
_MOST_NUMBERS = 2**22


def top_neurons(scores: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Return the k neurons with the largest scores, ties by lower index, ascending by index."""
    return np.sort(np.argsort(-scores, kind="stable")[:k])


def random_sets(n_neurons: int, k: int, generator: np.random.Generator, n: int = DRAWS) -> NDArray[np.int64]:
    """Draw sets of k distinct neurons among all, shape (n, k); neurons of the compared set can be drawn too.

    A set that is itself random is thus one of n + 1 sets of the same distribution, and its p-value by rank is exact.
    """
    return np.sort(np.argsort(generator.random((n, n_neurons)), axis=1)[:, :k], axis=1)


def matched_sets(
    sd: NDArray[np.float64],
    neurons: NDArray[np.int64],
    generator: np.random.Generator,
    n: int = DRAWS,
    without: Sequence[int] = (),
) -> NDArray[np.int64]:
    """Draw sets in which each neuron stands for one of `neurons` with nearly the same standard deviation.

    Args:
        sd: Standard deviation of each neuron, shape (n_neurons,).
        neurons: The neurons to be matched, shape (k,).
        generator: Source of the draws.
        n: Number of sets.
        without: Neurons that are not drawn; at least k others are left.

    Returns:
        Shape (n, k), each row of distinct neurons.
    """
    order = np.argsort(sd, kind="stable")
    rank = np.empty(len(sd), dtype=np.int64)
    rank[order] = np.arange(len(sd))
    found, taken = np.empty((n, len(neurons)), dtype=np.int64), np.zeros((n, len(sd)), dtype=bool)
    taken[:, list(without)] = True
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
class HeldScores:
    """One head on some sentences, whose scores are computed again with neurons held at their mean.

    Args:
        states: States of the words less their mean, shape (n_sentences, length, d_model); 0 where there is no word.
        is_word: Whether there is a word, shape (n_sentences, length); what counts as a word is the caller's choice.
        query: W_Q of the head times the scale of its scores, shape (d_model, d_head).
        key: W_K of the head, not scaled.
        query_of_mean: Query of the mean, scaled, with its bias, shape (d_head,). (The key of the mean adds the same to
            all scores of a query, and is left out.)
        biases: What is added to the score of each query and key, shape (n_sentences, length, length).
        is_causal: Whether a word sees no later one.
    """

    states: Tensor
    is_word: Tensor
    query: Tensor
    key: Tensor
    query_of_mean: Tensor
    biases: Tensor
    is_causal: bool = field(default=False, kw_only=True)

    @cached_property
    def seen(self) -> Tensor:
        """Whether a query may see a key, shape (n_sentences, length, length)."""
        seen = self.is_word[:, None, :] & self.is_word[:, :, None]
        return seen.tril() if self.is_causal else seen

    def scores(self, sets: NDArray[np.int64], factors: NDArray[np.float64] | None = None) -> Iterator[Tensor]:
        """Yield the scores, each of shape (some sets, n_sentences, length, length), in the order of the sets.

        Args:
            sets: Each of k neurons that are held, shape (n_sets, k); k may be 0.
            factors: By what the deviations that are taken away are multiplied, shape (n_sets,); 1 by default.
        """
        n, length, _ = self.states.shape
        chunk = max(1, _MOST_NUMBERS // max(1, n * length * max(length, sets.shape[1])))
        for first in range(0, len(sets), chunk):
            here = slice(first, first + chunk)
            times = None if factors is None else torch.from_numpy(factors[here]).to(self.states.dtype)
            yield self._of_some(torch.from_numpy(sets[here]), times)

    def maps(self, sets: NDArray[np.int64], factors: NDArray[np.float64] | None = None) -> Iterator[Tensor]:
        """Yield the attention under each set, shaped as `scores`; rows of queries that see nothing are 0."""
        hidden = ~self.seen
        for scores in self.scores(sets, factors):
            yield scores.masked_fill_(hidden, -torch.inf).softmax(-1).masked_fill_(hidden, 0)

    @cached_property
    def _intact(self) -> tuple[Tensor, Tensor, Tensor]:
        """States, queries and keys, each of shape (n_sentences * length, d)."""
        flat = self.states.flatten(0, 1)
        return flat, flat @ self.query + self.query_of_mean, flat @ self.key

    def _of_some(self, sets: Tensor, times: Tensor | None) -> Tensor:
        n_sets, (n, length, _) = len(sets), self.states.shape
        flat, queries, keys = self._intact
        held = flat.T[sets].transpose(1, 2)  # sets, words, k
        held = held if times is None else held * times[:, None, None]
        queries, keys = (
            (whole - held @ matrix[sets]).view(n_sets * n, length, -1)
            for whole, matrix in ((queries, self.query), (keys, self.key))
        )
        return (queries @ keys.transpose(1, 2)).view(n_sets, n, length, length) + self.biases


@dataclass(frozen=True)
class HeadScores(HeldScores):
    """The same, whose attention among words at one offset is asked.

    Args:
        offset: In tokens, from query to key.
    """

    offset: int

    def masses(self, sets: NDArray[np.int64]) -> Tensor:
        """Return the sum over queries of the attention to the word at the offset among words, for sets that are held.

        Args:
            sets: Each of k neurons, shape (n_sets, k); k may be 0.

        Returns:
            Shape (n_sets,), float64.
        """
        return torch.cat([self._at_offset(scores) for scores in self.scores(sets)])

    @cached_property
    def n_queries(self) -> int:
        """Number of queries that have a key at the offset."""
        return int(self.seen.diagonal(self.offset, 1, 2).sum())

    def _at_offset(self, scores: Tensor) -> Tensor:
        at_offset = scores.diagonal(self.offset, 2, 3)
        scores = _of_queries(scores, self.offset) - at_offset[..., None]
        seen = _of_queries(self.seen[None], self.offset)
        # The mass is 1 / (sum over keys of exp(score - score at the offset)): where that overflows, it is 0.
        mass = 1 / scores.masked_fill_(~seen, -torch.inf).exp_().sum(3)
        there = self.seen.diagonal(self.offset, 1, 2)
        return torch.where(there, mass, 0.0).sum((1, 2), dtype=torch.float64)


def word_mass(groups: Sequence[HeadScores], sets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean attention to the word at the offset among words, for sets of neurons that are held.

    Args:
        groups: One head on groups of sentences, each of sentences of similar length.
        sets: Each of k neurons, shape (n_sets, k); k may be 0.

    Returns:
        Shape (n_sets,); NaN where no query has a key at the offset.
    """
    n = sum(group.n_queries for group in groups)
    total = sum((group.masses(sets) for group in groups), torch.zeros(len(sets), dtype=torch.float64))
    return (total / n if n else total * torch.nan).numpy()


def _of_queries(values: Tensor, offset: int) -> Tensor:
    """Return the rows, axis 2, of those queries that may have a key at the offset, as `diagonal` orders them."""
    length, first = values.shape[2], max(0, -offset)
    return values[:, :, first : first + max(0, length - abs(offset))]
