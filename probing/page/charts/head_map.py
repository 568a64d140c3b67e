"""A map of heads, layers downwards: a table whose cells are shaded, so that it is read like any table."""

from __future__ import annotations

from collections.abc import Sequence

from probing.page.head_numbers import HeadMeasure, Place
from probing.results.markup import Child, Html, element

# From this shade on, numbers are written in the colour of the page's background.
STRONG = 0.66


def head_map(measure: HeadMeasure, places: Sequence[Place], number: int, label: str, links: bool) -> Html:
    """Return the map of one measure; the page's script puts others in its place.

    Args:
        measure: The measure.
        places: Layer and head of all heads, in order.
        number: Index of the survey on the page.
        label: Name of the table for readers who do not see its caption.
        links: Whether each cell links to the head's example sentences.
    """
    heads = sorted({head for _, head in places})
    rows = []
    for layer in sorted({layer for layer, _ in places}):
        cells = [_cell(measure, (layer, head), number, links) if (layer, head) in places else element("td")
                 for head in heads]  # fmt: skip
        rows.append(element("tr", element("th", layer, scope="row"), *cells))
    names: list[Child] = ["layer", f"head {heads[0]}", *heads[1:]]
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in names)))
    table = element("table", head, element("tbody", *rows), class_="heads-map", aria_label=label)
    return element("div", table, class_="scroll")


def head_id(number: int, place: Place) -> str:
    """Return the identifier of the example sentences of a head."""
    return f"head-{number}-{place[0]}-{place[1]}"


def cell_of(measure: HeadMeasure, place: Place) -> tuple[str, float]:
    """Return the text and the shade of a head's cell."""
    row = measure.rows.get(place)
    return ("", 0.0) if row is None else (measure.text(row), round(min(max(measure.shade(row), 0.0), 1.0), 3))


def _cell(measure: HeadMeasure, place: Place, number: int, links: bool) -> Html:
    text, shade = cell_of(measure, place)
    inside = element("a", text, href=f"#{head_id(number, place)}") if links else element("span", text)
    return element("td", inside, style=f"--shade:{shade:g}", class_="on-strong" if shade > STRONG else None)
