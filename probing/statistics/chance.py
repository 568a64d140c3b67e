"""What chance gives: values among random draws, permuted labels, units that are not independent, and many p-values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dct
from torch import Tensor

from probing.statistics import ENDS, MIN_SENTENCES, NO_INTERVAL
from probing.statistics.label_scores import LabelCodes

Drawn = Sequence[float] | NDArray[np.float64]


def rank_p(value: float, drawn: Drawn) -> float:
    """Return the share of values, this one among them, that are at least as large: a one-sided p-value by rank.

    It is NaN if the value or one of the others is.
    """
    others = np.asarray(drawn, dtype=np.float64)
    if math.isnan(value) or np.isnan(others).any():
        return math.nan
    return (1 + int((others >= value).sum())) / (1 + len(others))


def percentile_of(value: float, drawn: Drawn) -> float:
    """Return the percentage of the others that are below a value; NaN without others, or where one of all is NaN."""
    others = np.asarray(drawn, dtype=np.float64)
    if not len(others) or math.isnan(value) or np.isnan(others).any():
        return math.nan
    return 100 * int((others < value).sum()) / len(others)


def discovery_rates(p: Tensor, candidates: Tensor) -> Tensor:
    """Return for each p-value the lowest false discovery rate at which it is a discovery (Benjamini & Hochberg 1995).

    If every p-value with a rate of at most q is called a discovery, the expected share of false discoveries is at most
    q; where all null hypotheses are true, q bounds the probability of any discovery. This holds for independent
    p-values and under positive regression dependency (Benjamini & Yekutieli 2001), but not under every dependency.

    Args:
        p: The p-values, shape (n,), float64.
        candidates: Whether each is tested, shape (n,), bool; those that are not have a rate of 1.
    """
    from scipy.stats import false_discovery_control

    rates = torch.ones_like(p)
    if candidates.any():
        rates[candidates] = torch.from_numpy(false_discovery_control(p[candidates].numpy()))
    return rates


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values that are corrected for their number by Holm (1979).

    If every null hypothesis whose corrected p-value is at most a level is rejected, the probability of rejecting any
    true one is at most that level, however the p-values depend on one another.

    Args:
        p: The p-values; one that is NaN was not tested, and stays so.
    """
    corrected, least = list(p), 0.0
    tested = sorted((value, i) for i, value in enumerate(p) if not math.isnan(value))
    for rank, (value, i) in enumerate(tested):
        least = max(least, (len(tested) - rank) * value)
        corrected[i] = min(least, 1.0)
    return corrected


_Label = TypeVar("_Label", np.int32, np.int64)


def permute_within_sentences(
    labels: NDArray[_Label], sentences: NDArray[np.int32], input_ids: NDArray[np.int32], n_draws: int, seed: int
) -> NDArray[_Label]:
    """Return draws of the labels in which each sentence's labels are permuted among its tokens.

    Such labels tell a sentence's length and topic, but not where a token is. The permutation of a sentence depends on
    its tokens and the seed, but not on the sentence's index in the corpus.

    Args:
        labels: Class of each token, shape (n_tokens,); tokens labelled -1 take no part and keep -1.
        sentences: Sentence of each token, ascending, shape (n_tokens,).
        input_ids: Token ids, shape (n_tokens,).
        n_draws: Number of draws.
        seed: Seed of all draws.

    Returns:
        Shape (n_draws, n_tokens), with the dtype of the labels.
    """
    examples = np.flatnonzero(labels >= 0)
    keys, sentence_of_example = _token_keys(sentences, input_ids)[examples], sentences[examples]
    salts = np.random.default_rng(seed).integers(2**64, size=n_draws, dtype=np.uint64)
    draws = np.repeat(labels[None], n_draws, axis=0)
    for draw, salt in zip(draws, salts, strict=True):
        order = np.lexsort((mix(keys + salt), sentence_of_example))
        draw[examples] = labels[examples[order]]
    return draws


