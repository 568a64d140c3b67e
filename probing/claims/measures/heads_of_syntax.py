"""Heads that find dependency relations, trees or neighbours, and how alike the heads of a layer are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from probing.claims.measures.registry import NotMeasurable, Subject, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result
from probing.tables.heads import of_measure

# A head attends to a neighbour, as in Clark et al. (2019, section 3.2), if it gives it more than this attention.
MOST = 0.5


@measure("attention")
def least_lead_over_offset(subject: Subject, relations: Sequence[str]) -> Measured:
    """Return how much more often the best head finds a relation than the best fixed offset does: least over relations.

    The head and the offset are chosen on other sentences. The control is the largest such lead of a head of a randomly
    initialised model over the same offsets.

    Args:
        subject: The model.
        relations: The relations, such as `det`.
    """
    run: Result = subject.run("attention")
    rows = {row["relation"]: row for row in run.relations if row["relation"] in relations}
    if missing := [name for name in relations if name not in rows]:
        raise NotMeasurable(
            "a treebank as `--corpus`, with at least 100 arcs to choose a head by and 100 to test for each of "
            f"{', '.join(missing)}"
        )
    least = min(rows.values(), key=lambda row: row["difference"])
    untrained = max(row["untrained"] - row["offset_test"] for row in rows.values())
    return from_row(least, "difference", "difference", untrained)


@measure("attention")
def edges_of_best_head(subject: Subject) -> Measured:
    """Return the share of a treebank's edges that are in the trees of the best head, chosen on other sentences.

    The control is by how much this share is larger than that of a chain of neighbouring words.
    """
    run: Result = subject.run("attention")
    found = next((row for row in run.trees if row["measure"] == "uuas" and row.get("chosen") == "yes"), None)
    if found is None:
        raise NotMeasurable("a treebank as `--corpus`")
    return from_row(found, "test", "test", found["difference"])


@measure("attention")
def heads_at_neighbour(subject: Subject, side: Literal["previous", "next"]) -> Measured:
    """Return the number of heads that on average give more than half of their attention to a token's neighbour.

    The lower end of the interval counts the heads whose whole interval is above a half, the upper end those whose
    interval reaches above a half. The control is the largest attention of any head to this neighbour.

    Args:
        subject: The model.
        side: The previous or the next token.
    """
    run: Result = subject.run("attention")
    heads = [from_row(row) for row in of_measure(run.heads, side)]
    if not heads:
        raise NotMeasurable("a survey of heads with the part `profile`")
    n, low, high = (float(sum(getattr(head, end) > MOST for head in heads)) for end in ("value", "low", "high"))
    return Measured(n, low, high, max(head.value for head in heads))


@measure("attention")
def likeness_within_layers(subject: Subject) -> Measured:
    """Return by how many nats heads of different layers diverge more than heads of one layer (mean Jensen-Shannon).

    The interval is the widest that the intervals of the pairs of heads allow. The control is the share of heads whose
    most similar head is in their own layer, divided by the share that is expected by chance.
    """
    run: Result = subject.run("attention")
    rows = of_measure(run.similarity, "jensen_shannon")
    within, between = (
        [row for row in rows if (row["layer"] == row["other_layer"]) is wanted] for wanted in (True, False)
    )
    if not within or not between:
        raise NotMeasurable("two layers with two heads each")
    means = {
        name: [float(np.mean([getattr(from_row(row), end) for row in part])) for end in ("value", "low", "high")]
        for name, part in (("within", within), ("between", between))
    }
    (value, low, high), (own, own_low, own_high) = means["between"], means["within"]
    return Measured(value - own, low - own_high, high - own_low, _nearest_in_layer(rows))


def _nearest_in_layer(rows: Sequence[Any]) -> float:
    """Return the share of heads whose nearest head is in their own layer, divided by the share expected by chance."""
    divergence: dict[tuple[int, int], dict[tuple[int, int], float]] = {}
    for row in rows:
        one, other = (row["layer"], row["head"]), (row["other_layer"], row["other_head"])
        divergence.setdefault(one, {})[other] = row["value"]
        divergence.setdefault(other, {})[one] = row["value"]
    in_layer, by_chance = [], []
    for head, others in divergence.items():
        nearest = min(others, key=others.__getitem__)
        in_layer.append(nearest[0] == head[0])
        by_chance.append(sum(layer == head[0] for layer, _ in others) / len(others))
    return float(np.mean(in_layer) / np.mean(by_chance))
