"""Figures of `cloze`: how often the good word is likelier, and what changes of the text cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.figures.style import BLUE, GREY, ORANGE, USUAL, error_bars, write_drawings
from probing.models import ModelSource
from probing.runs.call import Measured
from probing.studies.cloze.predictor import Found
from probing.studies.cloze.tables import CHANGED, INTACT

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Row = Mapping[str, Any]


def write_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw a run's figures, each in some formats, and return the paths of the files.

    Args:
        folder: Folder of the figures.
        tables: The run's tables by name.
        model: Model name for the titles.
        formats: Formats of the files.
    """
    drawings: dict[str, Callable[[Figure], None]] = {}
    if groups := tables.get("groups"):
        drawings["groups"] = partial(shares, rows=groups, model=model)
    if changes := [row for row in tables.get("changes", ()) if row.get("against") == INTACT]:
        drawings["changes"] = partial(costs, rows=changes, model=model)
    return write_drawings(folder, drawings, formats)


def shares(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw a point for each group: in which share of pairs the good word is likelier.

    Args:
        figure: The figure.
        rows: Rows of `groups.csv`.
        model: Model name for the title.
    """
    axes = _lines(figure, rows, [f"{row['group']} ({row['n']})" for row in rows], "share", "", BLUE)
    axes.axvline(0.5, color=GREY, lw=0.8, ls=":")
    axes.set_xlim(-0.03, 1.03)
    axes.set_xlabel("share of pairs whose good word is likelier, 95%")
    figure.suptitle(f"{model}: the good word beside the bad one", x=0.01, ha="left", fontsize=10)


def costs(figure: Figure, rows: Sequence[Row], model: str) -> None:
    """Draw a point for each change of the text: by how much the loss of masked words rises.

    Args:
        figure: The figure.
        rows: Rows of `changes.csv` that are compared with the text as it is.
        model: Model name for the title.
    """
    axes = _lines(figure, rows, [CHANGED[row["condition"]] for row in rows], "difference", "difference", ORANGE)
    axes.axvline(0, color=GREY, lw=0.8, ls=":")
    axes.set_xlabel("rise of the loss of masked words in nats, 95% over sentences")
    figure.suptitle(f"{model}: masked words in changed text", x=0.01, ha="left", fontsize=10)


def _lines(figure: Figure, rows: Sequence[Row], labels: Sequence[str], column: str, of: str, color: str) -> Any:
    figure.set_size_inches(5.2, 1.2 + 0.32 * len(rows))
    axes, values = figure.subplots(), np.array([row[column] for row in rows])
    at = np.arange(len(rows))[::-1]
    axes.errorbar(values, at, xerr=error_bars(rows, values, of), fmt="o", ms=4, capsize=2, color=color, elinewidth=0.8)
    axes.set_yticks(at, labels)
    axes.set_ylim(-0.6, len(rows) - 0.4)
    return axes


def measured(found: Found, model: ModelSource) -> Measured:
    """Return the tables with what belongs to them.

    Args:
        found: What was found.
        model: The model's files.
    """
    results = {
        "model": {"name": model.name, "fingerprint": model.fingerprint()},
        **{name: {"fingerprint": print_} for name, print_ in found.fingerprints.items()},
        "left_out": dict(found.left_out),
        "n_tokens": found.n_tokens,
    }
    tables, name = found.tables, model.short_name
    return Measured(tables, results, draw=lambda folder, formats: write_figures(folder, tables, name, formats))
