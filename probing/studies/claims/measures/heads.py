"""Heads that find dependency relations, trees or neighbours, and how alike the heads of a layer are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from probing.readouts.names import MLM, POSITION, measure_of
from probing.runs.study import Result
from probing.studies.claims.measures.registry import NotMeasurable, Subject, from_row, measure
from probing.studies.claims.verdict import Measured
from probing.studies.disable.tables import at_last_layer, is_head
from probing.tables.heads import name_of, of_measure

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


# A treebank's relation of a subject to its predicate.
SUBJECT = "nsubj"
_ALL_ROLES = "all"


@measure("attention")
def least_role_excess(subject: Subject, heads: Sequence[str] | None = None, n_heads: int = 2) -> Measured:
    """Return how much more heads attend along role links than along similar pairs without a link: the least over heads.

    For each head, the direction with the higher score counts. The interval is that of the score of the links alone. The
    control is the largest p-value of these heads; p-values are corrected for the choice among all heads.

    Args:
        subject: The model.
        heads: The heads, such as 7-6; without any, those with the highest scores.
        n_heads: The number of heads that are taken if `heads` names none.
    """
    run: Result = subject.run("attention")
    by_head: dict[str, Mapping[str, Any]] = {}
    for row in sorted(run.roles, key=lambda row: -row["score"]):
        if row["role"] == _ALL_ROLES:
            by_head.setdefault(name_of(row), row)
    if not by_head:
        raise NotMeasurable("a treebank as `--corpus`, with role links that have unlinked pairs which look alike")
    if missing := set(heads or ()) - set(by_head):
        raise NotMeasurable(f"the model has no head {min(missing)}")
    rows = [by_head[name] for name in heads] if heads else list(by_head.values())[:n_heads]
    rows = sorted(rows, key=lambda row: row["score"] - row["unlinked"])
    score, unlinked = from_row(rows[0], "score"), rows[0]["unlinked"]
    p_value = max(row["p_value"] for row in rows)
    return Measured(score.value - unlinked, score.low - unlinked, score.high - unlinked, p_value)


@measure("attention")
def nearness_of_subject_head(subject: Subject) -> Measured:
    """Return the attention to one neighbour, the previous or the next token, of the head that finds subjects best.

    The head is chosen on other sentences. The control is by how much it finds subjects more often than the best fixed
    offset does: a head that only attends to a neighbour has no such lead.
    """
    run: Result = subject.run("attention")
    found = next((row for row in run.relations if row["relation"] == SUBJECT), None)
    if found is None:
        raise NotMeasurable("a treebank as `--corpus`, with at least 100 subjects to choose a head by and 100 to test")
    head = (found["layer"], found["head"])
    near = [
        row
        for name in ("previous", "next")
        for row in of_measure(run.heads, name)
        if (row["layer"], row["head"]) == head
    ]
    return from_row(max(near, key=lambda row: row["value"]), control=found["difference"])


@measure("disabled")
def spare_heads_of_positions(subject: Subject, at_most: float) -> Measured:
    """Return the share of heads without which positions are read as well, one head at a time: see `_spare`."""
    return _spare(subject.run("disabled"), POSITION, at_most)


@measure("disabled_words")
def spare_heads_of_words(subject: Subject, at_most: float) -> Measured:
    """Return the share of heads without which words are predicted as well, one head at a time: see `_spare`."""
    return _spare(subject.run("disabled_words"), MLM, at_most)


@measure("disabled")
def gain_for_positions(subject: Subject) -> Measured:
    """Return how much better positions are read without some head or layer: see `_gain`."""
    return _gain(subject.run("disabled"), POSITION)


@measure("disabled_words")
def gain_for_words(subject: Subject) -> Measured:
    """Return how much better words are predicted without some head or layer: see `_gain`."""
    return _gain(subject.run("disabled_words"), MLM)


def _spare(run: Result, readout: str, at_most: float) -> Measured:
    """Return the share of heads without which little is lost, one head at a time.

    The lower end of the interval counts the heads whose whole interval of the loss is within `at_most`, the upper end
    those for which a part of it is. The control is the share of layers whose heads can all be disabled together at
    such a loss, one layer at a time: at 1, this readout needs the heads of no single layer.

    Args:
        run: The run.
        readout: What is read.
        at_most: The largest loss that counts as little, in units of the readout.
    """
    rows = at_last_layer(run.by_name, readout)
    heads, layers = ([gained(row, readout) for row in rows if is_head(row) is wanted] for wanted in (True, False))
    if not heads or not layers:
        raise NotMeasurable("a run of `disable` with heads and with layers")

    def share(of: Sequence[Measured], end: str) -> float:
        return sum(getattr(gain, end) >= -at_most for gain in of) / len(of)

    return Measured(share(heads, "value"), share(heads, "low"), share(heads, "high"), share(layers, "value"))


def _gain(run: Result, readout: str) -> Measured:
    """Return the gain in the last layer without some head or without some layer: the larger of the two.

    The head and the layer are those whose removal gains most on one half of the sentences; the gain is measured on the
    other half. The control is its p-value, corrected for the number of comparisons.

    Args:
        run: The run.
        readout: What is read.
    """
    rows = [row for row in run.better_without if row["readout"] == readout]
    last = max((row["layer"] for row in rows), default=0)
    found = [(gained(row, readout), row) for row in rows if row["layer"] == last]
    if not found:
        raise NotMeasurable("a run of `disable` with more sentences")
    gain, row = max(found, key=lambda pair: pair[0].value)
    return Measured(gain.value, gain.low, gain.high, row["p_value"])


def gained(row: Any, readout: str) -> Measured:
    """Return the effect of a row with the sign by which more is better."""
    effect = from_row(row, "effect")
    if measure_of(readout).higher_is_better:
        return effect
    return Measured(-effect.value, -effect.high, -effect.low)
