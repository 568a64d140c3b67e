"""The figure of `embeddings`: how much each place of a document counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.style import BLUE, GREY, ORANGE, USUAL, write_drawings
from probing.results.schema import Row
from probing.studies.embeddings.tables import AS_WRITTEN, BAG, LINES, MODEL, SHUFFLED, WORDS, curve, measures_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Lines can be told apart by their style and mark as well as by colour.
_LOOKS: Mapping[tuple[str, str], dict[str, Any]] = {
    (MODEL, SHUFFLED): {"color": BLUE, "ls": "-", "marker": "o"},
    (MODEL, AS_WRITTEN): {"color": ORANGE, "ls": "--", "marker": "s"},
    (BAG, SHUFFLED): {"color": GREY, "ls": ":", "marker": "D"},
}

# Panels side by side; there are always at least two.
_COLUMNS = 2


def write_figures(folder: Path, rows: Sequence[Row], model: str, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw the curves over places, in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        rows: Rows of `places.csv`.
        model: Model name for the title.
        formats: Formats of the files.
    """
    return write_drawings(folder, {"embeddings": lambda figure: curves(figure, rows, model)}, formats)


def curves(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw a panel for each measure, with a line for the model, in both orders, and for the bag of words.

    Args:
        figure: The figure.
        rows: Rows of `places.csv`.
        model: Model name for the title.
    """
    shown = measures_of(rows)
    n_lines = -(-len(shown) // _COLUMNS)
    figure.set_size_inches(2.2 + 2.9 * _COLUMNS, 0.5 + 2.7 * n_lines)
    for i, name in enumerate(shown):
        axes = figure.add_subplot(n_lines, _COLUMNS, i + 1)
        _panel(axes, rows, name)
        if i % _COLUMNS == 0:
            axes.set_ylabel("over the mean of all places")
    title = f"{model}: how much each place counts in an embedding (bars: 95% over documents)"
    figure.suptitle(title, x=0.01, ha="left", fontsize=10)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")


def _panel(axes: Axes, rows: Sequence[Row], measure: str) -> None:
    axes.axhline(1, color=GREY, lw=0.6)
    for i, ((embedding, order), words) in enumerate(LINES.items()):
        line = curve(rows, measure, order, embedding)
        values = np.array(line.values)
        low, high = np.array([one or (value, value) for one, value in zip(line.ends, values, strict=True)]).T
        axes.errorbar(
            np.array(line.places) + 0.1 * (i - 1), values, yerr=np.clip([values - low, high - values], 0, None),
            label=words, ms=4, capsize=2, lw=1.3, elinewidth=0.7, **_LOOKS[embedding, order],
        )  # fmt: skip
    axes.set_xticks(line.places)
    axes.set_xlabel("place of the sentence (1 = first)")
    axes.set_title(WORDS[measure])
