"""Columns, tables and sentences of `reproduce`, for files and the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from probing.results.rows import Child, Html, element, table
from probing.results.schema import Column, Schema, count, ends, number, text, whole
from probing.runs.call import Measured
from probing.runs.study import Result
from probing.studies.claims.claim import Paper

Row = Mapping[str, Any]

VERDICTS = ("confirmed", "not confirmed", "unclear", "analogue", "not testable here")
NOT_TESTABLE = "not testable here"


def short_number(value: float) -> str:
    """Return a number with as many decimals as tell something."""
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{int(value)}"
    return f"{value:.3f}" if abs(value) >= 0.01 else f"{value:.2g}"


def measured_text(row: Row) -> str:
    """Return what was measured with its interval, if it has one."""
    if "measured" not in row:
        return ""
    between = ends(row)
    has_width = between is not None and between[0] != between[1]
    return short_number(row["measured"]) + (
        f" ({short_number(between[0])} to {short_number(between[1])})" if between and has_width else ""
    )


def control(row: Row) -> str:
    """Return the control with its range, where there are these."""
    value = short_number(row["control"]) if "control" in row else ""
    return value + (f" ({row['control_criterion']})" if "control_criterion" in row else "")


def expected(criterion: str) -> tuple[float, float]:
    """Return both ends of the range that a criterion stands for, infinite where it has none."""
    sign, _, end = criterion.partition(" ")
    if " to " in criterion:
        low, high = criterion.split(" to ")
        return float(low), float(high)
    return -math.inf if "<" in sign else float(end), math.inf if ">" in sign else float(end)


def outcome(row: Row) -> str:
    """Return the verdict; of an analogue, also whether the criterion is met."""
    said = {"yes": "criterion met", "no": "criterion not met", "unclear": "unclear"}
    return row["verdict"] + (f": {said[row['met']]}" if row["verdict"] == "analogue" else "")


def tables(rows: Sequence[Row]) -> list[Any]:
    """Return the tables of the terminal: the claims that were measured, and the others by what they need."""
    from probing.runtime.terminal import plain_table

    found = [_measured_table(model, rows) for model in dict.fromkeys(row["model"] for row in rows)]
    missing = plain_table("Claims that are not testable here, by what that needs")
    for heading in ("needs", "models", "claims"):
        missing.add_column(heading)
    for lacking, (models, ids) in by_lack(rows).items():
        missing.add_row(lacking, ", ".join(models), ranges(ids))
    return [table for table in (*found, missing) if table.row_count]


def _measured_table(model: str, rows: Sequence[Row]) -> Any:
    """Return what was measured of a model."""
    from probing.runtime.terminal import plain_table

    here = [row for row in rows if row["model"] == model and "measured" in row]
    is_other = any(row["verdict"] == "analogue" for row in here)
    said = "none of the paper's models: analogues, and whether they meet the criterion" if is_other else "verdicts"
    table = plain_table(f"{model}, {said}")
    for heading in ("id", "claim", "measured", "by the claim", "control", "met" if is_other else "verdict"):
        table.add_column(heading)
    for row in here:
        last = row["met"] if is_other else row["verdict"]
        table.add_row(str(row["id"]), row["claim"], measured_text(row), row["criterion"], control(row), last)
    return table


def plan_tables(planned: Any) -> list[Any]:
    """Return what is to be run as rich tables: the runs of each model, and the models of which nothing can be run.

    Args:
        planned: The `probing.studies.claims.session.Plan`.
    """
    from probing.runtime.terminal import plain_table

    to_run = planned.to_run
    total, size = sum(one.seconds for one in to_run), planned.n_bytes
    runs = plain_table(
        f"{count(len(to_run), 'run')} to make: about {_minutes(total)} with nothing else on this machine, and "
        f"{size / 1e9:.2f} GB of activations added to the cache"
    )
    for heading in ("model", "run", "is there", "about"):
        runs.add_column(heading, overflow="fold")
    for model, needs in planned.models.items():
        for one in needs:
            there = f"needs {one.need.lacking}" if one.need.lacking else str(one.there or "to be made")
            runs.add_row(model, one.need.line, there, _minutes(one.seconds) if one in to_run else "")
    missing = plain_table("Models of which nothing is run")
    for heading in ("model", "needs"):
        missing.add_column(heading, overflow="fold")
    for model, why in planned.lacking.items():
        missing.add_row(model, why)
    return [table for table in (runs, missing) if table.row_count]


def _minutes(seconds: float) -> str:
    return f"{max(1, round(seconds / 60))} min" if seconds else "0 min"


def conclusions(rows: Sequence[Row], title: str) -> list[str]:
    """Return how many claims have each verdict, in a sentence for each kind of models."""
    own = [row for row in rows if row["verdict"] != "analogue"]
    lines = []
    if own:
        n_each = {
            verdict: sum(row["verdict"] == verdict for row in own) for verdict in VERDICTS if verdict != "analogue"
        }
        said = ", ".join(f"{n} {verdict}" for verdict, n in n_each.items() if n)
        lines.append(f"{title}: of {count(len(own), 'verdict')}, {said}.")
    for model in dict.fromkeys(row["model"] for row in rows if row["verdict"] == "analogue"):
        here = [row for row in rows if row["model"] == model and row["verdict"] == "analogue"]
        met, not_met, unclear = (sum(row["met"] == said for row in here) for said in ("yes", "no", "unclear"))
        lines.append(
            f"{model} is none of the paper's models, so that nothing follows for the paper: of "
            f"{count(len(here), 'analogue')}, {met} meet the criterion and {not_met} do not; unclear: {unclear}."
        )
    return lines


def markdown(rows: Sequence[Row], title: str) -> str:
    """Return the table to paste into a page."""
    head = (
        "id",
        "claim",
        "where",
        "model",
        "published",
        "measured (95% interval)",
        "by the claim",
        "control",
        "verdict",
    )
    lines = [head, ("---",) * len(head), *_cells(rows)]
    return f"{title}\n\n" + "".join(f"| {' | '.join(map(_plain, cells))} |\n" for cells in lines)


def _cells(rows: Sequence[Row]) -> Iterator[tuple[str, ...]]:
    for row in rows:
        said = outcome(row) + (f": {row['lacking']}" if row.get("lacking") else "")
        yield (
            str(row["id"]), row["claim"], row["where"], row["model"], row["published"], measured_text(row),
            row.get("criterion", ""), control(row), said,
        )  # fmt: skip


def _plain(text: str) -> str:
    return text.replace("|", "\\|")


def by_lack(rows: Sequence[Row]) -> dict[str, tuple[list[str], list[int]]]:
    """Return what claims that are not testable need, with the models and the numbers of the claims."""
    found: dict[str, tuple[list[str], list[int]]] = {}
    for row in rows:
        if row["verdict"] == NOT_TESTABLE:
            models, ids = found.setdefault(row.get("lacking", ""), ([], []))
            models += [row["model"]] if row["model"] not in models else []
            ids += [row["id"]] if row["id"] not in ids else []
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Return numbers as `--claims` takes them, such as 1-3, 5."""
    found: list[list[int]] = []
    for one in sorted(numbers):
        if found and one == found[-1][1] + 1:
            found[-1][1] = one
        else:
            found.append([one, one])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


