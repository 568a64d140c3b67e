"""Figures of `pretrain`: curves of the loss, and outliers by layer; readable in greyscale, units on every axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.figures.formats import USUAL
from probing.figures.style import BLUE, GREEN, GREY, ORANGE, PURPLE, from_zero, name_layers, write_drawings
from probing.tables.pretraining import FREQUENCIES, OUTLIER, arms_of, last_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
_LOOKS: dict[str, dict[str, Any]] = {
    "learned": {"color": BLUE, "ls": "-", "marker": "o"},
    "none": {"color": ORANGE, "ls": "--", "marker": "s"},
    "constant": {"color": GREEN, "ls": "-.", "marker": "^"},
    "causal": {"color": PURPLE, "ls": ":", "marker": "D"},
    "sinusoidal": {"color": "black", "ls": "-", "marker": "v"},
    "rotary": {"color": GREY, "ls": "--", "marker": "P"},
}


def write_figures(folder: Path, tables: Mapping[str, Sequence[Row]], formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw a run's figures, each in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        tables: The run's tables by name.
        formats: Formats of the files.
    """
    drawings = {
        "loss": lambda figure: loss_by_step(figure, tables["arms"]),
        "outliers": lambda figure: outliers_by_layer(figure, tables["arms"]),
        "position": lambda figure: position_by_layer(figure, tables["arms"]),
    }
    return write_drawings(folder, drawings, formats)


def loss_by_step(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the held-out loss of each arm and seed over the steps, and the loss of the frequencies of tokens."""
    figure.set_size_inches(6.8, 3.4)
    axes = figure.add_subplot()
    for arm in arms_of(rows):
        for i, seed in enumerate(sorted({row["seed"] for row in rows if row["arm"] == arm})):
            curve = {row["step"]: row["loss"] for row in rows if (row["arm"], row["seed"]) == (arm, seed)}
            axes.plot(list(curve), list(curve.values()), ms=3, label=None if i else arm, **_LOOKS[arm])
    axes.axhline(rows[0]["unigram_loss"], color=GREY, lw=0.8, label=FREQUENCIES)
    last = max(row["step"] for row in rows)
    shown = [0, *(4**i for i in range(last.bit_length() // 2 + 1) if 4**i <= last)]
    axes.set_xscale("symlog", linthresh=1, base=2)
    axes.set_xlim(-0.2, 1.2 * last)
    axes.set_xticks(shown, [f"{step:,}" for step in shown])
    axes.minorticks_off()
    axes.set_xlabel("step")
    axes.set_ylabel("held-out loss, nats")
    axes.set_title("Prediction of masked tokens; a line for each seed")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")


def outliers_by_layer(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw the farthest mean of each arm and seed by layer, after the last step."""
    axes = _by_layer(figure, rows, "max_mean_sd")
    axes.axhline(OUTLIER, color=GREY, lw=0.8)
    from_zero(axes)
    axes.set_ylabel("farthest mean of a neuron, sd")
    axes.set_title(f"After the last step: an outlier lies above {OUTLIER:g} sd")


def position_by_layer(figure: Figure, rows: Sequence[Row]) -> None:
    """Draw how well positions are read off each arm and seed by layer, after the last step."""
    axes = _by_layer(figure, rows, "position_accuracy")
    axes.set_ylim(0, 1.02)
    axes.set_ylabel("position accuracy")
    axes.set_title("After the last step: positions read off by a linear probe")


def _by_layer(figure: Figure, rows: Sequence[Row], column: str) -> Any:
    """Draw a line for each arm and seed, and return the axes."""
    figure.set_size_inches(6.2, 3.2)
    axes, end = figure.add_subplot(), last_rows(rows)
    for arm in arms_of(end):
        for i, seed in enumerate(sorted({row["seed"] for row in end if row["arm"] == arm})):
            here = [row for row in end if (row["arm"], row["seed"]) == (arm, seed)]
            values = [row[column] for row in here]
            axes.plot([row["layer"] for row in here], values, ms=4, label=None if i else arm, **_LOOKS[arm])
    name_layers(axes, sorted({row["layer"] for row in end}))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    return axes
