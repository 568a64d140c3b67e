"""Accuracy of features and of other units of the same hidden states, by their number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.style import BLUE, GREY, ORANGE, PURPLE, error_bars

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
