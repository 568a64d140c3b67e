"""The figure of `hierarchy`: by which rule the probe of each layer generalises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.data.labelling import origin
from probing.figures.style import (
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
from probing.runs.call import Measured
from probing.studies.hierarchy.parts import Sizes
from probing.studies.hierarchy.survey import Found
from probing.studies.hierarchy.tables import ITSELF, LINEAR, controls_of, named, of_model, tasks_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes


Row = Mapping[str, Any]

# Lines can be told apart by their style and mark as well as by colour.
_RIGHT: dict[str, Any] = {"color": BLUE, "ls": "-", "marker": "o"}
_LINEAR: dict[str, Any] = {"color": ORANGE, "ls": "--", "marker": "s"}
_TEST: dict[str, Any] = {"color": GREY, "ls": ":", "marker": "."}
_CONTROLS: dict[str, dict[str, Any]] = {
    "untrained": {"color": GREEN, "ls": "-.", "marker": "^"},
    "permuted_positions": {"color": PURPLE, "ls": ":", "marker": "D"},
}


def write_figure(path: Path, rows: Sequence[Row], model: str, formats: Sequence[str] = USUAL) -> list[Path]:
    """Draw a panel for each task, in some formats, and return the paths of the files.

    Args:
        path: Path of the figure, whose suffix is replaced by that of each format.
        rows: Rows of `hierarchy.csv`.
        model: Model name for the title.
        formats: Formats of the files.
    """
    tasks = tasks_of(rows)
    with drawing(path, formats) as figure:
        figure.set_size_inches(2.4 + 3.4 * len(tasks), 3.3)
        for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False, sharey=True)[0], tasks, strict=True):
            _panel(axes, rows, task)
        figure.axes[0].set_ylabel("share of sentences")
        title = f"{model}: does a probe go on by linear order, or by hierarchy? (bars: 95% over sentences)"
        figure.suptitle(title, x=0.01, ha="left", fontsize=10)
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center")
    return forms_of([path], formats)


def _panel(axes: Axes, rows: Sequence[Row], task: str) -> None:
    own = of_model(rows, task, ITSELF)
    layers = [row["layer"] for row in own]
    lines = [
        (own, "test", "test", "both rules agree", _TEST),
        (own, "generalisation", "", "they differ: right", _RIGHT),
        (own, LINEAR[task], LINEAR[task], "they differ: the first\nauxiliary, or noun", _LINEAR),
        *(
            (of_model(rows, task, name), "generalisation", "", f"{words}: right", _CONTROLS[name])
            for name, words in controls_of(rows).items()
        ),
    ]
    for i, (here, column, of, label, look) in enumerate(lines):
        values = np.array([row[column] for row in here])
        shift = 0.06 * (i - (len(lines) - 1) / 2)
        axes.errorbar(
            [layer + shift for layer in layers], values, yerr=error_bars(here, values, of), label=label,
            ms=4, capsize=2, lw=1.3, elinewidth=0.7, **joined(look, layers),
        )  # fmt: skip
    name_layers(axes, layers, most=9)
    axes.set_xlim(layers[0] - 0.6, layers[-1] + 0.6)
    axes.set_ylim(-0.03, 1.05)
    axes.set_title(named(task))


def measured(found: Found, sizes: Sizes, model_name: str) -> Measured:
    """Return the tables with what belongs to them.

    Args:
        found: What was found.
        sizes: Numbers of sentences.
        model_name: The model's short name, for titles.
    """
    rows = found.tables["hierarchy"]
    results: dict[str, Any] = {
        "cache": {
            task: {side: origin(store) for side, store in zip(("train", "test"), one.stores, strict=True)}
            for task, one in found.tasks.items()
        },
        "n_sentences": {**asdict(sizes), "validation": sizes.test},
        "penalty": {task: one.l2 for task, one in found.tasks.items()},
        "optimality_gap": {task: one.optimality_gap for task, one in found.tasks.items()},
    }
    return Measured(
        found.tables,
        results,
        _curves(rows),
        draw=lambda folder, formats: write_figure(folder / "hierarchy", rows, model_name, formats),
    )


def _curves(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per layer with a column for each task and share, for W&B's curves."""
    by_layer: dict[int, dict[str, Any]] = {}
    for task in tasks_of(rows):
        for row in of_model(rows, task, ITSELF):
            point = by_layer.setdefault(row["layer"], {"layer": row["layer"]})
            for column in ("test", "generalisation", LINEAR[task]):
                point[f"{task}_{column}"] = row[column]
    return list(by_layer.values())
