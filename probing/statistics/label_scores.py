"""Labels as vectors, and scores of clusters: what a neuron's deviations and the labels have in common in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Sums of squares that differ by less, relatively, are equal but for rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class LabelCodes:
    """A vector for each label: 0 but for one entry.

    With X the deviations of a neuron from its mean, |sum over tokens of code * x|^2 is the between-class sum of squares
    for classes, and the squared correlation times the sum of squares for numbers.

    Args:
        columns: The entry of each label that is not 0, shape (n_labels,), int64.
        values: Its value, shape (n_labels,), float64.
        mean: Mean of the vectors over the tokens, shape (n_columns,), float64.
    """

    columns: Tensor
    values: Tensor
    mean: Tensor

    @classmethod
    def of_classes(cls, sizes: Tensor) -> LabelCodes:
        """Return 1 over the root of the class's size, in a column for each class.

        Args:
            sizes: Number of tokens of each class, shape (n_classes,). Of a size of 0 there is no token.
        """
        values = sizes.double().clamp(min=1).rsqrt()
        return cls(torch.arange(len(sizes)), values, sizes * values / sizes.sum().clamp(min=1))

    @classmethod
    def of_numbers(cls, numbers: Tensor, n_tokens: int) -> LabelCodes:
        """Return the number over the root of the number of tokens, in a single column.

        Args:
            numbers: The number of each label, with the mean 0 and the variance 1 over the tokens, shape (n_labels,).
            n_tokens: Number of tokens.
        """
        columns = torch.zeros(len(numbers), dtype=torch.int64)
        return cls(columns, numbers.double() / n_tokens**0.5, torch.zeros(1, dtype=torch.float64))

    @property
    def squared_lengths(self) -> Tensor:
        """Squared distance of each label's vector from their mean, shape (n_labels,)."""
        mean = self.mean[self.columns]
        return (self.values - mean).square() + self.mean.square().sum() - mean.square()

    def sums(self, weights: Tensor) -> Tensor:
        """Return sums of the labels' vectors less their mean, each with a weight.

        Args:
            weights: Weights of each label, in each of n sums, shape (n_labels, n).

        Returns:
            Shape (n_columns, n).
        """
        return self._by_column(weights * self.values[:, None]) - self.mean[:, None] * weights.sum(0)

    def sums_of_products(self, weights: Tensor) -> Tensor:
        """Return sums of the outer products of these vectors with themselves, shape (n, n_columns, n_columns).

        As each vector has one entry besides the mean, this takes as long as writing the result.

        Args:
            weights: Weights of each label, in each of n sums, shape (n_labels, n).
        """
        entries = self._by_column(weights * self.values[:, None]).T
        across = entries[:, :, None] * self.mean
        total = weights.sum(0)[:, None, None] * (self.mean[:, None] * self.mean) - across - across.mT
        total.diagonal(dim1=1, dim2=2).add_(self._by_column(weights * self.values.square()[:, None]).T)
        return total

    def _by_column(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(self.mean), values.shape[1]).index_add_(0, self.columns, values)

    def excess_between(self, labels: NDArray[np.int32], sentences: NDArray[np.int32]) -> float:
        """Return how much of the differences between sentences' mean labels is more than chance makes, from 0 to 1.

        With the mean squares of the one-way analysis of variance, (between - within) / between: the reliability of the
        sentences' means (Shrout & Fleiss 1979, ICC(1, k)). It is 1 where every sentence has one label, and 0 where
        labels differ within sentences as much as among all tokens, or more, as positions do.

        Args:
            labels: Label of each token, shape (n_tokens,); tokens labelled -1 are ignored.
            sentences: Sentence of each token, shape (n_tokens,).
        """
        kept = labels >= 0
        value, column = self.values.numpy()[labels[kept]], self.columns.numpy()[labels[kept]]
        _, sentence, lengths = np.unique(sentences[kept], return_inverse=True, return_counts=True)
        n, n_sentences = len(value), len(lengths)
        if n == n_sentences:
            return 1.0
        if n_sentences < 2:
            return 0.0
        # Sums of the vectors over each sentence, without the entries that are 0.
        entries, entry = np.unique(sentence * np.int64(len(self.mean)) + column, return_inverse=True)
        sums = np.bincount(entry, weights=value)
        of_sentences = float((sums**2 / lengths[entries // len(self.mean)]).sum())
        squares = float((value**2).sum())
        if squares - of_sentences < ROUNDING * squares:
            return 1.0
        within = (squares - of_sentences) / (n - n_sentences)
        between = (of_sentences - n * float(self.mean.square().sum())) / (n_sentences - 1)
        return max(0.0, 1 - within / between) if between > 0 else 0.0


@dataclass(frozen=True)
class Divided:
    """The division of tokens into sentences, and of these into clusters; each adjacent, numbered from 0.

    Args:
        labels: Label of each token, shape (n,).
        sentence: Sentence of each token, shape (n,).
        cluster: Cluster of each sentence, shape (n_sentences,).
        lengths: Number of tokens of each sentence, shape (n_sentences,), float64.
    """

    labels: Tensor
    sentence: Tensor
    cluster: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, labels: Tensor, sentences: Tensor, clusters: Tensor) -> Divided:
        """Number the sentences and clusters of tokens, given in any ascending numbers, each of shape (n,)."""
        _, sentence, lengths = sentences.unique_consecutive(return_inverse=True, return_counts=True)
        _, cluster = clusters[lengths.cumsum(0) - 1].unique_consecutive(return_inverse=True)
        return cls(labels, sentence, cluster, lengths.double())

    def by_sentence(self, values: Tensor) -> Tensor:
        """Return the sums over each sentence's tokens of values of shape (n, d)."""
        return values.new_zeros(len(self.lengths), values.shape[1]).index_add_(0, self.sentence, values)

    def by_cluster(self, values: Tensor) -> Tensor:
        """Return the sums over each cluster's sentences of values of shape (n_sentences, ...).

        Where each cluster is one sentence, they are the values themselves.
        """
        n_clusters = int(self.cluster[-1]) + 1
        if n_clusters == len(values):
            return values
        return values.new_zeros(n_clusters, *values.shape[1:]).index_add_(0, self.cluster, values)

    def codes_by_sentence(self, codes: LabelCodes) -> Tensor:
        """Return the sums of the labels' vectors over each sentence, shape (n_sentences, n_columns)."""
        sums = torch.zeros(len(self.lengths), len(codes.mean), dtype=torch.float64)
        index = (self.sentence, codes.columns[self.labels])
        return sums.index_put_(index, codes.values[self.labels], accumulate=True)


class MomentsOfSigns(NamedTuple):
    """Mean, variance and third central moment of a statistic, each of shape (d_model,)."""

    mean: Tensor
    variance: Tensor
    third: Tensor


@dataclass
class ScoreSums:
    """Sums over clusters of their scores u and of products of these.

    Args:
        scores: Sum of u, shape (n_columns, d_model), float64.
        products: Sum of u u', shape (d_model, n_columns, n_columns).
        weighted: Sum of |u|^2 u u', of the same shape.
        fourths: Sum of |u|^4, shape (d_model,).
        sixths: Sum of |u|^6, shape (d_model,).
    """

    scores: Tensor
    products: Tensor
    weighted: Tensor
    fourths: Tensor
    sixths: Tensor

    @classmethod
    def empty(cls, n_columns: int, d_model: int) -> ScoreSums:
        """Return sums over nothing."""
        scores = torch.zeros(n_columns, d_model, dtype=torch.float64)
        products, weighted = (scores.new_zeros(d_model, n_columns, n_columns) for _ in range(2))
        return cls(scores, products, weighted, scores.new_zeros(d_model), scores.new_zeros(d_model))

    def add(self, scores: Tensor) -> None:
        """Add clusters: scores of shape (n_clusters, n_columns, d_model)."""
        length = scores.square().sum(1)
        by_neuron = scores.permute(2, 0, 1).contiguous()  # half the time of products of a view
        self.scores += scores.sum(0)
        self.products.baddbmm_(by_neuron.mT, by_neuron)
        self.weighted.baddbmm_((by_neuron * length.T[:, :, None]).mT, by_neuron)
        self.fourths += length.square().sum(0)
        self.sixths += length.pow(3).sum(0)

    def with_multiples(self, codes: LabelCodes, share: float, powers: Tensor) -> ScoreSums:
        """Return the sums after adding clusters with one label each, whose scores are multiples of that label's vector.

        Args:
            codes: The vectors of the labels; of each, a share of what differs from their mean counts.
            share: That share.
            powers: Sums over the clusters of each label of their factors, and of the second, fourth and sixth powers
                of these, shape (4, n_labels, d_model).
        """
        first, second, fourth, sixth = powers
        length = share**2 * codes.squared_lengths
        return ScoreSums(
            self.scores + share * codes.sums(first),
            self.products + share**2 * codes.sums_of_products(second),
            self.weighted + share**2 * codes.sums_of_products(fourth * length[:, None]),
            self.fourths + fourth.T @ length.square(),
            self.sixths + sixth.T @ length.pow(3),
        )

    def under_random_signs(self) -> MomentsOfSigns:
        """Return the moments of |sum of s u|^2 where the sign s of each cluster is + or - with equal probability.

        It is the sum of |u|^2 plus the sum over pairs of clusters of 2 s_i s_j u_i'u_j. With M the sum of u u', its
        variance is 2 (|M|^2 - sum |u|^4), and its third central moment 8 times the sum over triples of different
        clusters of (u_i'u_j) (u_j'u_k) (u_k'u_i), which is tr M^3 - 3 sum |u|^2 u'Mu + 2 sum |u|^6.
        """
        products = self.products
        squared = products @ products
        pairs = products.square().sum((1, 2)) - self.fourths
        triples = (squared * products).sum((1, 2)) - 3 * (products * self.weighted).sum((1, 2)) + 2 * self.sixths
        return MomentsOfSigns(products.diagonal(dim1=1, dim2=2).sum(1), 2 * pairs.clamp(min=0), 8 * triples)


@dataclass
class ExchangedSums:
    """What the mean of the statistic would be if labels were exchangeable within sentences, and among them.

    Among sentences, the variance of a neuron's sum over a sentence is taken to be a line in the sentence's length, plus
    a parabola, whatever its label: a n + b n^2, for independent tokens and for sentences that differ.

    Args:
        within: Mean of the squared length of the part within sentences, shape (d_model,), float64.
        per_length: Sum over sentences of (sum of deviations)^2 / n, shape (d_model,).
        squares: Sum over sentences of (sum of deviations)^2, shape (d_model,).
        of_sentences: Sums over sentences of 1, n, n^2, D n and D n^2, with D the squared distance of their mean label's
            vector from that of all tokens, shape (5,).
    """

    within: Tensor
    per_length: Tensor
    squares: Tensor
    of_sentences: Tensor

    @classmethod
    def empty(cls, d_model: int) -> ExchangedSums:
        """Return sums over nothing."""
        return cls(*(torch.zeros(n, dtype=torch.float64) for n in (d_model, d_model, d_model, 5)))

    def add(self, states: Tensor, sums: Tensor, tokens: Divided, codes: LabelCodes) -> None:
        """Add whole sentences.

        Args:
            states: Deviations of the tokens from the mean, shape (n, d_model), float64.
            sums: Their sums over each sentence, shape (n_sentences, d_model).
            tokens: The division into sentences.
            codes: The vectors of the labels.
        """
        n, of_labels = tokens.lengths, tokens.codes_by_sentence(codes)
        squares = tokens.by_sentence(states.square()) - sums.square() / n[:, None]
        values = tokens.by_sentence(codes.values[tokens.labels].square()[:, None])[:, 0]
        around = (values - of_labels.square().sum(1) / n).clamp(min=0)
        self.within += (around / (n - 1).clamp(min=1)) @ squares
        self.per_length += (sums.square() / n[:, None]).sum(0)
        self.squares += sums.square().sum(0)
        distance = (of_labels / n[:, None] - codes.mean).square().sum(1)
        rows = (torch.ones_like(n), n, n.square(), distance * n, distance * n.square())
        self.of_sentences += torch.stack([row.sum() for row in rows])

    def mean(self, between: float) -> Tensor:
        """Return the mean of the statistic, shape (d_model,), given the weight of differences between sentences."""
        n, lengths, squared, by_length, by_square = self.of_sentences.tolist()
        if n < 2:
            return self.within
        spread = squared - lengths**2 / n
        slope = (self.squares - self.per_length * lengths / n) / spread if spread > ROUNDING * squared else None
        slope = torch.zeros_like(self.within) if slope is None else slope.clamp(min=0)
        level = self.per_length / n - slope * lengths / n
        slope = torch.where(level < 0, self.squares / squared, slope)
        among = level.clamp(min=0) * by_length + slope * by_square
        return self.within + between**2 * among * n / (n - 1)
