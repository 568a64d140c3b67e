"""Heads that follow semantic roles or find subjects, and simpler explanations of what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.claims.measures.registry import NotMeasurable, Subject, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result
from probing.tables.heads import name_of, of_measure

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
