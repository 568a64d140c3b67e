"""Effects of clipping, whitening and static vectors on word senses, similarity of sentences, and sentence labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from probing.claims.measures.extremes import above_embeddings
from probing.claims.measures.registry import NotMeasurable, Subject, difference, from_row, magnitude, measure
from probing.claims.verdict import Measured
from probing.results.cells import ends

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
