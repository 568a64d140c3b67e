"""Neurons beside directions of random rotations, and features beside other units of the same hidden states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.style import BLUE, GREY, ORANGE, PURPLE, SIDE_BY_SIDE, error_bars, panels
from probing.results.schema import Row
from probing.tables.bases import beside_directions
from probing.tables.columns import score_of_neurons

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Bases can be told apart without colour, by their lines and marks.
_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": BLUE, "ls": "-", "marker": "o", "ms": 4},
    {"color": ORANGE, "ls": "--", "marker": "s", "ms": 4},
    {"color": GREY, "ls": ":", "marker": "x", "ms": 5},
    {"color": PURPLE, "ls": "-.", "marker": "^", "ms": 4, "mfc": "white"},
)


def accuracy_by_basis(figure: Figure, bases: Sequence[Mapping[str, Any]], task: str, model: str) -> None:
    """Draw accuracy by the number of units, a line for each basis, with intervals; a panel for each layer."""
    layers = sorted({row["layer"] for row in bases})
    figure.set_size_inches(6.4, 0.6 + 2.8 * len(layers))
    for axes, layer in zip(np.atleast_1d(figure.subplots(len(layers), squeeze=False)).ravel(), layers, strict=True):
        own = [row for row in bases if row["layer"] == layer]
        names, counts = list(dict.fromkeys(row["basis"] for row in own)), sorted({row["k"] for row in own})
        shifts = np.linspace(-0.12, 0.12, len(names))
        for name, look, shift in zip(names, _LOOKS, shifts, strict=False):
            rows = [row for row in own if row["basis"] == name]
            values = np.array([row["accuracy"] for row in rows])
            places = [counts.index(row["k"]) + shift for row in rows]
            axes.errorbar(places, values, yerr=error_bars(rows, values, "accuracy"), capsize=2, label=name, **look)
        axes.axhline(own[0]["majority_accuracy"], color=GREY, lw=0.8, label="majority class")
        axes.set_xticks(range(len(counts)), [str(k) for k in counts])
        axes.set_xlabel("number of units, the first by the training part")
        axes.set_ylabel("test accuracy (95% interval)")
        axes.set_ylim(0, 1.03)
        axes.set_title(f"{model}, layer {layer}: linear probes of {task} on k units")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center")


def neurons_beside_directions(
    figure: Figure, by_layer: Mapping[int, Sequence[Row]], n_rotations: int, model: str
) -> None:
    """Draw the sorted contributions of each layer's neurons over the range of the directions of the same rank.

    Args:
        figure: An empty figure.
        by_layer: Rows of `neurons.csv` of each layer, by rank.
        n_rotations: Number of rotations.
        model: Model name for the title.
    """
    unit = score_of_neurons(next(iter(by_layer.values()))[0]).axis
    grid = panels(figure, len(by_layer), (2.5, 2.3), (0, 0.8))
    for axes, (layer, rows) in zip(grid, by_layer.items(), strict=True):
        live = beside_directions(rows)
        ranks = [row["rank"] for row in live]
        low, high = ([row[f"direction_{end}"] for row in live] for end in ("lowest", "highest"))
        axes.fill_between(
            ranks, low, high, color="#c8c8c8", lw=0.8, label=f"directions of {n_rotations} rotations (range)"
        )
        axes.plot(ranks, [row["contribution"] for row in live], color=BLUE, lw=1.3, label="neurons")
        above = [row for row in live if row["above_directions"] == "yes"]
        axes.plot(
            [row["rank"] for row in above], [row["contribution"] for row in above], "o", ms=3.5, mec=BLUE, mfc="white",
            label="above the largest direction (p ≤ .05)",
        )  # fmt: skip
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
        axes.set_ylim(0, None)
        axes.set_title(f"layer {layer}: {len(above)} above")
    for axes in grid[::SIDE_BY_SIDE]:
        axes.set_ylabel(f"contribution ({unit})")
    for axes in grid[-SIDE_BY_SIDE:]:
        axes.set_xlabel("rank")
    figure.suptitle(f"{model}: contributions of neurons and of random directions", x=0.01, ha="left", fontsize=10)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
