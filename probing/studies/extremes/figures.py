"""Figures of `extremes`: large values, and attention sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from probing.results import ALL_LAYERS, Row, Table
from probing.studies.extremes.tables import (
    ABSOLUTE,
    ALL,
    DEFINITIONS,
    RELATIVE,
    is_of_kind,
    of_all,
    quoted,
    tables_of,
)
from probing.tables.figures import (
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"))


# Most kinds of tokens that are drawn.
DRAWN = 4


def write_extremes_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw the figures of the tables that have rows, each in some formats, and return the paths of the files."""
    drawings = {}
    massive, _, sinks, fixed_rows = tables_of(tables)
    if massive:
        drawings["massive"] = partial(_draw_massive, massive, model)
    if sinks:
        drawings["sinks"] = partial(_draw_sinks, sinks, fixed_rows, model)
    return write_drawings(folder, drawings, formats)


def _draw_massive(massive: Table, model: str, figure: Figure) -> None:
    """Draw the largest value of each layer by kind of token, and the share of large values, if there are any."""
    layers = of_all(massive, "massive").column("layer")
    shares = {name: np.array(of_all(massive, name).column("value_share")) for name in DEFINITIONS}
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


def _draw_largest(axes: Axes, massive: Table, layers: Sequence[int]) -> None:
    by_kind = massive.where(lambda row: row["token"] != ALL, neuron=None).by("token")
    kinds = sorted(by_kind, key=lambda kind: -max(by_kind[kind].column("largest_magnitude")))[:DRAWN]
    for kind, (colour, mark) in zip(kinds, _LOOKS, strict=False):
        values = [max(by_kind[kind].where(layer=layer).column("largest_magnitude"), default=np.nan) for layer in layers]
        axes.plot(layers, values, c=colour, marker=mark, ms=4, label=quoted(kind), **joined({"ls": "-"}, layers))
    medians = np.array(of_all(massive, "massive").column("median"))
    axes.plot(layers, medians, c="black", marker=".", ms=4, label="median of all", **joined({"ls": ":"}, layers))
    threshold = np.maximum(ABSOLUTE, RELATIVE * medians)
    axes.plot(layers, threshold, c=GREY, label="massive from here", **joined({"ls": "--"}, layers))
    axes.set_yscale("log")
    axes.set_ylabel("largest magnitude (log scale)")
    axes.set_title("largest value on each kind of token")


def _draw_sinks(sinks: Table, fixed_rows: Table, model: str, figure: Figure) -> None:
    """Draw the attention to each kind of token and its contribution, by block, and heads without outliers."""
    blocks, layers = sinks.where(is_of_kind, head=None), sinks.values("layer")
    of_blocks = fixed_rows.where(lambda row: row["layer"] != ALL_LAYERS, head=None)
    panels = [("mass", "attention (dotted: uniform)"), ("of_output", "share of the attention's output")]
    panels = [(name, title) for name, title in panels if any(name in row for row in blocks)]
    n = len(panels) + bool(of_blocks)
    figure.set_size_inches(0.6 + 3.3 * n, 3.4)
    grid = list(figure.subplots(1, n, squeeze=False)[0])
    by_kind = blocks.by("token")
    kinds = sorted(by_kind, key=lambda kind: -max(by_kind[kind].column("mass")))[:DRAWN]
    for axes, (name, title) in zip(grid, panels, strict=False):
        for kind, (colour, mark) in zip(kinds, _LOOKS, strict=False):
            rows = by_kind[kind]
            x, values = rows.column("layer"), np.array(rows.column(name))
            axes.errorbar(
                x, values, yerr=error_bars(rows, values, name), c=colour, marker=mark, ms=4, capsize=2, label=kind,
                **joined({"ls": "-"}, layers),
            )  # fmt: skip
            if name == "mass":
                axes.plot(x, rows.column("uniform"), c=colour, **joined({"ls": ":", "lw": 0.9}, layers))
        axes.set_ylim(0, None)
        axes.set_title(title, fontsize=9)
    if of_blocks:
        _draw_fixed_outliers(grid[-1], of_blocks)
    _finish(grid, layers, "block")
    figure.suptitle(f"{model}: attention sinks" + (", and heads without outliers" if of_blocks else ""),
                    x=0.01, ha="left", fontsize=10)  # fmt: skip


def _draw_fixed_outliers(axes: Axes, rows: Table) -> None:
    x = rows.column("layer")
    low, high = (rows.column(f"divergence_matched_{end}") for end in ("low", "high"))
    axes.vlines(x, low, high, color=GREY, lw=5, alpha=0.5, label="matched neurons")
    axes.plot(x, rows.column("divergence"), "o", c=BLUE, ms=5, label="outliers")
    axes.set_ylim(0, None)
    axes.set_title("divergence with neurons fixed (nats)", fontsize=9)


def _finish(grid: Sequence[Axes], layers: Sequence[int], what: str) -> None:
    for axes in grid:
        name_layers(axes, layers, most=9, what=what)
        axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.2), fontsize=7, ncols=3)
