"""What became of a paper's claims: a row for each, with the published and the measured value on one axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probing.results.rows import Child, Html, element, table
from probing.results.schema import ends
from probing.runs.study import Result
from probing.studies.claims.tables import (
    NOT_TESTABLE,
    Row,
    by_lack,
    conclusions,
    control,
    expected,
    measured,
    outcome,
    ranges,
)

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


def claims_section(made: Result, anchor: str) -> Html:
    """Return the sentences, a table of each model's claims, and what the others need.

    Args:
        made: The results of `reproduce`.
        anchor: What the section is linked by.
    """
    rows = made.claims
    there = [row for row in rows if row["verdict"] != NOT_TESTABLE]
    models = dict.fromkeys(row["model"] for row in there)
    return element(
        "section",
        element("h2", made.study.heading(made)),
        *(element("p", sentence) for sentence in conclusions(rows, made.results["title"])),
        *(_of_model(model, [row for row in there if row["model"] == model]) for model in models),
        _missing(rows),
        id=anchor,
    )


def _of_model(model: str, rows: Sequence[Row]) -> Html:
    caption = (
        f"{model}: the measured value (dot, with its interval), the range in which it is by the claim (band), and the "
        "published value (tick) where it is on the same scale. Below each claim, the commands that repeat it."
    )
    head = ["id", "claim", "verdict", "", "measured", "by the claim", "published", "control"]
    body: list[list[Child]] = []
    for row in rows:
        after = (measured(row), row["criterion"], row["published"], control(row))
        body.append([row["id"], _claim(row), _narrow(outcome(row)), _axis(row), *map(_narrow, after)])
    return element("figure", element("figcaption", caption), table(head, body))


def _claim(row: Row) -> Html:
    commands = [element("pre", element("code", line)) for line in str(row.get("command", "")).split(" && ") if line]
    about = f"{row['where']}; neurons {row['neurons']}" if "neurons" in row else row["where"]
    folded = element("details", element("summary", about), *commands) if commands else element("small", about)
    return element("div", row["claim"], folded, class_="claim")


def _narrow(text: str) -> Html:
    return element("div", text, class_="said")


def _axis(row: Row) -> Child:
    low, high = expected(row["criterion"])
    published = row.get("published_value")
    told = f", published {published:g}" if published is not None else ""
    title = f"measured {measured(row)}, by the claim {row['criterion']}{told}"
    return range_axis(row["measured"], ends(row) or (row["measured"], row["measured"]), (low, high), published, title)


def _missing(rows: Sequence[Row]) -> Html | None:
    body = [[lacking, ", ".join(models), ranges(ids)] for lacking, (models, ids) in by_lack(rows).items()]
    if not body:
        return None
    return element(
        "figure", element("figcaption", "Claims that are not testable here"), table(["needs", "models", "claims"], body)
    )
