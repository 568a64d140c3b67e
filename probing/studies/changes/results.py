"""What is written of a run of `changes`, with its figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from probing.cache.source import ActivationSource
from probing.figures.style import BLUE, GREEN, GREY, USUAL, from_zero, name_layers, write_drawings
from probing.page.lines import Line, Up, line_chart
from probing.results.rows import Html, element
from probing.runs.call import Measured
from probing.runs.study import Result, framed, section_of
from probing.studies.changes.survey import SHUFFLED, TRUE, Family
from probing.studies.changes.tables import MEASURES, Row, measures_of
from probing.studies.series.measures import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Panels side by side.
_COLUMNS = 3
# A line of each of these, with its look.
GROUPS = {
    ("pretrained", True): ("tuned, and start", BLUE, "o"),
    ("shuffled", True): ("labels shuffled, and start", GREEN, "s"),
    ("pretrained", False): ("two seeds", GREY, "^"),
}


def measured(
    tables: Mapping[str, Sequence[Row]], family: Family, start: ActivationSource,
    sources: Mapping[str, ActivationSource], text: Text,
) -> Measured:  # fmt: skip
    """Return what is written of a run.

    Args:
        tables: Rows by the name of their table.
        family: The start and its checkpoints.
        start: The start.
        sources: The checkpoints by name.
        text: What they read.
    """
    corpus = text.corpora[0]
    results = {
        "start": {"name": start.model.name, "fingerprint": start.model.fingerprint()},
        "checkpoints": {name: {"fingerprint": one.model.fingerprint()} for name, one in sources.items()},
        "n_seeds": {group: len({one.seed for one in family.of(group)}) for group in (TRUE, SHUFFLED)},
        "corpus": {"name": corpus.name, "fingerprint": corpus.fingerprint, "n_sentences": len(corpus.sentences)},
    }

    def draw(folder: Path, formats: Sequence[str]) -> list[Path]:
        folder.mkdir(exist_ok=True)
        return write_figures(folder, tables, start.model.short_name, formats)

    return Measured(tables, results, draw=draw)


def write_figures(
    folder: Path, tables: Mapping[str, Sequence[Row]], model: str, formats: Sequence[str] = USUAL
) -> list[Path]:
    """Draw the changes by layer, in some formats, and return the paths of the files."""
    return write_drawings(folder, {"changes": lambda figure: curves(figure, tables, model)}, formats)


def curves(figure: Figure, tables: Mapping[str, Sequence[Row]], model: str) -> None:
    """Draw a panel for each measure, with a point for each checkpoint and layer, and lines of their means."""
    shown = measures_of(tables)
    height, width = -(-len(shown) // _COLUMNS), min(len(shown), _COLUMNS)
    figure.set_size_inches(2.9 * width + 0.6, 2.4 * height + 0.7)
    for i, name in enumerate(shown):
        axes = figure.add_subplot(height, width, i + 1)
        _draw(axes, [row for row in tables["checkpoint_changes"] if row["measure"] == name])
        axes.set_title(MEASURES[name].words)
        axes.set_ylabel("distance" if MEASURES[name].is_distance else "change")
        if MEASURES[name].is_distance:
            from_zero(axes)
        else:
            axes.axhline(0, color=GREY, lw=0.6)
    named = [axes.get_legend_handles_labels() for axes in figure.axes]
    handles = {label: handle for pair in named for handle, label in zip(*pair, strict=True)}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=3)
    figure.suptitle(f"{model}: what tuning changes, by layer", fontsize=9, x=0.01, ha="left")


def grouped(rows: Sequence[Row]) -> dict[tuple[str, bool], dict[int, list[float]]]:
    """Return the changes of one measure by group and layer, a value for each checkpoint or pair."""
    found: dict[tuple[str, bool], dict[int, list[float]]] = {}
    for row in rows:
        key = (row["start"], row["against"] == "start")
        change = row.get("change")
        if key in GROUPS and isinstance(change, float):
            is_size = key[1] or MEASURES[row["measure"]].is_distance
            found.setdefault(key, {}).setdefault(row["layer"], []).append(change if is_size else abs(change))
    return found


def _draw(axes: Axes, rows: Sequence[Row]) -> None:
    for key, by_layer in grouped(rows).items():
        label, color, marker = GROUPS[key]
        layers = sorted(by_layer)
        axes.plot(layers, [sum(by_layer[k]) / len(by_layer[k]) for k in layers], color=color, lw=1.2, label=label)
        for layer in layers:
            axes.plot([layer] * len(by_layer[layer]), by_layer[layer], marker, ms=2.5, color=color, alpha=0.7)
    name_layers(axes, sorted({row["layer"] for row in rows}))


# --------------------------------------------------------------------------------------------------------------------
# What tuning changed, by layer, as the section of a page (`changes`).
# --------------------------------------------------------------------------------------------------------------------


def changes_section(made: Result, anchor: str) -> Html:
    """Return the sentences, a chart for each measure, and the tables.

    Args:
        made: The results of `changes`.
        anchor: What the section is linked by.
    """
    shown = [*made.tables(), *made.study.more_tables(made)]
    return section_of(
        made,
        anchor,
        element("div", *(_chart(made, name) for name in measures_of(made.by_name)), class_="panels"),
        *framed(shown),
    )


def _chart(made: Result, name: str) -> Html:
    """Return the means of a measure by layer, with the range of all checkpoints."""
    lines = []
    for key, by_layer in grouped([row for row in made.checkpoint_changes if row["measure"] == name]).items():
        layers = sorted(by_layer)
        means = [sum(by_layer[layer]) / len(by_layer[layer]) for layer in layers]
        lines.append(Line(GROUPS[key][0], layers, means, [(min(by_layer[k]), max(by_layer[k])) for k in layers]))
    title = f"Change of {MEASURES[name].words} by layer: mean, and range of all checkpoints"
    ends = [end for line in lines for range_ in line.ranges if range_ for end in range_]
    up = Up.of(ends, MEASURES[name].is_distance)
    return element("figure", element("figcaption", title), line_chart(lines, title, up=up))
