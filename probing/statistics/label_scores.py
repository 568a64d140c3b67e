"""Labels as vectors, and scores of clusters: the association of a neuron's deviations with the labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# Sums of squares that differ by less, relatively, are equal but for rounding.
ROUNDING = 1e-12


@dataclass(frozen=True)
class LabelCodes:
    """A vector for each label, with a single nonzero entry.

    With x the deviations of a neuron from its mean, |sum over tokens of code * x|^2 is the between-class sum of squares
    for classes, and the squared correlation times the sum of squares for numbers.

    Args:
        columns: The nonzero entry of each label, shape (n_labels,), int64.
        values: Its value, shape (n_labels,), float64.
        mean: Mean of the vectors over the tokens, shape (n_columns,), float64.
    """

    columns: Tensor
    values: Tensor
    mean: Tensor

    @classmethod
    def of_classes(cls, sizes: Tensor) -> LabelCodes:
        """Return 1 over the root of the class's size, in a column for each class; sizes may be 0."""
        values = sizes.double().clamp(min=1).rsqrt()
        return cls(torch.arange(len(sizes)), values, sizes * values / sizes.sum().clamp(min=1))

    @classmethod
    def of_numbers(cls, numbers: Tensor, n_tokens: int) -> LabelCodes:
        """Return standardised numbers over the root of the number of tokens, in a single column."""
        columns = torch.zeros(len(numbers), dtype=torch.int64)
        return cls(columns, numbers.double() / n_tokens**0.5, torch.zeros(1, dtype=torch.float64))

    @property
    def squared_lengths(self) -> Tensor:
        """Squared distance of each label's vector from their mean, shape (n_labels,)."""
        mean = self.mean[self.columns]
        return (self.values - mean).square() + self.mean.square().sum() - mean.square()

    def sums(self, weights: Tensor) -> Tensor:
        """Return n weighted sums of the centred label vectors, shape (n_columns, n), for weights (n_labels, n)."""
        return self._by_column(weights * self.values[:, None]) - self.mean[:, None] * weights.sum(0)

    def sums_of_products(self, weights: Tensor) -> Tensor:
        """Return n weighted sums of outer products, (n, n_columns, n_columns), in the time of writing the result."""
        entries = self._by_column(weights * self.values[:, None]).T
        across = entries[:, :, None] * self.mean
        total = weights.sum(0)[:, None, None] * (self.mean[:, None] * self.mean) - across - across.mT
        total.diagonal(dim1=1, dim2=2).add_(self._by_column(weights * self.values.square()[:, None]).T)
        return total

    def _by_column(self, values: Tensor) -> Tensor:
        return values.new_zeros(len(self.mean), values.shape[1]).index_add_(0, self.columns, values)

    def excess_between(self, labels: NDArray[np.int32], sentences: NDArray[np.int32]) -> float:
        """Return the share of the differences between sentences' mean labels that exceeds chance, from 0 to 1.

        With the mean squares of the one-way analysis of variance, (between - within) / between: the reliability of the
        sentences' means (Shrout & Fleiss 1979, ICC(1, k)). It is 1 if every sentence has a single label, and 0 if
        labels differ within sentences at least as much as among all tokens, as positions do. `labels` and `sentences`
        have shape (n_tokens,); tokens labelled -1 are ignored.
        """
        is_example = labels >= 0
        value, column = self.values.numpy()[labels[is_example]], self.columns.numpy()[labels[is_example]]
        _, sentence, lengths = np.unique(sentences[is_example], return_inverse=True, return_counts=True)
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
    """The division of tokens into sentences, and of sentences into clusters; each adjacent, numbered from 0.

    `labels` and `sentence` have shape (n,), `cluster` and `lengths` (numbers of tokens, float64) (n_sentences,).
    """

    labels: Tensor
    sentence: Tensor
    cluster: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, labels: Tensor, sentences: Tensor, clusters: Tensor) -> Divided:
        """Number the sentences and clusters of tokens, given as any ascending numbers, each of shape (n,)."""
        _, sentence, lengths = sentences.unique_consecutive(return_inverse=True, return_counts=True)
        _, cluster = clusters[lengths.cumsum(0) - 1].unique_consecutive(return_inverse=True)
        return cls(labels, sentence, cluster, lengths.double())

    def by_sentence(self, values: Tensor) -> Tensor:
        """Return the sums over each sentence's tokens of values of shape (n, d)."""
        return values.new_zeros(len(self.lengths), values.shape[1]).index_add_(0, self.sentence, values)

    def by_cluster(self, values: Tensor) -> Tensor:
        """Return the sums over each cluster's sentences of values of shape (n_sentences, ...)."""
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

    They are of u, (n_columns, d_model), float64; of u u' and |u|^2 u u', (d_model, n_columns, n_columns); and of |u|^4
    and |u|^6, (d_model,).
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

        `share` is the weight of the centred label vectors. `powers` has sums over the clusters of each label of their
        factors, and of the second, fourth and sixth powers of these, shape (4, n_labels, d_model).
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
    """Mean of the statistic if labels were exchangeable within sentences, and among sentences.

    Among sentences, the variance of a neuron's sum over a sentence of n tokens is modelled as a n + b n^2, whatever its
    label: a for independent tokens and b for sentences that differ. Sums over sentences, of shape (d_model,), are of
    (sum of deviations)^2 / n (`per_length`) and of (sum of deviations)^2; `within` is the mean of the squared length of
    the part within sentences. `of_sentences` has sums of 1, n, n^2, D n and D n^2, with D the squared distance of their
    mean label's vector from that of all tokens, shape (5,).
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
        """Add whole sentences: deviations of the tokens from the mean, (n, d_model), and their sums by sentence."""
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


# --------------------------------------------------------------------------------------------------------------------
# How neurons go with labels, beyond what independent sentences, or documents, give by chance.
# --------------------------------------------------------------------------------------------------------------------

# Lower bound of p-values, so that none is 0.
SMALLEST_P = 1e-300
# The tail's formula needs a skewness above 0; so small a one makes no difference.
LEAST_SKEWNESS = 1e-3
# How many numbers the products of scores may hold, and how many the scores that are computed at a time.
PRODUCTS, SCORES = 2**23, 2**21


@dataclass(frozen=True)
class EtaSquared:
    """Share of a neuron's variance explained by the label minus chance, its z, and its p, of shape (d_model,)."""

    eta_squared: Tensor
    z: Tensor
    p: Tensor

    @classmethod
    def of_all(cls, parts: list[EtaSquared]) -> EtaSquared:
        """Concatenate the neurons of several parts."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("eta_squared", "z", "p")))


def neurons_at_a_time(n_columns: int) -> int:
    """Return the number of neurons whose products of scores fit into memory at once."""
    return max(PRODUCTS // (2 * n_columns**2), 1)


class EtaSquaredAccumulator:
    """Accumulates batches of whole clusters (sentences or documents) of a layer; returns the separation of its neurons.

    A token's label is a vector. Subtracted from it is a mixture of the mean vector of all tokens and that of its
    sentence: the latter if sentences' means differ no more than by chance, so that such labels are compared within
    sentences. The product with the neuron's deviation from its mean, summed over a cluster, is the cluster's score, and
    the statistic is the squared length of the sum of scores. If labels are unrelated to the neuron, scores have mean 0,
    whatever the dependence within clusters, and their signs are as good as random. Mean, variance and skewness over all
    signs are exact; the tail is that of the Pearson type III distribution (a shifted gamma) with these moments. If
    exchangeable labels would give a larger mean, mean and standard deviation are multiplied accordingly.
    `docs/notes/eta_squared.md` derives this and measures its accuracy.

    `mean` and `sd` are of the training tokens, shape (d_model,), float64. `between`, the weight of the mean of all
    tokens, is `LabelCodes.excess_between`.
    """

    def __init__(self, mean: Tensor, sd: Tensor, codes: LabelCodes, between: float) -> None:
        self.mean, self.sd, self.codes, self.between = mean, sd, codes, between
        self.sums = ScoreSums.empty(len(codes.mean), len(mean))
        # Of clusters with one label: by label, sums of the deviations' sums and of their powers (see `ScoreSums`).
        self.powers = torch.zeros(4, len(codes.values), len(mean), dtype=torch.float64)
        # Products of the vectors' means by sentence and the deviations, shape (n_columns, d_model).
        self.of_means = torch.zeros_like(self.sums.scores)
        self.exchanged = ExchangedSums.empty(len(mean))
        # Number of tokens, of clusters with one label, and of others.
        self.counts = torch.zeros(3, dtype=torch.float64)

    def update(self, hidden_states: Tensor, labels: Tensor, sentences: Tensor, clusters: Tensor | None = None) -> None:
        """Add tokens; the tokens of a cluster, and in it those of a sentence, must be adjacent and in one batch.

        `hidden_states` has shape (n, d_model), the others (n,). Tokens labelled -1 are ignored; `clusters` None means
        sentences.
        """
        rows = (labels >= 0).nonzero().squeeze(1)
        for part in self._parts((sentences if clusters is None else clusters)[rows]):
            part_rows = rows[part]
            states = hidden_states.index_select(0, part_rows).double() - self.mean
            part_labels, units = labels[part_rows], sentences[part_rows]
            cluster = (units if clusters is None else clusters[part_rows]).unique_consecutive(return_inverse=True)[1]
            changes = torch.diff(part_labels, prepend=part_labels[:1]).ne(0) & torch.diff(
                cluster, prepend=cluster[:1]
            ).eq(0)
            is_mixed = torch.zeros(int(cluster[-1]) + 1).index_add_(0, cluster, changes.float())[cluster] > 0
            for mixed, add in ((True, self._add_mixed), (False, self._add_single)):
                of_kind = (is_mixed == mixed).nonzero().squeeze(1)
                if len(of_kind):
                    add(states[of_kind], Divided.of(part_labels[of_kind], units[of_kind], cluster[of_kind]))

    def _parts(self, clusters: Tensor) -> Iterator[Tensor]:
        """Yield the indices of the tokens of whole clusters, about `SCORES` numbers of scores at a time."""
        if len(clusters):
            lengths = clusters.unique_consecutive(return_counts=True)[1]
            n = max(SCORES // (len(self.mean) * len(self.codes.mean)), 1)
            yield from torch.arange(len(clusters)).split([int(part.sum()) for part in lengths.split(n)])

    def _add_mixed(self, states: Tensor, tokens: Divided) -> None:
        """Add clusters with several labels."""
        sums, codes, n_columns = tokens.by_sentence(states), self.codes, len(self.codes.mean)
        self.exchanged.add(states, sums, tokens, codes)
        mean = tokens.codes_by_sentence(codes) / tokens.lengths[:, None]
        subtracted = mean + self.between * (codes.mean - mean)
        products = states.new_zeros(len(mean) * n_columns, states.shape[1])
        products.index_add_(
            0, tokens.sentence * n_columns + codes.columns[tokens.labels], states * codes.values[tokens.labels][:, None]
        )
        scores = products.view(len(mean), n_columns, -1).addcmul_(subtracted[:, :, None], sums[:, None], value=-1)
        self.sums.add(tokens.by_cluster(scores))
        self.of_means += (mean - codes.mean).T @ sums
        self.counts += torch.tensor([len(states), 0, int(tokens.cluster[-1]) + 1])

    def _add_single(self, states: Tensor, tokens: Divided) -> None:
        """Add clusters with one label each: their scores are multiples of one vector for each label."""
        sums = tokens.by_sentence(states)
        self.exchanged.add(states, sums, tokens, self.codes)
        factors = tokens.by_cluster(sums)
        of_cluster = tokens.by_cluster(torch.ones_like(tokens.lengths))
        label = tokens.labels[(tokens.lengths.cumsum(0).long() - 1)[of_cluster.cumsum(0).long() - 1]]
        for total, power in zip(self.powers, (1, 2, 4, 6), strict=True):
            total.index_add_(0, label, factors.pow(power))
        self.counts += torch.tensor([len(states), len(factors), 0])

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums; `sum_over_ranks` returns the sum of a tensor over processes."""
        for part in (self, self.sums, self.exchanged):
            for name, value in list(vars(part).items()):
                if isinstance(value, Tensor) and name not in ("mean", "sd"):
                    setattr(part, name, sum_over_ranks(value))

    def result(self) -> EtaSquared:
        """Return eta squared, its z and its p-value for all tokens added.

        A neuron that does not vary, or whose score is 0 in every cluster (such as a neuron that is constant within each
        sentence if labels are compared within sentences), has a z of 0 and a p-value of 1.
        """
        sums = self.sums.with_multiples(self.codes, self.between, self.powers)
        n_clusters = self.counts[2] + (self.counts[1] if self.between else 0)
        # Scores have lost all but a share of the products of means, whose square is in the mean only by that share's.
        of_means = self.of_means + self.codes.sums(self.powers[0])
        whole = (sums.scores + (1 - self.between) * of_means).square().sum(0)
        whole -= (1 - self.between**2) * of_means.square().sum(0)
        squares = torch.where(self.sd > ROUNDING * self.mean.abs(), self.counts[0] * self.sd.square(), 0.0)
        return eta_squared_against_chance(sums, whole, squares, n_clusters, self.exchanged.mean(self.between))


