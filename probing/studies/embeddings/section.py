"""How much each place of a document counts in its embedding (`embeddings`)."""

from __future__ import annotations

from probing.page.lines import Line, line_chart
from probing.results.markup import Html, element
from probing.runs.study import Result, framed, section_of
from probing.studies.embeddings.tables import LINES, WORDS, curve, measures_of


def embeddings_section(made: Result, anchor: str) -> Html:
    """Return the answer, a chart for each measure, and the tables of the terminal.

    Args:
        made: The results of `embeddings`.
        anchor: What the section is linked by.
    """
    charts = [_chart(made, name) for name in measures_of(made.bias)]
    return section_of(made, anchor, *charts, *framed(made.tables()))


def _chart(made: Result, measure: str) -> Html:
    lines = []
    for (embedding, order), words in LINES.items():
        found = curve(made.places, measure, order, embedding)
        lines.append(Line(words, found.places, found.values, found.ends))
    title = f"{WORDS[measure].capitalize()}: by place in the document, over the mean of all places, with 95% intervals"
    return element("figure", element("figcaption", title), line_chart(lines, title))
