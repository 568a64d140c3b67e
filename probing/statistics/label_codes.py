"""Labels as vectors, so that classes and numbers are compared with neurons by the same sums."""

from __future__ import annotations

from dataclasses import dataclass

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
