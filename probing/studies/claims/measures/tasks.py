"""Effects of clipping, whitening and static vectors on word senses, similarity of sentences, and sentence labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probing.results.schema import ends
from probing.runs.run import Run
from probing.runs.study import Result
from probing.statistics.intervals import ENDS
from probing.studies.claims.measures.extremes import above_embeddings
from probing.studies.claims.measures.registry import (
    NotMeasurable,
    Subject,
    difference,
    from_row,
    magnitude,
    measure,
)
from probing.studies.claims.verdict import Measured

_NOTHING: Mapping[str, Sequence[float]] = MappingProxyType({})
_NO_LEADS: Mapping[str, Mapping[str, Any]] = MappingProxyType({})


@measure("senses")
def gain_on_senses(
    subject: Subject, transform: str, published: Mapping[str, Sequence[float]] = _NOTHING
) -> Measured:  # fmt: skip
    """Return what a transform adds to the accuracy on WiC, on pairs on which neither layer nor threshold was chosen.

    The interval is that of paired answers. The control is the largest difference from the published accuracies when
    accuracies are computed as published, with layer and threshold chosen on the pairs on which they are reported.

    Args:
        subject: The model.
        transform: The transform.
        published: Of each model, the published accuracies: plain and transformed.
    """
    rows = subject.run("senses").chosen
    control = None
    if subject.model in published:
        found = [_of_senses(rows, "published", space)["accuracy"] for space in ("none", transform)]
        control = max(abs(a - b) for a, b in zip(found, published[subject.model], strict=True))
    return from_row(_of_senses(rows, "held_out", transform), "gain", "gain", control)


@measure("senses")
def lead_on_senses(subject: Subject, transform: str, over: str) -> Measured:
    """Return how much higher the accuracy on WiC is under one transform than another, on held-out pairs.

    The covariance of the two gains is not known, so that the interval is wider than one of paired differences.
    """
    rows = subject.run("senses").chosen
    one, other = (from_row(_of_senses(rows, "held_out", space), "gain", "gain") for space in (transform, over))
    return difference(one, other)


@measure("senses")
def change_of_threshold(subject: Subject, transform: str) -> Measured:
    """Return how much higher the best of the nine thresholds is under a transform, chosen in the published way."""
    rows = subject.run("senses").chosen
    plain, changed = (_of_senses(rows, "published", space)["threshold"] for space in ("none", transform))
    return Measured.exact(round(changed - plain, 9))  # of tenths


@measure("similarity")
def least_gain_on_sets(
    subject: Subject, transform: str, sets: Sequence[str], leads: Mapping[str, Mapping[str, Any]] = _NO_LEADS
) -> Measured:  # fmt: skip
    """Return what a transform adds to Spearman's correlation at layers chosen on other pairs: the least over sets.

    All pairs of a set are taken together; the interval is that of pairs. The control is the number of sets that are
    missing.

    Args:
        subject: The model.
        transform: The transform.
        sets: The sets.
        leads: For single models, a lead of the transform that the paper also claims: `over` which other transform, `by`
            how much, and on which `sets`. The measured lead minus the claimed one counts as a further gain; its
            interval is the widest that the intervals of both transforms allow.
    """
    gains = _gains(subject, transform, sets)
    least = _least([*gains.values()], len(sets))
    said = leads.get(subject.model, {})
    if there := [name for name in said.get("sets", ()) if name in gains]:
        others, by = _gains(subject, said["over"], there), Measured.exact(said["by"])
        left = [difference(difference(gains[name], other), by) for name, other in others.items()]
        least = min([least, *(replace(one, control=least.control) for one in left)], key=lambda one: one.value)
    return least


def _gains(subject: Subject, transform: str, sets: Sequence[str]) -> dict[str, Measured]:
    rows = _of_sets(subject, "mean", transform, sets)
    return {name: from_row(row, "gain", "gain") for name, row in rows.items()}


@measure("similarity")
def least_lead_of_static(subject: Subject, transform: str, sets: Sequence[str]) -> Measured:
    """Return by how much static vectors are better than a transform: the least over sets; see `least_gain_on_sets`.

    The covariance of the two correlations is not known, so that the interval is the widest that their intervals allow.
    """
    return _least([difference(static, own) for own, static in _beside_static(subject, transform, sets)], len(sets))


@measure("similarity")
def least_lead_over_static(subject: Subject, transform: str, sets: Sequence[str]) -> Measured:
    """Return by how much a transform is better than static vectors: the least over sets; see `least_gain_on_sets`."""
    return _least([difference(own, static) for own, static in _beside_static(subject, transform, sets)], len(sets))


@measure("labels")
def change_of_accuracy_on_labels(subject: Subject) -> Measured:
    """Return by how much clipping changes the accuracy on labels of sentences: the most over layers with outliers.

    Probes read the mean of a sentence's tokens (Luo, Kulmizev & Mao 2021, table 3): one reads the unchanged states, the
    other the states with the outliers clipped. The interval is that of paired answers. The control is how much better
    the probe of the unchanged states is than the most frequent label, the least over layers: where this probe has
    learned nothing, clipping can take nothing away.
    """
    rows = [row for row in above_embeddings(subject.run("labels").accuracy) if row["n_clipped"]]
    if not rows:
        raise NotMeasurable("no layer has an outlier that could be clipped")
    found = [
        Measured(row["accuracy"] - row["untransformed_accuracy"], *apart)
        for row in rows
        if (apart := ends(row, "above_untransformed")) is not None
    ]
    if not found:
        raise NotMeasurable("the run has no interval, for which it would need more sentences")
    learned = min(row["untransformed_accuracy"] - row["majority_accuracy"] for row in rows)
    return replace(max(map(magnitude, found), key=lambda one: one.value), control=learned)


def _of_senses(rows: Sequence[Mapping[str, Any]], protocol: str, transform: str) -> Mapping[str, Any]:
    for row in rows:
        if (row["protocol"], row.get("transform")) == (protocol, transform):
            return row
    raise NotMeasurable(f"the run has no {transform} vectors, such as where no layer has an outlier")


def _of_sets(subject: Subject, pooling: str, transform: str, sets: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the row of each set that is there, in all its pairs and at a layer chosen on other pairs.

    If a set has several parts, such as `STS-B dev` and `STS-B test`, its test part counts.
    """
    found: dict[str, Mapping[str, Any]] = {}
    for row in subject.run("similarity").chosen:
        asked = (row["protocol"], row["pooling"], row["transform"], row["aggregation"])
        name = row["set"].split(" ")[0]
        is_asked = asked == ("held_out", pooling, transform, "all") and name in sets
        if is_asked and (name not in found or row["set"].endswith(" test")):
            found[name] = row
    if not found:
        needed = "`--static`" if pooling == "static" else "one of the sets: " + ", ".join(sets)
        raise NotMeasurable(f"the run would need {needed}")
    return found