CLAIMS = Schema("claims", "a row per claim and model", (
    whole("id", "Number of the claim."),
    text("claim", "What is claimed."),
    text("where", "Where in the paper.", may_be_empty=True),
    text("published", "What the paper reports."),
    text("model", "The model."),
    Column("measured", float, "What was measured; low, high: its 95% interval.", form=".3f", interval=""),
    number("control", "The same of the control."),
    text("verdict", "confirmed, not confirmed, unclear, not testable here or analogue."),
    text("command", "Command that repeats the measurement."),
    text("met", "Of an analogue: whether it meets the criterion, yes, no or unclear."),
    text("measure", "Name of the measure."),
    text("criterion", "Range in which the claim holds."),
    text("control_criterion", "Range of the control in which it holds."),
    text("neurons", "Neurons that it is about."),
    text("lacking", "What is lacking where it cannot be tested."),
    number("published_value", "Published value, where it is on the scale of what is measured."),
))  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# What became of a paper's claims: a row for each, with the published and the measured value on one axis.
# --------------------------------------------------------------------------------------------------------------------

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
        after = (measured_text(row), row["criterion"], row["published"], control(row))
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
    title = f"measured {measured_text(row)}, by the claim {row['criterion']}{told}"
    return range_axis(row["measured"], ends(row) or (row["measured"], row["measured"]), (low, high), published, title)


def _missing(rows: Sequence[Row]) -> Html | None:
    body = [[lacking, ", ".join(models), ranges(ids)] for lacking, (models, ids) in by_lack(rows).items()]
    if not body:
        return None
    return element(
        "figure", element("figcaption", "Claims that are not testable here"), table(["needs", "models", "claims"], body)
    )


# --------------------------------------------------------------------------------------------------------------------
# What `reproduce` writes: the table of claims, also as Markdown, and a summary.
# --------------------------------------------------------------------------------------------------------------------


def measured_claims(rows: Sequence[Mapping[str, Any]], paper: Paper, used: Mapping[str, Any]) -> Measured:
    """Return what is written of the claims.

    Args:
        rows: The table of claims.
        paper: The paper.
        used: Of each model, the folders of the runs that were read, by their names.
    """

    def write(folder: Path) -> list[Path]:
        path = folder / "claims.md"
        path.write_text(markdown(rows, paper.title), encoding="utf-8")
        return [path]

    results = {"paper": paper.name, "title": paper.title, "runs": dict(used)}
    return Measured({"claims": rows}, results, write=write)
