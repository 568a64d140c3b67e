"""Write what `hierarchy` found into a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probing.data.preparation import origin
from probing.diagnostics.hierarchy.parts import Sizes
from probing.diagnostics.hierarchy.survey import Found
from probing.runtime.versions import versions
from probing.tables.columns import without_nan

KIND = "linear order or hierarchy"


def write_summary(folder: Path, found: Found, sizes: Sizes, timings: Mapping[str, float]) -> Path:
    """Write `results.json`, the results for programs, and return its path.

    Args:
        folder: The run's folder.
        found: What was found.
        sizes: Numbers of sentences.
        timings: Times in seconds.
    """
    summary: dict[str, Any] = {
        "kind": KIND,
        "versions": versions(),
        "cache": {
            task: {side: origin(store) for side, store in zip(("train", "test"), one.stores, strict=True)}
            for task, one in found.tasks.items()
        },
        "n_sentences": {**asdict(sizes), "validation": sizes.test},
        "penalty": {task: one.l2 for task, one in found.tasks.items()},
        "optimality_gap": {task: one.optimality_gap for task, one in found.tasks.items()},
        "timings": dict(timings),
        **{name: [without_nan(row) for row in rows] for name, rows in found.tables.items()},
    }
    path = folder / "results.json"
    path.write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return path