def _beside_static(subject: Subject, transform: str, sets: Sequence[str]) -> list[tuple[Measured, Measured]]:
    own, static = (_of_sets(subject, *how, sets) for how in (("mean", transform), ("static", "none")))
    return [(from_row(own[name], "spearman"), from_row(static[name], "spearman")) for name in own if name in static]


def _least(found: Sequence[Measured], n_sets: int) -> Measured:
    """Return the least value; the control is the number of sets that are missing."""
    least = min(found, key=lambda one: one.value)
    return Measured(least.value, least.low, least.high, control=n_sets - len(found))


# The runs that the measures read.
Task = Literal["parts_of_speech", "relations"]
# Half the width of a 95% interval of a normal distribution, in sd.
_HALF_WIDTH = 1.96
_DRAWS = 2000


@measure("parts_of_speech", "relations")
def layers_from_speech_to_syntax(subject: Subject) -> Measured:
    """Return by how many layers relations are read later than parts of speech: the difference of expected layers.

    The expected layer is sum_l l d_l / sum_l d_l (Tenney et al. 2019, section 2), where d_l is what layer l adds to the
    best accuracy of the layers below it, those of the embeddings included. Tenney et al. mix all layers up to l.

    The ends of the interval are the quantiles 2.5% and 97.5% of the difference over 2,000 draws, in which each accuracy
    is drawn from a normal distribution as wide as its interval. Layers are drawn independently, although all are tested
    on the same words; this makes the interval too wide rather than too narrow.
    """
    draws = np.random.default_rng(0)
    values, drawn = [], []
    for task in ("parts_of_speech", "relations"):
        rows = _rows(subject, task)
        means = np.array([row["accuracy"] for row in rows])
        widths = np.array([row["accuracy_high"] - row["accuracy_low"] for row in rows])
        values.append(float(expected_layer(means)))
        drawn.append(expected_layer(draws.normal(means, widths / (2 * _HALF_WIDTH), (_DRAWS, len(rows)))))
    found = values[1] - values[0]
    low, high = (float(np.quantile(drawn[1] - drawn[0], end)) for end in ENDS)
    return Measured(found, min(low, found), max(high, found))


