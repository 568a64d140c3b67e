"""Write everything that a survey found into a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from probing.internals.first_row import FIRST_ROW_COLUMNS
from probing.internals.interventions import INTERVENTION_COLUMNS
from probing.internals.norm_changes import NORM_CHANGE_COLUMNS
from probing.internals.norm_terms import NORM_COLUMNS
from probing.internals.parameters import PARAMETER_COLUMNS
from probing.internals.smoothing_bound import SMOOTHING_COLUMNS
from probing.internals.stream_path import PATH_COLUMNS
from probing.layer_geometry.explained import EXPLAINED_COLUMNS
from probing.layer_geometry.first_token import FIRST_TOKEN_COLUMNS
from probing.layer_geometry.layers import GEOMETRY_COLUMNS
from probing.layer_geometry.survey import DIMENSION_COLUMNS, OUTLIER_COLUMNS, Rows, Survey
from probing.runtime.versions import versions
from probing.tables.columns import without_nan
from probing.tables.csv_files import write_csv
from probing.tables.neuron_interventions import NEURON_DRAW_COLUMNS, NEURON_INTERVENTION_COLUMNS
from probing.transforms import affine as transforms

_COLUMNS = {
    "geometry": GEOMETRY_COLUMNS,
    "outliers": OUTLIER_COLUMNS,
    "dimensions": DIMENSION_COLUMNS,
    "parameters": PARAMETER_COLUMNS,
    "explained": EXPLAINED_COLUMNS,
    "first_token": FIRST_TOKEN_COLUMNS,
    "smoothing": SMOOTHING_COLUMNS,
    "interventions": INTERVENTION_COLUMNS,
    "norms": NORM_COLUMNS,
    "norm_changes": NORM_CHANGE_COLUMNS,
    "path": PATH_COLUMNS,
    "first_row": FIRST_ROW_COLUMNS,
    "neuron_interventions": NEURON_INTERVENTION_COLUMNS,
    "neuron_draws": NEURON_DRAW_COLUMNS,
}
# Tables that are made only on request.
_OPTIONAL = (
    "first_token", "smoothing", "interventions", "norms", "norm_changes", "path", "first_row", "neuron_interventions",
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A survey, and what was measured inside the model.

    Args:
        survey: The survey.
        inside: Rows of the tables that are made on request, by name; without rows if not applicable.
        neurons: How neurons of the stream were changed and read, for `results.json`; None if none were.
    """

    survey: Survey
    inside: Mapping[str, Rows]
    neurons: Mapping[str, Any] | None = None


def tables_of(found: Found) -> dict[str, Rows]:
    """Return the tables by name; those made only on request are left out if they are empty."""
    tables = {**found.survey.tables(), **found.inside}
    return {name: rows for name, rows in tables.items() if rows or name not in _OPTIONAL}


def write(folder: Path, config: Mapping[str, Any], found: Found) -> list[Path]:
    """Write tables, transforms and the configuration, and return their paths.

    A table without rows is still written, with its columns.

    Args:
        folder: The run's folder.
        config: The resolved configuration as plain values.
        found: What was measured.
    """
    paths = []
    for name, rows in tables_of(found).items():
        paths.append(folder / f"{name}.csv")
        write_csv(paths[-1], rows, _COLUMNS[name])
    (folder / "transforms").mkdir()
    for kind, by_layer in found.survey.transforms.items():
        paths.append(folder / "transforms" / f"{kind}.safetensors")
        transforms.save(paths[-1], by_layer)
    paths.append(folder / "config.yaml")
    paths[-1].write_text(yaml.safe_dump(dict(config), sort_keys=False), encoding="utf-8")
    return paths


def write_summary(
    folder: Path, found: Found, cached: Mapping[str, Mapping[str, Any]], timings: Mapping[str, float]
) -> Path:
    """Write `results.json`, the results for programs, and return its path.

    Args:
        folder: The run's folder.
        found: What was measured.
        cached: Cache entries of the activations that were measured and of those that transforms were fitted on.
        timings: Times in seconds.
    """
    summary = {
        "kind": "geometry",
        "versions": versions(),
        "cache": dict(cached),
        "clipped": {str(layer): neurons for layer, neurons in found.survey.clipped.items()},
        "not_applicable": found.survey.not_applicable,
        "timings": dict(timings),
        **{
            name: [without_nan(row) for row in rows]
            for name, rows in tables_of(found).items()
            if name in ("geometry", "outliers", *_OPTIONAL)
        },
        **({"neurons": dict(found.neurons)} if found.neurons is not None else {}),
    }
    path = folder / "results.json"
    path.write_text(json.dumps(summary, indent=2), encoding="utf-8")
    return path
