"""What tuning changed, by layer, as the section of a page (`changes`)."""

from __future__ import annotations

from probing.page.lines import Line, Up, line_chart
from probing.results.rows import Html, element
from probing.runs.study import Result, framed, section_of
from probing.studies.changes.results import GROUPS, grouped
from probing.studies.changes.tables import MEASURES, measures_of


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
