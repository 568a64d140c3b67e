"""Measures of a layer: a first pass over its states fits transforms and detects outliers, a second measures them.

The mean cosine after a transform needs the sum of its normalised images, which need the transform, hence two passes.
The first takes 2 n d^2 FLOP for the covariance, the second as much for each transform that is a matrix. Layers are read
one at a time, shard by shard, so memory does not grow with the corpus, except for the token table and one number per
sentence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.data.examples import HiddenStateSource, pool_words
from probing.probes.outliers import SpecialTokens, TokenGroup, is_included, shards_of
from probing.probes.transforms import Transform
from probing.statistics.chance import (
    N_DRAWS,
    CosineSums,
    Estimate,
    MeanOverSentences,
    estimate,
    exact,
    normalise,
    shares_of,
    weights,
)
from probing.statistics.moments import Covariance, deviations_of, outliers_of
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# Anisotropy, how unevenly vectors fill the directions of their space: mean cosines, IsoScore, partition function.
# --------------------------------------------------------------------------------------------------------------------

# Number of pairs whose products are taken at a time.
_PAIRS = 20_000


def sum_by_sentence(rows: Tensor, lengths: Tensor) -> Tensor:
    """Return sums over consecutive rows, shape (n_sentences, d), of rows (n, d) and lengths (n_sentences,)."""
    sentence = torch.arange(len(lengths)).repeat_interleave(lengths)
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add_(0, sentence, rows)


@dataclass(frozen=True)
class MeanCosine:
    """The mean cosine with its interval over sentences, and each neuron's contribution to it, shape (d,), float64."""

    estimate: Estimate
    by_neuron: Tensor

    @property
    def shares(self) -> Tensor:
        """Share of each neuron, shape (d,), as `shares_of` returns it."""
        return shares_of(self.by_neuron, self.estimate.value)


class MeanCosineAccumulator:
    """Accumulator of anisotropy: the mean cosine over all pairs of two different unit vectors, added by sentence.

    `CosineSums` has the closed form; no pairs are drawn (Ethayarajh 2019 and later papers draw a thousand, whose
    standard error is about .003).

    Over all tokens, long sentences have a larger weight, and some pairs are from one sentence. The published quantity
    avoids both by taking one token per sentence; to compute it, pass one row per sentence.

    If one of the `n_draws` behind the interval contains a sentence twice, tokens of the two copies are not paired,
    because a token and its copy have a cosine of 1.
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
            weights: Frequency of each sentence in each draw, shape (n_draws, n_sentences).
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
            return MeanCosine(exact(math.nan, n), by_neuron)
        drawn = (self.drawn.square().sum(1) + self.cosines) / (self.drawn_tokens.square() + self.pairs)
        return MeanCosine(estimate(float(by_neuron.sum()), drawn, n, self.n_sentences), by_neuron)


class ClippedCosines:
    """The mean cosine with some neurons set to 0, for several choices at once, shape (n_choices, n_neurons).

    Only the lengths change, so all choices together take two products instead of a pass each: (n, d) with (d,
    n_choices) for the squared lengths, and (n_choices, n) with (n, d).
    """

    def __init__(self, choices: Tensor, d: int) -> None:
        self.choices, self.n = choices, 0
        self.mask = torch.ones(d, len(choices)).scatter_(0, choices.T, 0.0)
        self.totals = torch.zeros(len(choices), d, dtype=torch.float64)

    def update(self, vectors: Tensor) -> None:
        """Add vectors, shape (n, d); vectors of length 0 are treated as in `normalise`."""
        # Sum the squares of the neurons that remain: if they are small, subtracting the others' from the total would
        # leave only rounding errors.
        squares = (vectors.square() @ self.mask.to(vectors.dtype)).T
        inverse = torch.where(squares > torch.finfo(squares.dtype).tiny, squares.rsqrt(), 0.0)
        self.totals += (inverse @ vectors).double()
        self.n += len(vectors)

    def result(self) -> Tensor:
        """Return the mean cosine of each choice, shape (n_choices,), float64."""
        totals = self.totals.scatter(1, self.choices, 0.0)
        return (totals.square().sum(1) - self.n) / (self.n * (self.n - 1))


def isoscore(covariance: Tensor) -> float:
    """Return IsoScore (Rudman et al. 2022, arXiv 2108.07344): 1 if all directions vary equally, 0 if only one varies.

    The published steps (principal components, their variances scaled to length sqrt(d), distance from all ones, share
    of dimensions used, rescaled) reduce to (PR - 1) / (d - 1), where PR = (sum lambda)^2 / sum lambda^2 is the
    participation ratio. No eigenvalue is needed: sum lambda is the trace of the covariance (d, d), sum lambda^2 its
    squared Frobenius norm.

    The score ignores the mean, and therefore an outlier dimension that is large and constant. With fewer tokens than
    several times d the estimated spectrum is too spread, and the score too low. It is NaN if nothing varies or d is 1.
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

    The measure of Mu & Viswanath (2018, section 2), after Arora et al. (2016), for vectors X of shape (n, d). It is
    from 0 to 1, 1 if Z is equal in all directions, and NaN if all vectors are 0. It depends on the scale of x, so x is
    first divided by the root of its mean squared length. A widely copied implementation iterates over the rows of the
    matrix of eigenvectors instead of its columns.
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


