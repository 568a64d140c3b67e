"""What a model expects at a mask, from runs of `cloze`: pairs of words, and the loss in changed text."""

from __future__ import annotations

from probing.claims.measures.registry import NotMeasurable, Subject, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result
from probing.schemas.cloze import INTACT


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