def eta_squared_against_chance(
    sums: ScoreSums, whole: Tensor, squares: Tensor, n_clusters: Tensor, exchanged: Tensor | None = None
) -> EtaSquared:
    """Return eta squared beyond its null distribution (random signs of clusters), its z and its p-value.

    `whole` is the part of each neuron's sum of squares (`squares`, 0 if rounding error) that the labels explain, chance
    included, shape (d_model,). `exchanged`, the mean of the statistic if labels were exchangeable, bounds the mean from
    below.
    """
    signs = sums.under_random_signs()
    spread = signs.variance.sqrt()
    varies = (squares > 0) & (spread > ROUNDING * squares)
    raised = torch.ones_like(spread)
    if exchanged is not None:
        raised = torch.where(varies, (exchanged / signs.mean).clamp(min=1), 1.0)
    mean = raised * signs.mean
    z = torch.where(varies, (sums.scores.square().sum(0) - mean) / (raised * spread), 0.0)
    skewness = torch.where(varies, signs.third / spread**3, 1.0).clamp(min=LEAST_SKEWNESS)
    # The true signs are one of all, and the opposite ones give the same.
    least = torch.exp2(1 - n_clusters).clamp(min=SMALLEST_P, max=1)
    p = torch.where(varies, upper_tail(z, skewness), 1.0).clamp(min=least)
    return EtaSquared(torch.where(squares > 0, (whole - mean) / squares, 0.0), z, p)


