"""Values by layer or by step as SVG: lines that differ in mark, dash and colour, with axes and a legend."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from probing.figures import style as step_axis
from probing.figures.style import spaced_layers
from probing.results.rows import Html, element, joined
from probing.results.schema import NamedLayer

# Labels of layers, and characters of the labels of steps, that fit side by side.
MOST_LAYERS, CHARACTERS = 26, 68
# Most intervals between the ticks of an axis of values.
MOST_TICKS = 6


@dataclass(frozen=True)
class Across:
    """The x axis.

    Args:
        unit: What one of the numbers along it is called.
        name: Returns what stands below the axis, from the numbers.
        places: Returns where the numbers stand, in any unit.
        labels: Returns the label of each number, empty where there is no room for it.
    """

    unit: str
    name: Callable[[Sequence[int]], str]
    places: Callable[[Sequence[int]], Sequence[float]]
    labels: Callable[[Sequence[int]], Sequence[str]]


@dataclass(frozen=True)
class Up:
    """The y axis.

    Args:
        low: Value at its lower end.
        high: Value at its upper end.
        ticks: Values that are labelled.
    """

    low: float
    high: float
    ticks: Sequence[float]

    @classmethod
    def of(cls, values: Iterable[float], from_zero: bool = False) -> Up:
        """Return an axis with round ends that holds all values."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        least, most = min(finite), max(finite)
        least = min(least, 0.0) if from_zero else least
        step = _round_step(most - least or abs(most) or 1.0)
        first, last = math.floor(least / step), math.ceil(most / step)
        ticks = [i * step for i in range(first, max(last, first + 1) + 1)]
        return cls(ticks[0], ticks[-1], ticks)


def _round_step(span: float) -> float:
    """Return a distance of 1, 2 or 5 times a power of ten that is at most so many times in a span."""
    least = span / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= least)


