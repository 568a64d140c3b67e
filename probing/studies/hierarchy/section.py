"""By which rule probes generalise (`hierarchy`)."""

from __future__ import annotations

from collections.abc import Sequence

from probing.page.lines import Line, line_chart
from probing.results.rows import Html, element
from probing.results.schema import Row, ends
from probing.runs.study import Result, framed, section_of
from probing.studies.hierarchy.tables import LINEAR, controls_of, named, of_model, tasks_of


def hierarchy_section(made: Result, anchor: str) -> Html:
    """Return which layers go by which rule, the shares by layer, and the tables of the terminal.

    Args:
        made: The results of `hierarchy`.
        anchor: What the section is linked by.
    """
    rows = made.hierarchy
    return section_of(
        made,
        anchor,
        *(_shares(rows, task) for task in tasks_of(rows)),
        *framed(made.tables()),
    )


def _shares(rows: Sequence[Row], task: str) -> Html:
    """Return the shares of a task by layer: of the model itself, and of each control."""
    own, linear = of_model(rows, task), LINEAR[task]
    lines = [
        _line("both rules agree: right", own, "test", "test"),
        _line("they differ: right", own, "generalisation", ""),
        _line(f"they differ: the {named(linear)}", own, linear, linear),
    ]
    for name, words in controls_of(rows).items():
        lines.append(_line(f"they differ, {words}: right", of_model(rows, task, name), "generalisation", ""))
    title = f"{named(task).capitalize()}: share of sentences by layer, with 95% intervals over sentences"
    return element("figure", element("figcaption", title), line_chart(lines, title))


def _line(label: str, rows: Sequence[Row], column: str, of: str) -> Line:
    return Line(label, [row["layer"] for row in rows], [row[column] for row in rows], [ends(row, of) for row in rows])