def upper_tail(z: Tensor, skewness: Tensor) -> Tensor:
    """Return the probability that a standardised Pearson type III variable is at least z; the skewness is positive."""
    shape = 4 / skewness.square()
    return torch.special.gammaincc(shape, (shape + z * shape.sqrt()).clamp(min=0))


def strata_with_several(values: NDArray[np.int64], labels: NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Return the stratum of each token, numbered from 0, shape (n_tokens,); -1 if its stratum has a single label.

    `values` (of the covariate) and `labels` have shape (n_tokens,), -1 where missing.
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
    """Labels as vectors, (n_labels, n_columns), minus the mean vector of the token's stratum, (n_strata, n_columns).

    They are rotated and scaled so that the sum over all tokens of their outer products is the identity. The squared
    length of the sum of vector times deviation is then the part of a neuron's sum of squares within strata that the
    labels explain: the numerator of the partial eta squared. `sizes` are numbers of tokens.
    """

    labels: Tensor
    means: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, codes: LabelCodes, labels: Tensor, strata: Tensor) -> WithinStrata:
        """Return the vectors, given the label and the stratum of each token, shape (n_tokens,)."""
        vectors = torch.zeros(len(codes.values), len(codes.mean), dtype=torch.float64)
        vectors[torch.arange(len(vectors)), codes.columns] = codes.values
        sizes = strata.bincount().double()
        sums = torch.zeros(len(sizes), vectors.shape[1], dtype=torch.float64)
        sums.index_put_((strata, codes.columns[labels]), codes.values[labels], accumulate=True)
        counts = labels.bincount(minlength=len(vectors)).double()
        total = (vectors * counts[:, None]).T @ vectors
        values, directions = torch.linalg.eigh(total - (sums / sizes[:, None]).T @ sums)
        is_live = values > ROUNDING * total.diagonal().max()
        turn = directions[:, is_live] * values[is_live].rsqrt()
        return cls(vectors @ turn, (sums / sizes[:, None]) @ turn, sizes)


