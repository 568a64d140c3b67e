"""How much each place of a document counts in its embedding (`embeddings`)."""

from __future__ import annotations

from probing.page.lines import Across, Line, Up, line_chart
from probing.results.rows import Html, element
from probing.runs.study import Result, framed, section_of
from probing.studies.embeddings.tables import LINES, WORDS, curve, measures_of

_PLACES = Across(
    "place", lambda at: "place of the sentence (1 = first)", lambda at: at, lambda at: [str(place) for place in at]
)


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
    title = f"{WORDS[measure].capitalize()}: by place in the document, over the mean of all places"
    title += ", with 95% intervals" if any(any(line.ranges) for line in lines) else ""
    drawn = [value for line in lines for value in line.values]
    drawn += [end for line in lines for ends in line.ranges for end in ends or ()]
    up = Up.of(drawn, from_zero=True)
    return element("figure", element("figcaption", title), line_chart(lines, title, _PLACES, up))
