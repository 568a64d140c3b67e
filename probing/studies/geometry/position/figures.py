"""Figures of `geometry --position`: how much is position, its curves, and what neurons hold of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    USUAL,
    error_bars,
    joined,
    name_layers,
    write_drawings,
)
from probing.studies.geometry.position.tables import NEURONS, ORDERS, RAW, STANDARDISED, Found

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]

_LOOKS: dict[str, dict[str, Any]] = {
    "fit": {"color": PURPLE, "ls": "-.", "marker": "D"}, "eta_squared": {"color": GREEN, "ls": ":", "marker": "^"},
    "part": {"color": BLUE, "ls": "-", "marker": "o"}, "rotated": {"color": GREY, "ls": "--", "marker": "x"},
    "directions": {"color": "black", "ls": "-", "marker": "s"},
}  # fmt: skip
_COMPONENTS = ((BLUE, "-"), (ORANGE, "--"), (GREEN, ":"))
# Curves are drawn at the positions that have this share of the tokens of the commonest.
DRAWN = 0.02
# Most layers whose curves are drawn, evenly spaced.
MOST_LAYERS = 6


def write_position_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw what was measured, each figure in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        tables: The run's tables by name; those of the position part may be absent.
        model: Model name for the titles.
        formats: Formats of the files.
    """
    if not tables.get("position_split"):
        return []
    names = ("position_split", "position_shape", "position_basis", "position_held")
    found = Found({name: tables.get(name, ()) for name in names})
    made = {
        "position_split": partial(draw_split, found=found, model=model),
        "position_curves": partial(draw_curves, curves=tables["position_curves"], found=found, model=model),
    }
    if tables.get("position_held"):
        made["position_held"] = partial(draw_held, found=found, model=model)
    return write_drawings(folder, made, formats)


def draw_split(figure: Figure, found: Found, model: str) -> None:
    """Draw the shares of variance by layer: position on the left, the other parts on the right."""
    figure.set_size_inches(8.6, 3.6)
    left, right = figure.subplots(1, 2)
    for scale, colour, mark, style in ((RAW, BLUE, "o", "-"), (STANDARDISED, ORANGE, "s", "--")):
        rows = [found.split(layer, scale=scale) for layer in found.layers]
        values = np.array([row["value"] for row in rows])
        left.errorbar(
            found.layers, values, yerr=error_bars(rows, values), c=colour, marker=mark, ms=4, capsize=2,
            label="as the neurons are" if scale == RAW else "every neuron standardised",
            **joined({"ls": style}, found.layers),
        )  # fmt: skip
    chance = [found.split(layer)["chance"] for layer in found.layers]
    left.plot(found.layers, chance, "x", ms=4, c=GREY, label="by chance (taken off)")
    left.set_ylabel("share of the variance")
    left.set_title("position")
    looks = {"context": (GREEN, "^", "-"), "rest": (PURPLE, "D", "--"), "shared": (GREY, "x", ":")}
    for part, (colour, mark, style) in looks.items():
        rows = [found.split(layer, part) for layer in found.layers]
        values = np.array([row["value"] for row in rows])
        right.errorbar(
            found.layers, values, yerr=error_bars(rows, values), c=colour, marker=mark, ms=4, capsize=2, label=part,
            **joined({"ls": style}, found.layers),
        )  # fmt: skip
    right.set_title("context, rest and what is shared, as the neurons are")
    for axes in (left, right):
        axes.axhline(0, color="black", lw=0.6)
        name_layers(axes, found.layers)
        axes.legend(fontsize=8)
    figure.suptitle(f"{model}: the variance of the hidden states in parts (95% intervals)", x=0.01, ha="left",
                    fontsize=10)  # fmt: skip


def _spaced(layers: Sequence[int]) -> list[int]:
    """Return at most `MOST_LAYERS` layers, evenly spaced, the first and the last among them."""
    if len(layers) <= MOST_LAYERS:
        return list(layers)
    return [layers[i] for i in np.linspace(0, len(layers) - 1, MOST_LAYERS).round().astype(int)]


def draw_curves(figure: Figure, curves: Sequence[Row], found: Found, model: str) -> None:
    """Draw the first components of the position part along the positions, a panel for each layer."""
    layers = _spaced(found.layers)
    columns = min(3, len(layers))
    n_rows = -(-len(layers) // columns)
    figure.set_size_inches(3.1 * columns, 0.7 + 2.2 * n_rows)
    grid = figure.subplots(n_rows, columns, squeeze=False).ravel()
    for axes, layer in zip(grid, layers, strict=False):
        here = [row for row in curves if row["layer"] == layer]
        enough = DRAWN * max((row["n_tokens"] for row in here), default=0)
        for component, (colour, style) in enumerate(_COMPONENTS, 1):
            rows = [row for row in here if row["component"] == component and row["n_tokens"] >= enough]
            positions = [row["position"] for row in rows]
            axes.plot(
                positions, [row["value"] for row in rows], style, c=colour, lw=1.3, label=f"component {component}"
            )
            axes.fill_between(
                positions,
                [_end(row, "low") for row in rows],
                [_end(row, "high") for row in rows],
                color=colour,
                alpha=0.2,
                lw=0,
            )
        shape = found.shape(layer, "directions")
        n = f"{shape['value']:.0f}" if shape else "0"
        axes.set_title(f"layer {layer}: {n} {'direction' if n == '1' else 'directions'}", fontsize=9)
        axes.axhline(0, color="black", lw=0.5)
    for axes in grid[len(layers) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(layers) - columns) : len(layers)]:
        axes.set_xlabel("position of the token")
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.supylabel("position part", fontsize=9)
    figure.suptitle(
        f"{model}: the position part along its first directions (95% intervals)", x=0.01, ha="left", fontsize=10
    )


def _end(row: Row, end: str) -> float:
    """Return an end of a row's interval, the value where it has none."""
    found = row.get(end)
    return float(row["value"] if found is None else found)


def draw_held(figure: Figure, found: Found, model: str) -> None:
    """Draw what a few neurons hold of the position part by layer, between a rotation of it and its own directions."""
    figure.set_size_inches(8.6, 3.6)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, scale in zip(panels, (RAW, STANDARDISED), strict=True):
        layers = [layer for layer in found.layers if found.held(layer, "part", NEURONS, scale)]
        for order, look in _LOOKS.items():
            rows = [row for layer in layers if (row := found.held(layer, order, NEURONS, scale))]
            if not rows:
                continue
            there, values = [row["layer"] for row in rows], np.array([row["value"] for row in rows])
            style = joined({"ls": look["ls"]}, there)
            axes.errorbar(
                there, values, yerr=error_bars(rows, values), c=look["color"], marker=look["marker"], ms=4, capsize=2,
                label=ORDERS[order], **style,
            )  # fmt: skip
        axes.set_ylim(0, 1.04)
        if layers:
            name_layers(axes, layers)
        axes.set_title("as the neurons are" if scale == RAW else "every neuron standardised")
    panels[0].set_ylabel(f"share of the position part\nin {NEURONS} neurons")
    handles = next((axes.get_legend_handles_labels() for axes in panels if axes.get_legend_handles_labels()[0]), None)
    if handles:
        figure.legend(*handles, loc="outside right center", fontsize=8)
    figure.suptitle(f"{model}: is position in neurons or in directions?", x=0.01, ha="left", fontsize=10)
