"""Measure one layer: one pass over its cached states fits transforms and finds outliers, a second pass measures them.

The mean cosine after a transform needs the sum of its normalised images, which need the transform, hence two passes.
The first takes 2 n d^2 FLOP for the covariance, the second as much for each transform that is a matrix. One layer is
read at a time, shard by shard, so memory does not grow with the corpus, except for the token table and one number per
sentence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cache.tokens import Tokens
from probing.data.examples import Activations, pool_words
from probing.probes.transforms import Transform
from probing.statistics.chance import Estimate, MeanOverSentences, normalise, weights
from probing.statistics.moments import Covariance, CovarianceAccumulator, Profile, ProfileAccumulator, pooled
from probing.studies.geometry import anisotropy
from probing.studies.geometry.anisotropy import (
    ClippedCosines,
    MeanCosineAccumulator,
    Occurrences,
    SelfSimilarityAccumulator,
    choose_words,
    sum_by_sentence,
)
from probing.studies.geometry.smoothing import Group, smoothness

SpecialTokens = Literal["exclude", "include"]
Estimator = Literal["e19", "lkm", "tvs"]
ESTIMATORS: tuple[Estimator, ...] = ("e19", "lkm", "tvs")


# Most tokens kept for measures that cannot be streamed, and most sentences of which one token is kept.
POOL, POOL_SENTENCES = 10_000, 2_000
# Number of tokens of the pool that partition functions are summed over.
PARTITION = 4_096

# Measures of each sentence.
BY_SENTENCE = ("token_similarity", "intra_sentence_similarity", "distance_to_equal_rows", "relative_distance")

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Sampled:
    """Which tokens of a corpus count, and which are sampled; the same for all layers and transforms.

    Args:
        tokens: The token table.
        special_tokens: Whether special tokens count.
        seed: Seed of every random draw.
    """

    tokens: Tokens
    special_tokens: SpecialTokens
    seed: int

    @cached_property
    def counts(self) -> NDArray[np.bool_]:
        """Whether each token counts, shape (n_tokens,)."""
        return self.tokens.measured if self.special_tokens == "include" else ~self.tokens.special

    @cached_property
    def one_per_sentence(self) -> NDArray[np.bool_]:
        """Whether each token is the one sampled from its sentence, among those that count; shape (n_tokens,)."""
        rows = np.flatnonzero(self.counts)
        sentences, first, n = np.unique(self.tokens.sentences[rows], return_index=True, return_counts=True)
        offset = (np.random.default_rng([self.seed, 1]).random(len(sentences)) * n).astype(np.int64)
        return self._marked(rows[first + offset])

    @cached_property
    def of_sentences(self) -> NDArray[np.bool_]:
        """Whether each token is sampled as one of at most `POOL_SENTENCES`, each from another sentence; (n_tokens,)."""
        return self._marked(self._draw(np.flatnonzero(self.one_per_sentence), POOL_SENTENCES, 2))

    @cached_property
    def pool(self) -> NDArray[np.bool_]:
        """Whether each token is sampled as one of at most `POOL`; shape (n_tokens,)."""
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
class Look:
    """Results of the first pass over a layer.

    Args:
        layer: Layer number.
        moments: Moments of the tokens that count.
        profiles: Profiles without special tokens (`exclude`) and with them (`include`); the former is missing if all
            tokens are special.
        of_first: The tokens that count without the first one of each sentence (`exclude`), with it (`include`), and the
            first ones alone (`only`); none unless first tokens are set aside.
    """

    layer: int
    moments: Covariance
    profiles: Mapping[SpecialTokens, Profile]
    of_first: Mapping[str, Group]


def look(store: Activations, layer: int, sampled: Sampled) -> Look:
    """Return the moments and profiles of a layer, in one pass."""
    d_model, tokens = store.plan.d_model, sampled.tokens
    words, first = ~tokens.special, ~tokens.measured
    disjoint = {
        "words": words, "special": ~words & ~first, "first words": first & ~tokens.added,
        "first special": first & tokens.added,
    }  # fmt: skip
    accumulators = {name: ProfileAccumulator(d_model) for name, of in disjoint.items() if of.any()}
    units = {name: np.zeros(d_model) for name in accumulators} if first.any() else {}
    moments = CovarianceAccumulator(d_model)
    for here, states in _shards(store, layer):
        moments.update(states[torch.from_numpy(sampled.counts[here])])
        for name, accumulator in accumulators.items():
            some = states[torch.from_numpy(disjoint[name][here])]
            accumulator.update(some)
            if units:
                units[name] += normalise(some).double().sum(0).numpy()
    found = {name: accumulator.result() for name, accumulator in accumulators.items()}

    def of(*names: str) -> Profile:
        return pooled([found[name] for name in names if name in found])

    profiles: dict[SpecialTokens, Profile] = {"include": of("words", "special")}
    if "words" in found:
        profiles["exclude"] = found["words"]
    kinds = ("words", "special") if sampled.special_tokens == "include" else ("words",)
    alone = {kind: f"first {kind}" for kind in ("words", "special")}
    groups = {"exclude": kinds, "include": (*kinds, *(alone[kind] for kind in kinds)), "only": tuple(alone.values())}
    of_first = {
        which: Group(of(*names), np.sum([units[name] for name in names if name in units], axis=0))
        for which, names in (groups if units else {}).items()
    }
    return Look(layer, moments.result(), profiles, of_first)


@dataclass(frozen=True)
class Measured:
    """Results of the second pass over a layer.

    Args:
        rows: Rows of `geometry.csv`.
        cosine_shares: Share of each neuron in the mean cosine without a transform, shape (d_model,).
        distances: Distance of each sentence to the nearest matrix with equal rows, without a transform, shape
            (n_sentences,); NaN for sentences without tokens.
    """

    rows: list[dict[str, Any]]
    cosine_shares: Tensor
    distances: NDArray[np.float64]


def measure(
    store: Activations,
    layer: int,
    sampled: Sampled,
    moments: Covariance,
    transforms: Mapping[str, Transform],
    random_choices: Sequence[Sequence[int]] = (),
    estimators: Sequence[Estimator] = (),
    distances_before: NDArray[np.float64] | None = None,
) -> Measured:
    """Measure a layer under each transform, in one pass.

    Args:
        store: Store of the activations.
        layer: Layer number.
        sampled: Which tokens count and which are drawn.
        moments: Moments of the tokens of this store that count.
        transforms: Transforms by name, `none` included.
        random_choices: Choices of random neurons, equally many in each, that are clipped for comparison. Their rows
            are called `clip_random`, and the interval is the range over the choices.
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
    for shard, (here, states) in zip(store.plan.shards, _shards(store, layer), strict=True):
        block = _Block.of(states, here, sampled, shard.first_sentence, shard.n_sentences)
        for each in measures.values():
            each.update(block)
        if random:
            random.update(block.vectors)
        for name, kept in pools.items():
            kept.append(states[torch.from_numpy(getattr(sampled, name)[here])])
        distances[block.sentences] = now = measures["none"].last_distances.numpy()
        if distances_before is not None:
            before = distances_before[block.sentences]
            quotients = np.divide(now, before, out=np.full(len(before), np.nan), where=before > 0)
            ratio.update(torch.from_numpy(quotients), block.weights)
    pool, of_sentences = (torch.cat(kept) for kept in pools.values())
    rows = [row for name, each in measures.items() for row in _rows(layer, name, each.results(moments, pool))]
    for name in ("none", "clip") if estimators else ():
        if name in transforms:
            found = _estimates(estimators, transforms[name], pool, of_sentences, [sampled.seed, layer])
            rows += _rows(layer, name, found)
    if random:
        rows += _rows(layer, "clip_random", {"mean_cosine": _range(random)})
    rows += _rows(layer, "none", {"distance_ratio": (ratio.result(), int(sampled.counts.sum()))})
    return Measured(rows, measures["none"].cosine.result().shares, distances)


