"""How alike the tokens of a sentence become over the layers, and what bounds it."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probing.claims.measures.cosines import by_layer
from probing.claims.measures.registry import NotMeasurable, Subject, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result
from probing.statistics.rank_similarity import spearman

SIMILARITY = "token_similarity"
_Z = NormalDist().inv_cdf(0.975)
_LEAST_SENTENCES = 20
_NO_BLOCKS = "post-LN blocks, which the bound is about"


@measure("geometry")
def last_token_similarity(subject: Subject) -> Measured:
    """Return the mean cosine of two tokens of a sentence in the last layer.

    The control is Spearman's correlation of this cosine with the number of the layer.
    """
    rows = by_layer(subject.run("geometry"), SIMILARITY)
    return from_row(rows[max(rows)], control=_growth([row["value"] for row in rows.values()]))


@measure("geometry")
def growth_of_token_similarity(subject: Subject) -> Measured:
    """Return Spearman's correlation of the mean cosine of two tokens of a sentence with the number of the layer.

    The control is the same with outliers clipped, in the layers that have any: tokens that share one large neuron are
    alike whatever else they have.
    """
    geometry: Result = subject.run("geometry")
    plain, clipped = (by_layer(geometry, SIMILARITY, transform) for transform in ("none", "clip"))
    left = [clipped.get(layer, row)["value"] for layer, row in plain.items()]
    return Measured.exact(_growth([row["value"] for row in plain.values()]), control=_growth(left))


@measure("geometry")
def least_share_within_bound(subject: Subject, bound: str) -> Measured:
    """Return the share of sentences whose distance to equal rows is within a bound, the least over blocks.

    The control is the largest share of the bound that any sentence reaches: far below 1, the bound says little.

    Args:
        subject: The model.
        bound: The bound, such as `bound_per_matrix`, as a column of `smoothing_sentences.csv`.
    """
    geometry: Result = subject.run("geometry")
    shares = [from_row(row) for row in geometry.smoothing if row["measure"] == f"share_within_{bound}"]
    reached = [
        row["distance_after"] / (row[bound] * row["distance_before"])
        for row in geometry.smoothing_sentences
        if row["distance_before"] > 0
    ]
    if not shares or not reached:
        raise NotMeasurable(_NO_BLOCKS)
    least = min(shares, key=lambda one: one.value)
    return Measured(least.value, least.low, least.high, max(reached))


@measure("geometry")
def largest_reach_of_attention(subject: Subject) -> Measured:
    """Return the largest share of its bound in Lemma 1 that the attention of a head reaches, over blocks and sentences.

    Above 1, the lemma would not hold; six decimals are kept, because the model computes in float32.
    """
    found = [row.get("attention_reach") for row in subject.run("geometry").smoothing_sentences]
    if not found:
        raise NotMeasurable(_NO_BLOCKS)
    if None in found:
        raise NotMeasurable("a run of a later version of this program: name another folder by `--runs`")
    return Measured.exact(round(max(reach for reach in found if not math.isnan(reach)), 6))


@measure("geometry")
def norms_and_smoothing(subject: Subject) -> Measured:
    """Return Spearman's correlation over sentences of the last block's norm divisors with the distance that it leaves.

    The divisors are the product of the least standard deviations of tokens that enter the block's two LayerNorms. The
    distance that it leaves is the distance to equal rows after the block, divided by that before it. The interval is
    that of Bonett & Wright (2000). The control is the partial correlation given the length of sentences: in a longer
    sentence, the minimum over more tokens is lower.
    """
    rows = [row for row in subject.run("geometry").smoothing_sentences if row["distance_before"] > 0]
    n_blocks = max((row["layer"] for row in rows), default=0)
    last = [row for row in rows if row["layer"] == n_blocks]
    if len(last) < _LEAST_SENTENCES:
        raise NotMeasurable(f"at least {_LEAST_SENTENCES} sentences of several tokens" if last else _NO_BLOCKS)
    products = _ranks([row["sigma_1"] * row["sigma_2"] for row in last])
    left = _ranks([row["distance_after"] / row["distance_before"] for row in last])
    lengths = _ranks([row["n_tokens"] for row in last])
    found = float(spearman(products, left))
    with_lengths = [float(spearman(ranks, lengths)) for ranks in (products, left)]
    return Measured(found, *_interval(found, len(last)), control=_partial(found, *with_lengths))


def _growth(values: list[float]) -> float:
    if len(set(values)) < 3:
        raise NotMeasurable("at least three layers")
    return float(spearman(_ranks(range(len(values))), _ranks(values)))


def _ranks(values: Any) -> NDArray[np.float64]:
    ranks: NDArray[np.float64] = rankdata(values)
    return ranks


def _interval(correlation: float, n: int) -> tuple[float, float]:
    """Return the interval of Spearman's correlation of n pairs by Fisher's transform (Bonett & Wright 2000)."""
    if abs(correlation) >= 1:
        return correlation, correlation
    half = _Z * math.sqrt((1 + correlation**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(correlation) + sign * half) for sign in (-1, 1))
    return low, high


def _partial(correlation: float, one: float, other: float) -> float | None:
    """Return a partial correlation given a third quantity, with which the two have the correlations `one` and `other`.

    The correlation is returned unchanged if the third quantity is constant, as where all sentences are equally long. It
    is None if the third quantity determines one of the two.
    """
    if math.isnan(one) or math.isnan(other):
        return correlation
    left = (1 - one**2) * (1 - other**2)
    return (correlation - one * other) / math.sqrt(left) if left > 0 else None
