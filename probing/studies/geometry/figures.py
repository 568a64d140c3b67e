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
from probing.studies.geometry.survey import LayerSurvey, Rows
from probing.studies.geometry.tables import layers_of, most_named, of_first_choice
from probing.tables.figures import BLUE, GREY, ORANGE, USUAL, error_bars, write_drawings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw a run's figures that are no line charts, each in some formats, and return the paths of the files."""
    dimensions, outliers, explained = (Table(tables[name]) for name in ("dimensions", "outliers", "explained"))
    drawings = {"outliers": partial(mean_profile, dimensions=dimensions, outliers=outliers, model=model)}
    if explained.where(kind="outlier"):
        drawings["explained"] = partial(explained_bars, explained=explained, outliers=outliers, model=model)
    return write_drawings(folder, drawings, formats)


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


def explained_bars(figure: Figure, explained: Table, outliers: Table, model: str) -> None:
    """Draw the partial R² of each source, for the most frequent outliers, in the layers that have them."""
    neurons = most_named(outliers.where(neuron=tuple(explained.values("neuron"))), 4)
    shown_rows = of_first_choice(explained)
    looks = {
        "position": {"color": BLUE, "hatch": ""}, "frequency": {"color": "#f1c98b", "hatch": "//"},
        "token": {"color": "#7f9f6a", "hatch": "xx"}, "punctuation": {"color": "white", "hatch": ".."},
        "special": {"color": "#bdbdbd", "hatch": ""},
    }  # fmt: skip
    panels = {f"neuron {neuron}": shown_rows.where(neuron=neuron, kind="outlier") for neuron in neurons}
    panels["mean of other neurons"] = shown_rows.where(kind="random")
    figure.set_size_inches(1.4 + 1.9 * len(panels), 2.9)
    width = 0.8 / len(looks)
    widest = max(len(rows.values("layer")) for rows in panels.values())  # bars have the same width in all panels
    all_axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(all_axes, panels.items(), strict=True):
        layers = layers_of(rows)
        for i, (source, look) in enumerate(looks.items()):
            shares = [_mean(rows.where(layer=layer, source=source).column("partial")) for layer in layers]
            x = np.arange(len(layers)) + (i - (len(looks) - 1) / 2) * width
            axes.bar(x, shares, width, edgecolor="black", lw=0.5, label=source, **look)
        axes.set_xticks(range(len(layers)), [str(layer) for layer in layers], fontsize=7)
        axes.set_xlim(-0.5, widest - 0.5)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("layer")
    figure.axes[0].set_ylabel("partial R²")
    figure.suptitle(
        f"{model}: what each source explains of an outlier beyond the others", x=0.01, ha="left", fontsize=10
    )
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def write_neuron_figures(folder: Path, rows: Sequence[Row], model: str, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw the dose curves of each changed layer from `neuron_interventions.csv`, and return the paths of the files."""
    drawings = {
        f"neurons_layer_{layer}": partial(
            dose_curves, rows=of_layer, title=f"{model}: neurons of layer {layer} changed inside the model"
        )
        for layer, of_layer in Table(rows).by("changed_layer").items()
    }
    return write_drawings(folder, drawings, formats)


def dose_curves(figure: Figure, rows: Sequence[Row], title: str) -> None:
    """Draw the effects at one changed layer by number of neurons, a row of panels per kind, a panel per readout."""
    groups = [readouts_of(group) for group in groups_of(rows)]
    n_columns = max(len(curves) for curves in groups)
    figure.set_size_inches(0.8 + 2.7 * n_columns, 0.7 + 2.5 * len(groups))
    panels = figure.subplots(len(groups), n_columns, squeeze=False)
    for row_of_panels, curves in zip(panels, groups, strict=True):
        for axes, curve in zip(row_of_panels, curves, strict=False):
            _dose_curve(axes, curve)
        for axes in row_of_panels[len(curves) :]:
            axes.set_visible(False)
    figure.suptitle(f"{title}, 95% intervals; range of drawn sets", x=0.01, ha="left", fontsize=10)
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        handles |= {label: handle for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower left", ncols=len(handles), fontsize=8)


def _dose_curve(axes: Axes, curve: Sequence[Row]) -> None:
    measure = measure_of(curve[0]["readout"])
    sizes = [row["k"] for row in curve]
    looks: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("random", "random sets", {"color": GREY, "alpha": 0.35, "lw": 0}),
        ("matched", "sets matched in sd", {"facecolor": "none", "edgecolor": ORANGE, "hatch": "///", "lw": 0.8}),
    )
    for source, words, look in looks:
        drawn_rows = [row for row in curve if has(row, source)]
        if not drawn_rows:
            continue
        at = [row["k"] for row in drawn_rows]
        low, high = ([measure.times * row[f"{source}_{end}"] for row in drawn_rows] for end in ("lowest", "highest"))
        if len(at) > 1:
            axes.fill_between(at, low, high, label=words, **look)
        else:  # a band of one size
            width = 0.06 * at[0] * (1 if source == "random" else 1.6)
            axes.fill_between([at[0] - width, at[0] + width], low * 2, high * 2, label=words, **look)
    values = np.array([measure.times * row["effect"] for row in curve])
    reach = error_bars(curve, values, times=measure.times)
    axes.errorbar(sizes, values, yerr=reach, color=BLUE, marker="o", ms=4, capsize=2, ls="-", label="these neurons")
    axes.axhline(0, color="black", lw=0.6)
    axes.set_xscale("log")
    axes.set_xticks(sizes, [str(k) for k in sizes], minor=False)
    axes.set_xticks([], minor=True)
    if len(sizes) == 1:
        axes.set_xlim(sizes[0] / 2, sizes[0] * 2)
    axes.set_xlabel("neurons (log scale)")
    axes.set_ylabel(f"effect ({measure.unit})")
    axes.set_title(f"{name_of(curve[0])},\nkind {curve[0]['kind']} (intact: {curve[0]['intact']:.3f})", fontsize=8)


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
        figures += write_neuron_figures(folder, tables.get("neuron_interventions", ()), model_name, formats)
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
