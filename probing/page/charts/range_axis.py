"""A value with its interval beside the range in which it is expected, and another value, on one axis, as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probing.results.markup import Html, element

WIDTH, HEIGHT = 180, 22
INSET = 6
# The share of the axis that lies beyond the outermost point on either side.
_BEYOND = 0.08


def range_axis(
    value: float, interval: Sequence[float], expected: Sequence[float], other: float | None, title: str
) -> Html:  # fmt: skip
    """Return the axis: a band for the expected range, a bar and a dot for the value, a tick for the other value.

    Args:
        value: The value.
        interval: Both ends of its interval.
        expected: Both ends of the range in which it is expected; infinite where it has none.
        other: The other value, if there is one.
        title: Description for readers who do not see it.
    """
    finite = [end for end in expected if math.isfinite(end)]
    points = [value, *interval, *finite, *([other] if other is not None else [])]
    low, high = min(points), max(points)
    beyond = _BEYOND * (high - low) or abs(low) or 1.0
    low, high = low - beyond, high + beyond

    def x(point: float) -> float:
        return round(INSET + (WIDTH - 2 * INSET) * (min(max(point, low), high) - low) / (high - low), 2)

    left, right = (x(end) for end in expected)
    middle = HEIGHT / 2
    tick = element("path", d=f"M{x(other):g} 3V{HEIGHT - 3}", class_="typical") if other is not None else None
    return element(
        "svg",
        element("title", title),
        element("path", d=f"M{INSET} {middle:g}H{WIDTH - INSET}", class_="grid"),
        element("rect", x=left, y=4, width=max(right - left, 2.0), height=HEIGHT - 8, class_="expected"),
        element("path", d=f"M{x(interval[0]):g} {middle:g}H{x(interval[1]):g}", class_="line"),
        element("circle", cx=x(value), cy=middle, r=3.5, class_="dot"),
        tick,
        class_="range-axis", role="img", viewBox=f"0 0 {WIDTH} {HEIGHT}", width=WIDTH, height=HEIGHT,
    )  # fmt: skip
