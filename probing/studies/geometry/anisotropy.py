"""Anisotropy, how unevenly vectors fill the directions of their space: mean cosines, IsoScore, partition function.

The mean cosine mainly measures the size of the mean vector, while IsoScore uses the covariance alone: a space may be
anisotropic by one and not by the other. Neither is a defect by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.statistics.chance import N_DRAWS, CosineSums, Estimate, estimate, normalise, shares_of, undefined

# Number of pairs whose products are taken at a time.
_PAIRS = 20_000


def sum_by_sentence(rows: Tensor, lengths: Tensor) -> Tensor:
    """Return sums over consecutive rows, shape (n_sentences, d), of rows (n, d) and lengths (n_sentences,)."""
    sentence = torch.arange(len(lengths)).repeat_interleave(lengths)
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add_(0, sentence, rows)


@dataclass(frozen=True)
class MeanCosine:
    """The mean cosine over all pairs of vectors.

    Args:
        estimate: The mean cosine with its interval over sentences.
        by_neuron: Contribution of each neuron, shape (d,), float64; their sum is the mean cosine.
    """

    estimate: Estimate
    by_neuron: Tensor

    @property
    def shares(self) -> Tensor:
        """Share of each neuron, shape (d,), as `shares_of` returns it."""
        return shares_of(self.by_neuron, self.estimate.value)


class MeanCosineAccumulator:
    """Accumulates unit vectors sentence by sentence and gives the mean cosine over all pairs of two different vectors.

    `CosineSums` has the closed form; no pairs are drawn (Ethayarajh 2019 and later papers draw a thousand, whose
    standard error is about .003).

    Over all tokens, long sentences have a larger weight, and some pairs are from one sentence. The published quantity
    avoids both by taking one token per sentence; to compute it, pass one row per sentence.

    If a draw contains a sentence twice, tokens of the two copies are not paired, because a token and its copy have a
    cosine of 1.

    Args:
        d: Width of the vectors.
        n_draws: Number of draws behind the interval.
    """

    def __init__(self, d: int, n_draws: int = N_DRAWS) -> None:
        self.n_sentences = 0
        self.all = CosineSums(d)
        self.drawn = torch.zeros(n_draws, d, dtype=torch.float64)
        # For each draw, the cosines and the number of pairs between copies of one sentence, which do not count.
        self.cosines = torch.zeros(n_draws, dtype=torch.float64)
        self.pairs = torch.zeros(n_draws, dtype=torch.float64)
        self.drawn_tokens = torch.zeros(n_draws, dtype=torch.float64)

    def update(self, units: Tensor, sums: Tensor, lengths: Tensor, weights: Tensor) -> None:
        """Add whole sentences.

        Args:
            units: Unit vectors of all tokens, shape (n, d).
            sums: Sums of the unit vectors over each sentence, shape (n_sentences, d).
            lengths: Number of tokens of each sentence, shape (n_sentences,); it may be 0.
            weights: How often each sentence occurs in each draw, shape (n_draws, n_sentences).
        """
        self.all.update(units, sums)
        self.n_sentences += int((lengths > 0).sum())
        self.drawn += (weights.to(sums.dtype) @ sums).double()
        counts, n = weights.double(), lengths.double()
        together = sums.double().square().sum(1)
        self.cosines += counts @ (together - n) - counts.square() @ together
        self.pairs += counts @ (n * (n - 1)) - counts.square() @ n.square()
        self.drawn_tokens += counts @ n

    def result(self) -> MeanCosine:
        """Return the mean cosine; it is NaN for fewer than two vectors."""
        n, by_neuron = self.all.n, self.all.by_neuron()
        if n < 2:
            return MeanCosine(undefined(n), by_neuron)
        drawn = (self.drawn.square().sum(1) + self.cosines) / (self.drawn_tokens.square() + self.pairs)
        return MeanCosine(estimate(float(by_neuron.sum()), drawn, n, self.n_sentences), by_neuron)


class ClippedCosines:
    """The mean cosine with some neurons set to 0, for several choices of neurons at once.

    Only the lengths change, so all choices together take two products instead of a pass each: (n, d) with
    (d, n_choices) for the squared lengths, and (n_choices, n) with (n, d).

    Args:
        choices: Neurons of each choice, equally many in all, shape (n_choices, n_neurons).
        d: Width of the vectors.
    """

    def __init__(self, choices: Tensor, d: int) -> None:
        self.choices, self.n = choices, 0
        self.kept = torch.ones(d, len(choices)).scatter_(0, choices.T, 0.0)
        self.totals = torch.zeros(len(choices), d, dtype=torch.float64)

    def update(self, vectors: Tensor) -> None:
        """Add vectors, shape (n, d); vectors of length 0 are treated as in `normalise`."""
        # Sum the squares of the neurons that remain: if they are small, subtracting the others' from the total would
        # leave only rounding errors.
        left = (vectors.square() @ self.kept.to(vectors.dtype)).T
        inverse = torch.where(left > torch.finfo(left.dtype).tiny, left.rsqrt(), 0.0)
        self.totals += (inverse @ vectors).double()
        self.n += len(vectors)

    def result(self) -> Tensor:
        """Return the mean cosine of each choice, shape (n_choices,), float64."""
        kept = self.totals.scatter(1, self.choices, 0.0)
        return (kept.square().sum(1) - self.n) / (self.n * (self.n - 1))


def isoscore(covariance: Tensor) -> float:
    """Return IsoScore (Rudman et al. 2022, arXiv 2108.07344): 1 if all directions vary equally, 0 if only one varies.

    The published steps (principal components, their variances scaled to length sqrt(d), distance from all ones, share
    of dimensions used, rescaled) reduce to (PR - 1) / (d - 1), where PR = (sum lambda)^2 / sum lambda^2 is the
    participation ratio. No eigenvalue is needed: sum lambda is the trace, sum lambda^2 the squared Frobenius norm.

    The score ignores the mean, and therefore an outlier dimension that is large and constant. With fewer tokens than
    several times d the estimated spectrum is too spread, and the score too low.

    Args:
        covariance: Covariance of the vectors, shape (d, d).

    Returns:
        A score from 0 to 1; NaN where nothing varies or d is 1.
    """
    d = len(covariance)
    squares = float(covariance.square().sum())
    if d == 1 or not squares > 0:
        return float("nan")
    # No spectrum has a participation ratio below 1, but rounding may produce one.
    return max(float(covariance.trace()) ** 2 / squares - 1, 0.0) / (d - 1)


def mean_energy_share(mean: Tensor, covariance: Tensor) -> float:
    """Return |mean|^2 / E|x|^2, the share of the squared length that lies in the mean vector, from 0 to 1.

    If all vectors have the same length, it is the mean cosine including pairs of a vector with itself.
    """
    energy = float(mean.square().sum())
    whole = energy + float(covariance.trace())
    return energy / whole if whole > 0 else float("nan")


def partition_isotropy(vectors: Tensor) -> float:
    """Return min Z(c) / max Z(c), Z(c) = sum over vectors of exp(c'x), c the eigenvectors of X'X and their negatives.

    The measure of Mu & Viswanath (2018, section 2), after Arora et al. (2016); it is 1 where Z is equal in all
    directions. It depends on the scale of x, so x is first divided by the root of its mean squared length. A widely
    copied implementation iterates over the rows of the matrix of eigenvectors instead of its columns.

    Args:
        vectors: The vectors X, shape (n, d).

    Returns:
        A ratio from 0 to 1; NaN where all vectors are 0.
    """
    size = vectors.double().square().sum(1).mean().sqrt()
    if not size > 0:
        return float("nan")
    scaled = vectors.double() / size
    _, directions = torch.linalg.eigh(scaled.T @ scaled)
    along = scaled @ directions
    log_z = torch.cat([along.logsumexp(0), (-along).logsumexp(0)])
    return float((log_z.min() - log_z.max()).exp())


def cosines_of_pairs(vectors: Tensor, first: NDArray[np.int64], second: NDArray[np.int64]) -> float:
    """Return the mean cosine of the given pairs of rows."""
    units, total = normalise(vectors), 0.0
    for start in range(0, len(first), _PAIRS):
        a, b = (units[torch.from_numpy(rows[start : start + _PAIRS])] for rows in (first, second))
        total += float((a * b).sum(dtype=torch.float64))
    return total / len(first)


def ethayarajh(one_per_sentence: Tensor, generator: np.random.Generator) -> float:
    """Return the mean cosine of 1,000 pairs of one random token each of 1,000 sentences (Ethayarajh 2019, his code).

    Pairs are drawn with replacement, and a vector may be paired with itself. With n sentences and a mean cosine A of
    different vectors, this raises the expected result by (1 - A) / n.

    Args:
        one_per_sentence: One token of each sentence, shape (n_sentences, d); at most 1,000 of them are used.
        generator: Generator that draws sentences and pairs.
    """
    n = min(1000, len(one_per_sentence))
    rows = generator.choice(len(one_per_sentence), n, replace=False)
    return cosines_of_pairs(one_per_sentence, *rows[generator.integers(n, size=(2, 1000))])


def luo_kulmizev_mao(one_per_sentence: Tensor, generator: np.random.Generator) -> float:
    """Return the mean cosine of 1,000 disjoint pairs of sentences, a random token of each (Luo, Kulmizev & Mao 2021).

    Args:
        one_per_sentence: One token of each sentence, shape (n_sentences, d); fewer than 2,000 give fewer pairs.
        generator: Generator that draws the pairs.
    """
    n = min(1000, len(one_per_sentence) // 2)
    rows = generator.permutation(len(one_per_sentence))
    return cosines_of_pairs(one_per_sentence, rows[:n], rows[n : 2 * n])


def timkey_van_schijndel(pool: Tensor, generator: np.random.Generator, n_pairs: int = 500_000) -> float:
    """Return the mean cosine of 500,000 random pairs of a pool of tokens (Timkey & van Schijndel 2021, their notebook).

    The two tokens of a pair may be from one sentence. The authors' model reads no special tokens at all; here the model
    reads them but they are not drawn.

    Args:
        pool: Vectors of the tokens, shape (n, d).
        generator: Generator that draws the pairs.
        n_pairs: Number of pairs.
    """
    first, second = generator.integers(len(pool), size=(2, n_pairs))
    return cosines_of_pairs(pool, first, second)


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
