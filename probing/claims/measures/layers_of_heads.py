"""How alike the maps of consecutive layers and of two checkpoints are, and what fusing the layers of a model does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from probing.claims.measures.registry import NotMeasurable, Subject, difference, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result


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
    run: Result = subject.run("change")
    found = []
    for name, sign in (("cosine", 1), ("jensen_shannon", -1)):
        rows = [row for row in run.change if (row["measure"], row["of"]) == (name, "same") and not row.get("head")]
        rows.sort(key=lambda row: row["layer"])
        if len(rows) <= n_layers:
            raise NotMeasurable("more layers than these")
        lower, last = rows[:-n_layers], rows[-n_layers:]
        ends = min(lower, key=lambda row: sign * row["value"]), max(last, key=lambda row: sign * row["value"])
        found.append(difference(*(from_row(row) for row in (ends if sign > 0 else ends[::-1]))))
    by_cosine, by_divergence = found
    return Measured(by_cosine.value, by_cosine.low, by_cosine.high, by_divergence.value)


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
