"""How alike the maps of consecutive layers and of two checkpoints are, and what fusing the layers of a model does."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probing.runs.study import Result
from probing.statistics.rank_similarity import spearman
from probing.studies.claims.measures.cosines import by_layer
from probing.studies.claims.measures.registry import NotMeasurable, Subject, difference, from_row, measure
from probing.studies.claims.verdict import Measured


@measure("attention")
def least_similarity_of_maps(subject: Subject, from_depth: float) -> Measured:
    """Return the cosine of the maps of two consecutive layers: the least in the layers from a depth of the model on.

    The control is the same without special tokens, whose columns make any two maps alike.

    Args:
        subject: The model.
        from_depth: The least depth of the first of the two layers, as a share of the number of blocks.
    """
    run: Result = subject.run("attention")
    found = []
    for name in ("cosine", "cosine_without_special"):
        rows = [row for row in run.similarity if row["measure"] == name]
        depth = max((row["other_layer"] for row in rows), default=0)
        upper = [from_row(row) for row in rows if row["layer"] >= from_depth * depth]
        if not upper:
            raise NotMeasurable("two consecutive layers")
        found.append(min(upper, key=lambda one: one.value))
    as_published, without = found
    return Measured(as_published.value, as_published.low, as_published.high, without.value)


@measure("change")
def lead_of_change_in_last_layers(subject: Subject, n_layers: int) -> Measured:
    """Return by how much less alike the maps of two checkpoints are in each of the last layers than in any lower one.

    The value is the least cosine of the maps (mean over heads) in the lower layers minus the largest in the last ones.
    The control is the least Jensen-Shannon divergence of the maps' rows in the last layers minus the largest in the
    lower ones; unlike the cosine, the divergence does not make any two maps look alike.

    Args:
        subject: The model.
        n_layers: Number of last layers.
    """
    by_cosine, by_divergence = (lead_of_last(subject.run("change"), n_layers, name) for name in _LIKENESS)
    return Measured(by_cosine.value, by_cosine.low, by_cosine.high, by_divergence.value)


# How alike the maps of two checkpoints are, and the sign of a measure that is larger where they are more alike.
_LIKENESS: Mapping[str, int] = MappingProxyType({"cosine": 1, "jensen_shannon": -1})


def lead_of_last(run: Result, n_layers: int, name: str = "cosine") -> Measured:
    """Return by how much more the maps of each of the last layers change than those of any lower one.

    Args:
        run: A survey of a model beside another checkpoint.
        n_layers: Number of last layers.
        name: By which measure: `cosine` or `jensen_shannon`.
    """
    sign = _LIKENESS[name]
    rows = [row for row in run.change if (row["measure"], row["of"]) == (name, "same") and not row.get("head")]
    rows.sort(key=lambda row: row["layer"])
    if len(rows) <= n_layers:
        raise NotMeasurable("more layers than these")
    lower, last = rows[:-n_layers], rows[-n_layers:]
    ends = min(lower, key=lambda row: sign * row["value"]), max(last, key=lambda row: sign * row["value"])
    return difference(*(from_row(row) for row in (ends if sign > 0 else ends[::-1])))


@measure("fusion")
def least_gain_by_fusion(subject: Subject, fusion: str) -> Measured:
    """Return what a fusion of layers adds to the accuracy of a probe on the last layer, the least over tasks.

    The control is what it adds to the layer that is best on validation sentences: if the last layer is not the best
    one, choosing a better layer is a gain, too.

    Args:
        subject: The model.
        fusion: The fusion, such as `gate`.
    """
    rows = [row for row in _fused(subject, fusion) if row["measure"] == "difference"]
    least = {
        against: min((row for row in rows if row["against"] == against), key=lambda row: row["value"])
        for against in ("last layer", "best layer")
    }
    return from_row(least["last layer"], control=least["best layer"]["value"])


@measure("fusion")
def similarity_after_fusion(subject: Subject, fusion: str) -> Measured:
    """Return how much more alike the tokens of a sentence are in a fusion than in the last layer: largest over tasks.

    The covariance of the two means is not known, so that the interval is the widest that their intervals allow. The
    control is the same difference for the plain mean of the layers, which has no learned weights.

    Args:
        subject: The model.
        fusion: The fusion, such as `gate`.
    """
    run: Result = subject.run("fusion")
    fused = [from_row(row) for row in _fused(subject, fusion) if row["measure"] == "cosine"]
    others = [row for row in run.fusion if row["measure"] == "cosine"]
    last = from_row(max((row for row in others if row["fusion"] == "layer"), key=lambda row: row["layer"]))
    (mean,) = (row["value"] for row in others if row["fusion"] == "equal")
    found = difference(max(fused, key=lambda one: one.value), last)
    return Measured(found.value, found.low, found.high, mean - last.value)


def _fused(subject: Subject, fusion: str) -> list[Mapping[str, Any]]:
    run: Result = subject.run("fusion")
    rows: list[Mapping[str, Any]] = [row for row in run.fusion if row["fusion"] == fusion]
    if not rows:
        raise NotMeasurable("a task whose labels the corpus has")
    return rows


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
