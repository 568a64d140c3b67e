"""A head's contrast between the word at an offset and other words, split exactly into neuron shares.

The score of query i and key j is s(i, j) = x_i' M x_j + c' x_j + b(j - i) + (terms without j), with x the input of the
block's attention, M = W_Q W_K' / sqrt(d_head), c = W_K b_Q / sqrt(d_head), W_Q and W_K of shape (d_model, d_head), and
b the bias of relative positions, if the model has one. The contrast of a head at an offset is the mean over queries i
of s(i, i + offset) - mean over j of s(i, j): the logit advantage of the key at the offset. Softmax ignores terms
without j, and so does the contrast.

The biases b give one part of the contrast. For the rest, x is split into mean + p + rest, where p is the mean of the
words at a position minus the mean of all words. This rest of the contrast is quadratic in x and so splits exactly into
products of these terms. The part with p on both sides, "position by position", is a sum over neurons of the query, or
over neurons of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from probing.activations import ActivationStore, Request
from probing.heads.survey import HeadSurvey
from probing.text import Corpus

# Returns the biases of heads for keys at offsets: shape (heads, *offsets.shape).
Biases = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class WordTokens:
    """The tokens that are not special, in the order of the corpus, with their positions in the sentence."""

    sentences: Tensor
    positions: Tensor
    is_causal: bool = False

    def with_key_at(self, offset: int) -> Tensor:
        """Return the indices of the words that have a key at the offset and see it."""
        if self.is_causal and offset > 0:
            return torch.empty(0, dtype=torch.int64)
        index = torch.arange(len(self.positions))
        other = (index + offset).clamp(0, max(len(index) - 1, 0))
        has_key = (self.sentences[other] == self.sentences) & (self.positions[other] - self.positions == offset)
        return index[has_key]

    def mean_biases_seen(self, biases: Biases) -> Tensor:
        """Return the mean bias of the words that each word sees, shape (heads, n)."""
        sizes = self.sentences.unique_consecutive(return_counts=True)[1].tolist()
        return torch.cat([self._mean_biases(places, biases) for places in self.positions.split(sizes)], dim=1)

    def _mean_biases(self, places: Tensor, biases: Biases) -> Tensor:
        pair_biases = biases(places - places[:, None])
        if self.is_causal:
            pair_biases = pair_biases.masked_fill(torch.ones_like(pair_biases).triu(1).bool(), torch.nan)
        return pair_biases.nanmean(2)

    def means_seen(self, states: Tensor) -> Tensor:
        """Return the mean state of the words that each word sees, including itself, shape (n, d_model)."""
        _, sentence, sizes = self.sentences.unique_consecutive(return_inverse=True, return_counts=True)
        if not self.is_causal:
            sums = states.new_zeros(len(sizes), states.shape[1]).index_add_(0, sentence, states)
            return (sums / sizes[:, None].to(states.dtype))[sentence]
        firsts = (sizes.cumsum(0) - sizes)[sentence]
        sums = torch.cat([states.new_zeros(1, states.shape[1]), states.cumsum(0)])
        seen = torch.arange(len(states)) + 1
        return (sums[seen] - sums[firsts]) / (seen - firsts)[:, None].to(states.dtype)


@dataclass(frozen=True)
class PositionMeans:
    """Means of the words of training sentences.

    Args:
        mean: Mean of all words, shape (d_model,).
        parts: Mean at each position minus the mean of all words, shape (n_positions, d_model); 0 for fewer than `LEAST`
            words.
        counts: Number of words at each position, shape (n_positions,); 0 for fewer than `LEAST`.
        sd: Standard deviation of each neuron over all words, shape (d_model,).
    """

    mean: Tensor
    parts: Tensor
    counts: Tensor
    sd: Tensor

    @classmethod
    def of(cls, states: Tensor, positions: Tensor) -> PositionMeans:
        """Compute the means of states, shape (n, d_model), float64, by position, shape (n,)."""
        counts = positions.bincount()
        sums = states.new_zeros(len(counts), states.shape[1]).index_add_(0, positions, states)
        mean = states.mean(0)
        counts = torch.where(counts >= LEAST, counts, 0)
        parts = torch.where(counts[:, None] > 0, sums / counts.clamp_min(1)[:, None] - mean, 0.0)
        return cls(mean, parts, counts, states.std(0, correction=0))

    def of_words(self, positions: Tensor) -> Tensor:
        """Return the part of the position in each word, shape (n, d_model); 0 beyond the last training position."""
        last = len(self.parts) - 1
        return torch.where((positions <= last)[:, None], self.parts[positions.clamp_max(last)], 0.0)

    @property
    def spread(self) -> tuple[Tensor, Tensor]:
        """Standard deviations of p(t) and of p(t + 1) - p(t) over words, each of shape (d_model,)."""
        both = (self.counts[1:] > 0) & (self.counts[:-1] > 0)
        steps = (self.parts[1:] - self.parts[:-1])[both]
        return _sd(self.parts, self.counts), _sd(steps, torch.minimum(self.counts[1:], self.counts[:-1])[both])


# Words that a position needs in training sentences: the mean of fewer is mostly noise.
LEAST = 20


def _sd(values: Tensor, counts: Tensor) -> Tensor:
    if not len(values):
        return values.new_zeros(values.shape[1])
    weight = counts.to(values.dtype)[:, None] / counts.sum().clamp_min(1)
    return (weight * (values - (weight * values).sum(0)).square()).sum(0).sqrt()


@dataclass(frozen=True)
class LagMoments:
    """Statistics of words that determine the contrasts of all heads of a block at one offset.

    Args:
        products: Mean over queries of the outer product of the query's state minus `mean` and the key's difference,
            shape (d_model, d_model): rows are neurons of the query.
        differences: Mean over queries of the key's difference, shape (d_model,).
        mean: The vector subtracted from the state of each query, shape (d_model,).
    """

    products: Tensor
    differences: Tensor
    mean: Tensor

    @classmethod
    def of(cls, asking: Tensor, differences: Tensor, mean: Tensor) -> LagMoments:
        """Compute the moments of query states and key differences (key minus mean of seen keys), (n, d_model)."""
        n = max(len(asking), 1)
        return cls((asking - mean).T @ differences / n, differences.sum(0) / n, mean)

    def split(self, matrix: Tensor, towards: Tensor) -> tuple[Tensor, Tensor]:
        """Split the contrast of a head into terms of pairs of neurons and terms of single neurons of the key.

        The head is given by `matrix` (M, rows are neurons of the query) and `towards` (c). The terms have shapes
        (d_model, d_model) and (d_model,); together they sum to the contrast.
        """
        return matrix * self.products, (self.mean @ matrix + towards) * self.differences


def contrast_without(pairs: Tensor, singles: Tensor, is_fixed: Tensor) -> Tensor:
    """Return the contrast of a head with each set of neurons fixed at its mean in queries and keys, shape (n_sets,).

    A fixed neuron adds nothing: its deviation from the mean is 0 in queries, and so is its difference in keys. For
    `pairs` and `singles` see `LagMoments.split`; `is_fixed` has shape (n_sets, d_model).
    """
    unfixed = (~is_fixed).to(pairs.dtype)
    return (unfixed @ pairs * unfixed).sum(1) + unfixed @ singles


@dataclass(frozen=True)
class Shares:
    """Shares of neurons of the query and of the key in a contrast's position-by-position part; both sum to it."""

    by_query: Tensor
    by_key: Tensor

    @classmethod
    def of(cls, query: Tensor, key: Tensor, products: Tensor, bases: Tensor | None = None) -> Shares:
        """Split the part: the share of neuron n of the query is the sum over n' of M[n, n'] products[n, n'].

        With M = W_Q W_K', this is the inner product of row n of W_Q and row n of (products W_K), so that M is not
        needed. `query` (scaled) and `key` are W_Q and W_K of heads, shape (heads, d_model, d_head). `products` are the
        `LagMoments.products` of the position's part of each word, with mean 0. With `bases`, shape (n_bases, d_model,
        d_model), their columns replace the neurons, and the shares have shape (n_bases, heads, d_model).
        """
        sides = torch.stack([query, products @ key, key, products.T @ query])
        if bases is None:
            return cls(*_shares(sides))
        # One product for each basis: of all heads and sides together.
        flat = sides.movedim(2, 0).flatten(1)
        turned = [_shares((basis.T @ flat).view(-1, *sides.shape[:2], sides.shape[3]).movedim(0, 2)) for basis in bases]
        return cls(*(torch.stack(shares) for shares in zip(*turned, strict=True)))

    @property
    def use(self) -> Tensor:
        """Use of each neuron: the sum of the magnitudes of its two shares, shape (..., d_model)."""
        return self.by_query.abs() + self.by_key.abs()


