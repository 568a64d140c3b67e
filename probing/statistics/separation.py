"""How neurons go with labels, beyond what independent sentences, or documents, give by chance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from probing.statistics.label_codes import ROUNDING, LabelCodes
from probing.statistics.label_scores import Divided, ExchangedSums, ScoreSums

# Lower bound of p-values, so that none is 0.
SMALLEST_P = 1e-300
# The tail's formula needs a skewness above 0; so small a one makes no difference.
LEAST_SKEWNESS = 1e-3
# How many numbers the products of scores may hold, and how many the scores that are computed at a time.
PRODUCTS, SCORES = 2**23, 2**21


@dataclass(frozen=True)
class Separation:
    """Share of a neuron's variance explained by the label, beyond chance.

    Args:
        eta_squared: The share minus the share expected by chance, shape (d_model,).
        z: By how much the arrangement of the labels explains more than chance does, in standard deviations, shape
            (d_model,).
        p: Probability that chance explains as much, shape (d_model,).
    """

    eta_squared: Tensor
    z: Tensor
    p: Tensor

    @classmethod
    def of_all(cls, parts: list[Separation]) -> Separation:
        """Concatenate the neurons of several parts."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("eta_squared", "z", "p")))


def neurons_at_a_time(n_columns: int) -> int:
    """Return the number of neurons whose products of scores fit into memory at once."""
    return max(PRODUCTS // (2 * n_columns**2), 1)


class SeparationAccumulator:
    """Takes batches of whole clusters (sentences or documents) of one layer; says how its neurons go with the labels.

    A token's label is a vector. Subtracted from it is a mixture of the mean vector of all tokens and that of its
    sentence: the latter where sentences' means differ no more than by chance, so that such labels are compared within
    sentences. The product with the neuron's deviation from its mean, summed over a cluster, is the
    cluster's score, and the statistic the squared length of the sum of scores. If labels say nothing of the neuron,
    scores have the mean 0, whatever the dependence within clusters, and their signs are as good as random. Mean,
    variance and skewness over all signs are exact; the tail is that of the Pearson type III distribution (a shifted
    gamma) with these moments. Where exchangeable labels would give a larger mean, mean and standard deviation are
    multiplied accordingly. `docs/eta_squared.md` derives this and says how well it holds.

    Args:
        mean: Mean of the training tokens, shape (d_model,), float64.
        sd: Standard deviation of the training tokens, shape (d_model,), float64.
        codes: The vectors of the labels.
        between: How much of the differences between sentences' mean labels is no chance; see
            `LabelCodes.excess_between`. It is the weight of the mean of all tokens.
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
        """Add tokens. Those of a cluster, and in it those of a sentence, must be adjacent and in one batch.

        Args:
            hidden_states: Hidden states of the tokens, shape (n, d_model).
            labels: Label of each token, shape (n,); tokens labelled -1 are ignored.
            sentences: Sentence of each token, shape (n,).
            clusters: Cluster of each token, shape (n,); None if sentences are the clusters.
        """
        rows = (labels >= 0).nonzero().squeeze(1)
        for part in self._parts((sentences if clusters is None else clusters)[rows]):
            here = rows[part]
            states = hidden_states.index_select(0, here).double() - self.mean
            own, units = labels[here], sentences[here]
            cluster = (units if clusters is None else clusters[here]).unique_consecutive(return_inverse=True)[1]
            changes = torch.diff(own, prepend=own[:1]).ne(0) & torch.diff(cluster, prepend=cluster[:1]).eq(0)
            is_mixed = torch.zeros(int(cluster[-1]) + 1).index_add_(0, cluster, changes.float())[cluster] > 0
            for mixed, add in ((True, self._add_mixed), (False, self._add_single)):
                of_kind = (is_mixed == mixed).nonzero().squeeze(1)
                if len(of_kind):
                    add(states[of_kind], Divided.of(own[of_kind], units[of_kind], cluster[of_kind]))

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
        scores = products.view(len(mean), n_columns, -1) - subtracted[:, :, None] * sums[:, None]
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
        """All-reduce the sums of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        for part in (self, self.sums, self.exchanged):
            for name, value in list(vars(part).items()):
                if isinstance(value, Tensor) and name not in ("mean", "sd"):
                    setattr(part, name, sum_over_ranks(value))

    def result(self) -> Separation:
        """Return eta squared, its z and its p-value for all tokens added.

        A neuron that does not vary, or whose score is 0 in every cluster, such as one that is constant within each
        sentence where labels are compared within these, has a z of 0 and a p-value of 1.
        """
        vectors = torch.diag(self.codes.values) if len(self.codes.mean) > 1 else self.codes.values[:, None]
        vectors = vectors - self.codes.mean
        sums = self.sums.with_multiples(self.between * vectors, self.powers)
        n_clusters = self.counts[2] + (self.counts[1] if self.between else 0)
        # Scores have lost all but a share of the products of means, whose square is in the mean only by that share's.
        of_means = self.of_means + vectors.T @ self.powers[0]
        whole = (sums.scores + (1 - self.between) * of_means).square().sum(0)
        whole -= (1 - self.between**2) * of_means.square().sum(0)
        squares = torch.where(self.sd > ROUNDING * self.mean.abs(), self.counts[0] * self.sd.square(), 0.0)
        return beyond_chance(sums, whole, squares, n_clusters, self.exchanged.mean(self.between))


def beyond_chance(
    sums: ScoreSums, whole: Tensor, squares: Tensor, n_clusters: Tensor, exchanged: Tensor | None = None
) -> Separation:
    """Return eta squared, its z and its p-value, given the scores of clusters.

    Args:
        sums: Sums over the clusters' scores.
        whole: What the labels explain of each neuron's sum of squares, with what they explain by chance, shape
            (d_model,).
        squares: That sum of squares, 0 where it is rounding error, shape (d_model,).
        n_clusters: Number of clusters with a score.
        exchanged: Mean of the statistic if labels were exchangeable, shape (d_model,): random signs give at least that.
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
    return Separation(torch.where(squares > 0, (whole - mean) / squares, 0.0), z, p)


def upper_tail(z: Tensor, skewness: Tensor) -> Tensor:
    """Return the probability that a standardised Pearson type III variable is at least z.

    Args:
        z: Value of the standardised variable, float64.
        skewness: Skewness of the distribution, positive, of the same shape as z.
    """
    shape = 4 / skewness.square()
    return torch.special.gammaincc(shape, (shape + z * shape.sqrt()).clamp(min=0))
