"""Write what `series` found into a run's folder, with the figure of its measures over the steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.figures.style import (
    BLUE,
    GREY,
    ORANGE,
    USUAL,
    coordinates,
    from_zero,
    labels,
    name,
    spaced_layers,
    write_drawings,
)
from probing.runs.call import Measured
from probing.studies.series.checkpoints import loss_rows
from probing.studies.series.emergence import Thresholds, emergence
from probing.studies.series.survey import Found
from probing.studies.series.tables import Panel, by_step, course, first_rows, layers_of, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Tables = Mapping[str, Sequence[Mapping[str, Any]]]

# Panels side by side, layers in the legend, grey of the first layer, and characters along the axis of a panel.
_COLUMNS, _LAYERS_NAMED, _LIGHTEST, _CHARACTERS = 3, 8, 0.7, 28
_MARKERS = "osv^Dx+*"


def write_figures(folder: Path, tables: Tables, model: str, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw a series, in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        tables: The tables by name.
        model: Name of the model or of the folder of its checkpoints, for the title.
        formats: Formats of the files.
    """
    return write_drawings(folder, {"series": lambda figure: curves(figure, tables, model)}, formats)


def curves(figure: Figure, tables: Tables, model: str) -> None:
    """Draw a panel for each measure that there is, with a line for each layer over the steps."""
    shown, firsts = panels(tables), first_rows(tables)
    steps = sorted({row["step"] for row in tables["series"]})
    height, width = -(-len(shown) // _COLUMNS), min(len(shown), _COLUMNS)
    figure.set_size_inches(3.0 * width + 1.2, 2.5 * height + 0.4)
    for i, panel in enumerate(shown):
        axes = figure.add_subplot(height, width, i + 1)
        _draw(axes, panel, tables, steps)
        for row in firsts.get(panel.quantity or "", ())[:1]:
            axes.axvline(coordinates(steps)[steps.index(row["step"])], color=ORANGE, lw=1.2, ls="-.")
        _name_steps(axes, steps)
    _legend(figure)
    figure.suptitle(f"{model}: dash-dotted where it is past its threshold and stays", fontsize=9, x=0.01, ha="left")


def _draw(axes: Axes, panel: Panel, tables: Tables, steps: Sequence[int]) -> None:
    """Draw a measure, what it is compared with and its threshold."""
    at, layers = dict(zip(steps, coordinates(steps), strict=True)), layers_of(tables)
    named = spaced_layers(layers, _LAYERS_NAMED)
    for layer in layers_of(tables, panel.measure):
        index = layers.index(layer)
        look: dict[str, Any] = {
            "color": str(_LIGHTEST * (1 - index / max(len(layers) - 1, 1))),
            "marker": _MARKERS[index % len(_MARKERS)],
        }
        label = f"layer {layer}" if layer in named else None
        _line(axes, at, *course(tables, panel.measure, layer), label, **look)
    _line(axes, at, *course(tables, panel.measure), None, color=BLUE, marker="o")
    compared, values = panel.compared(tables)
    if panel.beside and compared:
        axes.plot([at[step] for step in compared], values, color=GREY, ls="--", lw=1, label=panel.beside[1])
    if (threshold := panel.threshold(tables)) is not None:
        axes.axhline(threshold, color=ORANGE, lw=0.8, ls="--", label="threshold")
    axes.set(title=panel.title, ylabel=panel.unit)
    if panel.from_zero:
        from_zero(axes)


def _line(
    axes: Axes, at: Mapping[int, float], steps: Sequence[int], values: Sequence[float], label: str | None, **look: Any
) -> None:
    """Draw a line; from step 0 to the next one it is dotted, because that distance is not to scale."""
    if not steps:
        return
    places, apart = [at[step] for step in steps], steps[0] == 0 and len(steps) > 1
    axes.plot(places[apart:], values[apart:], lw=1, ms=3, label=label, **look)
    if apart:
        axes.plot(places[:2], values[:2], lw=1, ls=":", ms=3, markevery=[0], **look)


def _name_steps(axes: Axes, steps: Sequence[int]) -> None:
    """Mark every step, with a long tick and its label where there is room for one."""
    named = list(zip(coordinates(steps), labels(steps, _CHARACTERS), strict=True))
    axes.set_xticks([at for at, label in named if label], [label for _, label in named if label])
    axes.set_xticks([at for at, label in named if not label], minor=True)
    axes.set_xlabel(name(steps))


def _legend(figure: Figure) -> None:
    """Write one legend for all panels: first the layers, then what they are compared with."""
    shown = {
        str(label): line for axes in figure.axes for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    ordered = sorted(shown, key=lambda label: not label.startswith("layer"))
    figure.legend([shown[label] for label in ordered], ordered, loc="outside right center")


Written = dict[str, list[dict[str, Any]]]


def tables_of(found: Found, thresholds: Thresholds) -> Written:
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
    same_as = found.same_as()
    for row in (*rows, *outliers):
        if row["step"] in same_as:
            row["same_as"] = same_as[row["step"]]
    # A state that stands under several steps says nothing of the earlier ones.
    own = [row for row in rows if "same_as" not in row]
    deviations = [values for step, values in zip(steps, deviations, strict=True) if step not in same_as]
    steps = [step for step in steps if step not in same_as]
    return {"series": rows, "series_outliers": outliers, "emergence": emergence(own, deviations, steps, thresholds)}


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