def ethayarajh(sentence_vectors: Tensor, generator: np.random.Generator) -> float:
    """Return the mean cosine of 1,000 pairs of one random token each of 1,000 sentences (Ethayarajh 2019, his code).

    Pairs are drawn with replacement, and a vector may be paired with itself. With n sentences and a mean cosine A of
    different vectors, this raises the expected result by (1 - A) / n. `sentence_vectors` has a token of each sentence,
    shape (n_sentences, d); at most 1,000 are used.
    """
    n = min(1000, len(sentence_vectors))
    rows = generator.choice(len(sentence_vectors), n, replace=False)
    return cosines_of_pairs(sentence_vectors, *rows[generator.integers(n, size=(2, 1000))])


def luo_kulmizev_mao(sentence_vectors: Tensor, generator: np.random.Generator) -> float:
    """Return the mean cosine of 1,000 disjoint pairs of sentences, a random token of each (Luo, Kulmizev & Mao 2021).

    `sentence_vectors` has a token of each sentence, shape (n_sentences, d); fewer than 2,000 give fewer pairs.
    """
    n = min(1000, len(sentence_vectors) // 2)
    rows = generator.permutation(len(sentence_vectors))
    return cosines_of_pairs(sentence_vectors, rows[:n], rows[n : 2 * n])


def timkey_van_schijndel(pool: Tensor, generator: np.random.Generator, n_pairs: int = 500_000) -> float:
    """Return the mean cosine of random pairs of tokens, shape (n, d) (Timkey & van Schijndel 2021, their notebook).

    The two tokens of a pair may be from one sentence. The authors' model reads no special tokens at all; here the model
    reads special tokens, but they are not drawn.
    """
    first, second = generator.integers(len(pool), size=(2, n_pairs))
    return cosines_of_pairs(pool, first, second)


# Least number of sentences with a word, and most words compared, as in Luo, Kulmizev & Mao (2021).
MIN_SENTENCES, MAX_WORDS = 10, 1000


@dataclass(frozen=True)
class Occurrences:
    """Occurrences of the words that are compared.

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
    """Choose the words in at least `min_sentences`, a random `max_words` if they are more; a word is its token ids."""
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
    """Accumulator of the self-similarity of words: the mean over words of the mean cosine of their occurrences.

    SelfSim(w) = 1 / (n (n - 1)) sum_{i != j} cos = (|sum_i u_i|^2 - n) / (n (n - 1)), where n counts its occurrences in
    different sentences. (Luo, Kulmizev & Mao 2021 print the sum over i < j with the same normaliser, half of this;
    their figures are of the whole.) In an anisotropic space any two vectors are similar: subtract the mean cosine of
    unrelated tokens.
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
        """Return the mean over words; the interval resamples words with their sentences."""
        values = self.by_word()
        if not len(values):
            return exact(math.nan, 0)
        rows = np.random.default_rng(seed).integers(len(values), size=(n_draws, len(values)))
        n = len(values)
        return estimate(float(values.mean()), values[torch.from_numpy(rows)].mean(1), n, n)


# --------------------------------------------------------------------------------------------------------------------
# Over-smoothing, how similar the tokens of one sentence become (Shi et al. 2022), and what the first token does.
# --------------------------------------------------------------------------------------------------------------------


# Measures of each sentence.
BY_SENTENCE = ("token_similarity", "intra_sentence_similarity", "distance_to_equal_rows", "relative_distance")


def smoothness(vectors: Tensor, units: Tensor, unit_sums: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """Return the measures in `BY_SENTENCE` of the tokens of each sentence, each of shape (n_sentences,), float64.

    Token similarity is 1 / (n (n - 1)) sum_{i != j} cos(h_i, h_j) = (|sum_i u_i|^2 - n) / (n (n - 1)) (Shi et al.
    section 3), NaN for a single token. It is near 1 also where all tokens share one large neuron, so compare it with
    its value after clipping; and it is near 0 for opposite vectors, which are not diverse.

    Intra-sentence similarity (Ethayarajh 2019, section 3.2) is the mean of cos(h_i, mean_j h_j).

    The distance is d_M(H) = min_Y |H - Y|_F over matrices Y with equal rows. It is the norm of H minus its mean row,
    d_M^2 = 1 / (2 n) sum_ij |h_i - h_j|^2. It grows with the size of the vectors; d_M / |H|_F does not.

    Args:
        vectors: Vectors of all tokens, sentence by sentence, shape (n, d).
        units: The vectors divided by their lengths.
        unit_sums: Sums of `units` over each sentence, shape (n_sentences, d).
        lengths: Number of tokens of each sentence, at least 1, shape (n_sentences,).
    """
    n = lengths.double()
    # Relative to the sentence's first token, equal tokens are exactly 0; relative to their mean they would be rounded.
    first = vectors[lengths.cumsum(0) - lengths]
    shifted = vectors - first.repeat_interleave(lengths, 0)
    shift = sum_by_sentence(shifted, lengths) / lengths[:, None]
    away, means = shifted - shift.repeat_interleave(lengths, 0), first + shift
    squares = torch.stack([away.norm(dim=1), vectors.norm(dim=1)], 1).double().square()
    distance, norm = sum_by_sentence(squares, lengths).sqrt().T
    sums, mean_length = unit_sums.double(), means.double().norm(dim=1)
    return {
        "token_similarity": torch.where(n > 1, (sums.square().sum(1) - n) / (n * (n - 1)), torch.nan),
        "intra_sentence_similarity": (sums * means).sum(1) / (n * mean_length),
        "distance_to_equal_rows": distance,
        "relative_distance": distance / norm,
    }


# Measures that are not outliers: the root mean square of the norms of tokens, the share of their mean squared norm that
# is due to the mean vector, the mean cosine of two tokens, and the largest deviation of a neuron's mean from the mean
# over all neurons, in sd over neurons, with its sign.
NORM, ENERGY, COSINE, FARTHEST = "rms_norm", "mean_energy_share", "mean_cosine", "farthest_mean"


def first_token_rows(layer: int, groups: Mapping[str, TokenGroup]) -> list[dict[str, Any]]:
    """Return the rows of a layer in `first_token.csv`: norms, mean cosine, the farthest neuron, and every outlier.

    `groups` are the tokens without first ones (`exclude`), with them (`include`), and the first ones alone (`only`).
    """
    return [
        {"layer": layer, "first_token": which, **row, "n_tokens": group.profile.n_tokens}
        for which, group in groups.items()
        for row in _group_rows(group)
    ]


def _group_rows(group: TokenGroup) -> list[dict[str, Any]]:
    profile, cosine = group.profile, group.mean_cosine
    of_mean = float(np.square(profile.mean).sum())
    energy = of_mean + float(profile.variance.sum())
    z = deviations_of(profile.mean)
    farthest = int(np.abs(z).argmax())
    return [
        {"measure": NORM, "value": energy**0.5},
        *([{"measure": ENERGY, "value": of_mean / energy}] if energy else []),
        *([{"measure": COSINE, "value": cosine}] if np.isfinite(cosine) else []),
        {"measure": FARTHEST, "neuron": farthest, "value": float(z[farthest])},
        *(
            {"measure": outlier.definition, "neuron": outlier.neuron, "value": outlier.value}
            for outlier in outliers_of(profile)
        ),
    ]


Estimator = Literal["e19", "lkm", "tvs"]
ESTIMATORS: tuple[Estimator, ...] = ("e19", "lkm", "tvs")


# Most tokens kept for measures that cannot be streamed, and most sentences of which one token is kept.
POOL, POOL_SENTENCES = 10_000, 2_000
# Number of tokens of the pool that partition functions are summed over.
PARTITION = 4_096


@dataclass(frozen=True)
class Sampled:
    """Selection of the tokens that are measured or sampled, the same for all layers and transforms."""

    tokens: Tokens
    special_tokens: SpecialTokens
    seed: int

    @cached_property
    def counts(self) -> NDArray[np.bool_]:
        """Mask of the tokens that are measured, shape (n_tokens,)."""
        return is_included(self.tokens, self.special_tokens)

    @cached_property
    def is_sentence_token(self) -> NDArray[np.bool_]:
        """Mask of the measured tokens sampled from their sentence, one each, shape (n_tokens,)."""
        rows = np.flatnonzero(self.counts)
        sentences, first, n = np.unique(self.tokens.sentences[rows], return_index=True, return_counts=True)
        offset = (np.random.default_rng([self.seed, 1]).random(len(sentences)) * n).astype(np.int64)
        return self._marked(rows[first + offset])

    @cached_property
    def of_sentences(self) -> NDArray[np.bool_]:
        """Mask of at most `POOL_SENTENCES` sampled tokens, each from another sentence, shape (n_tokens,)."""
        return self._marked(self._draw(np.flatnonzero(self.is_sentence_token), POOL_SENTENCES, 2))

    @cached_property
    def pool(self) -> NDArray[np.bool_]:
        """Mask of at most `POOL` sampled tokens, shape (n_tokens,)."""
        return self._marked(self._draw(np.flatnonzero(self.counts), POOL, 3))

    @cached_property
    def words(self) -> Occurrences:
        """The words whose vectors are compared between sentences."""
        return choose_words(self.tokens, self.seed)

    def _draw(self, rows: NDArray[np.int64], n: int, stream: int) -> NDArray[np.int64]:
        generator = np.random.default_rng([self.seed, stream])
        return generator.choice(rows, n, replace=False) if len(rows) > n else rows

    def _marked(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        marked = np.zeros(self.tokens.n_tokens, dtype=bool)
        marked[rows] = True
        return marked


@dataclass(frozen=True)
class LayerMeasures:
    """Results of the second pass over a layer, with rows of `geometry.csv`.

    Args:
        cosine_shares: Share of each neuron in the mean cosine without a transform, shape (d_model,).
        distances: Distance of each sentence to the nearest matrix with equal rows, without a transform, shape
            (n_sentences,); NaN for sentences without tokens.
    """

    rows: list[dict[str, Any]]
    cosine_shares: Tensor
    distances: NDArray[np.float64]


def measure(
    store: HiddenStateSource,
    layer: int,
    sampled: Sampled,
    moments: Covariance,
    transforms: Mapping[str, Transform],
    random_choices: Sequence[Sequence[int]] = (),
    estimators: Sequence[Estimator] = (),
    distances_before: NDArray[np.float64] | None = None,
) -> LayerMeasures:
    """Measure a layer of a store under each transform by name, `none` included, in one pass over the `sampled` tokens.

    Args:
        moments: Moments of the measured tokens of this store.
        random_choices: Equally large choices of random neurons that are clipped for comparison; in their `clip_random`
            rows, the interval is the range over the choices.
        estimators: Published estimators of the mean cosine to add, for `none` and `clip`.
        distances_before: `distances` of the layer before, for their ratio; None if it was not measured.
    """
    measures = {
        name: _Measures(transform, moments, sampled.words.n_types, sampled.seed)
        for name, transform in transforms.items()
    }
    random = ClippedCosines(torch.tensor(random_choices), store.plan.d_model) if random_choices else None
    pools: dict[str, list[Tensor]] = {"pool": [], "of_sentences": []}
    distances, ratio = np.full(sampled.tokens.n_sentences, np.nan), MeanOverSentences()
    for shard, (shard_rows, states) in zip(store.plan.shards, shards_of(store, layer), strict=True):
        block = _Block.of(states, shard_rows, sampled, shard.first_sentence, shard.n_sentences)
        for each in measures.values():
            each.update(block)
        if random:
            random.update(block.vectors)
        for name, parts in pools.items():
            parts.append(states[torch.from_numpy(getattr(sampled, name)[shard_rows])])
        distances[block.sentences] = now = measures["none"].last_distances.numpy()
        if distances_before is not None:
            before = distances_before[block.sentences]
            quotients = np.divide(now, before, out=np.full(len(before), np.nan), where=before > 0)
            ratio.update(torch.from_numpy(quotients), block.weights)
    pool, of_sentences = (torch.cat(parts) for parts in pools.values())
    rows = [row for name, each in measures.items() for row in _rows(layer, name, each.results(pool))]
    for name in ("none", "clip") if estimators else ():
        if name in transforms:
            estimates = _estimates(estimators, transforms[name], pool, of_sentences, [sampled.seed, layer])
            rows += _rows(layer, name, estimates)
    if random:
        of_choices = random.result()
        ends = float(of_choices.min()), float(of_choices.max())
        rows += _rows(layer, "clip_random", {"mean_cosine": Estimate(float(of_choices.mean()), *ends, random.n)})
    rows += _rows(layer, "none", {"distance_ratio": replace(ratio.result(), n=int(sampled.counts.sum()))})
    return LayerMeasures(rows, measures["none"].cosine.result().shares, distances)


@dataclass(frozen=True)
class _Block:
    """Whole sentences of a layer, with the vectors of the measured tokens, shape (n, d_model).

    `lengths` (at least 1), `sentences` and `drawn`, the indices of the sampled vectors, have shape (n_sentences,);
    `weights`, the frequency of each sentence in each draw, (n_draws, n_sentences). `words`, (n_words, d_model), of
    `types`, (n_words,), are compared between sentences.
    """

    vectors: Tensor
    lengths: Tensor
    sentences: NDArray[np.int64]
    weights: Tensor
    drawn: Tensor
    words: Tensor
    types: Tensor

    @classmethod
    def of(cls, states: Tensor, rows: slice, sampled: Sampled, first_sentence: int, n_sentences: int) -> _Block:
        tokens, counts = sampled.tokens, sampled.counts[rows]
        lengths = np.bincount(tokens.sentences[rows][counts] - first_sentence, minlength=n_sentences)
        some = np.flatnonzero(lengths)
        first_words = sampled.words.first_words
        types = sampled.words.types[first_words[first_sentence] : first_words[first_sentence + n_sentences]]
        followed = np.flatnonzero(types >= 0)
        (words,) = pool_words([states], tokens.words[rows], tokens.sentences[rows]).hidden_states
        return cls(
            states[torch.from_numpy(counts)],
            torch.from_numpy(lengths[some]),
            first_sentence + some,
            weights(first_sentence, n_sentences, sampled.seed)[:, torch.from_numpy(some)],
            torch.from_numpy(sampled.is_sentence_token[rows][counts]).nonzero().squeeze(1),
            words[torch.from_numpy(followed)],
            torch.from_numpy(types[followed]),
        )


@dataclass
class _Measures:
    """Accumulators of all measures under one transform."""

    transform: Transform
    moments: Covariance
    n_types: int
    seed: int
    last_distances: Tensor = field(default_factory=lambda: torch.empty(0))

    def __post_init__(self) -> None:
        d = self.transform.n_out
        self.cosine, self.sampled_cosine, self.centred = (MeanCosineAccumulator(d) for _ in range(3))
        self.by_sentence = {name: MeanOverSentences() for name in BY_SENTENCE}
        self.words = SelfSimilarityAccumulator(self.n_types, d)
        # If the transform centres, the centred cosines are the cosines themselves.
        self.image_of_mean = self.transform(self.moments.mean)
        self.is_centred = bool(self.image_of_mean.norm() <= 1e-9 * self.moments.mean.norm())

    def update(self, block: _Block) -> None:
        images = self.transform(block.vectors)
        units = normalise(images)
        sums = sum_by_sentence(units, block.lengths)
        self.cosine.update(units, sums, block.lengths, block.weights)
        drawn = units[block.drawn]
        self.sampled_cosine.update(drawn, drawn, torch.ones_like(block.lengths), block.weights)
        alike = smoothness(images, units, sums, block.lengths)
        for name, values in alike.items():
            self.by_sentence[name].update(values, block.weights)
        self.last_distances = alike["distance_to_equal_rows"]
        self.words.update(self.transform(block.words), block.types)
        if not self.is_centred:
            centred = normalise(images - self.image_of_mean.to(images.dtype))
            self.centred.update(centred, sum_by_sentence(centred, block.lengths), block.lengths, block.weights)

    def results(self, pool: Tensor) -> dict[str, Estimate]:
        """Return each measure with its interval and the number of vectors it is taken over."""
        after = self.transform.moments(self.moments)
        cosine, unrelated = self.cosine.result(), self.sampled_cosine.result().estimate
        n = cosine.estimate.n
        centred = cosine if self.is_centred else self.centred.result()
        words = replace(self.words.result(self.seed), n=int(self.words.counts.sum()))
        alike = {name: replace(mean.result(), n=n) for name, mean in self.by_sentence.items()}
        pool = pool[:PARTITION]
        return {
            "mean_cosine": cosine.estimate,
            "mean_cosine_one_per_sentence": unrelated,
            "mean_cosine_centred": replace(centred.estimate, n=n),
            "isoscore": exact(isoscore(after.covariance), n),
            "mean_energy_share": exact(mean_energy_share(after.mean, after.covariance), n),
            "top_cosine_share": exact(float(cosine.shares[cosine.shares.abs().argmax()]), n),
            "rank": exact(float(self.transform.rank), n),
            "partition_isotropy": exact(partition_isotropy(self.transform(pool)), len(pool)),
            "self_similarity": words,
            "self_similarity_adjusted": _less(words, unrelated),
            **alike,
            "intra_sentence_similarity_adjusted": _less(alike["intra_sentence_similarity"], unrelated),
        }


def _less(similarity: Estimate, baseline: Estimate) -> Estimate:
    """Return a similarity minus the mean cosine of unrelated tokens, which is treated as known exactly."""
    by = baseline.value
    return Estimate(similarity.value - by, similarity.low - by, similarity.high - by, similarity.n)


def _estimates(
    names: Sequence[Estimator], transform: Transform, pool: Tensor, of_sentences: Tensor, seed: Sequence[int]
) -> dict[str, Estimate]:
    images, ones = transform(pool), transform(of_sentences)
    estimates: dict[str, Estimate] = {}
    for name in names:
        generator = np.random.default_rng(seed)
        if name == "tvs":
            estimates["mean_cosine_tvs"] = exact(timkey_van_schijndel(images, generator), len(images))
        elif len(ones) >= 2:
            draw = ethayarajh if name == "e19" else luo_kulmizev_mao
            estimates[f"mean_cosine_{name}"] = exact(draw(ones, generator), len(ones))
    return estimates


def _rows(layer: int, transform: str, results: Mapping[str, Estimate]) -> list[dict[str, Any]]:
    """Return rows of `geometry.csv`; undefined measures have no row."""
    rows = []
    for name, mean in results.items():
        if not np.isfinite(mean.value):
            continue
        interval = {} if np.isnan(mean.low) else {"low": mean.low, "high": mean.high}
        row = {"layer": layer, "transform": transform, "measure": name, "value": mean.value}
        rows.append({**row, **interval, "n_tokens": mean.n})
    return rows
