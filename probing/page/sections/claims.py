"""What became of a paper's claims: a row for each, with the published and the measured value on one axis."""

from __future__ import annotations

from collections.abc import Sequence

from probing.page.charts.range_axis import range_axis
from probing.results.cells import ends
from probing.results.markup import Child, Html, element, table
from probing.runs.result import Result
from probing.tables.claims import NOT_TESTABLE, Row, by_lack, conclusions, control, expected, measured, outcome, ranges


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
