"""The figure of a series: its measures over the steps of the training, a line for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.checkpoints.emergence import HEADS, LOSS, LOST, OUTLIERS, POSITION, UNIGRAM
from probing.figures.formats import USUAL
from probing.figures.layer_labels import spaced_layers
from probing.figures.style import BLUE, GREY, ORANGE, write_drawings
from probing.tables.series import first_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

# For each panel its measure, its title, the axis of values, and the quantity whose first step is marked.
PANELS = (
    (LOST, "held-out loss", "nats per token", LOSS),
    ("accuracy", "position by a linear probe", "test accuracy", POSITION),
    ("offset_mass", "strongest head at a fixed offset", "share of attention", HEADS),
    ("largest_deviation", "farthest mean of a neuron", "sd of the means", OUTLIERS),
    ("mean_cosine", "anisotropy", "mean cosine", None),
    ("special_mass", "attention to special tokens", "share of attention", None),
)
# Measures that are drawn beside another, of the last layer.
_BESIDE = {"accuracy": ("token_accuracy", "the token alone"), LOST: (UNIGRAM, "token frequencies")}
# Measures whose axis begins at 0.
_FROM_ZERO = ("accuracy", "offset_mass", "largest_deviation", "special_mass")
_COLUMNS, _LAYERS_NAMED, _LIGHTEST, _TICKS = 3, 8, 0.7, 6


def write_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw a series, in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        tables: The tables by name.
        model: Name of the model or of the folder of its checkpoints, for the title.
        formats: Formats of the files.
    """
    return write_drawings(folder, {"series": lambda figure: curves(figure, tables, model)}, formats)


def curves(figure: Figure, tables: Mapping[str, Sequence[Row]], model: str) -> None:
    """Draw a panel for each measure that there is, with a line for each layer over the steps."""
    rows, firsts = tables["series"], first_rows(tables)
    there = [panel for panel in PANELS if any(row["measure"] == panel[0] for row in rows)]
    steps = sorted({row["step"] for row in rows})
    layers = sorted({row["layer"] for row in rows if "layer" in row})
    height = -(-len(there) // _COLUMNS)
    width = min(len(there), _COLUMNS)
    figure.set_size_inches(3.0 * width + 1.2, 2.5 * height + 0.4)
    panels = [figure.add_subplot(height, width, i + 1) for i in range(len(there))]
    for axes, (measure, title, unit, quantity) in zip(panels, there, strict=True):
        _panel(axes, [row for row in rows if row["measure"] == measure], steps, layers)
        _beside(axes, rows, _BESIDE.get(measure), steps, layers)
        axes.set(title=title, ylabel=unit)
        if measure in _FROM_ZERO:
            axes.set_ylim(bottom=0)
        if quantity in (LOSS, OUTLIERS):  # those of the others are not in the unit of the axis
            for row in [row for row in tables["emergence"] if row["quantity"] == quantity][:1]:
                axes.axhline(row["threshold"], color=ORANGE, lw=0.8, ls="--", label="threshold")
        for row in firsts.get(quantity or "", ())[:1]:
            axes.axvline(coordinates(steps)[steps.index(row["step"])], color=ORANGE, lw=1.2, ls="-.")
        _name_steps(axes, steps)
    shown = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(shown.values(), shown.keys(), loc="outside right center")
    figure.suptitle(f"{model}: dash-dotted where it is past its threshold and stays", fontsize=9, x=0.01, ha="left")


def coordinates(steps: Sequence[int]) -> list[float]:
    """Return where each step stands on a logarithmic axis; step 0, which has no logarithm, stands apart on the left.

    Args:
        steps: Distinct steps, ascending.
    """
    positive = [math.log10(step) for step in steps if step > 0]
    if len(positive) == len(steps):
        return positive
    if not positive:
        return [0.0] * len(steps)
    return [positive[0] - max(0.3, 0.12 * (positive[-1] - positive[0])), *positive]


def _panel(axes: Axes, rows: Sequence[Row], steps: Sequence[int], layers: Sequence[int]) -> None:
    """Draw a measure; from step 0 to the next one the line is dotted, because that distance is not to scale."""
    place = dict(zip(steps, coordinates(steps), strict=True))
    named = spaced_layers(layers, _LAYERS_NAMED)
    for layer in sorted({row.get("layer", -1) for row in rows}):
        here = sorted((row for row in rows if row.get("layer", -1) == layer), key=lambda row: row["step"])
        at, values = [place[row["step"]] for row in here], [row["value"] for row in here]
        depth = layers.index(layer) / max(len(layers) - 1, 1) if layer >= 0 else 1
        color = str(_LIGHTEST * (1 - depth)) if layer >= 0 else BLUE
        label = f"layer {layer}" if layer in named else None
        apart = here[0]["step"] == 0 and len(here) > 1
        marker = "osv^Dx+*"[layers.index(layer) % 8] if layer >= 0 else "o"
        axes.plot(at[apart:], values[apart:], color=color, lw=1, marker=marker, ms=3, label=label)
        if apart:
            axes.plot(at[:2], values[:2], color=color, lw=1, ls=":", marker=marker, ms=3, markevery=[0])


def _beside(
    axes: Axes, rows: Sequence[Row], what: tuple[str, str] | None, steps: Sequence[int], layers: Sequence[int]
) -> None:
    """Draw what a measure is compared with, as a dashed line."""
    if what is None:
        return
    place = dict(zip(steps, coordinates(steps), strict=True))
    here = [row for row in rows if row["measure"] == what[0] and row.get("layer") in (None, layers[-1:] and layers[-1])]
    if here:
        here.sort(key=lambda row: row["step"])
        values = [row["value"] for row in here]
        axes.plot([place[row["step"]] for row in here], values, color=GREY, ls="--", lw=1, label=what[1])


def _name_steps(axes: Axes, steps: Sequence[int]) -> None:
    """Label as many steps as there is room for, each at its place."""
    at = coordinates(steps)
    room, named = (at[-1] - at[0]) / _TICKS, [0]
    for i in range(1, len(at)):
        if at[i] - at[named[-1]] >= room:
            named.append(i)
    axes.set_xticks(at, [_short(step) if i in named else "" for i, step in enumerate(steps)])
    axes.set_xlabel("step (logarithmic" + (", 0 apart)" if steps[0] == 0 else ")"))


def _short(step: int) -> str:
    """Return a step in few letters: 143000 as 143k."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if step >= size and step % (size // 10) == 0:
            return f"{step / size:g}{unit}"
    return str(step)
