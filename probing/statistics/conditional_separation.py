"""How neurons go with labels among tokens that are alike in something else, such as the token itself.

The probe of a label reads whatever goes with the label (Kumar, Tan & Sharma 2022). Here tokens are divided into strata,
each with one value of what the label may be confounded with, and are compared within these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.statistics.label_codes import ROUNDING, LabelCodes
from probing.statistics.label_scores import ScoreSums
from probing.statistics.separation import SCORES, Separation, beyond_chance


def strata_with_several(values: NDArray[np.int64], labels: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the stratum of each token, numbered from 0; -1 where its stratum has a single label, shape (n_tokens,).

    Args:
        values: Number of each token's value of the confound, -1 without one, shape (n_tokens,).
        labels: Label of each token, -1 without one, shape (n_tokens,).
    """
    strata = np.full(len(values), -1)
    both = (values >= 0) & (labels >= 0)
    pairs = np.unique(np.stack([values[both], labels[both]]), axis=1)
    several, n_labels = np.unique(pairs[0], return_counts=True)
    several = several[n_labels > 1]
    both &= np.isin(values, several)
    strata[both] = np.searchsorted(several, values[both])
    return strata


@dataclass(frozen=True)
class WithinStrata:
    """Labels as vectors, less the mean vector of the token's stratum.

    They are rotated and scaled so that the sum over all tokens of their outer products is the identity. The squared
    length of the sum of vector times deviation is then what the labels explain of a neuron's sum of squares within
    strata: the numerator of the partial eta squared.

    Args:
        labels: Vector of each label, shape (n_labels, n_columns), float64.
        means: Mean vector of each stratum, shape (n_strata, n_columns), float64.
        sizes: Number of tokens of each stratum, shape (n_strata,), float64.
    """

    labels: Tensor
    means: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, codes: LabelCodes, labels: Tensor, strata: Tensor) -> WithinStrata:
        """Return the vectors.

        Args:
            codes: The labels as vectors.
            labels: Label of each token, shape (n_tokens,).
            strata: Stratum of each token, shape (n_tokens,).
        """
        vectors = torch.zeros(len(codes.values), len(codes.mean), dtype=torch.float64)
        vectors[torch.arange(len(vectors)), codes.columns] = codes.values
        sizes = strata.bincount().double()
        sums = torch.zeros(len(sizes), vectors.shape[1], dtype=torch.float64)
        sums.index_put_((strata, codes.columns[labels]), codes.values[labels], accumulate=True)
        counts = labels.bincount(minlength=len(vectors)).double()
        total = (vectors * counts[:, None]).T @ vectors
        values, directions = torch.linalg.eigh(total - (sums / sizes[:, None]).T @ sums)
        kept = values > ROUNDING * total.diagonal().max()
        turn = directions[:, kept] * values[kept].rsqrt()
        return cls(vectors @ turn, (sums / sizes[:, None]) @ turn, sizes)


@dataclass
class StratumMeans:
    """Means of each stratum, by sums over the tokens of whole sentences.

    Args:
        states: Sum of the tokens' hidden states, later their mean, shape (n_strata, d_model), float64.
        of_sentences: The same of the mean hidden states of their sentences.
    """

    states: Tensor
    of_sentences: Tensor

    @classmethod
    def empty(cls, n_strata: int, d_model: int) -> StratumMeans:
        """Return sums over nothing."""
        return cls(*(torch.zeros(n_strata, d_model, dtype=torch.float64) for _ in range(2)))

    def add(self, states: Tensor, strata: Tensor, sentences: Tensor) -> None:
        """Add tokens: hidden states of shape (n, d_model), float64, their strata and sentences, of shape (n,)."""
        self.states.index_add_(0, strata, states)
        self.of_sentences.index_add_(0, strata, sentence_means(states, sentences))

    def over(self, sizes: Tensor) -> StratumMeans:
        """Return the means, given the number of tokens of each stratum."""
        return StratumMeans(self.states / sizes[:, None], self.of_sentences / sizes[:, None])


def sentence_means(values: Tensor, sentences: Tensor) -> Tensor:
    """Return the mean of each token's sentence, shape (n, d) as the values; the tokens of a sentence are adjacent."""
    _, sentence, lengths = sentences.unique_consecutive(return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(lengths), values.shape[1]).index_add_(0, sentence, values)
    return (sums / lengths[:, None])[sentence]