def _token_keys(sentences: NDArray[np.int32], input_ids: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Return a number for each token, computed from its sentence's tokens and its index among them."""
    _, first, sentence = np.unique(sentences, return_index=True, return_inverse=True)
    indices = mix((np.arange(len(sentences)) - first[sentence]).astype(np.uint64))
    of_sentence = np.zeros(len(first), dtype=np.uint64)
    np.add.at(of_sentence, sentence, mix(indices + input_ids.astype(np.uint64)))
    return of_sentence[sentence] + indices


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scatter integers over 64 bits (the finaliser of SplitMix64; Steele, Lea & Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# Labels of neighbours go together from this correlation on, and this many standard errors, which 4 of a million
# orders of independent labels reach.
LEAST, STANDARD_ERRORS = 0.05, 4.5
# Labels that differ within units as much as between them say nothing of the order of units.
MOSTLY_BETWEEN = 0.5


def correlation_of_neighbours(labels: NDArray[np.int32], units: NDArray[np.int32], codes: LabelCodes) -> float | None:
    """Return the correlation of the labels of neighbouring units, where it is no chance; None elsewhere.

    It is the sum of v_i'v_(i+1) over the sum of |v_i|^2, with v the vector of a unit's label less the mean of all. In a
    random order it has a variance of at most 1 / n. A unit's label is that of its first token.

    Args:
        labels: Label of each token, shape (n_tokens,); tokens labelled -1 are ignored.
        units: Sentence of each token, or row, in their order, shape (n_tokens,).
        codes: The vectors of the labels.
    """
    if codes.excess_between(labels, units) < MOSTLY_BETWEEN:
        return None
    labelled = np.flatnonzero(labels >= 0)
    first = labels[labelled[np.unique(units[labelled], return_index=True)[1]]]
    column, value, mean = codes.columns.numpy()[first], codes.values.numpy()[first], codes.mean.numpy()
    of_mean = mean[column] * value
    squares = value**2 - 2 * of_mean + (mean**2).sum()
    same = column[1:] == column[:-1]
    products = same * value[1:] * value[:-1] - of_mean[1:] - of_mean[:-1] + (mean**2).sum()
    correlation = float(products.sum() / squares.sum()) if squares.sum() > 0 else 0.0
    return correlation if correlation > max(LEAST, STANDARD_ERRORS / len(first) ** 0.5) else None


# --------------------------------------------------------------------------------------------------------------------
# Bootstrap over sentences, of statistics in memory and of streamed ones, where no closed form has an interval.
# --------------------------------------------------------------------------------------------------------------------

DRAWS = 1000


def resampled_means(
    sums: NDArray[np.float64], n_tokens: NDArray[np.int64] | NDArray[np.float64], seed: int, n_draws: int = DRAWS
) -> NDArray[np.float64]:
    """Return means over tokens in bootstrap draws of the sentences, shape (n_draws, n).

    Args:
        sums: Sums over the tokens of each sentence, shape (n_sentences, n).
        n_tokens: Number of tokens of each sentence, or whatever else sums are divided by, shape (n_sentences,).
        seed: Seed of the generator; equal seeds and numbers of sentences give the same draws.
        n_draws: Number of bootstrap draws.
    """
    times = sentence_counts(len(n_tokens), seed, n_draws)
    return (times @ sums) / (times @ n_tokens)[:, None]


def sentence_counts(n_sentences: int, seed: int, n_draws: int = DRAWS) -> NDArray[np.int64]:
    """Return how often each sentence is in each bootstrap draw, shape (n_draws, n_sentences).

    Args:
        n_sentences: Number of sentences.
        seed: Seed of the generator; equal seeds and numbers of sentences give the same draws.
        n_draws: Number of bootstrap draws.
    """
    generator = np.random.default_rng(seed)
    draws = (generator.integers(n_sentences, size=n_sentences) for _ in range(n_draws))
    return np.stack([np.bincount(draw, minlength=n_sentences) for draw in draws])


def percentiles(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 2.5% and 97.5% quantiles of the draws that are finite; NaN if none is finite.

    Args:
        draws: The statistic of each draw, shape (n_draws,).
    """
    finite = draws[np.isfinite(draws)]
    if not len(finite):
        return NO_INTERVAL
    low, high = np.quantile(finite, ENDS)
    return float(low), float(high)


def percentile_interval(draws: NDArray[np.float64], n_clusters: int) -> tuple[float, float]:
    """Return the percentile interval (Efron 1979) of a bootstrapped statistic; NaN below `MIN_SENTENCES` clusters.

    Args:
        draws: The statistic of each draw, shape (n_draws,).
        n_clusters: Number of sentences, or of pairs of sentences, that were resampled.
    """
    return percentiles(draws) if n_clusters >= MIN_SENTENCES else NO_INTERVAL


# Fewer draws than if the sentences were in memory, because here each draw needs d_model sums for every layer and
# transform.
N_DRAWS = 400


@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Args:
        value: The number; NaN where it is not defined.
        low: Lower end of the 95% percentile interval over resampled sentences; NaN where there is none.
        high: Upper end.
        n: Number of tokens, sentences or words that the number is taken over.
    """

    value: float
    low: float
    high: float
    n: int


def undefined(n: int) -> Estimate:
    """Return an estimate whose value and interval are NaN."""
    return Estimate(float("nan"), float("nan"), float("nan"), n)


def estimate(value: float, draws: Tensor, n: int, n_clusters: int) -> Estimate:
    """Return a number with the percentile interval of its draws; draws that are not finite are left out.

    Args:
        value: The number.
        draws: The number in each bootstrap draw, shape (n_draws,).
        n: Number of tokens, sentences or words that the number is taken over.
        n_clusters: Number of sentences or words that are resampled.
    """
    return Estimate(value, *percentile_interval(draws.double().numpy(), n_clusters), n)


def weights(first_sentence: int, n_sentences: int, seed: int, n_draws: int = N_DRAWS) -> Tensor:
    """Return how often each of some consecutive sentences counts in each draw, shape (n_draws, n_sentences), float32.

    Poisson numbers of mean 1 replace drawing with replacement, so that a sentence's weight does not depend on the other
    sentences (the Poisson bootstrap: Chamandy et al. 2012). The weights are the same for every layer and transform, so
    that these can be compared.

    Args:
        first_sentence: Index of the first sentence in the corpus. The weights depend on it, so a corpus must always be
            read in the same blocks.
        n_sentences: Number of sentences.
        seed: Seed of all draws.
        n_draws: Number of draws.
    """
    generator = np.random.default_rng([seed, first_sentence])
    return torch.from_numpy(generator.poisson(1.0, (n_draws, n_sentences)).astype(np.float32))


class MeanOverSentences:
    """Takes one number per sentence and returns their mean with its interval; NaN is ignored."""

    def __init__(self, n_draws: int = N_DRAWS) -> None:
        self.n = 0
        self.total = torch.zeros((), dtype=torch.float64)
        self.drawn = torch.zeros(2, n_draws, dtype=torch.float64)

    def update(self, values: Tensor, weights: Tensor) -> None:
        """Add sentences: their numbers, shape (n,), NaN where undefined, and their weights, shape (n_draws, n)."""
        defined = ~values.isnan()
        selected = values[defined].double()
        self.n += len(selected)
        self.total += selected.sum()
        counts = weights[:, defined].double()
        self.drawn += torch.stack([counts @ selected, counts.sum(1)])

    def result(self) -> Estimate:
        """Return the mean; NaN if no sentence has the number."""
        value = float(self.total / self.n) if self.n else float("nan")
        return estimate(value, self.drawn[0] / self.drawn[1], self.n, self.n)


# --------------------------------------------------------------------------------------------------------------------
# The mean cosine over all pairs of vectors, and what each neuron adds to it, from sums alone.
# --------------------------------------------------------------------------------------------------------------------

# Mean cosines closer to 0 have no shares.
NO_COSINE = 1e-6


def normalise(vectors: Tensor) -> Tensor:
    """Divide vectors, shape (..., d), by their lengths; vectors of length 0, which have no cosine, become 0."""
    lengths = vectors.norm(dim=-1, keepdim=True)
    return vectors * torch.where(lengths > torch.finfo(lengths.dtype).tiny, 1 / lengths, 0.0)


class CosineSums:
    """Takes unit vectors and returns what each neuron contributes to the mean cosine of two different ones.

    With u_i = x_i / |x_i|, the mean cosine is (|sum_i u_i|^2 - N) / (N (N - 1)), so that no pairs need be drawn. The
    contribution of neuron k is cc_k = ((sum_i u_ik)^2 - sum_i u_ik^2) / (N (N - 1)), the closed form of Timkey & van
    Schijndel's (2021).

    Args:
        d: Width of the vectors.
    """

    def __init__(self, d: int) -> None:
        self.n = 0
        self.total = torch.zeros(d, dtype=torch.float64)
        self.squares = torch.zeros(d, dtype=torch.float64)

    def update(self, units: Tensor, sums: Tensor) -> None:
        """Add unit vectors, shape (n, d), and sums of them, shape (m, d), such as those of sentences or themselves."""
        self.n += len(units)
        self.total += sums.double().sum(0)
        rows = units.numpy()
        # This is thirty times as fast as a norm along the first axis.
        self.squares += torch.from_numpy(np.einsum("nd,nd->d", rows, rows)).double()

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums of all processes.

        Args:
            sum_over_ranks: Returns the sum of a tensor over all processes.
        """
        self.n = int(sum_over_ranks(torch.tensor(self.n)))
        self.total, self.squares = sum_over_ranks(self.total), sum_over_ranks(self.squares)

    def by_neuron(self) -> Tensor:
        """Return each neuron's contribution, shape (d,), whose sum is the mean cosine; NaN below two vectors."""
        n_pairs = self.n * (self.n - 1)
        return (self.total.square() - self.squares) / n_pairs if n_pairs else torch.full_like(self.total, torch.nan)


def shares_of(by_neuron: Tensor, mean_cosine: float) -> Tensor:
    """Return the share of each neuron, shape (d,); it can be above 1 or below 0, as contributions have both signs.

    NaN where the mean cosine is within `NO_COSINE` of 0, so that a share of it has no meaning.
    """
    return by_neuron / mean_cosine if abs(mean_cosine) > NO_COSINE else by_neuron * torch.nan


# --------------------------------------------------------------------------------------------------------------------
# Random rotations of neurons: bases that have nothing to do with the neurons, and the same distances and products.
# --------------------------------------------------------------------------------------------------------------------

# Most neurons of which a rotation is drawn as a matrix. Of more, drawing the matrix takes longer than multiplying by
# it, and sign changes with cosine transforms take its place.
MOST_DRAWN = 1024
# Number of sign changes, each with a cosine transform: after three, a direction has a part of every neuron.
TRANSFORMS = 3


def random_rotation(n: int, *seeds: int) -> Callable[[Tensor], Tensor]:
    """Draw a rotation or reflection, and return what expresses rows by its directions.

    Of up to `MOST_DRAWN` neurons it is uniform (Haar): the orthogonal factor of a matrix of normal numbers, with the
    signs that make the triangular factor's diagonal positive. Of more it is the product of random sign changes and
    cosine transforms, which are orthogonal, too (Yu et al. 2016, arXiv 1610.09072).

    Args:
        n: Number of neurons.
        seeds: Numbers that the draw depends on, and on nothing else.

    Returns:
        Takes rows of shape (n_rows, n), float64, and returns their products with each direction, of the same shape.
    """
    generator = np.random.default_rng(seeds)
    if n > MOST_DRAWN:
        signs = generator.choice([-1.0, 1.0], (TRANSFORMS, n))
        return lambda rows: _mixed(rows, signs)
    q, r = torch.linalg.qr(torch.from_numpy(generator.standard_normal((n, n))))
    directions = q * r.diagonal().sign()
    return lambda rows: rows @ directions


def _mixed(rows: Tensor, signs: np.ndarray) -> Tensor:
    mixed = rows.numpy()
    for sign_row in signs:
        mixed = dct(mixed * sign_row, norm="ortho", axis=1)
    return torch.from_numpy(mixed)
