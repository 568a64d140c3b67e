"""Figures of `geometry`: readable in greyscale, whole layer numbers, units on every axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.activations import ActivationStore
from probing.data.labelling import origin
from probing.interventions import measure_of
from probing.probes import transforms
from probing.results import Row, Table
from probing.runs.call import Measured
from probing.studies.geometry.extremes import NAMES as EXTREMES
from probing.studies.geometry.extremes import write_extremes_figures
from probing.studies.geometry.inside import write_inside_figures
from probing.studies.geometry.neurons import groups_of, has, name_of, readouts_of
from probing.studies.geometry.position import SCHEMAS as POSITION
from probing.studies.geometry.position.spectrum import write_position_figures
from probing.studies.geometry.survey import SOURCES, LayerSurvey, Rows
from probing.studies.geometry.tables import layers_of, most_named, of_first_choice
from probing.tables.figures import (
    BLUE,
    GREY,
    USUAL,
    Chart,
    Line,
    Panel,
    by_count,
    with_lines,
    write_charts,
    write_drawings,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw a run's figures that are no line charts, each in some formats, and return the paths of the files."""
    dimensions, outliers, explained = (Table(tables[name]) for name in ("dimensions", "outliers", "explained"))
    drawings = {"outliers": partial(mean_profile, dimensions=dimensions, outliers=outliers, model=model)}
    charts = [explained_chart(explained, outliers)] if explained.where(kind="outlier") else []
    by_layer = Table(tables.get("neuron_interventions", ())).by("changed_layer")
    charts += [dose_chart(layer, rows) for layer, rows in by_layer.items()]
    return write_drawings(folder, drawings, formats) + write_charts(folder, charts, model, formats)


def mean_profile(figure: Figure, dimensions: Table, outliers: Table, model: str) -> None:
    """Draw each layer's mean vector over the neurons, with its outliers named."""
    by_layer = dict(sorted(dimensions.by("layer").items()))
    layers = list(by_layer)
    columns = min(2, len(layers))
    n_rows = -(-len(layers) // columns)
    figure.set_size_inches(4.6 * columns, 0.8 + 1.35 * n_rows)
    grid = figure.subplots(n_rows, columns, squeeze=False, sharex=True).ravel()
    for axes, layer in zip(grid, layers, strict=False):
        mean = np.array(by_layer[layer].column("mean"))
        axes.vlines(np.arange(len(mean)), 0, mean, color=GREY, lw=0.7)
        marked = sorted(outliers.where(layer=layer, definition="mean_profile").values("neuron"))
        axes.plot(marked, mean[marked], "o", ms=4, mfc="white", mec=BLUE)
        for neuron in marked:
            up = mean[neuron] > 0
            axes.annotate(
                str(neuron), (neuron, mean[neuron]), (4, 2 if up else -2), textcoords="offset points", fontsize=7,
                va="bottom" if up else "top",
            )  # fmt: skip
        axes.set_title(f"layer {layer}" + ("" if marked else ": no outlier"), fontsize=9)
        axes.margins(x=0.02, y=0.3)
    for axes in grid[len(layers) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(layers) - columns) : len(layers)]:
        axes.set_xlabel("neuron")
        axes.tick_params(labelbottom=True)
    figure.supylabel("mean activation", fontsize=9)
    figure.suptitle(
        f"{model}: mean vector of each layer (outliers: more than 5 sd from other neurons)",
        x=0.01,
        ha="left",
        fontsize=10,
    )


def explained_chart(explained: Table, outliers: Table) -> Chart:
    """Return the partial R² of each source, for the most frequent outliers, in the layers that have them."""
    shown_rows = of_first_choice(explained)
    neurons = most_named(outliers.where(neuron=tuple(explained.values("neuron"))), 4)
    rows_of = {f"neuron {neuron}": shown_rows.where(neuron=neuron, kind="outlier") for neuron in neurons}
    rows_of["mean of other neurons"] = shown_rows.where(kind="random")
    panels = []
    for title, rows in rows_of.items():
        layers = layers_of(rows)
        shares = {
            source: [_mean(rows.where(layer=layer, source=source).column("partial")) for layer in layers]
            for source in SOURCES
        }
        panels.append(Panel([Line(source, layers, values, kind="bars") for source, values in shares.items()], title))
    return Chart("explained", "what each source explains of an outlier beyond the others", panels, "partial R²")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


