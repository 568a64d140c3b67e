"""Figures of `geometry` that are no line charts: layers, and what was measured inside the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from probing.results import Table
from probing.statistics import MEAN_DEVIATIONS
from probing.studies.geometry.inside import (
    DRAWN,
    PLACES,
    TERMS,
    TOKENS,
    followed,
    outlier_pairs,
    output_measures,
    short_site,
)
from probing.tables.figures import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    Drawings,
)
from probing.tables.outlier_effects import draw_effects

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), ("black", "v"))


def drawings(tables: Mapping[str, Table], model: str) -> Drawings:
    """Return what draws the figures of the tables that have rows."""
    profile = partial(mean_profile, outliers=tables["outliers"])
    of_tables: dict[str, tuple[Callable[..., None], str]] = {
        "outliers": (profile, "dimensions"), "norms": (draw_terms, "norms"),
        "norm_changes": (draw_changes, "norm_changes"), "path": (draw_path, "path"),
    }  # fmt: skip
    return {name: partial(draw, rows=tables[of], model=model) for name, (draw, of) in of_tables.items() if tables[of]}


def mean_profile(figure: Figure, rows: Table, outliers: Table, model: str) -> None:
    """Draw each layer's mean vector over the neurons, with its outliers named."""
    by_layer = dict(sorted(rows.by("layer").items()))
    layers = list(by_layer)
    columns = min(2, len(layers))
    n_rows = -(-len(layers) // columns)
    figure.set_size_inches(4.6 * columns, 0.8 + 1.35 * n_rows)
    grid = figure.subplots(n_rows, columns, squeeze=False, sharex=True).ravel()
    for axes, layer in zip(grid, layers, strict=False):
        mean = np.array(by_layer[layer].column("mean"))
        axes.vlines(np.arange(len(mean)), 0, mean, color=GREY, lw=0.7)
        marked = sorted(outliers.where(layer=layer, definition="mean_profile").values("neuron"))
        axes.plot(marked, mean[marked], "o", ms=4, mfc="white", mec=BLUE)
        for neuron in marked:
            up = mean[neuron] > 0
            axes.annotate(
                str(neuron), (neuron, mean[neuron]), (4, 2 if up else -2), textcoords="offset points", fontsize=7,
                va="bottom" if up else "top",
            )  # fmt: skip
        axes.set_title(f"layer {layer}" + ("" if marked else ": no outlier"), fontsize=9)
        axes.margins(x=0.02, y=0.3)
    for axes in grid[len(layers) :]:
        axes.set_visible(False)
    for axes in grid[max(0, len(layers) - columns) : len(layers)]:
        axes.set_xlabel("neuron")
        axes.tick_params(labelbottom=True)
    figure.supylabel("mean activation", fontsize=9)
    figure.suptitle(
        f"{model}: mean vector of each layer (outliers: more than 5 sd from other neurons)",
        x=0.01,
        ha="left",
        fontsize=10,
    )


def draw_path(figure: Figure, rows: Table, model: str) -> None:
    """Draw the distance of outliers along the residual stream, on the first token and on words."""
    neurons = followed(rows)
    figure.set_size_inches(9.6, 5.2)
    for axes, (tokens, words) in zip(figure.subplots(2, 1, sharex=True, sharey=True), TOKENS.items(), strict=True):
        group_rows = rows.where(tokens=tokens)
        stream = sorted(group_rows.where(term="no").values("step"))
        random = [group_rows.where(step=step, kind="random").column("deviations") for step in stream]
        if all(random) and stream:
            reach = [max(map(abs, values)) for values in random]
            axes.fill_between(stream, [-r for r in reach], reach, color="#d9d9d9", lw=0, label="random neurons")
        for (colour, mark), neuron in zip(_LOOKS, neurons, strict=False):
            neuron_rows = group_rows.where(neuron=neuron)
            for term, look in (("no", {"ls": "-", "mfc": colour}), ("yes", {"ls": "", "mfc": "white"})):
                line_rows = neuron_rows.where(term=term)
                axes.plot(
                    line_rows.column("step"), line_rows.column("deviations"), marker=mark, ms=4, c=colour, lw=1,
                    label=f"neuron {neuron}" if term == "no" else None, **look,
                )  # fmt: skip
        for limit in (-MEAN_DEVIATIONS, MEAN_DEVIATIONS):
            axes.axhline(limit, color="black", lw=0.7, ls="--")
        axes.axhline(0, color=GREY, lw=0.5)
        axes.set_ylabel("sd of all neurons")
        axes.set_title(words, fontsize=9)
        _name_sites(axes, rows)
    figure.axes[0].tick_params(labelbottom=False)
    figure.suptitle(
        f"{model}: outliers along the residual stream (open: a term that is added)", x=0.01, ha="left", fontsize=10
    )
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")


def _name_sites(axes: Axes, path: Table) -> None:
    """Label each site below the axis, and separate blocks by lines."""
    sites = [rows[0] for _, rows in sorted(path.by("step").items())]
    crowded = len(sites) > 60
    shown = [i for i in range(len(sites)) if not crowded or i == 0 or sites[i]["layer"] != sites[i - 1]["layer"]]
    axes.set_xticks([sites[i]["step"] for i in shown], [short_site(sites[i]) for i in shown], rotation=90, fontsize=6)
    for before, row in pairwise(sites):
        if before["layer"] != row["layer"]:
            axes.axvline(row["step"] - 0.5, color=GREY, lw=0.4)


def draw_terms(figure: Figure, rows: Table, model: str) -> None:
    """Draw the terms of the farthest outliers in each norm."""
    outliers = rows.where(kind="outlier").by("neuron")
    reach = {neuron: max(map(abs, of.column("deviations"))) for neuron, of in outliers.items()}
    neurons = sorted(reach, key=lambda neuron: (-reach[neuron], neuron))[:DRAWN]
    figure.set_size_inches(9.2, 0.9 + 1.7 * -(-len(neurons) // 2))
    grid = figure.subplots(-(-len(neurons) // 2), min(2, len(neurons)), squeeze=False, sharex=True).ravel()
    for axes, neuron in zip(grid, neurons, strict=False):
        _draw_neuron(axes, rows.where(neuron=neuron))
        axes.set_title(f"neuron {neuron}", fontsize=9)
    for axes in grid[len(neurons) :]:
        axes.set_visible(False)
    figure.supxlabel("norm: block.number", fontsize=9)
    figure.supylabel("mean output", fontsize=9)
    figure.suptitle(f"{model}: terms of outliers in the norms of each block", x=0.01, ha="left", fontsize=10)
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside right center")


def _draw_neuron(axes: Axes, rows: Table) -> None:
    x = np.arange(len(rows))
    above, below = np.zeros(len(rows)), np.zeros(len(rows))
    for name, (words, colour) in TERMS.items():
        values = np.array(rows.column(name))
        axes.bar(x, values, 0.7, np.where(values > 0, above, below), color=colour, ec="black", lw=0.4, label=words)
        above, below = above + np.maximum(values, 0), below + np.minimum(values, 0)
    axes.plot(x, rows.column("mean"), "D", c="white", mec="black", ms=4, label="mean output")
    axes.axhline(0, color="black", lw=0.6)
    labels = [f"{row['layer']}.{row['norm']}" for row in rows]
    step = -(-len(rows) // 14)
    axes.set_xticks(x, [label if i % step == 0 else "" for i, label in enumerate(labels)], fontsize=7)


def draw_changes(figure: Figure, rows: Table, model: str) -> None:
    """Draw the remaining distances of outliers and the effects on the model's output, with random neurons."""
    measures, pairs = output_measures(rows), outlier_pairs(rows)
    figure.set_size_inches(1.8 + 2.9 * (1 + len(measures)), 3.3)
    distance_axes, *panels = figure.subplots(1, 1 + len(measures), squeeze=False)[0]
    kinds = {
        "random": ("random neurons (mean of draws)", {"c": GREY, "ls": ":", "lw": 0.8}),
        "outliers": ("outliers", {"c": BLUE, "marker": "o", "ms": 3}),
    }
    for i, pair in enumerate(pairs.values()):
        by_kind = pair.by("kind")
        for kind, (words, look) in kinds.items():
            if kind in by_kind:
                lines = [by_kind["intact"], *(by_kind[kind].where(where=where) for where in PLACES)]
                values = [np.mean(np.abs(of_place.column("value"))) for of_place in lines]
                distance_axes.plot(range(len(lines)), values, **look, label=words if i == 0 else None)
    distance_axes.axhline(MEAN_DEVIATIONS, color=PURPLE, lw=0.8, ls="--", label="5 sd")
    distance_axes.set_xticks(range(1 + len(PLACES)), ["intact", *PLACES])
    distance_axes.set_ylim(0, None)
    distance_axes.set_ylabel("sd from the other neurons")
    distance_axes.set_title("distance of each outlier", fontsize=9)
    for axes, measure in zip(panels, measures, strict=True):
        draw_effects(axes, measure, {where: where for where in PLACES})
        axes.set_ylabel("effect (95% interval)")
    figure.suptitle(f"{model}: average gains and biases of outliers", x=0.01, ha="left", fontsize=10)
    figure.legend(*distance_axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
