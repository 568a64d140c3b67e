"""The figure of fused layers: for each task, the accuracy of each layer and of each fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.layer_labels import spaced_layers
from probing.figures.style import BLUE, ORANGE, error_bars, joined
from probing.tables.fusion import FUSIONS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Labels of layers that fit side by side in a panel.
_LABELS = 6


def accuracy_of_fusions(figure: Figure, rows: Sequence[Mapping[str, Any]], model: str) -> None:
    """Draw a panel for each task: the layers from the left, joined, and then the fusions.

    Args:
        figure: The figure.
        rows: Rows of `fusion.csv`.
        model: Model name for the title.
    """
    accuracies = [row for row in rows if row["measure"] == "accuracy"]
    tasks = list(dict.fromkeys(row["task"] for row in accuracies))
    figure.set_size_inches(max(3.4, 2.4 * len(tasks)), 2.8)
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for axes, task in zip(panels, tasks, strict=True):
        own = [row for row in accuracies if row["task"] == task]
        single, fused = ([row for row in own if (row["fusion"] == "layer") == is_one] for is_one in (True, False))
        fused.sort(key=lambda row: list(FUSIONS).index(row["fusion"]))
        layers = [row["layer"] for row in single]
        looks = ({"color": BLUE, "ls": "-", "marker": "o"}, {"color": ORANGE, "ls": "", "marker": "s"})
        places = (range(len(single)), range(len(single) + 1, len(single) + 1 + len(fused)))
        for here, where, look in zip((single, fused), places, looks, strict=True):
            values = np.array([row["value"] for row in here])
            axes.errorbar(where, values, yerr=error_bars(here, values), ms=4, capsize=2, **joined(look, layers))
        named = set(spaced_layers(layers, _LABELS))
        labels = [str(layer) if layer in named else "" for layer in layers] + [FUSIONS[row["fusion"]] for row in fused]
        axes.set_xticks([*places[0], *places[1]], labels)
        for label in axes.get_xticklabels()[len(layers) :]:
            label.set(rotation=60, ha="right", rotation_mode="anchor")
        axes.set_title(task)
        axes.set_ylim(0, 1.02)
        axes.set_xlabel("layer, or fusion of layers")
    panels[0].set_ylabel("accuracy (test sentences)")
    figure.suptitle(
        f"{model}: linear probes of layers and of fused layers, 95% intervals", fontsize=9, x=0.01, ha="left"
    )
