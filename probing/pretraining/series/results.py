"""Write what `series` found into a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from probing.pretraining.series.emergence import Thresholds, emergence
from probing.pretraining.series.losses import loss_rows
from probing.pretraining.series.survey import Found
from probing.runtime.versions import versions
from probing.tables.columns import without_nan

KIND = "series of checkpoints"

Tables = dict[str, list[dict[str, Any]]]


def tables_of(found: Found, thresholds: Thresholds) -> Tables:
    """Return the rows of each table by its name."""
    deviations, steps = found.deviations(), [one.step for one in found.checkpoints]
    rows = loss_rows(found.checkpoints)
    outliers = []
    for one, own in zip(found.checkpoints, found.rows_by_checkpoint(), strict=True):
        here, about = deviations[steps.index(one.step)], {"step": one.step, "checkpoint": one.name}
        rows += own
        for layer, values in here.items():
            there = [(abs(value), k) for k, value in enumerate(values) if abs(value) > thresholds.outliers]
            outliers += [
                {**about, "layer": layer, "neuron": k, "deviations": values[k]} for _, k in sorted(there, reverse=True)
            ]
            of_layer = {**about, "command": "geometry", "layer": layer}
            rows.append({**of_layer, "measure": "n_outliers", "value": float(len(there))})
            k = max(range(len(values)), key=lambda k: (abs(values[k]), -k))
            rows.append({**of_layer, "measure": "largest_deviation", "value": abs(values[k]), "neuron": k})
    return {
        "series": rows, "series_outliers": outliers, "emergence": emergence(rows, deviations, steps, thresholds),
    }  # fmt: skip


def write_summary(
    folder: Path, found: Found, tables: Tables, names: Sequence[str], thresholds: Thresholds,
    timings: Mapping[str, float],
) -> Path:  # fmt: skip
    """Write `results.json`, the results for programs, and return its path.

    Args:
        folder: The run's folder.
        found: What was measured.
        tables: Rows by the name of their table.
        names: The measures.
        thresholds: The thresholds past which a quantity counts as present.
        timings: Times in seconds.
    """
    summary = {
        "kind": KIND,
        "versions": versions(),
        "checkpoints": [
            {"step": one.step, "name": one.name, "model": one.model, "revision": one.revision}
            for one in found.checkpoints
        ],
        "measures": list(names),
        "n_kept": found.n_kept,
        "thresholds": asdict(thresholds),
        "timings": dict(timings),
        "emergence": [without_nan(row) for row in tables["emergence"]],
    }
    path = folder / "results.json"
    path.write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return path
