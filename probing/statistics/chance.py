"""Null distributions: ranks among random draws, permuted labels, the bootstrap, and multiple tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.fft import dct
from torch import Tensor

from probing.statistics import ENDS, MIN_SENTENCES, NO_INTERVAL
from probing.statistics.label_scores import LabelCodes

Drawn = Sequence[float] | NDArray[np.float64]


def rank_p(value: float, drawn: Drawn) -> float:
    """Return the one-sided p-value by rank: the share of all values at least as large; NaN if a value is NaN."""
    others = np.asarray(drawn, dtype=np.float64)
    if math.isnan(value) or np.isnan(others).any():
        return math.nan
    return (1 + int((others >= value).sum())) / (1 + len(others))


def percentile_of(value: float, drawn: Drawn) -> float:
    """Return the percentage of the drawn values below a value; NaN without draws, or if any value is NaN."""
    others = np.asarray(drawn, dtype=np.float64)
    if not len(others) or math.isnan(value) or np.isnan(others).any():
        return math.nan
    return 100 * int((others < value).sum()) / len(others)


def discovery_rates(p: Tensor, candidates: Tensor) -> Tensor:
    """Return for each p-value the lowest false discovery rate at which it is a discovery (Benjamini & Hochberg 1995).

    If every p-value with a rate of at most q is called a discovery, the expected share of false discoveries is at most
    q; if all null hypotheses are true, q bounds the probability of any discovery. This applies to independent p-values
    and under positive regression dependency (Benjamini & Yekutieli 2001), but not under every dependency. p-values
    outside `candidates`, shape (n,), bool, are not tested and have a rate of 1.
    """
    from scipy.stats import false_discovery_control

    rates = torch.ones_like(p)
    if candidates.any():
        rates[candidates] = torch.from_numpy(false_discovery_control(p[candidates].numpy()))
    return rates


def largest_z_test(
    values: NDArray[np.float64], least_sd: float | NDArray[np.float64] = 0.0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the z of each observed statistic, and its one-sided p-value, corrected by the largest z of each draw.

    The first row of `values`, shape (1 + n_draws, n), is observed, the others are drawn; all together standardise, so
    that all are treated alike. A statistic whose standard deviation is not above `least_sd` has a z of 0.
    """
    sd = values.std(0)
    z = np.where(sd > least_sd, (values - values.mean(0)) / np.where(sd > least_sd, sd, 1.0), 0.0)
    return z[0], (z.max(1)[:, None] >= z[0] - 1e-9).mean(0)


def holm(p: Sequence[float]) -> list[float]:
    """Return p-values corrected by Holm (1979), under any dependence; NaN was not tested and stays NaN.

    If every null hypothesis whose corrected p-value is at most a level is rejected, the probability of rejecting any
    true hypothesis is at most that level.
    """
    corrected, least = list(p), 0.0
    tested = sorted((value, i) for i, value in enumerate(p) if not math.isnan(value))
    for rank, (value, i) in enumerate(tested):
        least = max(least, (len(tested) - rank) * value)
        corrected[i] = min(least, 1.0)
    return corrected


def correct_p_values(rows: Sequence[dict[str, Any]], column: str = "p_value", to: str = "p_value") -> None:
    """Correct the p-values of some rows for their number, in place; see `holm`."""
    for row, p_value in zip(rows, holm([row[column] for row in rows]), strict=True):
        row[to] = float(p_value)


_Label = TypeVar("_Label", np.int32, np.int64)


