"""The figures of `geometry --extremes`: large values by layer, and attention sinks with heads without outliers."""

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
from probing.studies.geometry.extremes.tables import ABSOLUTE, ALL, DEFINITIONS, OTHER, RELATIVE, of_all, quoted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
# Most kinds of tokens that are drawn.
DRAWN = 4
_LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"))


def write_extremes_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw what was measured, each figure in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        tables: The run's tables by name; those that were not measured may be empty or absent.
        model: Model name for the titles.
        formats: Formats of the files.
    """
    made = {}
    if massive := tables.get("massive"):
        made["massive"] = partial(_draw_massive, massive, model)
    if sinks := tables.get("sinks"):
        made["sinks"] = partial(_draw_sinks, sinks, tables.get("held_outliers", ()), model)
    return write_drawings(folder, made, formats)


def _draw_massive(massive: Sequence[Row], model: str, figure: Figure) -> None:
    """Draw the largest value of each layer by kind of token, and the share of values that are large, if some are."""
    layers = [row["layer"] for row in of_all(massive, "massive")]
    shares = {name: np.array([row["value_share"] for row in of_all(massive, name)]) for name in DEFINITIONS}
    shares = {name: np.where(of > 0, of, np.nan) for name, of in shares.items() if of.any()}
    figure.set_size_inches(9.0 if shares else 5.5, 3.4)
    grid = list(figure.subplots(1, 1 + bool(shares), squeeze=False)[0])
    _draw_largest(grid[0], massive, layers)
    words = {"massive": "massive", "token_sd": "beyond 5 sd of the token", "neuron_sd": "beyond 5 sd of the neuron"}
    for name, (colour, mark) in zip(DEFINITIONS, _LOOKS, strict=False):
        if name in shares:
            look = joined({"ls": "-"}, layers)
            grid[1].plot(layers, shares[name], c=colour, marker=mark, ms=4, label=words[name], **look)
    for axes in grid[1:]:
        axes.set_yscale("log")
        axes.set_ylabel("share of all values (log scale)")
        axes.set_title("values that are large")
    _finish(grid, layers, "layer")
    figure.suptitle(f"{model}: large values of hidden states", x=0.01, ha="left", fontsize=10)


def _draw_largest(axes: Axes, massive: Sequence[Row], layers: Sequence[int]) -> None:
    by_kind: dict[str, dict[int, float]] = {}
    for row in massive:
        if row["token"] != ALL and row.get("neuron") is None:
            here = by_kind.setdefault(row["token"], {})
            here[row["layer"]] = max(here.get(row["layer"], 0.0), row["largest_magnitude"])
    kinds = sorted(by_kind, key=lambda kind: -max(by_kind[kind].values()))[:DRAWN]
    for kind, (colour, mark) in zip(kinds, _LOOKS, strict=False):
        values = [by_kind[kind].get(layer, np.nan) for layer in layers]
        axes.plot(layers, values, c=colour, marker=mark, ms=4, label=quoted(kind), **joined({"ls": "-"}, layers))
    medians = np.array([row["median"] for row in of_all(massive, "massive")])
    axes.plot(layers, medians, c="black", marker=".", ms=4, label="median of all", **joined({"ls": ":"}, layers))
    threshold = np.maximum(ABSOLUTE, RELATIVE * medians)
    axes.plot(layers, threshold, c=GREY, label="massive from here", **joined({"ls": "--"}, layers))
    axes.set_yscale("log")
    axes.set_ylabel("largest magnitude (log scale)")
    axes.set_title("largest value on each kind of token")


def _draw_sinks(sinks: Sequence[Row], held: Sequence[Row], model: str, figure: Figure) -> None:
    """Draw what each kind of token gets and adds, by block, and the attention of heads without outliers."""
    blocks = [row for row in sinks if not row.get("head") and row["token"] != OTHER]
    layers = list(dict.fromkeys(row["layer"] for row in sinks))
    of_blocks = [row for row in held if not row.get("head") and row["layer"] != "all"]
    panels = [("mass", "attention (dotted: uniform)"), ("of_output", "share of the attention's output")]
    panels = [(name, title) for name, title in panels if any(name in row for row in blocks)]
    n = len(panels) + bool(of_blocks)
    figure.set_size_inches(0.6 + 3.3 * n, 3.4)
    grid = list(figure.subplots(1, n, squeeze=False)[0])
    kinds = list(dict.fromkeys(row["token"] for row in blocks))
    kinds = sorted(kinds, key=lambda kind: -max(row["mass"] for row in blocks if row["token"] == kind))[:DRAWN]
    for axes, (name, title) in zip(grid, panels, strict=False):
        for kind, (colour, mark) in zip(kinds, _LOOKS, strict=False):
            rows = [row for row in blocks if row["token"] == kind]
            x, values = [row["layer"] for row in rows], np.array([row[name] for row in rows])
            axes.errorbar(
                x, values, yerr=error_bars(rows, values, name), c=colour, marker=mark, ms=4, capsize=2, label=kind,
                **joined({"ls": "-"}, layers),
            )  # fmt: skip
            if name == "mass":
                axes.plot(x, [row["uniform"] for row in rows], c=colour, **joined({"ls": ":", "lw": 0.9}, layers))
        axes.set_ylim(0, None)
        axes.set_title(title, fontsize=9)
    if of_blocks:
        _draw_held(grid[-1], of_blocks)
    _finish(grid, layers, "block")
    figure.suptitle(f"{model}: attention sinks" + (", and heads without outliers" if of_blocks else ""),
                    x=0.01, ha="left", fontsize=10)  # fmt: skip


def _draw_held(axes: Axes, rows: Sequence[Row]) -> None:
    x = [row["layer"] for row in rows]
    low, high = ([row[f"divergence_matched_{end}"] for row in rows] for end in ("low", "high"))
    axes.vlines(x, low, high, color=GREY, lw=5, alpha=0.5, label="matched neurons")
    axes.plot(x, [row["divergence"] for row in rows], "o", c=BLUE, ms=5, label="outliers")
    axes.set_ylim(0, None)
    axes.set_title("divergence with neurons held (nats)", fontsize=9)


def _finish(grid: Sequence[Axes], layers: Sequence[int], what: str) -> None:
    for axes in grid:
        name_layers(axes, layers, most=9, what=what)
        axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.2), fontsize=7, ncols=3)
