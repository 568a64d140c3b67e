"""Write everything that a survey found into a run's folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probing.cache import ActivationStore
from probing.data.labelling import origin
from probing.probes import transforms
from probing.runs.call import Measured
from probing.studies.geometry.extremes.report import write_extremes_figures
from probing.studies.geometry.extremes.schema import NAMES as EXTREMES
from probing.studies.geometry.figures import write_figures, write_neuron_figures
from probing.studies.geometry.inside.report import write_inside_figures
from probing.studies.geometry.position.figures import write_position_figures
from probing.studies.geometry.position.schema import SCHEMAS as POSITION
from probing.studies.geometry.survey import Rows, Survey

# Tables that are made only on request.
_OPTIONAL = (
    "first_token", "smoothing", "interventions", "norms", "norm_changes", "path", "first_row", "neuron_interventions",
    *(schema.name for schema in POSITION),
    *EXTREMES,
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
    inside: dict[str, Rows]
    neurons: Mapping[str, Any] | None = None


def tables_of(found: Found) -> dict[str, Rows]:
    """Return the tables by name; those made only on request are left out if they are empty."""
    tables = {**found.survey.tables(), **found.inside}
    return {name: rows for name, rows in tables.items() if rows or name not in _OPTIONAL}


def measured(found: Found, stores: Sequence[ActivationStore], model_name: str) -> Measured:
    """Return the tables with what belongs to them; a table without rows is still written, with its columns.

    Args:
        found: What was measured.
        stores: The activations that were measured first, those that transforms were fitted on last.
        model_name: The model's short name, for titles.
    """
    tables = tables_of(found)

    def draw(folder: Path, formats: Sequence[str]) -> list[Path]:
        figures = write_figures(folder, tables, model_name, formats)
        figures += write_neuron_figures(folder, tables.get("neuron_interventions", ()), model_name, formats)
        figures += write_position_figures(folder, tables, model_name, formats)
        figures += write_extremes_figures(folder, tables, model_name, formats)
        return figures + write_inside_figures(folder, tables, model_name, formats)

    def write(folder: Path) -> list[Path]:
        paths = []
        (folder / "transforms").mkdir()
        for kind, by_layer in found.survey.transforms.items():
            paths.append(folder / "transforms" / f"{kind}.safetensors")
            transforms.save(paths[-1], by_layer)
        return paths

    results = {
        "cache": {"measured": origin(stores[0]), "fitted": origin(stores[-1])},
        "clipped": {str(layer): neurons for layer, neurons in found.survey.clipped.items()},
        "not_applicable": found.survey.not_applicable,
        **({"neurons": dict(found.neurons)} if found.neurons is not None else {}),
    }
    return Measured(tables, results, _curves(tables), draw=draw, write=write)


def _curves(tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each measure and its interval, for W&B's curves.

    Of the transforms, which are many, only the mean cosine is logged, and of position its share of the variance.
    """
    by_layer: dict[int, dict[str, Any]] = {}
    for row in tables["geometry"]:
        transform, measure = row["transform"], row["measure"]
        point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
        if transform == "none":
            ends = {f"{measure}_{end}": row[end] for end in ("low", "high") if row.get(end) is not None}
            point |= {measure: row["value"], **ends}
        elif measure == "mean_cosine":
            point[f"{transform}_{measure}"] = row["value"]
    for row in tables.get("position_split", ()):
        if (row["scale"], row["part"]) == ("raw", "position"):
            ends = {f"position_share_{end}": row[end] for end in ("low", "high") if row[end] is not None}
            by_layer[row["layer"]] |= {"position_share": row["value"], **ends}
    return list(by_layer.values())
