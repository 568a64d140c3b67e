"""Figures of dose curves: the neurons that were asked for, among random and matched sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.formats import USUAL
from probing.figures.style import BLUE, GREY, ORANGE, error_bars, write_drawings
from probing.tables.neuron_interventions import groups_of, has, kind_of, name_of, readouts_of
from probing.tables.readout_names import measure_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]


def write_neuron_figures(folder: Path, rows: Sequence[Row], model: str, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw the dose curves of each changed layer, in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        rows: Rows of `neuron_interventions.csv`.
        model: Model name for the titles.
        formats: Formats of the files.
    """
    drawings: dict[str, Callable[[Figure], None]] = {}
    for layer in dict.fromkeys(row["changed_layer"] for row in rows):
        here = [row for row in rows if row["changed_layer"] == layer]
        title = f"{model}: neurons of layer {layer} changed inside of the model"
        drawings[f"neurons_layer_{layer}"] = lambda figure, here=here, title=title: dose_curves(  # type: ignore[misc]
            figure, here, title
        )
    return write_drawings(folder, drawings, formats)


def dose_curves(figure: Figure, rows: Sequence[Row], title: str) -> None:
    """Draw effects by the number of neurons, a row of panels for each kind, a panel for each readout.

    Args:
        figure: The figure.
        rows: Rows of one changed layer.
        title: Title of the figure.
    """
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
    for source, label, look in looks:
        there = [row for row in curve if has(row, source)]
        if not there:
            continue
        at = [row["k"] for row in there]
        low, high = ([measure.times * row[f"{source}_{end}"] for row in there] for end in ("lowest", "highest"))
        if len(at) > 1:
            axes.fill_between(at, low, high, label=label, **look)
        else:  # a band of one size
            width = 0.06 * at[0] * (1 if source == "random" else 1.6)
            axes.fill_between([at[0] - width, at[0] + width], low * 2, high * 2, label=label, **look)
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
    kind = kind_of(curve[0])
    axes.set_title(f"{name_of(curve[0])},\n{kind} (intact: {curve[0]['intact']:.3f})", fontsize=8)