def permute_within_sentences(
    labels: NDArray[_Label], sentences: NDArray[np.int32], input_ids: NDArray[np.int32], n_draws: int, seed: int
) -> NDArray[_Label]:
    """Return draws in which each sentence's labels are permuted among its tokens, shape (n_draws, n_tokens).

    Such labels are informative about a sentence's length and topic, but not about the position of a token. The
    permutation of a sentence depends on its tokens and the seed, but not on the sentence's index in the corpus. Tokens
    labelled -1 keep -1; `sentences` must ascend.
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
    """Return the correlation of the labels of neighbouring units, if it exceeds chance; else None.

    It is the sum of v_i'v_(i+1) over the sum of |v_i|^2, with v the vector of a unit's label minus the mean of all. In
    a random order its variance is at most 1 / n. A unit (sentence or row) has the label of its first token; -1 is
    ignored.
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

    `sums` have shape (n_sentences, n), `n_tokens`, or any other divisor, (n_sentences,). See `sentence_counts` for
    seeds.
    """
    times = sentence_counts(len(n_tokens), seed, n_draws)
    return (times @ sums) / (times @ n_tokens)[:, None]


def sentence_counts(n_sentences: int, seed: int, n_draws: int = DRAWS) -> NDArray[np.int64]:
    """Return how often each sentence is in each draw, (n_draws, n_sentences), the same for equal seeds and numbers."""
    generator = np.random.default_rng(seed)
    draws = (generator.integers(n_sentences, size=n_sentences) for _ in range(n_draws))
    return np.stack([np.bincount(draw, minlength=n_sentences) for draw in draws])


def percentiles(draws: NDArray[np.float64]) -> tuple[float, float]:
    """Return the 2.5% and 97.5% quantiles of the finite draws, shape (n_draws,); NaN if none is finite."""
    finite = draws[np.isfinite(draws)]
    if not len(finite):
        return NO_INTERVAL
    low, high = np.quantile(finite, ENDS)
    return float(low), float(high)


def percentile_interval(draws: NDArray[np.float64], n_clusters: int) -> tuple[float, float]:
    """Return the percentile interval (Efron 1979) of bootstrap draws; NaN below `MIN_SENTENCES` resampled clusters."""
    return percentiles(draws) if n_clusters >= MIN_SENTENCES else NO_INTERVAL


# Fewer draws than if the sentences were in memory, because here each draw needs d_model sums for every layer and
# transform.
N_DRAWS = 400


@dataclass(frozen=True)
class Estimate:
    """A number (NaN if undefined) over `n` tokens, sentences or words, with its 95% percentile interval."""

    value: float
    low: float
    high: float
    n: int


def exact(value: float, n: int) -> Estimate:
    """Return a number without an interval, NaN if it is undefined."""
    return Estimate(value, *NO_INTERVAL, n)


def estimate(value: float, draws: Tensor, n: int, n_clusters: int) -> Estimate:
    """Return a number with the percentile interval of its finite bootstrap draws, shape (n_draws,)."""
    return Estimate(value, *percentile_interval(draws.double().numpy(), n_clusters), n)


def weights(first_sentence: int, n_sentences: int, seed: int, n_draws: int = N_DRAWS) -> Tensor:
    """Return the bootstrap weights of consecutive sentences, shape (n_draws, n_sentences), float32.

    Poisson numbers of mean 1 replace drawing with replacement, so that a sentence's weight does not depend on the other
    sentences (Poisson bootstrap: Chamandy et al. 2012). The weights are the same for every layer and transform, which
    are therefore comparable. They depend on `first_sentence`, the index in the corpus, so a corpus must always be read
    in the same blocks.
    """
    generator = np.random.default_rng([seed, first_sentence])
    return torch.from_numpy(generator.poisson(1.0, (n_draws, n_sentences)).astype(np.float32))


class MeanOverSentences:
    """Accumulates a number per sentence and returns the mean with its interval; NaN is ignored."""

    def __init__(self, n_draws: int = N_DRAWS) -> None:
        self.n = 0
        self.total = torch.zeros((), dtype=torch.float64)
        self.drawn = torch.zeros(2, n_draws, dtype=torch.float64)

    def update(self, values: Tensor, weights: Tensor) -> None:
        """Add sentences: their numbers, shape (n,), NaN if undefined, and their weights, shape (n_draws, n)."""
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
    """Accumulates unit vectors and returns each neuron's contribution to the mean cosine of two different vectors.

    With u_i = x_i / |x_i|, the mean cosine is (|sum_i u_i|^2 - N) / (N (N - 1)), so no pairs are drawn. The
    contribution of neuron k is cc_k = ((sum_i u_ik)^2 - sum_i u_ik^2) / (N (N - 1)), the closed form of the
    contribution of Timkey & van Schijndel (2021).
    """

    def __init__(self, d: int) -> None:
        self.n = 0
        self.total = torch.zeros(d, dtype=torch.float64)
        self.squares = torch.zeros(d, dtype=torch.float64)

    def update(self, units: Tensor, sums: Tensor) -> None:
        """Add unit vectors, shape (n, d), and sums of them, shape (m, d), such as sums by sentence or the vectors."""
        self.n += len(units)
        self.total += sums.double().sum(0)
        rows = units.numpy()
        # This is thirty times as fast as a norm along the first axis.
        self.squares += torch.from_numpy(np.einsum("nd,nd->d", rows, rows)).double()

    def all_reduce(self, sum_over_ranks: Callable[[Tensor], Tensor]) -> None:
        """All-reduce the sums; `sum_over_ranks` returns the sum of a tensor over processes."""
        self.n = int(sum_over_ranks(torch.tensor(self.n)))
        self.total, self.squares = sum_over_ranks(self.total), sum_over_ranks(self.squares)

    def by_neuron(self) -> Tensor:
        """Return each neuron's contribution, shape (d,), whose sum is the mean cosine; NaN below two vectors."""
        n_pairs = self.n * (self.n - 1)
        return (self.total.square() - self.squares) / n_pairs if n_pairs else torch.full_like(self.total, torch.nan)


def shares_of(by_neuron: Tensor, mean_cosine: float) -> Tensor:
    """Return each neuron's share of the mean cosine, shape (d,); NaN if the mean cosine is within `NO_COSINE` of 0.

    A share can be above 1 or below 0, as contributions have both signs.
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


def rotation_of_parts(sizes: Sequence[int], *seeds: int) -> Callable[[Tensor], Tensor]:
    """Draw a rotation of each part of the columns; return a function that expresses rows in the directions of all."""
    if len(sizes) == 1:
        return random_rotation(sizes[0], *seeds)
    rotations = [random_rotation(n, *seeds, part) for part, n in enumerate(sizes)]

    def rotate(rows: Tensor) -> Tensor:
        parts = zip(rotations, rows.split(list(sizes), 1), strict=True)
        return torch.cat([rotation(part) for rotation, part in parts], 1)

    return rotate


def random_rotation(n: int, *seeds: int) -> Callable[[Tensor], Tensor]:
    """Draw a rotation or reflection; return a function that expresses rows, (n_rows, n), float64, in its directions.

    Up to `MOST_DRAWN` neurons it is uniform (Haar): the orthogonal factor of a matrix of normal numbers, with the signs
    that make the triangular factor's diagonal positive. Above, it is the product of random sign changes and cosine
    transforms, which are orthogonal, too (Yu et al. 2016, arXiv 1610.09072). It depends only on `n` and `seeds`.
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
