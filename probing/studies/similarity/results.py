"""Output of `wic` and `sts`: tables, and figures of each layer in each space, with its baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.activations import ActivationStore
from probing.data.labelling import origin
from probing.downstream import WORDS
from probing.downstream.sentence_vectors import Vectors, defined
from probing.results import Row
from probing.runs.call import Measured
from probing.statistics import label
from probing.tables.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    USUAL,
    drawing,
    error_bars,
    forms_of,
    joined,
    name_layers,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    """Draw accuracy and area under the curve by layer, in each format, and return the paths of the files."""
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
    """Draw Spearman's correlation over all pairs by layer, a panel for each set; return the paths of the files."""
    rows = [row for row in rows if row["aggregation"] == "all"]
    of_pooling = [row for row in rows if row["pooling"] == pooling]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    n_columns = min(4, len(sets))
    with drawing(path, formats) as figure:
        n_rows = -(-len(sets) // n_columns)
        figure.set_size_inches(max(5.5, 1.6 + 2.6 * n_columns), 0.8 + 2.5 * n_rows)
        grid = np.atleast_1d(figure.subplots(n_rows, n_columns, squeeze=False, sharey=True)).ravel()
        for axes, name in zip(grid, sets, strict=False):
            set_rows = [row for row in rows if row["set"] == name]
            _by_layer(axes, [row for row in set_rows if row["pooling"] == pooling], "spearman", 100, of_pooling)
            for row in set_rows:
                if row["pooling"] == "static" and row["transform"] == "none":
                    axes.axhline(100 * row["spearman"], color=GREY, lw=1, ls=":", label="static vectors,\nplain")
            axes.set_title(f"{name} ({set_rows[0]['n_pairs']} pairs)")
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
    """Draw a measure by layer, a line for each space, shifted slightly so that error bars do not overlap."""
    spaces = list(dict.fromkeys(row["transform"] for row in rows))
    layers = sorted({row["layer"] for row in rows})
    of = measure if measure in ("accuracy", "auc") else ""
    for i, space in enumerate(spaces):
        space_rows = [row for row in rows if row["transform"] == space]
        shift = 0.12 * (i - (len(spaces) - 1) / 2)
        name = label(WORDS[space], [row for row in of_figure if row["transform"] == space])
        values = times * np.array([row[measure] for row in space_rows])
        axes.errorbar(
            [row["layer"] + shift for row in space_rows], values, yerr=error_bars(space_rows, values, of, times),
            ms=4, capsize=2, lw=1.3, elinewidth=0.7, label=name, **joined(LOOKS[space], layers),
        )  # fmt: skip
    name_layers(axes, layers, most=9)
    axes.set_xlim(layers[0] - 0.6, layers[-1] + 0.6)


def sts_output(
    rows: Sequence[Row], chosen: Sequence[Row], texts: Mapping[str, Any], vectors: Vectors,
    sets: Sequence[Mapping[str, Any]], poolings: Sequence[str], model_name: str,
) -> Measured:  # fmt: skip
    """Return the tables with their summary, curves and figures; the transforms were fitted on `texts`."""
    cached = {pairs.corpus.name: origin(store) for pairs, store in zip(vectors.sets, vectors.stores, strict=True)}
    if vectors.outside:
        cached[vectors.outside[0].name] = origin(vectors.outside[1])
    return Measured(
        {"sts": defined(rows), "chosen": defined(chosen)},
        {
            "fitted_on": {label: text.described() for label, text in texts.items()},
            "cache": cached,
            "sets": list(sets),
        },
        _curves_of_sts(rows, poolings[0]),
        draw=lambda folder, formats: [
            path for how in poolings for path in write_sts_figure(folder / f"sts_{how}", rows, how, model_name, formats)
        ],
    )


def _curves_of_sts(rows: Sequence[Row], pooling: str) -> list[dict[str, Any]]:
    by_layer: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row["pooling"] == pooling and row["aggregation"] == "all":
            point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
            point[f"{row['set']}_{row['transform']}_spearman".replace(" ", "_")] = row["spearman"]
    return list(by_layer.values())


def wic_output(
    rows: Sequence[Row], chosen: Sequence[Row], read: Mapping[str, Any], pairs: Mapping[str, Any],
    stores: Sequence[ActivationStore], results: Mapping[str, Any], model_name: str,
) -> Measured:  # fmt: skip
    """Return the tables with summary and figures; `read` are all pairs by part, `pairs` those read whole."""
    part = list(read)[1]
    counts = {
        "n_read_pairs": {which: some.n_read for which, some in read.items()},
        "n_pairs": {which: some.n_pairs for which, some in pairs.items()},
        "n_unlabelled_pairs": {which: some.n_unlabelled for which, some in read.items()},
        "n_cut_pairs": {which: read[which].n_pairs - some.n_pairs for which, some in pairs.items()},
    }
    cached = {which: origin(store) for which, store in zip(read, stores, strict=True)}
    return Measured(
        {"wic": defined(rows), "chosen": defined(chosen)},
        {**counts, **results, "cache": cached},
        _curves_of_wic(rows),
        draw=lambda folder, formats: write_wic_figure(folder / "wic", rows, part, model_name, formats),
    )


def _curves_of_wic(rows: Sequence[Row]) -> list[dict[str, Any]]:
    by_layer: dict[int, dict[str, Any]] = {}
    for row in rows:
        point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
        point |= {f"{row['transform']}_{measure}": row[measure] for measure in ("accuracy", "auc")}
    return list(by_layer.values())
