"""Anisotropy and self-similarity by layer, with and without outliers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from scipy.stats import rankdata

from probing.runs.study import Result
from probing.statistics.rank_similarity import spearman
from probing.studies.claims.measures.extremes import above_embeddings
from probing.studies.claims.measures.registry import (
    NotMeasurable,
    Role,
    Subject,
    difference,
    from_row,
    magnitude,
    measure,
)
from probing.studies.claims.verdict import Measured

Rows = Mapping[int, Mapping[str, Any]]


@measure("geometry")
def growth(subject: Subject, of: str) -> Measured:
    """Return Spearman's correlation of a measure with the number of the layer.

    Args:
        subject: The model.
        of: The measure, such as `mean_cosine`.
    """
    rows = by_layer(subject.run("geometry"), of)
    if len({row["value"] for row in rows.values()}) < 3:
        raise NotMeasurable(f"fewer than three layers have a {of.replace('_', ' ')} of their own")
    layers, values = (rankdata(found) for found in (list(rows), [row["value"] for row in rows.values()]))
    return Measured.exact(float(spearman(layers, values)))


@measure("geometry")
def least_mean_cosine(subject: Subject, first_layer: int = 1) -> Measured:
    """Return the least mean cosine over the layers from `first_layer` on; the control is the mean cosine of layer 0."""
    every = by_layer(subject.run("geometry"), "mean_cosine")
    control = every[0]["value"] if 0 in every else None
    return _least([from_row(row, control=control) for row in _from(every, first_layer).values()])


@measure("geometry")
def clipped_mean_cosine(subject: Subject) -> Measured:
    """Return the largest mean cosine with outliers clipped, over the layers above the embeddings that have outliers.

    The control is the largest change of the mean cosine in these layers when as many random neurons are clipped.
    """
    geometry: Result = subject.run("geometry")
    clipped, plain = _clipped(geometry, "mean_cosine"), by_layer(geometry, "mean_cosine")
    random = by_layer(geometry, "mean_cosine", "clip_random")
    changes = [abs(random[layer]["value"] - plain[layer]["value"]) for layer in clipped if layer in random]
    control = max(changes) if changes else None
    return max((from_row(row, control=control) for row in clipped.values()), key=lambda one: one.value)


@measure("geometry")
def least_clipped_mean_cosine(subject: Subject) -> Measured:
    """Return the least mean cosine with outliers clipped, over the layers above the embeddings that have outliers."""
    return _least([from_row(row) for row in _clipped(subject.run("geometry"), "mean_cosine").values()])


@measure("geometry")
def share_removed_by_clipping(subject: Subject) -> Measured:
    """Return the share of the mean cosine that clipping takes away: the median over the layers above the embeddings.

    A layer without an outlier counts as 0. The interval of a layer's share follows from that of the clipped mean
    cosine. The control is the median of the shares that clipping random neurons takes away.
    """
    geometry: Result = subject.run("geometry")
    plain = _from(by_layer(geometry, "mean_cosine"), 1)
    clipped, random = (by_layer(geometry, "mean_cosine", kind) for kind in ("clip", "clip_random"))
    _clipped(geometry, "mean_cosine")  # refuses models without outliers

    def removed(layer: int) -> Measured:
        if layer not in clipped:
            return Measured.exact(0.0)
        left, whole = from_row(clipped[layer]), plain[layer]["value"]
        return Measured(1 - left.value / whole, 1 - left.high / whole, 1 - left.low / whole)

    found = [removed(layer) for layer in plain]
    others = [1 - random[layer]["value"] / plain[layer]["value"] if layer in random else 0.0 for layer in plain]
    value, low, high = (median(getattr(one, end) for one in found) for end in ("value", "low", "high"))
    return Measured(value, low, high, median(others))


@measure("geometry")
def least_removed_by_clipping(subject: Subject, first_layer: int = 1) -> Measured:
    """Return by how much clipping lowers the mean cosine: the least over the layers from `first_layer` on.

    A layer without an outlier counts as 0. The covariance of the two means is not known, so that the interval is wider
    than one of paired differences.
    """
    geometry: Result = subject.run("geometry")
    plain, clipped = by_layer(geometry, "mean_cosine"), _clipped(geometry, "mean_cosine")
    return _least([
        difference(from_row(row), from_row(clipped[layer])) if layer in clipped else Measured.exact(0.0)
        for layer, row in _from(plain, first_layer).items()
    ])  # fmt: skip


@measure("geometry")
def least_gain_of_self_similarity(subject: Subject) -> Measured:
    """Return how much clipping adds to the adjusted self-similarity: the least over the layers above the embeddings.

    A layer without an outlier counts as 0. The covariance of the two means is not known, so that the interval is wider
    than one of paired differences.
    """
    geometry: Result = subject.run("geometry")
    plain = _from(by_layer(geometry, "self_similarity_adjusted"), 1)
    clipped = _clipped(geometry, "self_similarity_adjusted")
    return _least([
        difference(from_row(clipped[layer]), from_row(row)) if layer in clipped else Measured.exact(0.0)
        for layer, row in plain.items()
    ])  # fmt: skip


@measure("geometry")
def rank_in_cosines(subject: Subject, roles: list[Role] | None = None) -> Measured:
    """Return the rank of an outlier by its share of the mean cosine: the worst over the layers above the embeddings.

    If there are several outliers, the one that ranks first in a layer counts there.
    """
    chosen = set(subject.outliers(roles).values())
    shares: dict[int, list[tuple[float, int]]] = {}
    for row in above_embeddings(subject.run("geometry").dimensions):
        shares.setdefault(row["layer"], []).append((-row["cosine_share"], row["neuron"]))
    ranks = [1 + min(i for i, (_, neuron) in enumerate(sorted(found)) if neuron in chosen) for found in shares.values()]
    return Measured.exact(max(ranks), neurons=tuple(sorted(chosen)))


@measure("geometry")
def variation_of_outlier(subject: Subject, roles: list[Role] | None = None) -> Measured:
    """Return the standard deviation of an outlier over tokens divided by its absolute mean: the largest over layers.

    The control is the smallest such ratio of any other neuron in any layer above the embeddings.
    """
    chosen = set(subject.outliers(roles).values())
    rows = [row for row in above_embeddings(subject.run("geometry").dimensions) if row["mean"]]
    shares = [(row["neuron"] in chosen, row["sd"] / abs(row["mean"])) for row in rows]
    return Measured.exact(
        max(share for is_outlier, share in shares if is_outlier),
        control=min(share for is_outlier, share in shares if not is_outlier),
        neurons=tuple(sorted(chosen)),
    )


@measure("held_out")
def largest_whitened_mean_cosine(subject: Subject) -> Measured:
    """Return the largest magnitude of the mean cosine of whitened states over the layers above the embeddings.

    Whitening was fitted on a different corpus from the one that is measured.
    """
    rows = _from(by_layer(subject.run("held_out"), "mean_cosine", "whiten"), 1)
    return max((magnitude(from_row(row)) for row in rows.values()), key=lambda one: one.value)


def by_layer(geometry: Result, name: str, transform: str = "none") -> dict[int, Mapping[str, Any]]:
    """Return the row of a measure in each layer, by ascending layers."""
    rows = [row for row in geometry.geometry if (row["transform"], row["measure"]) == (transform, name)]
    return {row["layer"]: row for row in sorted(rows, key=lambda row: row["layer"])}


def _from(rows: Rows, first_layer: int) -> dict[int, Mapping[str, Any]]:
    found = {layer: row for layer, row in rows.items() if layer >= first_layer}
    if not found:
        raise NotMeasurable(f"nothing was measured in layers from {first_layer} on")
    return found


def _clipped(geometry: Result, name: str) -> dict[int, Mapping[str, Any]]:
    """Return the rows of clipped states above the embeddings.

    Raises:
        NotMeasurable: If there are none.
    """
    found = {layer: row for layer, row in by_layer(geometry, name, "clip").items() if layer}
    if not found:
        raise NotMeasurable("no layer above the embeddings has an outlier that could be clipped")
    return found


def _least(found: list[Measured], key: Callable[[Measured], float] = lambda one: one.value) -> Measured:
    """Return the least value, with the interval of the layer that has it."""
    if not found:
        raise NotMeasurable("nothing was measured in these layers")
    return min(found, key=key)
