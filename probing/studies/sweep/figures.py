"""The figure of a sweep: accuracy against each option, and the stability of rankings under each penalty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probing.figures.style import BLUE, GREY, USUAL, drawing, forms_of, name_layers, spaced_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Row = Mapping[str, Any]

# Number of panels side by side, and the ratio of largest to smallest value from which on a scale is logarithmic.
COLUMNS, WIDE = 3, 30.0
# Maximum number of layers named in the legend, and the lightest grey of a line.
LAYERS_NAMED, LIGHTEST = 12, 0.65
PENALTIES = ("probe.l2", "probe.l1")


def write_sweep_figure(
    path: Path, rows: Sequence[Row], varied: Sequence[str], formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw a sweep, in some formats, and return the paths of the files.

    Args:
        path: Path of the figure, whose suffix is replaced by that of each format.
        rows: A row for each trial and layer.
        varied: Names of the options that differ between trials.
        formats: Formats of the files.
    """
    axis_names = ["layer", *(name for name in varied if name != "layer")]
    accuracy = [name for name in axis_names if len({str(row[name]) for row in rows}) > 1] or ["layer"]
    penalties = [name for name in PENALTIES if name in varied]
    # For each penalty, the agreement of rankings between trials that differ only in one other option.
    stability = [
        (penalty, other) for penalty in penalties for other in varied if any(f"{other}_spearman" in row for row in rows)
    ]
    n = len(accuracy) + len(stability)
    height = -(-n // COLUMNS)
    with drawing(path, formats) as figure:
        figure.set_size_inches(3.1 * min(n, COLUMNS) + 2.0, max(2.7 * height, 3.6))
        panels = [figure.add_subplot(height, min(n, COLUMNS), i + 1) for i in range(n)]
        for axes, name in zip(panels, accuracy, strict=False):
            _accuracy(axes, rows, name)
        for axes, (penalty, other) in zip(panels[len(accuracy) :], stability, strict=True):
            _stability(axes, rows, penalty, other)
        # One legend beside the panels serves them all: they draw the same trials and layers.
        shown = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        figure.legend(shown.values(), shown.keys(), loc="outside right center")
    return forms_of([path], formats)


def _accuracy(axes: Axes, rows: Sequence[Row], name: str) -> None:
    """Draw every trial's accuracy against one option, and the mean at each of its values."""
    values = [row[name] for row in rows]
    coordinates = _coordinates(axes, values)
    heights = np.array([row["accuracy"] for row in rows])
    axes.plot(coordinates, heights, "o", color=GREY, ms=3, alpha=0.5, mew=0, label="one probe")
    marks = sorted(set(coordinates))
    means = [heights[coordinates == mark].mean() for mark in marks]
    # Values without an order are not joined by a line.
    join = "-" if _are_numbers(values) else ""
    axes.plot(marks, means, ls=join, color=BLUE, marker="_", ms=12, lw=1, label="mean of probes")
    axes.set(xlabel=name, ylabel="test accuracy", ylim=(0, 1.03), title=f"accuracy by {name}")
    if name == "layer":
        name_layers(axes, values, most=9)


def _stability(axes: Axes, rows: Sequence[Row], penalty: str, other: str) -> None:
    """Draw for each layer the agreement of rankings between trials that differ in one option, against the penalty."""
    column = f"{other}_spearman"
    kept = [row for row in rows if column in row]
    coordinates = _coordinates(axes, [row[penalty] for row in kept])
    layers = sorted({row["layer"] for row in kept})
    marks = sorted(set(coordinates))
    heights = np.array([row[column] for row in kept])
    own = np.array([row["layer"] for row in kept])
    named = spaced_layers(layers, LAYERS_NAMED)
    for i, layer in enumerate(layers):
        line = [heights[(coordinates == mark) & (own == layer)].mean() for mark in marks]
        shade = LIGHTEST * i / max(len(layers) - 1, 1)
        label = f"layer {layer}" if layer in named else None
        axes.plot(marks, line, color=str(shade), marker="osv^Dx+*"[i % 8], ms=3.5, lw=1, label=label)
    axes.set(xlabel=penalty, ylabel="rank correlation", title=f"rankings between\nvalues of {other}")


def _coordinates(axes: Axes, values: Sequence[Any]) -> NDArray[np.float64]:
    """Return the coordinate of each value, numbers as such and others side by side, and set the scale of the axis."""
    from matplotlib.ticker import MaxNLocator

    distinct = list(dict.fromkeys(values))
    if _are_numbers(distinct):
        distinct = sorted(distinct)
        positive = [value for value in distinct if value > 0]
        if len(positive) > 1 and positive[-1] / positive[0] >= WIDE:
            axes.set_xscale("log" if len(positive) == len(distinct) else "symlog", **(
                {} if len(positive) == len(distinct) else {"linthresh": positive[0]}
            ))  # fmt: skip
        elif all(isinstance(value, int) for value in distinct):
            axes.xaxis.set_major_locator(MaxNLocator(nbins=9, integer=True))
        return np.array(values, dtype=np.float64)
    index = {str(value): i for i, value in enumerate(distinct)}
    axes.set_xticks(range(len(distinct)), [str(value)[-18:] for value in distinct], rotation=30, ha="right")
    return np.array([index[str(value)] for value in values], dtype=np.float64)


def _are_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