def _spaced(layers: Sequence[int]) -> list[str]:
    longest = max((len(str(layer)) for layer in layers), default=1)
    named = spaced_layers(layers, min(MOST_LAYERS, max(1, WIDTH // (longest * LETTER))))
    return [str(layer) if layer in named else "" for layer in layers]


def _axis_of_layers(layers: Sequence[int]) -> str:
    return "layer" if isinstance(layers[0], NamedLayer) else "layer (0 = embeddings)"


SHARES = Up(0.0, 1.0, (0, 0.25, 0.5, 0.75, 1))
BY_LAYER = Across("layer", _axis_of_layers, lambda layers: layers, _spaced)
BY_STEP = Across("step", step_axis.name, step_axis.coordinates, lambda steps: step_axis.labels(steps, CHARACTERS))


WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 44, 10, 12, 40
INSET = 14  # so that marks do not touch the axis
LETTER = 7  # width of a letter below the axis
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
LOOKS = len(_MARKS)
_DASHES = ("", "7 4", "2 3", "8 3 2 3", "4 2", "1 4", "10 4")


@dataclass(frozen=True)
class Line:
    """A line of the chart.

    Args:
        label: Name in the legend.
        at: Layers or steps along the x axis.
        values: Values, one for each of these.
        ranges: Intervals, one for each, None where there is none; empty if there are none at all.
        which: What tells it from other lines of the same label, for those who point at it.
    """

    label: str
    at: Sequence[int]
    values: Sequence[float]
    ranges: Sequence[tuple[float, float] | None] = ()
    which: str = ""


def line_chart(
    lines: Sequence[Line], title: str, across: Across = BY_LAYER, up: Up = SHARES, labels: Sequence[str] = ()
) -> Html:
    """Return the chart with its legend.

    Args:
        lines: Lines to draw, later ones on top: their dashes and open marks hide no line below.
        title: Description of the chart for readers who do not see it.
        across: The x axis.
        up: The y axis; values beyond its ends are drawn there.
        labels: Labels that have looks of their own in all of several charts, in their order.
    """
    all_at = sorted({at for line in lines for at in line.at})
    shifts = _shifts(len(lines)) if len(all_at) == 1 else [0.0] * len(lines)
    looks = {label: look for look, label in enumerate(dict.fromkeys([*labels, *(line.label for line in lines)]))}
    drawn = [
        _line(line, looks[line.label], [x(at, all_at, across) + shift for at in line.at], across, up)
        for line, shift in zip(lines, shifts, strict=True)
    ]
    svg = element(
        "svg", element("title", title), *_frame(all_at, across, up), *drawn,
        viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", class_="chart",
    )  # fmt: skip
    return element("div", svg, _legend(lines, looks), class_="with-legend")


def x(at: int, all_at: Sequence[int], across: Across = BY_LAYER) -> float:
    """Return the x coordinate of a layer or a step among all; a single one is in the middle."""
    places = dict(zip(all_at, across.places(all_at), strict=True))
    low, high = places[all_at[0]], places[all_at[-1]]
    share = (places[at] - low) / (high - low) if high > low else 0.5
    return LEFT + INSET + share * (WIDTH - LEFT - RIGHT - 2 * INSET)


def y(value: float, up: Up = SHARES) -> float:
    """Return the y coordinate of a value; beyond the ends of the axis, that of the end."""
    share = (value - up.low) / (up.high - up.low)
    return TOP + (1 - min(max(share, 0.0), 1.0)) * (HEIGHT - TOP - BOTTOM)


def _shifts(n: int) -> list[float]:
    """Return the offset of each of n marks at one layer from the middle, so that none covers another."""
    beside = min(BESIDE, (WIDTH - LEFT - RIGHT - 2 * INSET) / n)
    return [beside * (i - (n - 1) / 2) for i in range(n)]


def _frame(all_at: Sequence[int], across: Across, up: Up) -> list[Html]:
    parts = []
    for tick in up.ticks:
        at_y = y(tick, up)
        parts.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=_at(at_y), y2=_at(at_y), class_="grid"))
        parts.append(element("text", f"{tick:g}", x=LEFT - 7, y=_at(at_y + 4), text_anchor="end"))
    for at, label in zip(all_at, across.labels(all_at), strict=True):
        if label:
            at_x = _at(x(at, all_at, across))
            ends = {all_at[0]: "start", all_at[-1]: "end"} if LETTER * len(label) > 2 * LEFT and len(all_at) > 1 else {}
            parts.append(element("text", label, x=at_x, y=HEIGHT - BOTTOM + 17, text_anchor=ends.get(at, "middle")))
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(element("text", across.name(all_at), x=_at(middle), y=HEIGHT - 5, text_anchor="middle"))
    return parts


def _line(line: Line, look: int, xs: Sequence[float], across: Across, up: Up) -> Html:
    points = [f"{_at(at_x)} {_at(y(value, up))}" for at_x, value in zip(xs, line.values, strict=True)]
    name = f"{line.label}, {line.which}" if line.which else line.label
    marks = []
    for i, (at, value) in enumerate(zip(line.at, line.values, strict=True)):
        text, bar = f"{name}, {across.unit} {at}: {value:.3f}", None
        if line.ranges and (ends := line.ranges[i]):
            low, high = ends
            text += f" ({low:.3f} to {high:.3f})"
            at_x, top, bottom = _at(xs[i]), _at(y(high, up)), _at(y(low, up))
            caps = f"M{_at(xs[i] - 4)} {top}h8M{_at(xs[i] - 4)} {bottom}h8"
            bar = element("path", d=f"M{at_x} {bottom}V{top}{caps}", class_="bar")
        mark = element("path", d=_mark(look), transform=f"translate({points[i]})", class_="mark")
        marks.append(element("g", element("title", text), bar, mark))
    return element("g", _stroke(line, look, "M" + "L".join(points)), *marks, class_=f"look-{look % len(_MARKS)}")


def _stroke(line: Line, look: int, path: str) -> Html | None:
    """Return a line along a path, or None for a single point."""
    if len(line.at) == 1:
        return None
    return element("path", d=path, class_="line", stroke_dasharray=_dash(look))


def _legend(lines: Sequence[Line], looks: Mapping[str, int]) -> Html:
    entries = []
    longest = {line.label: line for line in sorted(lines, key=lambda line: len(line.at))}
    for label in dict.fromkeys(line.label for line in lines):
        line, look = longest[label], looks[label]
        key = element(
            "svg",
            _stroke(line, look, "M1 8H33"),
            element("path", d=_mark(look), transform="translate(17 8)", class_="mark"),
            viewBox="0 0 34 16", width=34, height=16, aria_hidden="true", class_=f"look-{look % len(_MARKS)}",
        )  # fmt: skip
        entries.append(element("li", key, joined(label)))
    return element("ul", *entries, class_="legend")


def _mark(look: int) -> str:
    return _MARKS[look % len(_MARKS)]


def _dash(look: int) -> str | None:
    return _DASHES[look % len(_DASHES)] or None


def _at(coordinate: float) -> str:
    return f"{coordinate:.1f}".removesuffix(".0")
