"""Comparison of runs: accuracies in one chart, and the agreement of their rankings where it was measured."""

from __future__ import annotations

from collections.abc import Sequence

from probing.page.answers import depths
from probing.page.charts.heat_map import heat_map
from probing.page.charts.line_chart import Line, line_chart
from probing.page.sources import Subject
from probing.results.cells import ends, interval
from probing.results.markup import Html, element, table
from probing.runs.result import Result
from probing.runs.run import Row
from probing.tables.wording import listed, two_decimals

# Statistics that are drawn, and their names.
MAPS = {"spearman": "Spearman of the rankings", "overlap": "overlap of the top", "cka": "linear CKA"}


def accuracies_figure(subjects: Sequence[Subject]) -> Html:
    """Return the accuracies of several runs in one chart."""
    tasks = listed(list(dict.fromkeys(subject.task for subject in subjects)))
    lines = [
        Line(
            subject.label,
            subject.layers,
            [row[subject.score.name] for row in subject.run.accuracy],
            [ends(row, subject.score.name) for row in subject.run.accuracy],
        )
        for subject in subjects
    ]
    scores = " and ".join(dict.fromkeys(subject.score.words for subject in subjects))
    title = f"Test {scores} of linear probes of {tasks} by layer"
    title += ", with 95% intervals" * any(any(line.ranges) for line in lines)
    return element("figure", element("figcaption", title), line_chart(lines, title))


def agreement_section(made: Result, anchor: str) -> Html:
    """Return the section on the agreement of rankings, pair by pair."""
    found = dict.fromkeys((row["model_a"], row["model_b"]) for row in made.agreement)
    parts = [_pair([row for row in made.agreement if (row["model_a"], row["model_b"]) == pair]) for pair in found]
    return element(
        "section",
        element("h2", "Agreement of the rankings"),
        element(
            "p",
            "Each cell compares two layers; pointing at it shows the range by chance and the interval over bootstrap "
            "samples of test sentences. Match is the correlation of matched neurons on sentences that were not used "
            "for the matching.",
        ),
        *parts,
        _everywhere(made),
        id=anchor,
    )


def _pair(rows: Sequence[Row]) -> Html:
    names = rows[0]["model_a"], rows[0]["model_b"]
    drawn = []
    for statistic, title in MAPS.items():
        here = {(row["layer_a"], row["layer_b"]): row for row in rows if row["statistic"] == statistic}
        if here:
            titles = {layers: _said(row) for layers, row in here.items()}
            drawn.append(heat_map({layers: row["value"] for layers, row in here.items()}, titles, names, title))
    return element(
        "section",
        element("h3", f"{names[0]} and {names[1]}, neurons matched by {rows[0]['matching']}"),
        element("div", *drawn, class_="heat-maps"),
        element("details", element("summary", "Layers of the same relative depth, as numbers"), _aligned(rows)),
    )


def _said(row: Row) -> str:
    """Return a cell's numbers in words."""
    parts = [f"layers {row['layer_a']} and {row['layer_b']}: {row['value']:.3f}"]
    for of, words in (("", "95% range"), ("chance", "by chance")):
        if said := interval(row, of, " to "):
            parts.append(f"{words} {said}")
    if _has(row, "p_value"):
        parts.append(f"p = {row['p_value']:.2g}")
    return ", ".join(parts)


def _aligned(rows: Sequence[Row]) -> Html:
    found = {(row["layer_a"], row["layer_b"], row["statistic"]): row for row in rows}
    body = []
    for layers in depths(rows):
        overlap, spearman, match, cka = (
            found.get((*layers, name), {}) for name in ("overlap", "spearman", "correlation", "cka")
        )
        p_value = f"{spearman['p_value']:.1g}" if _has(spearman, "p_value") else ""
        cells = [_two(overlap), _range(overlap, "chance"), _two(spearman), _range(spearman, "")]
        cells += [_range(spearman, "chance"), p_value, _two(match), _two(cka)]
        body.append([f"{layers[0]}, {layers[1]}", *cells])
    head = ["layers", "top overlap", "by chance", "Spearman", "95% range", "by chance", "p", "match", "CKA"]
    return table(head, body)


def _everywhere(made: Result) -> Html:
    top = made.config.get("top", 10)
    if not made.top_everywhere:
        return element("p", f"No neuron is, together with its matches, among the first {top} of every run.")
    head = list(made.top_everywhere[0])
    body = [[row.get(name, "") for name in head] for row in made.top_everywhere]
    said = f"{len(body)} neurons and their matches are among the first {top} of every run at the same relative depth"
    if len(body) == 1:
        said = f"One neuron and its matches are among the first {top} of every run at the same relative depth"
    return element("details", element("summary", said), table(head, body))


def _has(row: Row, column: str) -> bool:
    return isinstance(row.get(column), int | float)


def _two(row: Row) -> str:
    return two_decimals(row["value"]) if _has(row, "value") else ""


def _range(row: Row, of: str) -> str:
    return " to ".join(two_decimals(end) for end in ends(row, of) or ())
