"""Neurons that are the smallest or the largest of most tokens, and how far their means are from the others'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.runs.study import Result
from probing.statistics.moments import MEAN_DEVIATIONS, deviations_of
from probing.studies.claims.measures.registry import (
    SIGNS,
    NotMeasurable,
    Role,
    Subject,
    difference,
    magnitude,
    measure,
)
from probing.studies.claims.verdict import Measured

_Z = NormalDist().inv_cdf(0.975)


@measure("geometry")
def extreme_share(subject: Subject, role: Role) -> Measured:
    """Return the share of tokens in which an outlier is the extreme neuron, over all layers above the embeddings.

    The interval is Wilson's with as many trials as sentences, since tokens of a sentence may be alike. The control is
    the largest share of another neuron.
    """
    geometry: Result = subject.run("geometry")
    neuron, pooled = subject.neuron(role), _pooled(geometry, role)
    if neuron not in pooled:
        raise NotMeasurable(f"the model has no neuron {neuron}")
    others = max(share for one, share in pooled.items() if one != neuron)
    found = _share(pooled[neuron], n_sentences(geometry))
    return Measured(found.value, found.low, found.high, others, (neuron,))


@measure("geometry")
def least_share_beyond(subject: Subject, role: Role) -> Measured:
    """Return the share of tokens in which an outlier is beyond 3 sd of the token's own neurons: the least over layers.

    The interval is Wilson's with as many trials as sentences. The control is the largest such share of another neuron
    in that layer.
    """
    geometry: Result = subject.run("geometry")
    neuron, n = subject.neuron(role), n_sentences(geometry)
    by_layer: dict[int, dict[int, float]] = {}
    for row in above_embeddings(geometry.dimensions):
        if "beyond_share" not in row:
            raise NotMeasurable("the run is of an earlier version, which did not count such tokens; make it again")
        by_layer.setdefault(row["layer"], {})[row["neuron"]] = row["beyond_share"]
    if not by_layer or any(neuron not in shares for shares in by_layer.values()):
        raise NotMeasurable(f"the model has no neuron {neuron}")
    least = min(by_layer.values(), key=lambda shares: shares[neuron])
    found = _share(least[neuron], n)
    others = max(share for one, share in least.items() if one != neuron)
    return Measured(found.value, found.low, found.high, others, (neuron,))


@measure("geometry", "elsewhere", "third")
def change_over_texts(subject: Subject, roles: list[Role] | None = None) -> Measured:
    """Return how much the share of tokens in which an outlier is the extreme neuron differs between three texts.

    The share on the first text is compared with the shares on the two others; the value is the largest difference over
    texts and outliers. The interval is the widest that the intervals of the two shares allow. The control is the number
    of pairs of an outlier and a text in which another neuron has a larger share.
    """
    found: list[Measured] = []
    others = 0
    for role, neuron in subject.outliers(roles).items():
        shares = [_pooled(subject.run(name), role) for name in ("geometry", "elsewhere", "third")]
        others += sum(max(share, key=lambda one: share[one]) != neuron for share in shares)
        first, *rest = (
            _share(share[neuron], n_sentences(subject.run(name)))
            for share, name in zip(shares, ("geometry", "elsewhere", "third"), strict=True)
        )
        found += [magnitude(difference(one, first)) for one in rest]
    most = max(found, key=lambda one: one.value)
    return Measured(most.value, most.low, most.high, others, tuple(subject.outliers(roles).values()))


@measure("geometry")
def least_deviation(subject: Subject, roles: list[Role] | None = None) -> Measured:
    """Return how far the means of outliers are from the other neurons' means, in sd: the least over the layers.

    A deviation is positive in the direction of the outlier's role; if there are several outliers, the least deviation
    counts. The interval is that of the neuron's mean, from its sd and the number of sentences. The control is the
    largest deviation of another neuron in that layer, in either direction.
    """
    geometry: Result = subject.run("geometry")
    chosen = subject.outliers(roles)
    found: list[Measured] = []
    for layer, z, error in _profiles(geometry):
        if max(chosen.values()) >= len(z):
            raise NotMeasurable(f"the model has no neuron {max(chosen.values())}")
        others = float(np.delete(np.abs(z), list(chosen.values())).max())
        for role, neuron in chosen.items():
            value, half = SIGNS[role] * float(z[neuron]), float(error[neuron])
            if layer:
                found.append(Measured(value, value - half, value + half, others, tuple(chosen.values())))
    if not found:
        raise NotMeasurable("the run has no layer above the embeddings")
    return min(found, key=lambda one: one.value)


@measure("geometry")
def layers_of_outliers(subject: Subject, published: Mapping[str, Mapping[int, str]]) -> Measured:
    """Return how well the layers in which neurons are outliers match the published layers: the least Jaccard index.

    Args:
        subject: The model.
        published: Of each model, the layers of each outlier, such as `1-10`.
    """
    geometry: Result = subject.run("geometry")
    if subject.model not in published:
        raise NotMeasurable(f"no layers of outliers of {subject.model} are published")
    flagged = _flagged(geometry)
    alike = []
    for outlier, layers in published[subject.model].items():
        said = set(layers_of(layers, 10**6))
        found = flagged.get(int(outlier), set())
        alike.append(len(said & found) / len(said | found))
    return Measured.exact(min(alike), neurons=tuple(map(int, published[subject.model])))


@measure("geometry")
def outliers_of_some_layers(subject: Subject) -> Measured:
    """Return the number of neurons that are outliers in some layers above the embeddings, and not in all of these.

    The control is the number of those that are outliers in all of them.
    """
    geometry: Result = subject.run("geometry")
    above = {row["layer"] for row in above_embeddings(geometry.dimensions)}
    found = {neuron: layers & above for neuron, layers in _flagged(geometry).items() if layers & above}
    passing = sorted(neuron for neuron, layers in found.items() if layers != above)
    return Measured.exact(len(passing), control=len(found) - len(passing), neurons=tuple(passing))


def layers_of(text: str | int, last: int) -> range:
    """Return the layers that `3`, `1-10` or `all` stands for, up to the model's last one."""
    if text == "all":
        return range(1, last + 1)
    first, _, end = str(text).partition("-")
    return range(int(first), min(int(end or first), last) + 1)


