"""Tuned models on a page: the answer, the score of each tuning beside the baselines, and losses by step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from probing.page.lines import BY_STEP, SHARES, Across, Line, Up, line_chart
from probing.results.rows import Html, element
from probing.results.schema import Row, ends
from probing.runs.study import Result, folded, framed, section_of
from probing.studies.finetune.tables import CALLED, SHORT, losses_in, score_words, starts_of

# Most points of the curve of a tuning, and characters of labels that fit below an axis.
_POINTS, _CHARACTERS = 12, 68


def finetuning_section(made: Result, anchor: str) -> Html:
    """Return what tuning gains in sentences, as charts, and in the tables of the terminal; further ones are folded.

    Args:
        made: The results of `finetune`.
        anchor: What the section is linked by.
    """
    return section_of(
        made,
        anchor,
        element("div", _scores(made), _losses(made), class_="panels"),
        *framed(made.tables()),
        *folded(made.study.more_tables(made)),
    )


def _scores(made: Result) -> Html:
    """Return a point for each tuning, with its interval over the test part; baselines are lines."""
    is_number = made.results["numbers"]
    rows = [row for start in starts_of(made.scores) for row in made.tunings if row["start"] == start]
    lines = [
        Line(_named(row["start"]), [i], [row["score"]], [ends(row, "score")], f"seed {row['seed']}, order {order}")
        for i, row in enumerate(rows)
        for order in [row["order_seed"]]
    ]
    places = list(range(len(rows)))
    for row in made.scores:
        if not row.get("n_tunings"):
            lines.append(Line(CALLED[row["answer"]], places, [row["score"]] * len(places)))
    values = [value for line in lines for value in (*line.values, *(end for of in line.ranges for end in of or ()))]
    title = (
        f"{score_words(is_number)[0].upper()}{score_words(is_number)[1:]} on the test part, a point for each tuning, "
        "with 95% intervals over the test part alone"
    )
    chart = line_chart(lines, title, _by_tuning(rows), Up.of(values) if is_number else SHARES)
    return element("figure", element("figcaption", title), chart)


def _by_tuning(rows: Sequence[Row]) -> Across:
    """Return an axis of tunings, each labelled by its seed and order; where there is no room, every other one or so."""
    labels = [f"{row['seed']}, {row['order_seed']}" for row in rows]
    every = -(-sum(len(label) + 1 for label in labels) // _CHARACTERS)
    shown = [label if i % every == 0 else "" for i, label in enumerate(labels)]
    return Across("tuning", lambda at: "seed, order of a tuning", lambda at: at, lambda at: [shown[i] for i in at])


def _losses(made: Result) -> Html | None:
    """Return the losses of each tuning by step; None where no step was made."""
    lines: list[Line] = []
    of_tuning = groupby(made.tuning_curves, lambda row: (row["start"], row["seed"], row["order_seed"]))
    for (start, seed, order), rows in of_tuning:
        which, curve = f"seed {seed}, order {order}", list(rows)
        steps, losses = _thinned(curve)
        lines.append(Line(f"{_named(start)}, training", steps, losses, which=which))
        ended = [row for row in curve if isinstance(row.get("validation_loss"), float)]
        ended = ended[:: -(-len(ended) // _POINTS)] if ended else []
        if ended:
            found = [row["validation_loss"] for row in ended]
            lines.append(Line(f"{_named(start)}, validation", [row["step"] for row in ended], found, which=which))
    if not lines:
        return None
    title = f"Losses by step, {losses_in(made.results['numbers'])}, a line for each tuning; validation after each epoch"
    up = Up.of(value for line in lines for value in line.values)
    return element("figure", element("figcaption", title), line_chart(lines, title, BY_STEP, up))


def _thinned(curve: Sequence[Row]) -> tuple[list[int], list[float]]:
    """Return steps and mean training losses since the step before, for at most so many points."""
    steps, losses, every, before = [], [], -(-len(curve) // _POINTS), 0
    for i in range(0, len(curve), every):
        total, first = 0.0, before
        for row in curve[i : i + every]:
            total += row["train_loss"] * (row["step"] - before)
            before = row["step"]
        steps.append(before)
        losses.append(total / (before - first))
    return steps, losses


def _named(start: str) -> str:
    return SHORT.get(start, start)
