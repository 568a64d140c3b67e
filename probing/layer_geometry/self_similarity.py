"""How similar the vectors of one word are in different sentences (Ethayarajh 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.layer_geometry.anisotropy import normalise
from probing.statistics.streamed_bootstrap import N_DRAWS, Estimate, estimate, undefined

# Least number of sentences with a word, and most words compared, as in Luo, Kulmizev & Mao (2021).
MIN_SENTENCES, MAX_WORDS = 10, 1000


@dataclass(frozen=True)
class Occurrences:
    """Which words are compared, and where they occur.

    Args:
        types: For each word of the corpus, in order, the index of its type among those compared, shape (n_words,); -1
            for other words and for all occurrences in a sentence but the first.
        first_words: Number of words before each sentence, and the total at the end; shape (n_sentences + 1,).
        n_types: Number of types compared.
    """

    types: NDArray[np.int64]
    first_words: NDArray[np.int64]
    n_types: int


def choose_words(
    tokens: Tokens, seed: int, min_sentences: int = MIN_SENTENCES, max_words: int = MAX_WORDS
) -> Occurrences:
    """Choose words that occur in enough sentences; two words are the same if their token ids are.

    Args:
        tokens: The token table.
        seed: Seed of the choice among words that occur often enough, if these are too many.
        min_sentences: Least number of sentences that a word must occur in.
        max_words: Most words that are chosen.
    """
    begins = np.flatnonzero(tokens.first_pieces)
    ends = np.flatnonzero(tokens.last_pieces) + 1
    ids = tokens.input_ids.astype("<i4").tobytes()
    spelled = [ids[4 * begin : 4 * end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    numbers: dict[bytes, int] = {}
    of_word = np.array([numbers.setdefault(word, len(numbers)) for word in spelled], dtype=np.int64)
    sentence = tokens.sentences[begins].astype(np.int64)
    _, first = np.unique(sentence * max(1, len(numbers)) + of_word, return_index=True)
    n_sentences = np.bincount(of_word[first], minlength=len(numbers))
    often = np.flatnonzero(n_sentences >= min_sentences)
    if len(often) > max_words:
        often = np.sort(np.random.default_rng(seed).choice(often, max_words, replace=False))
    followed = np.full(len(numbers), -1)
    followed[often] = np.arange(len(often))
    types = np.full(len(of_word), -1)
    types[first] = followed[of_word[first]]
    return Occurrences(types, np.searchsorted(sentence, np.arange(tokens.n_sentences + 1)), len(often))


class SelfSimilarityAccumulator:
    """Accumulates occurrences of words and gives the mean over words of the mean cosine of their occurrences.

    SelfSim(w) = 1 / (n (n - 1)) sum_{i != j} cos = (|sum_i u_i|^2 - n) / (n (n - 1)), where n counts its occurrences in
    different sentences. (Luo, Kulmizev & Mao 2021 print the sum over i < j with the same normaliser, half of this;
    their figures are of the whole.) In an anisotropic space any two vectors are similar: subtract the mean cosine of
    unrelated tokens.

    Args:
        n_types: Number of word types.
        d: Width of the vectors.
    """

    def __init__(self, n_types: int, d: int) -> None:
        self.totals = torch.zeros(n_types, d, dtype=torch.float64)
        self.counts = torch.zeros(n_types, dtype=torch.float64)

    def update(self, vectors: Tensor, types: Tensor) -> None:
        """Add occurrences, shapes (n, d) and (n,)."""
        self.totals.index_add_(0, types, normalise(vectors).double())
        self.counts += types.bincount(minlength=len(self.counts))

    def by_word(self) -> Tensor:
        """Return the self-similarity of each word, shape (n_types,), float64; NaN for fewer than two occurrences."""
        return (self.totals.square().sum(1) - self.counts) / (self.counts * (self.counts - 1))

    def result(self, seed: int, n_draws: int = N_DRAWS) -> Estimate:
        """Return the mean over words; its interval resamples words, each of which brings its own sentences."""
        values = self.by_word()
        if not len(values):
            return undefined(0)
        rows = np.random.default_rng(seed).integers(len(values), size=(n_draws, len(values)))
        n = len(values)
        return estimate(float(values.mean()), values[torch.from_numpy(rows)].mean(1), n, n)