def above_embeddings(rows: Sequence[Mapping[str, object]]) -> list[Mapping[str, Any]]:
    """Return the rows of the layers above the embeddings, without those of all layers together."""
    return [row for row in rows if isinstance(row.get("layer"), int) and row["layer"] != 0]


def n_sentences(geometry: Result) -> int:
    """Return the number of sentences that were measured: one token of each is sampled for one of the measures."""
    rows = [row for row in geometry.geometry if row["measure"] == "mean_cosine_one_per_sentence"]
    if not rows:
        raise NotMeasurable("the run measured no sentences")
    return int(rows[0]["n_tokens"])


def _pooled(geometry: Result, role: Role) -> dict[int, float]:
    """Return the share of tokens in which each neuron is the extreme one, over the layers above the embeddings."""
    column = {"minimum": "argmin_share", "maximum": "argmax_share"}[role]
    shares: dict[int, list[float]] = {}
    for row in above_embeddings(geometry.dimensions):
        shares.setdefault(row["neuron"], []).append(row[column])
    return {one: min(sum(found) / len(found), 1.0) for one, found in shares.items()}


def _share(share: float, n: int) -> Measured:
    return Measured(share, *_wilson(share, n))


def _profiles(geometry: Result) -> list[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
    """Return, for each layer, each neuron's mean in sd from the others' and half the width of its interval."""
    by_layer: dict[int, list[Mapping[str, Any]]] = {}
    for row in geometry.dimensions:
        by_layer.setdefault(row["layer"], []).append(row)
    found, root = [], math.sqrt(n_sentences(geometry))
    for layer, rows in by_layer.items():
        means = np.array([row["mean"] for row in sorted(rows, key=lambda row: row["neuron"])])
        sds = np.array([row["sd"] for row in sorted(rows, key=lambda row: row["neuron"])])
        spread = means.std()
        found.append((layer, deviations_of(means), _Z * sds / root / spread if spread > 0 else np.zeros_like(means)))
    return found


def _flagged(geometry: Result) -> dict[int, set[int]]:
    """Return the layers in which each neuron's mean is an outlier, for neurons that have any."""
    flagged: dict[int, set[int]] = {}
    for layer, z, _ in _profiles(geometry):
        for neuron in np.flatnonzero(np.abs(z) > MEAN_DEVIATIONS):
            flagged.setdefault(int(neuron), set()).add(layer)
    return flagged


def _wilson(share: float, n: int) -> tuple[float, float]:
    """Return Wilson's interval of a share of n trials."""
    centre, spread = share + _Z**2 / (2 * n), _Z * math.sqrt(share * (1 - share) / n + (_Z / (2 * n)) ** 2)
    low, high = ((centre + sign * spread) / (1 + _Z**2 / n) for sign in (-1, 1))
    return max(0.0, min(low, share)), min(1.0, max(high, share))  # only rounding could put an end outside
