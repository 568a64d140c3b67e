"""The figure of a series: its measures over the steps of the training, a line for each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.figures.formats import USUAL
from probing.figures.layer_labels import spaced_layers
from probing.figures.step_axis import coordinates, labels, name
from probing.figures.style import BLUE, GREY, ORANGE, from_zero, write_drawings
from probing.tables.series import Panel, course, first_rows, layers_of, panels

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