@dataclass
class StratumMeans:
    """Means of each stratum, by sums over the tokens of whole sentences, shape (n_strata, d_model), float64.

    `states` has the sums, later the means, of the tokens' hidden states, `of_sentences` of their sentences' means.
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
    """Return the mean over each token's sentence of values, shape (n, d); the tokens of a sentence are adjacent."""
    _, sentence, lengths = sentences.unique_consecutive(return_inverse=True, return_counts=True)
    sums = values.new_zeros(len(lengths), values.shape[1]).index_add_(0, sentence, values)
    return (sums / lengths[:, None])[sentence]


class ConditionalAccumulator:
    """Accumulates batches of whole clusters of a layer; returns the separation of its neurons within strata.

    As `EtaSquaredAccumulator`, with deviations from the mean of the stratum instead of the mean of all tokens, for
    vectors and neurons; insofar as sentences are not compared with each other, they are also deviations within
    sentences. Tokens that share a stratum's mean make the scores of their clusters smaller, and dependent. So, for the
    moments under random signs, a cluster's part of a stratum is divided by the root of 1 minus its share of the
    stratum's tokens (MacKinnon & White 1985, HC2): by no less than the root of 1/2, as a cluster with most of a stratum
    is mainly compared internally, and by 1 if it has all. `between` is `LabelCodes.excess_between`.
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
        """Add tokens; the tokens of a cluster, and in it those of a sentence, must be adjacent and in one batch.

        `hidden_states` has shape (n, d_model), the others (n,).
        """
        lengths = clusters.unique_consecutive(return_counts=True)[1]
        start = 0
        for part in lengths.split(max(SCORES // self.scores.numel(), 1)):
            cluster_rows = slice(start, start := start + int(part.sum()))
            self._add(
                hidden_states[cluster_rows].double(),
                strata[cluster_rows],
                labels[cluster_rows],
                sentences[cluster_rows],
                part,
            )

    def _add(self, states: Tensor, strata: Tensor, labels: Tensor, sentences: Tensor, lengths: Tensor) -> None:
        """Add whole clusters of these lengths."""
        vectors = self.vectors.labels[labels] - self.vectors.means[strata]
        deviations, mean = states - self.means.states[strata], sentence_means(vectors, sentences)
        self.products += vectors.T @ deviations
        self.of_means += mean.T @ deviations
        self.squares += deviations.square().sum(0)
        # Products of means by sentence keep the weight `between`: its root for either factor.
        less = 1 - self.between**0.5
        deviations -= less * (sentence_means(states, sentences) - self.means.of_sentences[strata])
        self.scores += (vectors - less * mean).T @ deviations
        cluster = torch.arange(len(lengths)).repeat_interleave(lengths)
        _, part, n_of_part = torch.stack([cluster, strata]).unique(dim=1, return_inverse=True, return_counts=True)
        share = n_of_part[part] / self.vectors.sizes[strata]
        vectors *= torch.where(share < 1, 1 - share.clamp(max=0.5), 1.0).rsqrt()[:, None]
        vectors -= less * sentence_means(vectors, sentences)
        pairs = zip(vectors.split(lengths.tolist()), deviations.split(lengths.tolist()), strict=True)
        self.raised.add(torch.stack([of_labels.T @ of_states for of_labels, of_states in pairs]))
        self.n_clusters += len(lengths)

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums; `sum_over_ranks` returns the sum of a tensor over processes."""
        for part in (self, self.raised):
            for name, value in list(vars(part).items()):
                if isinstance(value, Tensor):
                    setattr(part, name, sum_over_ranks(value))

    def result(self) -> EtaSquared:
        """Return the partial eta squared minus that by chance, its z and its p-value, for all tokens added."""
        whole = self.products.square().sum(0) - (1 - self.between**2) * self.of_means.square().sum(0)
        size = self.vectors.sizes @ self.means.states.square()
        squares = torch.where(self.squares > ROUNDING**2 * size, self.squares, 0.0)
        return eta_squared_against_chance(replace(self.raised, scores=self.scores), whole, squares, self.n_clusters)