@measure("parts_of_speech", "relations")
def lead_of_middle_layers(subject: Subject, task: Task) -> Measured:
    """Return by how much the accuracy of the best middle layer is above that of the best other layer.

    Middle layers are the second third of the blocks; the other layers include the embeddings. The covariance of the two
    accuracies is not known, so that the interval is the widest that their intervals allow. The control is the same
    difference for a randomly initialised model.

    Args:
        subject: The model.
        task: What is read.
    """
    rows = _rows(subject, task)
    if "untrained_accuracy" not in rows[0]:
        raise NotMeasurable("a run with the control `untrained`")
    middle, others = _thirds(rows)
    if not middle:
        raise NotMeasurable("a model with a block in its second third")
    best, other = (max(part, key=lambda row: row["accuracy"]) for part in (middle, others))
    untrained = [max(row["untrained_accuracy"] for row in part) for part in (middle, others)]
    lead = difference(*(from_row(row, "accuracy", "accuracy") for row in (best, other)))
    return Measured(lead.value, lead.low, lead.high, untrained[0] - untrained[1])


def expected_layer(accuracies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the expected layer, 0 where no layer adds anything to the embeddings.

    Args:
        accuracies: Accuracies of layers 0, 1, ..., shape (..., n_layers).

    Returns:
        The expected layers, shape (...,).
    """
    best = np.maximum.accumulate(accuracies, axis=-1)
    added = np.diff(best, axis=-1)
    total = added.sum(-1)
    weighted = (added * np.arange(1, best.shape[-1])).sum(-1)
    return np.divide(weighted, total, out=np.zeros_like(weighted), where=total > 0)


def _rows(subject: Subject, task: str) -> list[Mapping[str, Any]]:
    run: Run = subject.run(task)
    rows: list[Mapping[str, Any]] = sorted(run.accuracy, key=lambda row: row["layer"])
    if [row["layer"] for row in rows] != list(range(len(rows))) or len(rows) < 2:
        raise NotMeasurable("a run of all layers")
    return rows


def _thirds(rows: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the rows of the middle third of the blocks, and the others."""
    depth = rows[-1]["layer"]
    is_middle = [depth < 3 * row["layer"] <= 2 * depth for row in rows]
    middle, others = (
        [row for row, inside in zip(rows, is_middle, strict=True) if inside is wanted] for wanted in (True, False)
    )
    return middle, others


@measure("pooling")
def least_lead_of_pooling(subject: Subject, pooling: str, over: str) -> Measured:
    """Return how much higher Spearman's correlation is with one pooling than another, the least over the sets.

    Both are of the last layer, over all pairs of a set together. The covariance of the two correlations is not known,
    so that the interval is the widest that their intervals allow. The control is the least lead when the layer of each
    pooling is chosen on other pairs; None if the run chose no layers.

    Args:
        subject: The model.
        pooling: The pooling.
        over: The other pooling.
    """
    run: Result = subject.run("pooling")
    last = max(row["layer"] for row in run.sts if "layer" in row)
    own = _leads((row for row in run.sts if row.get("layer") == last), pooling, over)
    chosen = _leads((row for row in run.chosen if row["protocol"] == "held_out"), pooling, over)
    if not own:
        raise NotMeasurable(f"a run of `sts` with the poolings {pooling} and {over}")
    least = min(own, key=lambda one: one.value)
    return Measured(least.value, least.low, least.high, min(one.value for one in chosen) if chosen else None)


def _leads(rows: Iterable[Mapping[str, Any]], pooling: str, over: str) -> list[Measured]:
    """Return the lead of each set."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if (row.get("transform"), row["aggregation"]) == ("none", "all"):
            found.setdefault(row["set"], {})[row["pooling"]] = row
    both = [of_set for of_set in found.values() if {pooling, over} <= set(of_set)]
    return [difference(*(from_row(of_set[name], "spearman", "") for name in (pooling, over))) for of_set in both]
