"""The table and the sentences of the fusion of layers, for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import in_brackets, interval

Row = Mapping[str, Any]

# The fusions in the order of the tables, with their headings; the mean of the layers has nothing to learn.
FUSIONS = {"equal": "mean", "concat": "concat", "max": "max", "gate": "gate"}
_BASELINES = {"last layer": "last layer", "best layer": "best layer", "equal": "mean"}


def fusion_tables(rows: Sequence[Row]) -> list[Any]:
    """Return the accuracies of layers and fusions, and how they differ, as rich tables; none without rows."""
    from probing.runtime.terminal import plain_table

    if not rows:
        return []
    accuracies = plain_table("Fusion of layers: accuracy of linear probes on test sentences")
    accuracies.add_column("task")
    for heading in ("last layer", "best layer", *FUSIONS.values()):
        accuracies.add_column(heading, justify="right")
    differences = plain_table("Differences of accuracies in points, with 95% intervals")
    differences.add_column("task")
    differences.add_column("fusion")
    for heading in _BASELINES.values():
        differences.add_column(f"from the {heading}", justify="right")
    for task in _tasks(rows):
        found = _accuracies(rows, task)
        last, best = _last(found), _best(found)
        cells = [f"{last['value']:.3f}", f"{best['value']:.3f} (layer {best['layer']})"]
        accuracies.add_row(task, *cells, *(f"{found[name, None]['value']:.3f}" for name in FUSIONS))
        for name in ("concat", "max", "gate"):
            of = _differences(rows, task, name)
            differences.add_row(task, name, *(_points(of[against]) for against in _BASELINES))
    return [accuracies, differences]


def fusion_lines(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each task, one on the similarity of tokens, and what all of this does not say."""
    if not rows:
        return []
    return [
        *(line for task in _tasks(rows) for line in (_compared(rows, task), *_unfinished(rows, task))),
        *_cosines(rows),
        _limits(rows),
    ]


def _tasks(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["task"] for row in rows if row["measure"] == "accuracy"))


def _accuracies(rows: Sequence[Row], task: str) -> dict[tuple[str, int | None], Row]:
    """Return the accuracy of each fusion and layer by its name and, if it is one, the number of the layer."""
    here = [row for row in rows if (row.get("task"), row["measure"]) == (task, "accuracy")]
    return {(row["fusion"], row.get("layer")): row for row in here}


def _last(found: Mapping[tuple[str, int | None], Row]) -> Row:
    return max((row for row in found.values() if row["fusion"] == "layer"), key=lambda row: row["layer"])


def _best(found: Mapping[tuple[str, int | None], Row]) -> Row:
    return next(row for row in found.values() if row.get("chosen") == "yes")


def _differences(rows: Sequence[Row], task: str, fusion: str) -> dict[str, Row]:
    """Return how the accuracy of a fusion differs from each baseline, by its name."""
    of = [row for row in rows if (row.get("task"), row["fusion"], row["measure"]) == (task, fusion, "difference")]
    return {row["against"]: row for row in of}


def _compared(rows: Sequence[Row], task: str) -> str:
    """Say whether fusions tell more than the best layer: any other layer too may tell more than the last one."""
    best = _best(_accuracies(rows, task))
    between = interval(best, between=" to ", form=".1f", times=100)
    parts = []
    for name in ("concat", "max", "gate"):
        row = _differences(rows, task, name)["best layer"]
        around = in_brackets(interval(row, between=" to ", form="+.1f", times=100), _p_value(row))
        parts.append(f"{100 * row['value']:+.1f}{around} with {name}")
    return (
        f"Fusion for {task}: layer {best['layer']}, the best on validation sentences, is right about "
        f"{best['value']:.1%} of {best['n']:,} test examples{in_brackets(between)}; fusion changes that, in points, by "
        f"{', '.join(parts)}."
    )


def _points(row: Row) -> str:
    return f"{100 * row['value']:+.1f}{in_brackets(interval(row, between=' to ', form='+.1f', times=100))}"


def _p_value(row: Row) -> str:
    p = row["p_value"]
    return "" if math.isnan(p) else "p below .001" if p < 0.001 else f"p {p:.3f}"


def _unfinished(rows: Sequence[Row], task: str) -> list[str]:
    names = [name for (name, _), row in _accuracies(rows, task).items() if row.get("converged") == "no"]
    if not names:
        return []
    return [
        f"Training of {' and '.join(names)} for {task} did not end at a minimum, so that more training might give "
        "another accuracy."
    ]


def _cosines(rows: Sequence[Row]) -> list[str]:
    found = [row for row in rows if row["measure"] == "cosine"]
    last = max((row for row in found if row["fusion"] == "layer"), key=lambda row: row["layer"])
    parts = [f"{_similarity(last)} in layer {last['layer']}"]
    for name, words in {"equal": "the mean of the layers", "max": "max"}.items():
        parts += [f"{_similarity(row)} in {words}" for row in found if row["fusion"] == name]
    for name in ("concat", "gate"):
        parts += [f"{_similarity(row)} in {name} for {row['task']}" for row in found if row["fusion"] == name]
    return [f"The mean cosine of two tokens of a sentence is {', '.join(parts)}."]


def _similarity(row: Row) -> str:
    return f"{row['value']:.3f}{in_brackets(interval(row, between=' to '))}"


def _limits(rows: Sequence[Row]) -> str:
    n = sum(row["measure"] == "difference" and not math.isnan(row["p_value"]) for row in rows)
    corrected = f"P-values are corrected for {n} comparisons. " if n else ""
    untrained = "The model was not trained with these fusions, so that this says nothing about pretraining with them."
    return corrected + untrained