class ConditionalAccumulator:
    """Takes batches of whole clusters of one layer; says how its neurons go with the labels within strata.

    As `SeparationAccumulator`, with deviations from the mean of the stratum in the place of deviations from that of all
    tokens, for vectors and neurons alike; so far as sentences are not to be compared with each other, these are
    deviations within sentences, too. Tokens that share a stratum's mean make the scores of their clusters smaller, and
    dependent. So, for the moments under random signs, a cluster's part of a stratum is divided by the root of 1 less
    its share of the stratum's tokens (MacKinnon & White 1985, HC2): by no less than the root of 1/2, as a cluster with
    most of a stratum is mainly compared within itself, and by 1 if it has all.

    Args:
        means: Means of each stratum.
        vectors: The labels as vectors.
        between: How much of the differences between sentences' mean labels is no chance; see
            `LabelCodes.excess_between`.
    """

    def __init__(self, means: StratumMeans, vectors: WithinStrata, between: float) -> None:
        self.means, self.vectors, self.between = means, vectors, between
        n_columns, d_model = vectors.labels.shape[1], means.states.shape[1]
        self.raised = ScoreSums.empty(n_columns, d_model)
        # Sums of vector times deviation: over tokens, of means by sentence, and of what is compared.
        self.products, self.of_means, self.scores = torch.zeros(3, n_columns, d_model, dtype=torch.float64)
        self.squares = torch.zeros(d_model, dtype=torch.float64)
        self.n_clusters = torch.zeros((), dtype=torch.float64)

    def update(
        self, hidden_states: Tensor, strata: Tensor, labels: Tensor, sentences: Tensor, clusters: Tensor
    ) -> None:
        """Add tokens. Those of a cluster, and in it those of a sentence, must be adjacent and in one batch.

        Args:
            hidden_states: Hidden states of the tokens, shape (n, d_model).
            strata: Stratum of each token, shape (n,).
            labels: Label of each token, shape (n,).
            sentences: Sentence of each token, shape (n,).
            clusters: Cluster of each token, shape (n,).
        """
        lengths = clusters.unique_consecutive(return_counts=True)[1]
        start = 0
        for part in lengths.split(max(SCORES // self.scores.numel(), 1)):
            here = slice(start, start := start + int(part.sum()))
            self._add(hidden_states[here].double(), strata[here], labels[here], sentences[here], part)

    def _add(self, states: Tensor, strata: Tensor, labels: Tensor, sentences: Tensor, lengths: Tensor) -> None:
        """Add whole clusters of these lengths."""
        vectors = self.vectors.labels[labels] - self.vectors.means[strata]
        own, mean = states - self.means.states[strata], sentence_means(vectors, sentences)
        self.products += vectors.T @ own
        self.of_means += mean.T @ own
        self.squares += own.square().sum(0)
        # Products of means by sentence keep the weight `between`: its root for either factor.
        less = 1 - self.between**0.5
        own -= less * (sentence_means(states, sentences) - self.means.of_sentences[strata])
        self.scores += (vectors - less * mean).T @ own
        cluster = torch.arange(len(lengths)).repeat_interleave(lengths)
        _, part, n_of_part = torch.stack([cluster, strata]).unique(dim=1, return_inverse=True, return_counts=True)
        share = n_of_part[part] / self.vectors.sizes[strata]
        vectors *= torch.where(share < 1, 1 - share.clamp(max=0.5), 1.0).rsqrt()[:, None]
        vectors -= less * sentence_means(vectors, sentences)
        pairs = zip(vectors.split(lengths.tolist()), own.split(lengths.tolist()), strict=True)
        self.raised.add(torch.stack([of_labels.T @ of_states for of_labels, of_states in pairs]))
        self.n_clusters += len(lengths)

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        for part in (self, self.raised):
            for name, value in list(vars(part).items()):
                if isinstance(value, Tensor):
                    setattr(part, name, sum_over_ranks(value))

    def result(self) -> Separation:
        """Return the partial eta squared less that by chance, its z and its p-value, for all tokens added."""
        whole = self.products.square().sum(0) - (1 - self.between**2) * self.of_means.square().sum(0)
        size = self.vectors.sizes @ self.means.states.square()
        squares = torch.where(self.squares > ROUNDING**2 * size, self.squares, 0.0)
        return beyond_chance(replace(self.raised, scores=self.scores), whole, squares, self.n_clusters)