BY_SIZE = by_count("neurons", "neurons")


def dose_chart(layer: int, rows: Sequence[Row]) -> Chart:
    """Return the effects at one changed layer by number of neurons, a panel for each kind and readout."""
    panels = []
    for curve in (curve for group in groups_of(rows) for curve in readouts_of(group)):
        measure, first = measure_of(curve[0]["readout"]), curve[0]
        lines = [Line.of(curve, "effect", "these neurons", "", x="k", scale=measure.times)]
        for source, words in (("random", "random sets"), ("matched", "sets matched in sd")):
            drawn = [row for row in curve if has(row, source)]
            lines.append(Line.band(drawn, f"{source}_lowest", f"{source}_highest", words, "k", measure.times))
        title = f"{name_of(first)}, kind {first['kind']} (intact: {first['intact']:.3f})"
        panels.append(Panel(lines, title, f"effect ({measure.unit})"))
    title = f"neurons of layer {layer} changed inside the model, 95% intervals; range of drawn sets"
    return with_lines([Chart(f"neurons_layer_{layer}", title, panels, x=BY_SIZE, reference=0)])[0]


# --------------------------------------------------------------------------------------------------------------------
# Write everything that a survey found into a run's folder.
# --------------------------------------------------------------------------------------------------------------------

# Tables that are made only on request.
_OPTIONAL = (
    "first_token", "smoothing", "interventions", "norms", "norm_changes", "path", "first_row", "neuron_interventions",
    *(schema.name for schema in POSITION),
    *EXTREMES,
)  # fmt: skip


@dataclass(frozen=True)
class GeometryTables:
    """A survey, the optional tables by name, empty if not applicable, and the settings of changed neurons, if any."""

    survey: LayerSurvey
    inside: dict[str, Rows]
    neurons: Mapping[str, Any] | None = None


def tables_of(geometry_tables: GeometryTables) -> dict[str, Rows]:
    """Return the tables by name; optional ones are left out if they are empty."""
    tables = {**geometry_tables.survey.tables, **geometry_tables.inside}
    return {name: rows for name, rows in tables.items() if rows or name not in _OPTIONAL}


def study_output(geometry_tables: GeometryTables, stores: Sequence[ActivationStore], model_name: str) -> Measured:
    """Return tables, also empty ones, figures, transforms and results; `stores` are measured first, fitted on last."""
    tables = tables_of(geometry_tables)

    def draw(folder: Path, formats: Sequence[str]) -> list[Path]:
        figures = write_figures(folder, tables, model_name, formats)
        figures += write_position_figures(folder, tables, model_name, formats)
        figures += write_extremes_figures(folder, tables, model_name, formats)
        return figures + write_inside_figures(folder, tables, model_name, formats)

    def write(folder: Path) -> list[Path]:
        paths = []
        (folder / "transforms").mkdir()
        for kind, by_layer in geometry_tables.survey.transforms.items():
            paths.append(folder / "transforms" / f"{kind}.safetensors")
            transforms.save(paths[-1], by_layer)
        return paths

    results = {
        "cache": {"measured": origin(stores[0]), "fitted": origin(stores[-1])},
        "clipped": {str(layer): neurons for layer, neurons in geometry_tables.survey.clipped.items()},
        "not_applicable": geometry_tables.survey.not_applicable,
        **({"neurons": dict(geometry_tables.neurons)} if geometry_tables.neurons is not None else {}),
    }
    return Measured(tables, results, _curves(tables), draw=draw, write=write)


def _curves(tables: Mapping[str, Rows]) -> list[dict[str, Any]]:
    """Return a row per layer for W&B's curves; of the many transforms and of position, one measure each."""
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
