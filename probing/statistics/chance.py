"""What chance gives: values among random draws, permuted labels, units that are not independent, and many p-values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
    keys, here = _token_keys(sentences, input_ids)[examples], sentences[examples]
    salts = np.random.default_rng(seed).integers(2**64, size=n_draws, dtype=np.uint64)
    draws = np.repeat(labels[None], n_draws, axis=0)
    for draw, salt in zip(draws, salts, strict=True):
        order = np.lexsort((mix(keys + salt), here))
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
    kept = np.flatnonzero(labels >= 0)
    first = labels[kept[np.unique(units[kept], return_index=True)[1]]]
    column, value, mean = codes.columns.numpy()[first], codes.values.numpy()[first], codes.mean.numpy()
    of_mean = mean[column] * value
    squares = value**2 - 2 * of_mean + (mean**2).sum()
    same = column[1:] == column[:-1]
    products = same * value[1:] * value[:-1] - of_mean[1:] - of_mean[:-1] + (mean**2).sum()
    correlation = float(products.sum() / squares.sum()) if squares.sum() > 0 else 0.0
    return correlation if correlation > max(LEAST, STANDARD_ERRORS / len(first) ** 0.5) else None
