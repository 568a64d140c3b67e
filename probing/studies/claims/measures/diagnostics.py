"""What a model expects at a mask, from runs of `cloze`: pairs of words, and the loss in changed text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.runs.study import Result
from probing.studies.claims.measures.registry import NotMeasurable, Subject, from_row, measure
from probing.studies.claims.verdict import Measured
from probing.studies.cloze.tables import INTACT
from probing.studies.hierarchy.tables import ITSELF, LINEAR, of_model


@measure("minimal_pairs")
def share_of_pairs(subject: Subject, group: str, beside: str | None = None) -> Measured:
    """Return the share of pairs in a group in which the model finds the right word more likely than the wrong one.

    Args:
        subject: The model.
        group: The group.
        beside: A group whose share is the control.
    """
    run: Result = subject.run("minimal_pairs")
    rows = {row["group"]: row for row in run.groups}
    if missing := [name for name in (group, beside) if name is not None and name not in rows]:
        raise NotMeasurable(f"pairs of the group `{missing[0]}` in the file that `--cloze` names")
    return from_row(rows[group], "share", control=None if beside is None else rows[beside]["share"])


@measure("changed_text")
def loss_in_changed_text(subject: Subject, condition: str, against: str = INTACT) -> Measured:
    """Return by how many nats the loss of masked words is higher in changed text than in the text to compare with.

    If that text is changed, too, the control is the difference from the unchanged text.

    Args:
        subject: The model.
        condition: The change, such as `words_shuffled`.
        against: What it is compared with: the text as it is, or another change.
    """
    run: Result = subject.run("changed_text")
    rows = {row["against"]: row for row in run.changes if row["condition"] == condition and row.get("against")}
    if against not in rows:
        raise NotMeasurable("a treebank as `--corpus`, with sentences that have both a name and a noun to replace")
    control = None if against == INTACT else rows[INTACT]["difference"]
    return from_row(rows[against], "difference", "difference", control)


_UNTRAINED = "untrained"


@measure("hierarchy")
def linear_answers_in_first_layer(subject: Subject, task: str) -> Measured:
    """Return the share of sentences in which the probe of layer 1 gives the wrong answer that linear order implies.

    The control is the probe's accuracy on test sentences of the kind that it was trained on.

    Args:
        subject: The model.
        task: The task, such as `main_auxiliary`.
    """
    (first, *_), linear = _above_embeddings(subject, task, ITSELF), LINEAR[task]
    return from_row(first, linear, linear, first["test"])


@measure("hierarchy")
def preference_for_hierarchy(subject: Subject, task: str, from_depth: float) -> Measured:
    """Return by how much right answers are more frequent than those of linear order: the least over the upper layers.

    The control is the largest such difference of a randomly initialised model in these layers.

    Args:
        subject: The model.
        task: The task, such as `main_auxiliary`.
        from_depth: The least depth of an upper layer, as a share of the number of blocks.
    """
    own, untrained = (
        _upper(_above_embeddings(subject, task, condition), from_depth) for condition in (ITSELF, _UNTRAINED)
    )
    least = min(own, key=lambda row: row["preference"])
    return from_row(least, "preference", "preference", max(row["preference"] for row in untrained))


def _above_embeddings(subject: Subject, task: str, condition: str) -> list[Mapping[str, Any]]:
    run: Result = subject.run("hierarchy")
    rows = [row for row in of_model(run.hierarchy, task, condition) if row["layer"] > 0]
    if not rows:
        raise NotMeasurable(f"a run of `hierarchy` with {task} and its control {_UNTRAINED}")
    return sorted(rows, key=lambda row: row["layer"])


def _upper(rows: Sequence[Mapping[str, Any]], from_depth: float) -> list[Mapping[str, Any]]:
    """Return the rows of upper layers."""
    depth = max(row["layer"] for row in rows)
    return [row for row in rows if row["layer"] >= from_depth * depth]
