"""Figures of `wic` and `sts`: the result of each layer in each space, with its baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.formats import USUAL, forms_of
from probing.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, drawing, error_bars, joined, name_layers
from probing.statistics.sample_size import label
from probing.tables.space_names import WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

# Lines can be told apart by their style and mark as well as by colour.
LOOKS: dict[str, dict[str, Any]] = {
    "none": {"color": "black", "ls": "-", "marker": "o"},
    "clip": {"color": ORANGE, "ls": "--", "marker": "s"},
    "whiten": {"color": BLUE, "ls": "-", "marker": "^"},
    "clip_random": {"color": ORANGE, "ls": ":", "marker": "x"},
    "standardise": {"color": GREEN, "ls": "-.", "marker": "D"},
    "center": {"color": PURPLE, "ls": ":", "marker": "v"},
    "all_but_the_top": {"color": GREY, "ls": "--", "marker": "P"},
}


def write_wic_figure(
    path: Path, rows: Sequence[Row], part: str, model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw accuracy and area under the curve by layer, in some formats, and return the paths of the files.

    Args:
        path: Path of the figure, whose suffix is replaced by that of each format.
        rows: Rows of `wic.csv`.
        part: Part of the data that is reported on.
        model: Model name for the title.
        formats: Formats of the files.
    """
    with drawing(path, formats) as figure:
        figure.set_size_inches(9.2, 3.3)
        panels = {"accuracy": f"accuracy on {part}, threshold chosen on train", "auc": "area under the ROC curve"}
        for axes, (measure, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            _by_layer(axes, rows, measure, 1, rows)
            chance = rows[0]["constant_true_accuracy"] if measure == "accuracy" else 0.5
            words = "always yes" if measure == "accuracy" else "chance"
            axes.axhline(chance, color=GREY, lw=0.8, ls=":", label=words)
            axes.set_title(title)
        figure.axes[0].set_ylabel("share of pairs")
        figure.axes[1].set_ylabel("area")
        title = f"{model}: is a word used in the same sense twice? (bars: 95% over {rows[0]['n_pairs']} pairs)"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        labels = ["always yes (left),\nchance (right)" if label == "always yes" else label for label in labels]
        figure.legend(handles[1:] + handles[:1], labels[1:] + labels[:1], loc="outside right center")
    return forms_of([path], formats)


def write_sts_figure(
    path: Path, rows: Sequence[Row], pooling: str, model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw Spearman's correlation by layer, a panel for each set, in some formats, and return the paths of the files.

    Args:
        path: Path of the figure, whose suffix is replaced by that of each format.
        rows: Rows of `sts.csv`; only those over all pairs are drawn.
        pooling: Pooling of the sentence vectors.
        model: Model name for the title.
        formats: Formats of the files.
    """
    rows = [row for row in rows if row["aggregation"] == "all"]
    of_pooling = [row for row in rows if row["pooling"] == pooling]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    n_columns = min(4, len(sets))
    with drawing(path, formats) as figure:
        n_rows = -(-len(sets) // n_columns)
        figure.set_size_inches(max(5.5, 1.6 + 2.6 * n_columns), 0.8 + 2.5 * n_rows)
        grid = np.atleast_1d(figure.subplots(n_rows, n_columns, squeeze=False, sharey=True)).ravel()
        for axes, name in zip(grid, sets, strict=False):
            here = [row for row in rows if row["set"] == name]
            _by_layer(axes, [row for row in here if row["pooling"] == pooling], "spearman", 100, of_pooling)
            for row in here:
                if row["pooling"] == "static" and row["transform"] == "none":
                    axes.axhline(100 * row["spearman"], color=GREY, lw=1, ls=":", label="static vectors,\nplain")
            axes.set_title(f"{name} ({here[0]['n_pairs']} pairs)")
        for axes in grid[len(sets) :]:
            axes.set_visible(False)
        for first in range(0, len(grid), n_columns):
            grid[first].set_ylabel("Spearman x 100")
        title = f"{model}, sentences by {pooling}: cosine against human scores (bars: 95% over pairs)"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        # Baselines come first in the list of handles, but last in the legend.
        handles, labels = grid[0].get_legend_handles_labels()
        n_static = int("static" in labels[0])
        order = [*range(n_static, len(labels)), *range(n_static)]
        figure.legend([handles[i] for i in order], [labels[i] for i in order], loc="outside right center")
    return forms_of([path], formats)


def _by_layer(axes: Axes, rows: Sequence[Row], measure: str, times: int, of_figure: Sequence[Row]) -> None:
    """Draw one measure by layer, a line for each space, shifted slightly so that error bars do not overlap.

    Args:
        axes: Axes to draw on.
        rows: Rows to draw.
        measure: Column that is drawn.
        times: Factor by which values are multiplied.
        of_figure: Rows of the whole figure, which shares one legend.
    """
    spaces = list(dict.fromkeys(row["transform"] for row in rows))
    layers = sorted({row["layer"] for row in rows})
    of = measure if measure in ("accuracy", "auc") else ""
    for i, space in enumerate(spaces):
        here = [row for row in rows if row["transform"] == space]
        shift = 0.12 * (i - (len(spaces) - 1) / 2)
        name = label(WORDS[space], [row for row in of_figure if row["transform"] == space])
        values = times * np.array([row[measure] for row in here])
        axes.errorbar(
            [row["layer"] + shift for row in here], values, yerr=error_bars(here, values, of, times),
            ms=4, capsize=2, lw=1.3, elinewidth=0.7, label=name, **joined(LOOKS[space], layers),
        )  # fmt: skip
    name_layers(axes, layers, most=9)
    axes.set_xlim(layers[0] - 0.6, layers[-1] + 0.6)
