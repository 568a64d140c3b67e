"""Figures of `compare` of runs of `finetune`: the difference of each pair of runs, with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probing.figures.style import BLUE, GREY, USUAL, write_drawings
from probing.results.schema import ends, shortened
from probing.studies.finetune.tables import SHORT, score_words

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
# Characters of the name of a run.
_NAME = 24


def write_recipe_figures(
    folder: Path, rows: Sequence[Row], is_number: bool, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw the differences, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        rows: Rows of `recipes.csv`.
        is_number: Whether numbers are predicted.
        formats: Formats of the files.
    """
    return write_drawings(folder, {"recipes": partial(differences, rows=rows, is_number=is_number)}, formats)


def differences(figure: Figure, rows: Sequence[Row], is_number: bool) -> None:
    """Draw a point for each pair of runs and start, with its interval; 0 is a line."""
    figure.set_size_inches(6.2, 1.3 + 0.55 * len(rows))
    axes = figure.add_subplot()
    axes.axvline(0, color=GREY, lw=1, ls="--")
    for place, row in enumerate(rows):
        if apart := ends(row):
            axes.plot(apart, [place, place], color=BLUE, lw=1)
        axes.plot([row["difference"]], [place], "o", ms=5, color=BLUE)
    pairs = [" less ".join(shortened(row[f"run_{side}"], _NAME) for side in "ab") for row in rows]
    names = [f"{pair},\n{SHORT.get(row['start'], row['start'])}" for pair, row in zip(pairs, rows, strict=True)]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel(f"difference of test {score_words(is_number)}")
    axes.set_title("over other seeds, orders and test examples")
