"""Shares by layer as SVG: lines that differ in mark, dash and colour, with a legend beside them.

A value measured in a single layer is a mark without a line, because nothing is known about the other layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from probing.figures.layer_labels import spaced_layers
from probing.page.markup import Html, element, joined

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 12, 40
INSET = 14  # so that marks do not touch the axis
MOST_NAMES = 26  # of layers, side by side
BESIDE = 30  # distance between marks where all are at one layer

# Marks around the origin, and dashes, by index of the line; colours are in style.css.
_MARKS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.5-3.5h7v7h-7z",
    "M0-4.6L4.4 3.4H-4.4z",
    "M0-5L5 0L0 5L-5 0z",
    "M0 4.6L4.4-3.4H-4.4z",
    "M-4-4L4 4M-4 4L4-4",
    "M0-5V5M-5 0H5",
)
_DASHES = ("", "7 4", "2 3", "8 3 2 3", "4 2", "1 4", "10 4")


@dataclass(frozen=True)
class Line:
    """A line of the chart.

    Args:
        label: Name in the legend.
        layers: Layers along the x axis.
        values: Shares, one per layer.
        ranges: Intervals, one per layer, None where a layer has none; empty if no layer has one.
    """

    label: str
    layers: Sequence[int]
    values: Sequence[float]
    ranges: Sequence[tuple[float, float] | None] = ()


def line_chart(lines: Sequence[Line], title: str) -> Html:
    """Return the chart of shares by layer with its legend.

    Args:
        lines: Lines to draw, later ones on top: their dashes and open marks hide no line below.
        title: Description of the chart for readers who do not see it.
    """
    layers = sorted({layer for line in lines for layer in line.layers})
    shifts = _shifts(len(lines)) if len(layers) == 1 else [0.0] * len(lines)
    drawn = [
        _line(line, look, [x(layer, layers) + shift for layer in line.layers])
        for look, (line, shift) in enumerate(zip(lines, shifts, strict=True))
    ]
    svg = element(
        "svg", element("title", title), *_frame(layers), *drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="chart",
    )  # fmt: skip
    return element("div", svg, _legend(lines), class_="with-legend")


def x(layer: int, layers: Sequence[int]) -> float:
    """Return the x coordinate of a layer, in proportion to its number; a single layer is in the middle."""
    low, high = layers[0], layers[-1]
    across = (layer - low) / (high - low) if high > low else 0.5
    return LEFT + INSET + across * (WIDTH - LEFT - RIGHT - 2 * INSET)


def y(share: float) -> float:
    """Return the y coordinate of a share from 0 to 1."""
    return TOP + (1 - min(max(share, 0.0), 1.0)) * (HEIGHT - TOP - BOTTOM)


def _shifts(n: int) -> list[float]:
    """Return the offset of each of n marks at one layer from the middle, so that none covers another."""
    beside = min(BESIDE, (WIDTH - LEFT - RIGHT - 2 * INSET) / n)
    return [beside * (i - (n - 1) / 2) for i in range(n)]


def _frame(layers: Sequence[int]) -> list[Html]:
    parts = []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_at(y(tick)), y2=_at(y(tick)), class_="grid"))
        parts.append(element("text", f"{tick:g}", x=LEFT - 7, y=_at(y(tick) + 4), text_anchor="end"))
    for layer in spaced_layers(layers, MOST_NAMES):
        at_x = _at(x(layer, layers))
        parts.append(element("text", layer, x=at_x, y=HEIGHT - BOTTOM + 17, text_anchor="middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(element("text", "layer (0 = embeddings)", x=_at(middle), y=HEIGHT - 5, text_anchor="middle"))
    return parts


def _line(line: Line, look: int, xs: Sequence[float]) -> Html:
    points = [f"{_at(at_x)} {_at(y(value))}" for at_x, value in zip(xs, line.values, strict=True)]
    marks = []
    for i, (layer, value) in enumerate(zip(line.layers, line.values, strict=True)):
        text, bar = f"{line.label}, layer {layer}: {value:.3f}", None
        if line.ranges and (ends := line.ranges[i]):
            low, high = ends
            text += f" ({low:.3f} to {high:.3f})"
            at_x, top, bottom = _at(xs[i]), _at(y(high)), _at(y(low))
            caps = f"M{_at(xs[i] - 4)} {top}h8M{_at(xs[i] - 4)} {bottom}h8"
            bar = element("path", d=f"M{at_x} {bottom}V{top}{caps}", class_="bar")
        mark = element("path", d=_mark(look), transform=f"translate({points[i]})", class_="mark")
        marks.append(element("g", element("title", text), bar, mark))
    return element("g", _stroke(line, look, "M" + "L".join(points)), *marks, class_=f"look-{look % len(_MARKS)}")


def _stroke(line: Line, look: int, path: str) -> Html | None:
    """Return a line along a path, or None for a single point."""
    if len(line.layers) == 1:
        return None
    return element("path", d=path, class_="line", stroke_dasharray=_dash(look))


def _legend(lines: Sequence[Line]) -> Html:
    entries = []
    for look, line in enumerate(lines):
        key = element(
            "svg",
            _stroke(line, look, "M1 8H33"),
            element("path", d=_mark(look), transform="translate(17 8)", class_="mark"),
            viewBox="0 0 34 16", width=34, height=16, aria_hidden="true", class_=f"look-{look % len(_MARKS)}",
        )  # fmt: skip
        entries.append(element("li", key, joined(line.label)))
    return element("ul", *entries, class_="legend")


def _mark(look: int) -> str:
    return _MARKS[look % len(_MARKS)]


def _dash(look: int) -> str | None:
    return _DASHES[look % len(_DASHES)] or None


def _at(coordinate: float) -> str:
    return f"{coordinate:.1f}".removesuffix(".0")
