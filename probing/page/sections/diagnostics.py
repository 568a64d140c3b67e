"""By which rule probes generalise (`hierarchy`), and what a model predicts at masks (`cloze`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probing.page.charts.line_chart import Line, line_chart
from probing.page.markup import Html, element
from probing.page.shown import Shown
from probing.page.tables import as_in_terminal
from probing.runs.diagnostics import Cloze, Hierarchy
from probing.runs.run import Row
from probing.tables.columns import ends
from probing.tables.hierarchy import LINEAR, controls_of, named, of_model, tasks_of


def hierarchy_section(shown: Shown[Hierarchy], anchor: str) -> Html:
    """Return which layers go by which rule, the shares by layer, and the tables of the terminal.

    Args:
        shown: The results of `hierarchy`.
        anchor: What the section is linked by.
    """
    rows = shown.made.hierarchy
    return _section(shown, anchor, [_shares(rows, task) for task in tasks_of(rows)])


def cloze_section(shown: Shown[Cloze], anchor: str) -> Html:
    """Return what the model predicts, in sentences and in the tables of the terminal.

    Args:
        shown: The results of `cloze`.
        anchor: What the section is linked by.
    """
    return _section(shown, anchor, [])


def _section(shown: Shown[Any], anchor: str, charts: Sequence[Html]) -> Html:
    return element(
        "section",
        element("h2", shown.title),
        *(element("p", sentence) for sentence in shown.made.conclusions()),
        *charts,
        *(element("figure", element("figcaption", one.title), as_in_terminal(one)) for one in shown.made.tables()),
        id=anchor,
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
