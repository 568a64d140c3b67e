"""The first neurons of a run on a page, one by one: their tokens in context, means by position, weights and ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from probing.page.sources import Subject
from probing.results.markup import Html, as_in_terminal, element, joined
from probing.results.schema import Row
from probing.runs.checks import reading
from probing.runs.neuron_page import NeuronPage, pages_of_first
from probing.tables.neuron import classes_table
from probing.tables.schema import CONTEXTS

ENDS = "highest", "lowest"
# Size of the chart, room around it, and the most positions that it has.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, MOST_POSITIONS = 640, 150, 58, 8, 10, 22, 128


def neurons_one_by_one(subject: Subject, anchor: str, room: int) -> Html | None:
    """Return what is known of the first neurons of each layer; nothing for a run without text.

    Args:
        subject: The run.
        anchor: What the section is linked by; that of a neuron is followed by its layer and its index.
        room: Number of characters that there are for more than tokens; the neurons of the first ranks have it.
    """
    with reading(subject.run.folder):  # an error means that its tables are damaged
        of_layers = {layer: list(own) for layer, own in groupby(pages_of_first(subject.run), lambda page: page.layer)}
        if not of_layers:
            return None
        most = _most(list(of_layers.values()), room)
        parts = [_layer(layer, own, most, anchor) for layer, own in of_layers.items()]
    about = "The first neurons of each layer, one by one: test tokens, mean by position, weights, and ranks elsewhere."
    return element("details", element("summary", about), *parts, class_="contexts")


def _layer(layer: int, pages: Sequence[NeuronPage], most: int, anchor: str) -> Html:
    """Return the neurons of a layer, of which `most` have more than tokens."""
    blocks = [
        element(
            "details", element("summary", f"Neuron {page.neuron}"),
            neuron_block(page) if at < most else _tokens(page),
            class_="neuron-page", id=f"{anchor}-{int(layer)}-{page.neuron}",
        )
        for at, page in enumerate(pages)
    ]  # fmt: skip
    return element("details", element("summary", f"Layer {layer}"), *blocks)


def _most(of_layers: Sequence[Sequence[NeuronPage]], room: int) -> int:
    """Return how many of each layer's neurons have more than tokens, so that these take at most the room."""
    for most in range(max(map(len, of_layers))):
        room -= sum(len(neuron_block(own[most])) for own in of_layers if most < len(own))
        if room < 0:
            return most
    return max(map(len, of_layers))


def neuron_block(page: NeuronPage) -> Html:
    """Return a neuron's page: what is said of it, its tokens, its means by position, and its weights by class."""
    positions = page.positions
    parts = [
        element("figure", element("figcaption", _about(positions)), position_chart(positions)) if positions else None,
        element("figure", element("figcaption", (shown := classes_table(page.classes)).title), as_in_terminal(shown)),
    ]
    said = (element("p", sentence) for sentence in page.sentences())
    return joined(*said, _tokens(page), element("div", *parts, class_="beside"))


def _about(positions: Sequence[Row]) -> str:
    about = "Mean activation over test tokens, by position"
    if any(_has_interval(row) for row in positions):
        about += ", with 95% intervals over sentences or documents"
    return f"{about}; the first {MOST_POSITIONS} positions" if len(positions) > MOST_POSITIONS else about


def _tokens(page: NeuronPage) -> Html:
    cells = [element("td", *(_token(row) for row in page if row["end"] == end)) for end in ENDS]
    heads = [element("th", f"{end} on", scope="col") for end in ENDS]
    return element("table", element("thead", element("tr", *heads)), element("tr", *cells), class_="ends")


def _token(row: Row) -> Html:
    label = str(row["class"]) if "class" in row else CONTEXTS["number"].show(row)
    about = f" {label}, {CONTEXTS['activation'].show(row)}"
    return element(
        "p", row["before"], element("mark", row["token"] or "(special)"), row["after"], element("small", about)
    )


def position_chart(positions: Sequence[Row]) -> Html:
    """Return the means at positions as a line, and their intervals as a band.

    Args:
        positions: Rows of `profiles.csv`, by position.
    """
    rows = positions[:MOST_POSITIONS]
    ends = [end for row in rows for end in _ends(row)]
    low, high = min(ends), max(ends)
    reach = (high - low) or abs(high) or 1.0
    first, last = rows[0]["index"], rows[-1]["index"]

    def x(row: Row) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * (row['index'] - first) / max(last - first, 1):.4g}"

    def y(value: float) -> str:
        return f"{TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / reach:.4g}"

    there = [row for row in rows if _has_interval(row)]
    band = [f"{x(row)} {y(row['value_high'])}" for row in there]
    band += [f"{x(row)} {y(row['value_low'])}" for row in reversed(there)]
    levels = [(value, y(value)) for value in dict.fromkeys([high, low, *([0.0] if low < 0 < high else [])])]
    # The number of 0 is left out where that of the highest or the lowest value stands.
    is_apart = min(high, -low) * (HEIGHT - TOP - BOTTOM) > 14 * reach
    numbers = [(value, at) for value, at in levels if value in (high, low) or is_apart]
    return element(
        "svg",
        *(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid") for _, at in levels),
        *(
            element("text", f"{value:.3g}", x=LEFT - 6, y=at, dy=4, text_anchor="end", font_size=12)
            for value, at in numbers
        ),
        element("path", d=f"M{'L'.join(band)}z", fill="currentColor", fill_opacity=0.2) if band else None,
        element(
            "path", d="M" + "L".join(f"{x(row)} {y(row['value'])}" for row in rows),
            fill="none", stroke="currentColor", stroke_width=1.5,
        ),
        *(
            element("text", at, x=x(row), y=HEIGHT - 5, text_anchor=anchor, font_size=12)
            for at, row, anchor in [(first, rows[0], "start"), (last, rows[-1], "end")][: 1 + (last > first)]
        ),
        element("text", "position", x=(LEFT + WIDTH - RIGHT) / 2, y=HEIGHT - 5, text_anchor="middle", font_size=12),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, role="img", class_="chart by-position",
        aria_label=f"mean activation by position, {low:.3g} to {high:.3g}",
    )  # fmt: skip


def _has_interval(row: Row) -> bool:
    low = row.get("value_low", "")
    return low != "" and low == low


def _ends(row: Row) -> list[float]:
    return [row["value"], *([row["value_low"], row["value_high"]] if _has_interval(row) else [])]
