"""Write what `series` found into a run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from probing.pretraining.series.emergence import Thresholds, emergence
from probing.pretraining.series.figures import write_figures
from probing.pretraining.series.losses import loss_rows
from probing.pretraining.series.survey import Found
from probing.runs.call import Measured
from probing.tables.series import by_step

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


def measured(found: Found, names: Sequence[str], thresholds: Thresholds, title: str) -> Measured:
    """Return the tables with what belongs to them.

    Args:
        found: What was measured.
        names: The measures.
        thresholds: The thresholds past which a quantity counts as present.
        title: What the checkpoints are of.
    """
    tables = tables_of(found, thresholds)
    results = {
        "checkpoints": [
            {"step": one.step, "name": one.name, "model": one.model, "revision": one.revision}
            for one in found.checkpoints
        ],
        "measures": list(names),
        "n_kept": found.n_kept,
        "thresholds": asdict(thresholds),
    }
    return Measured(
        tables,
        results,
        by_step(tables),
        "step",
        draw=lambda folder, formats: write_figures(folder, tables, title, formats),
    )