def _shares(sides: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shares by query and by key from W_Q, products W_K, W_K and products' W_Q, stacked."""
    return (sides[0] * sides[1]).sum(-1), (sides[2] * sides[3]).sum(-1)


# Maximum number of words (of a treebank, or divided at blanks) in the sample that offsets are chosen and means are
# estimated on, and in the sample that is reported on.
MOST_TRAIN, MOST_TEST = 20_000, 10_000
# Most tokens whose attention is computed again for every set of neurons that is held, and groups by length.
MOST_HELD, GROUPS = 1_000, 4


def sample_requests(survey: HeadSurvey) -> tuple[Request, Request]:
    """Return the requests for a sample of the training sentences and for a sample of the test sentences."""
    request, is_test, _ = survey.tested
    return (
        replace(survey.request, corpus=_sample(survey.request.corpus, survey.is_train, MOST_TRAIN, survey.seed)),
        replace(request, corpus=_sample(request.corpus, is_test, MOST_TEST, survey.seed)),
    )


def _sample(corpus: Corpus, chosen: NDArray[np.bool_], most_words: int, seed: int) -> Corpus:
    """Return chosen sentences in their order: all, or a random sample with at most `most_words` words."""
    order = np.random.default_rng(seed).permutation(np.flatnonzero(chosen))
    lengths = [len(corpus.words[i]) if corpus.words else len(corpus.sentences[i].split()) for i in order.tolist()]
    n = int(np.searchsorted(np.cumsum(lengths), most_words, side="right"))
    return corpus.subset(np.sort(order[: max(n, 1)]).tolist())


@dataclass(frozen=True)
class SampledWords:
    """The words of a sample, and the hidden states that enter each block; `rows` are indices among the tokens."""

    store: ActivationStore
    words: WordTokens
    rows: Tensor

    @classmethod
    def of(cls, store: ActivationStore, is_causal: bool) -> SampledWords:
        """Select the words: tokens that are not special; the first token of a causal model counts as special."""
        tokens = store.tokens
        rows = np.flatnonzero(~tokens.special & ((tokens.positions > 0) | (not is_causal)))
        sentences, positions = (
            torch.from_numpy(of[rows].astype(np.int64)) for of in (tokens.sentences, tokens.positions)
        )
        return cls(store, WordTokens(sentences, positions, is_causal), torch.from_numpy(rows))

    def states(self, layer: int) -> Tensor:
        """Return a layer's hidden states of the words, shape (n, d_model), float64."""
        parts = [self.store.read(layer, shard.index) for shard in self.store.plan.shards]
        return torch.cat(parts)[self.rows].double()

    def to_hold(self, seed: int) -> list[Tensor]:
        """Return the words of some sentences, as indices, in groups of sentences of similar length, padded with -1."""
        _, sizes = self.words.sentences.unique_consecutive(return_counts=True)
        ends = sizes.cumsum(0)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(sizes)))
        some = order[: max(1, int((sizes[order].cumsum(0) <= MOST_HELD).sum()))]
        some = some[sizes[some].argsort(stable=True)]
        return [
            pad_sequence([torch.arange(int(ends[i] - sizes[i]), int(ends[i])) for i in group], True, -1)
            for group in some.chunk(GROUPS)
        ]


