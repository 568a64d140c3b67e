"""Attention to special tokens, layer by layer, by weight and by the norms of what is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.claims.measures.attention_maps import LAST
from probing.claims.measures.registry import NotMeasurable, Subject, difference, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result
from probing.tables.heads import SPECIAL, of_measure


@measure("attention")
def attention_to_last_token(subject: Subject, from_depth: float, to_depth: float) -> Measured:
    """Return the attention to the last special token, such as `[SEP]`, in the layer of a range where it is least.

    The control is the largest such attention in any layer.

    Args:
        subject: The model.
        from_depth: The share of the blocks at which the range begins.
        to_depth: The share at which it ends.
    """
    rows = _of_last(subject, "mass")
    depth = max(row["layer"] for row in rows)
    inside = [row for row in rows if from_depth * depth <= row["layer"] <= to_depth * depth]
    if not inside:
        raise NotMeasurable("a model with more layers")
    least = min(inside, key=lambda row: row["value"])
    return from_row(least, control=max(row["value"] for row in rows))


@measure("attention")
def rise_at_last_token(subject: Subject, from_depth: float) -> Measured:
    """Return how much more attention the last special token gets in upper layers than in lower ones: means of layers.

    The covariance of the two means is not known, so that the interval is the widest that their intervals allow. The
    control is the same when weights are multiplied by the norms of the vectors that heads read there.

    Args:
        subject: The model.
        from_depth: The least depth of an upper layer, as a share of the number of blocks.
    """
    by_weight, by_norm = (_rise(_of_last(subject, name), from_depth) for name in ("mass", "norm_mass"))
    return Measured(by_weight.value, by_weight.low, by_weight.high, by_norm.value)


@measure("attention")
def norm_over_weight(subject: Subject) -> Measured:
    """Return the attention to special tokens by the norms of what is read, over that by weight: the most over layers.

    The covariance of the two means is not known, so that the interval is the widest that their intervals allow. The
    control is the least lift of special tokens by weight over the layers: above 1, they get more attention than under
    uniform attention in every layer.
    """
    run: Result = subject.run("attention")
    by_layer: dict[int, dict[str, Mapping[str, Any]]] = {}
    for name in ("mass", "norm_mass", "lift"):
        for row in of_measure(run.attention_layers, name, SPECIAL):
            by_layer.setdefault(row["layer"], {})[name] = row
    if not by_layer or any(len(rows) < 3 for rows in by_layer.values()):
        raise NotMeasurable("special tokens that are attended to")
    ratios = []
    for rows in by_layer.values():
        norm, weight = from_row(rows["norm_mass"]), from_row(rows["mass"])
        ratios.append(Measured(norm.value / weight.value, norm.low / weight.high, norm.high / weight.low))
    most = max(ratios, key=lambda one: one.value)
    lift = min(rows["lift"]["value"] for rows in by_layer.values())
    return Measured(most.value, most.low, most.high, lift)


def _of_last(subject: Subject, name: str) -> list[Mapping[str, Any]]:
    """Return a measure of each layer for the last special token, by layer."""
    run: Result = subject.run("attention")
    rows = next((rows for to in LAST if (rows := of_measure(run.attention_layers, name, to))), None)
    if rows is None:
        raise NotMeasurable(f"a tokenizer with a special token {' or '.join(LAST)}")
    return sorted(rows, key=lambda row: row["layer"])


def _rise(rows: Sequence[Mapping[str, Any]], from_depth: float) -> Measured:
    depth = max(row["layer"] for row in rows)
    upper, lower = ([row for row in rows if (row["layer"] >= from_depth * depth) is wanted] for wanted in (True, False))
    if not upper or not lower:
        raise NotMeasurable("a model with more layers")
    return difference(_mean(upper), _mean(lower))


def _mean(rows: Sequence[Mapping[str, Any]]) -> Measured:
    found = [from_row(row) for row in rows]
    value, low, high = (sum(getattr(one, end) for one in found) / len(found) for end in ("value", "low", "high"))
    return Measured(value, low, high)
