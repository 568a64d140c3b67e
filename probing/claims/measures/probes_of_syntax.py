"""In which layers parts of speech and dependency relations are read, from runs of `fit` on a treebank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probing.claims.measures.registry import NotMeasurable, Subject, difference, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.run import Run
from probing.statistics.intervals import ENDS

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