# --------------------------------------------------------------------------------------------------------------------
# Holds neurons at their mean in the queries and keys of a single head, and compares with random sets of equal size.
# --------------------------------------------------------------------------------------------------------------------

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
    """Draw sets of neurons with nearly the same standard deviations as `neurons`, neuron by neuron, shape (n, k).

    The neurons of a set are distinct; neurons in `without` are not drawn, and at least k others must remain.
    """
    order = np.argsort(sd, kind="stable")
    rank = np.empty(len(sd), dtype=np.int64)
    rank[order] = np.arange(len(sd))
    sets, taken = np.empty((n, len(neurons)), dtype=np.int64), np.zeros((n, len(sd)), dtype=bool)
    taken[:, list(without)] = True
    draws = np.arange(n)
    for i in generator.permutation(len(neurons)):
        distance = np.where(taken, np.inf, np.abs(rank - rank[neurons[i]]))
        near = np.argsort(distance, axis=1, kind="stable")[:, :NEAREST]
        n_near = min(NEAREST, len(sd) - int(taken[0].sum()))
        sets[:, i] = near[draws, generator.integers(n_near, size=n)]
        taken[draws, sets[:, i]] = True
    return np.sort(sets, axis=1)


def as_masks(sets: Sequence[NDArray[np.int64]] | NDArray[np.int64], n_neurons: int) -> Tensor:
    """Return a mask of the neurons in each set, shape (n_sets, n_neurons)."""
    mask = torch.zeros(len(sets), n_neurons, dtype=torch.bool)
    for row, members in zip(mask, sets, strict=True):
        row[torch.from_numpy(members)] = True
    return mask


