"""Figures of `disable`: readable in greyscale, whole layer numbers, units on every axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.formats import USUAL
from probing.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    error_bars,
    joined,
    name_layers,
    side_by_side,
    write_drawings,
)
from probing.tables.disabling import at_last_layer, is_head, kinds_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_LOOKS = {
    "uniform": {"color": BLUE, "ls": "-", "marker": "o"},
    "zero": {"color": ORANGE, "ls": "--", "marker": "s"},
    "mean": {"color": GREEN, "ls": "-.", "marker": "^"},
    "resample": {"color": PURPLE, "ls": ":", "marker": "D"},
    "skip": {"color": GREY, "ls": "-", "marker": "x"},
}


def write_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw a run's figures, each in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        tables: The run's tables by name.
        model: Model name for the titles.
        formats: Formats of the files.
    """
    rows = at_last_layer(tables)
    heads, layers = ([row for row in rows if is_head(row) is wanted] for wanted in (True, False))
    drawings: dict[str, Callable[[Figure], None]] = {}
    for kind in kinds_of(heads):
        here = [row for row in heads if row["kind"] == kind]
        drawings[f"heads_{kind}"] = lambda figure, here=here, kind=kind: head_map(  # type: ignore[misc]
            figure, here, f"{model}, {kind}"
        )
    if layers:
        drawings["layers"] = lambda figure: effects_of_layers(figure, layers, model)
    return write_drawings(folder, drawings, formats)


def head_map(figure: Figure, rows: Sequence[Row], what: str) -> None:
    """Draw a cell for each head with the effect of disabling it in points, darker where the probe loses more."""
    places = [tuple(map(int, row["unit"].split("-"))) for row in rows]
    layers, heads = (sorted({place[i] for place in places}) for i in (0, 1))
    figure.set_size_inches(max(5.0, 1.2 + 0.44 * len(heads)), 1.1 + 0.3 * len(layers))
    axes = figure.add_subplot()
    values = np.zeros((len(layers), len(heads)))
    for row, (layer, head) in zip(rows, places, strict=True):
        values[layers.index(layer), heads.index(head)] = 100 * row["effect"]
    most = max(float(-values.min()), 1e-9)
    for (i, j), value in np.ndenumerate(values):
        strong = -value > 0.55 * most
        text = f"{value:+.1f}"
        axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if strong else "black")
    axes.imshow(-values, cmap="Greys", vmin=0, vmax=1.1 * most, origin="lower", aspect="auto")
    axes.set_xticks(range(len(heads)), [str(head) for head in heads])
    axes.set_yticks(range(len(layers)), [str(layer) for layer in layers])
    axes.set_xlabel("head")
    axes.set_ylabel("layer")
    axes.set_title(f"{what}: position accuracy of layer {rows[0]['layer']} without the head, points", fontsize=9)


def effects_of_layers(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw the effect of disabling all heads of a layer, or of skipping its block, by layer."""
    figure.set_size_inches(6.8, 3.1)
    axes = figure.add_subplot()
    kinds, layers = kinds_of(rows), sorted({int(row["unit"]) for row in rows})
    for kind, shift in zip(kinds, side_by_side(len(kinds), layers), strict=True):
        here = [row for row in rows if row["kind"] == kind]
        values = np.array([100 * row["effect"] for row in here])
        reach, at = error_bars(here, values, times=100), [int(row["unit"]) for row in here]
        look = joined(_LOOKS[kind], layers)
        axes.errorbar(np.add(at, shift), values, yerr=reach, ms=4, capsize=2, label=kind, **look)
    axes.axhline(0, color=GREY, lw=0.8)
    name_layers(axes, layers, what="layer whose heads are disabled, or whose block is skipped")
    axes.set_ylabel("points of accuracy")
    last = rows[0]["layer"]
    axes.set_title(f"{model}: position accuracy of layer {last} without a layer, 95% intervals")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
