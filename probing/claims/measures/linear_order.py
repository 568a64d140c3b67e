"""Whether layers go by linear order or by hierarchy, from runs of `hierarchy`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.claims.measures.registry import NotMeasurable, Subject, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result
from probing.tables.hierarchy import ITSELF, LINEAR, of_model

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
