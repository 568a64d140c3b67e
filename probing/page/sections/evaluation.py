"""Evaluation of the cosines of hidden states on word senses (`wic`) and similar sentences (`sts`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probing.page.charts.line_chart import Line, line_chart
from probing.results.cells import ends
from probing.results.markup import Html, as_in_terminal, element
from probing.runs.result import Result
from probing.runs.run import Row
from probing.statistics.sample_size import label
from probing.tables.space_names import WORDS


def senses_section(made: Result, anchor: str) -> Html:
    """Return the results of `wic` in sentences, as lines over the layers, and in the tables that the terminal shows."""
    return _section(made, anchor, [_senses(made.wic, made.chosen)])


def similarity_section(made: Result, anchor: str) -> Html:
    """Return the results of `sts` in sentences, as lines over the layers, and in the tables that the terminal shows."""
    return _section(made, anchor, _similarities(made.sts))


def _section(made: Result, anchor: str, charts: Sequence[Html]) -> Html:
    return element(
        "section",
        element("h2", made.study.heading(made)),
        *(element("p", sentence) for sentence in made.conclusions()),
        *charts,
        *(element("details", element("summary", str(t.title)), as_in_terminal(t)) for t in made.tables()),
        id=anchor,
    )


def _senses(rows: Sequence[Row], chosen: Sequence[Row]) -> Html:
    """Return the accuracy of each space by layer, compared with that of always answering yes."""
    part = next(row["reported_on"] for row in chosen if row["protocol"] == "held_out")
    lines = _by_space(rows, "accuracy", "accuracy")
    lines.append(_level("always yes", rows, rows[0]["constant_true_accuracy"]))
    title = (
        f"Accuracy on {part} by layer and space, the threshold chosen on train, with 95% intervals over "
        f"{rows[0]['n_pairs']} pairs"
    )
    return element("figure", element("figcaption", title), line_chart(lines, title))


def _similarities(rows: Sequence[Row]) -> list[Html]:
    """Return Spearman's correlation of each space by layer, a chart for each set."""
    charts = []
    # Where all cosines of a set are the same, as of the first token's embedding, there is no correlation.
    there = [row for row in rows if math.isfinite(row.get("spearman", math.nan))]
    rows = [row for row in there if row["aggregation"] == "all"]
    for name in dict.fromkeys(row["set"] for row in rows):
        here = [row for row in rows if row["set"] == name]
        static = [row for row in here if (row["pooling"], row["transform"]) == ("static", "none")]
        pooled = [row for row in here if row["pooling"] != "static"]
        pooled = [row for row in pooled if row["pooling"] == pooled[0]["pooling"]]
        if pooled:
            lines = _by_space(pooled, "spearman", "")
            lines += [_level("static vectors, plain", pooled, row["spearman"]) for row in static]
            title = (
                f"{name}, sentences by {pooled[0]['pooling']}: Spearman of cosines and human scores by layer and "
                f"space, with 95% intervals over {pooled[0]['n_pairs']} pairs (values below 0 are drawn at 0)"
            )
            charts.append(element("figure", element("figcaption", title), line_chart(lines, title)))
    return charts


def _by_space(rows: Sequence[Row], column: str, of: str) -> list[Line]:
    """Return a line for each space, from the column of the value and the name of its interval, as `ends` takes it."""
    lines = []
    for space in dict.fromkeys(row["transform"] for row in rows):
        here = sorted((row for row in rows if row["transform"] == space), key=lambda row: row["layer"])
        layers, values = [row["layer"] for row in here], [row[column] for row in here]
        lines.append(Line(label(WORDS[space], here), layers, values, [ends(row, of) for row in here]))
    return lines


def _level(label: str, rows: Sequence[Row], value: float) -> Line:
    """Return a line of one value for all layers."""
    layers = sorted({row["layer"] for row in rows})
    return Line(label, layers, [value] * len(layers))