@dataclass(frozen=True)
class FixedScores:
    """One head on some sentences, whose scores are recomputed with neurons fixed at their mean.

    Args:
        states: States of the words minus their mean, shape (n_sentences, length, d_model); 0 if there is no word.
        is_word: Whether there is a word (by the caller's definition), shape (n_sentences, length).
        query: W_Q of the head times the scale of its scores, shape (d_model, d_head).
        key: W_K of the head, not scaled.
        query_of_mean: Query of the mean, scaled, with its bias, shape (d_head,). (The key of the mean adds the same to
            all scores of a query and is omitted.)
        biases: Added to the score of each query and key, shape (n_sentences, length, length).
        is_causal: Whether a word sees no later word.
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
        """Mask of the keys that a query may see, shape (n_sentences, length, length)."""
        seen = self.is_word[:, None, :] & self.is_word[:, :, None]
        return seen.tril() if self.is_causal else seen

    def scores(self, sets: NDArray[np.int64], factors: NDArray[np.float64] | None = None) -> Iterator[Tensor]:
        """Yield the scores, each of shape (some sets, n_sentences, length, length), in the order of the sets.

        `sets` has k fixed neurons each, shape (n_sets, k), k may be 0; `factors` multiply the removed deviations,
        default 1.
        """
        n, length, _ = self.states.shape
        chunk = max(1, _MOST_NUMBERS // max(1, n * length * max(length, sets.shape[1])))
        for first in range(0, len(sets), chunk):
            chunk_rows = slice(first, first + chunk)
            times = None if factors is None else torch.from_numpy(factors[chunk_rows]).to(self.states.dtype)
            yield self._of_some(torch.from_numpy(sets[chunk_rows]), times)

    def maps(self, sets: NDArray[np.int64], factors: NDArray[np.float64] | None = None) -> Iterator[Tensor]:
        """Yield the attention under each set, with the shape of `scores`; rows of queries that see no key are 0."""
        hidden = ~self.seen
        for scores in self.scores(sets, factors):
            yield scores.masked_fill_(hidden, -torch.inf).softmax(-1).masked_fill_(hidden, 0)

    @cached_property
    def _intact(self) -> tuple[Tensor, Tensor, Tensor]:
        flat = self.states.flatten(0, 1)
        return flat, flat @ self.query + self.query_of_mean, flat @ self.key

    def _of_some(self, sets: Tensor, times: Tensor | None) -> Tensor:
        n_sets, (n, length, _) = len(sets), self.states.shape
        flat, queries, keys = self._intact
        fixed_states = flat.T[sets].transpose(1, 2)  # sets, words, k
        fixed_states = fixed_states if times is None else fixed_states * times[:, None, None]
        queries, keys = (
            (whole - fixed_states @ matrix[sets]).view(n_sets * n, length, -1)
            for whole, matrix in ((queries, self.query), (keys, self.key))
        )
        return (queries @ keys.transpose(1, 2)).view(n_sets, n, length, length) + self.biases


@dataclass(frozen=True)
class HeadScores(FixedScores):
    """Scores of a head whose attention among words is measured at one offset, in tokens from query to key."""

    offset: int

    def masses(self, sets: NDArray[np.int64]) -> Tensor:
        """Return the attention to the word at the offset among words, summed over queries, shape (n_sets,), float64."""
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
        is_seen = self.seen.diagonal(self.offset, 1, 2)
        return torch.where(is_seen, mass, 0.0).sum((1, 2), dtype=torch.float64)


def word_mass(groups: Sequence[HeadScores], sets: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the mean attention to the word at the offset among words, shape (n_sets,); NaN without queries."""
    n = sum(group.n_queries for group in groups)
    total = sum((group.masses(sets) for group in groups), torch.zeros(len(sets), dtype=torch.float64))
    return (total / n if n else total * torch.nan).numpy()


def _of_queries(values: Tensor, offset: int) -> Tensor:
    """Return the rows, axis 2, of those queries that may have a key at the offset, as `diagonal` orders them."""
    length, first = values.shape[2], max(0, -offset)
    return values[:, :, first : first + max(0, length - abs(offset))]
