"""What `hierarchy` found, as it is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from probing.data.preparation import origin
from probing.diagnostics.hierarchy.figures import write_figure
from probing.diagnostics.hierarchy.parts import Sizes
from probing.diagnostics.hierarchy.survey import Found
from probing.runs.call import Measured
from probing.tables.hierarchy import ITSELF, LINEAR, of_model, tasks_of


def measured(found: Found, sizes: Sizes, model_name: str) -> Measured:
    """Return the tables with what belongs to them.

    Args:
        found: What was found.
        sizes: Numbers of sentences.
        model_name: The model's short name, for titles.
    """
    rows = found.tables["hierarchy"]
    results: dict[str, Any] = {
        "cache": {
            task: {side: origin(store) for side, store in zip(("train", "test"), one.stores, strict=True)}
            for task, one in found.tasks.items()
        },
        "n_sentences": {**asdict(sizes), "validation": sizes.test},
        "penalty": {task: one.l2 for task, one in found.tasks.items()},
        "optimality_gap": {task: one.optimality_gap for task, one in found.tasks.items()},
    }
    return Measured(
        found.tables,
        results,
        _curves(rows),
        draw=lambda folder, formats: write_figure(folder / "hierarchy", rows, model_name, formats),
    )


def _curves(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each task and share, for W&B's curves."""
    by_layer: dict[int, dict[str, Any]] = {}
    for task in tasks_of(rows):
        for row in of_model(rows, task, ITSELF):
            point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
            for column in ("test", "generalisation", LINEAR[task]):
                point[f"{task}_{column}"] = row[column]
    return list(by_layer.values())