def _shards(store: Activations, layer: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield for each shard its rows in the token table and its states, in float32 or wider."""
    for shard in store.plan.shards:
        states = store.read(layer, shard.index)
        yield store.shard_tokens(shard), states.to(torch.promote_types(states.dtype, torch.float32))


@dataclass(frozen=True)
class _Block:
    """Whole sentences of a layer.

    Args:
        vectors: Vectors of the tokens that count, shape (n, d_model).
        lengths: Number of these tokens in each sentence, at least 1, shape (n_sentences,).
        sentences: Numbers of the sentences, shape (n_sentences,).
        weights: How often each sentence occurs in each draw, shape (n_draws, n_sentences).
        drawn: Indices of the vectors that are sampled from their sentences, shape (n_sentences,).
        words: Vectors of the words that are compared between sentences, shape (n_words, d_model).
        types: Word type of each, shape (n_words,).
    """

    vectors: Tensor
    lengths: Tensor
    sentences: NDArray[np.int64]
    weights: Tensor
    drawn: Tensor
    words: Tensor
    types: Tensor

    @classmethod
    def of(cls, states: Tensor, here: slice, sampled: Sampled, first_sentence: int, n_sentences: int) -> _Block:
        tokens, counts = sampled.tokens, sampled.counts[here]
        lengths = np.bincount(tokens.sentences[here][counts] - first_sentence, minlength=n_sentences)
        some = np.flatnonzero(lengths)
        first_words = sampled.words.first_words
        types = sampled.words.types[first_words[first_sentence] : first_words[first_sentence + n_sentences]]
        followed = np.flatnonzero(types >= 0)
        (words,) = pool_words([states], tokens.words[here], tokens.sentences[here]).hidden_states
        return cls(
            states[torch.from_numpy(counts)],
            torch.from_numpy(lengths[some]),
            first_sentence + some,
            weights(first_sentence, n_sentences, sampled.seed)[:, torch.from_numpy(some)],
            torch.from_numpy(sampled.one_per_sentence[here][counts]).nonzero().squeeze(1),
            words[torch.from_numpy(followed)],
            torch.from_numpy(types[followed]),
        )


# An estimate, and the number of vectors it is taken over.
_Result = tuple[Estimate, int]


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
        self.cosine, self.one, self.centred = (MeanCosineAccumulator(d) for _ in range(3))
        self.by_sentence = {name: MeanOverSentences() for name in BY_SENTENCE}
        self.words = SelfSimilarityAccumulator(self.n_types, d)
        # If the transform centres, the centred cosines are the cosines themselves.
        self.image_of_mean = self.transform(self.moments.mean)
        self.is_centred = bool(self.image_of_mean.norm() <= 1e-9 * self.moments.mean.norm())

    def update(self, block: _Block) -> None:
        """Add whole sentences."""
        images = self.transform(block.vectors)
        units = normalise(images)
        sums = sum_by_sentence(units, block.lengths)
        self.cosine.update(units, sums, block.lengths, block.weights)
        drawn = units[block.drawn]
        self.one.update(drawn, drawn, torch.ones_like(block.lengths), block.weights)
        alike = smoothness(images, units, sums, block.lengths)
        values = (alike.token_similarity, alike.intra_sentence_similarity, alike.distance, alike.relative_distance)
        for name, value in zip(BY_SENTENCE, values, strict=True):
            self.by_sentence[name].update(value, block.weights)
        self.last_distances = alike.distance
        self.words.update(self.transform(block.words), block.types)
        if not self.is_centred:
            centred = normalise(images - self.image_of_mean.to(images.dtype))
            self.centred.update(centred, sum_by_sentence(centred, block.lengths), block.lengths, block.weights)

    def results(self, moments: Covariance, pool: Tensor) -> dict[str, _Result]:
        """Return each measure with its interval and the number of vectors it is taken over."""
        after, cosine, one = self.transform.moments(moments), self.cosine.result(), self.one.result()
        n = cosine.estimate.n
        centred = cosine if self.is_centred else self.centred.result()
        words = self.words.result(self.seed)
        intra = self.by_sentence["intra_sentence_similarity"].result()
        top = cosine.shares[cosine.shares.abs().argmax()]
        exact = {
            "isoscore": anisotropy.isoscore(after.covariance),
            "mean_energy_share": anisotropy.mean_energy_share(after.mean, after.covariance),
            "top_cosine_share": float(top),
            "rank": float(self.transform.rank),
        }
        partition = anisotropy.partition_isotropy(self.transform(pool[:PARTITION]))
        n_words = int(self.words.counts.sum())
        return {
            "mean_cosine": (cosine.estimate, n),
            "mean_cosine_one_per_sentence": (one.estimate, one.estimate.n),
            "mean_cosine_centred": (centred.estimate, n),
            **{name: (_exact(value, n), n) for name, value in exact.items()},
            "partition_isotropy": (_exact(partition, n), min(PARTITION, len(pool))),
            "self_similarity": (words, n_words),
            "self_similarity_adjusted": (_less(words, one.estimate), n_words),
            **{name: (mean.result(), n) for name, mean in self.by_sentence.items()},
            "intra_sentence_similarity_adjusted": (_less(intra, one.estimate), n),
        }


def _exact(value: float, n: int) -> Estimate:
    """Return a number without an interval."""
    return Estimate(value, float("nan"), float("nan"), n)


def _less(similarity: Estimate, baseline: Estimate) -> Estimate:
    """Return a similarity minus the mean cosine of unrelated tokens, which is treated as known exactly."""
    by = baseline.value
    return Estimate(similarity.value - by, similarity.low - by, similarity.high - by, similarity.n)


def _estimates(
    names: Sequence[Estimator], transform: Transform, pool: Tensor, of_sentences: Tensor, seed: Sequence[int]
) -> dict[str, _Result]:
    """Return the published estimates of the mean cosine."""
    images, ones = transform(pool), transform(of_sentences)
    found: dict[Estimator, _Result] = {}
    for name in names:
        generator = np.random.default_rng(seed)
        if name == "tvs":
            found[name] = _exact(anisotropy.timkey_van_schijndel(images, generator), len(images)), len(images)
        elif len(ones) >= 2:
            draw = anisotropy.ethayarajh if name == "e19" else anisotropy.luo_kulmizev_mao
            found[name] = _exact(draw(ones, generator), len(ones)), len(ones)
    return {f"mean_cosine_{name}": result for name, result in found.items()}


def _range(random: ClippedCosines) -> _Result:
    """Return the mean over random choices, with their range as its interval."""
    values = random.result()
    return Estimate(float(values.mean()), float(values.min()), float(values.max()), random.n), random.n


def _rows(layer: int, transform: str, results: Mapping[str, _Result]) -> list[dict[str, Any]]:
    """Return rows of `geometry.csv`; undefined measures have no row."""
    rows = []
    for name, (mean, n) in results.items():
        if not np.isfinite(mean.value):
            continue
        interval = {} if np.isnan(mean.low) else {"low": mean.low, "high": mean.high}
        row = {"layer": layer, "transform": transform, "measure": name, "value": mean.value}
        rows.append({**row, **interval, "n_tokens": n})
    return rows
