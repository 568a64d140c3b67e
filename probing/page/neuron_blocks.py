"""The first neurons of a run on a page, one by one: their tokens in context, means by position, weights and ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from probing.page.sources import Subject
from probing.results.markup import Html, as_in_terminal, element, joined
from probing.results.schema import Row
from probing.results.shown import ends
from probing.runs.checks import reading
from probing.runs.neuron_page import NeuronPage, pages_of_first
from probing.tables.neuron import classes_table
from probing.tables.schema import CONTEXTS

ENDS = "highest", "lowest"
# Size of a chart, room around it, and the most positions and ranks that it has.
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, MOST_POSITIONS, MOST_RANKS = 640, 150, 58, 8, 10, 22, 128, 120


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
    if any(ends(row, "value") for row in positions):
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
    points = [Point(row["index"], row["value"], ends(row, "value")) for row in rows]
    return band_chart(points, [rows[0]["index"], rows[-1]["index"]], "position", "mean activation")


def directions_chart(rows: Sequence[Row]) -> Html:
    """Return contributions of neurons by rank as a line, and those of directions of the same rank as a band.

    Args:
        rows: Rows of `neurons.csv` of one layer, by rank, each with what directions contribute.
    """
    at = np.unique(np.geomspace(1, len(rows), MOST_RANKS).round().astype(int)).tolist()
    decades = [10**i for i in range(len(str(len(rows) // 2)))]
    points = [
        Point(rank, row["contribution"], (row["direction_lowest"], row["direction_highest"]))
        for rank in at
        for row in [rows[rank - 1]]
    ]
    rings = [point for point in points if rows[point.at - 1].get("above_directions") == "yes"]
    return band_chart(points, [*decades, len(rows)], "rank", "contribution", math.log, rings)


@dataclass(frozen=True)
class Point:
    """A point of a chart with a band.

    Args:
        at: Position or rank.
        value: Value of the line.
        band: Lower and upper end of the band, None where there is none.
    """

    at: int
    value: float
    band: tuple[float, float] | None


def band_chart(
    points: Sequence[Point], ticks: Sequence[int], across: str, up: str, place: Callable[[int], float] = float,
    rings: Sequence[Point] = (),
) -> Html:  # fmt: skip
    """Return a line with a band.

    Args:
        points: What is drawn, from left to right.
        ticks: Positions or ranks that are labelled, ascending, from the first to the last.
        across: Name of the x axis.
        up: Name of the values.
        place: Returns where a position or rank stands on the x axis, in any unit.
        rings: Points of the line that are marked.
    """
    values = [value for point in points for value in (point.value, *(point.band or ()))]
    low, high = min(values), max(values)
    reach = (high - low) or abs(high) or 1.0
    start, end = place(points[0].at), place(points[-1].at)

    def x(at: int) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * (place(at) - start) / ((end - start) or 1):.4g}"

    def y(value: float) -> str:
        return f"{TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / reach:.4g}"

    there = [(x(point.at), *map(y, point.band)) for point in points if point.band]
    band = [f"{at} {top}" for at, _, top in there] + [f"{at} {bottom}" for at, bottom, _ in reversed(there)]
    levels = [(value, y(value)) for value in dict.fromkeys([high, low, *([0.0] if low < 0 < high else [])])]
    # The number of 0 is left out where that of the highest or the lowest value stands.
    is_apart = min(high, -low) * (HEIGHT - TOP - BOTTOM) > 14 * reach
    numbers = [(value, at) for value, at in levels if value in (high, low) or is_apart]
    anchors = {ticks[-1]: "end", ticks[0]: "start"}
    return element(
        "svg",
        *(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid") for _, at in levels),
        *(
            element("text", f"{value:.3g}", x=LEFT - 6, y=at, dy=4, text_anchor="end", font_size=12)
            for value, at in numbers
        ),
        element("path", d=f"M{'L'.join(band)}z", fill="currentColor", fill_opacity=0.2) if band else None,
        element(
            "path", d="M" + "L".join(f"{x(point.at)} {y(point.value)}" for point in points),
            fill="none", stroke="currentColor", stroke_width=1.5,
        ),
        *(element("circle", cx=x(ring.at), cy=y(ring.value), r=3, class_="ring") for ring in rings),
        *(
            element("text", f"{across} {at}" if at == ticks[0] else at, x=x(at), y=HEIGHT - 5,
                    text_anchor=anchors.get(at, "middle"), font_size=12)
            for at in dict.fromkeys(ticks)
        ),
        viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, role="img", class_=f"chart by-{across}",
        aria_label=f"{up} by {across}, {low:.3g} to {high:.3g}",
    )  # fmt: skip
