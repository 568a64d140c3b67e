"""Evaluation of the cosines of hidden states on word senses (`wic`) and similar sentences (`sts`)."""

from __future__ import annotations

from collections.abc import Sequence

from probing.page.charts.line_chart import Line, line_chart
from probing.page.markup import Html, element
from probing.page.sources import Evaluation
from probing.page.tables import as_in_terminal
from probing.runs.run import Row
from probing.statistics.sample_size import label
from probing.tables.columns import ends
from probing.tables.downstream import sts_lines, sts_tables, wic_lines, wic_tables
from probing.tables.space_names import WORDS


def evaluation_section(evaluation: Evaluation) -> Html:
    """Return the results in sentences, as lines over the layers, and in the tables that the terminal shows."""
    rows, chosen, is_wic = evaluation.rows, evaluation.chosen, evaluation.command == "wic"
    lines, tables = (wic_lines, wic_tables) if is_wic else (sts_lines, sts_tables)
    return element(
        "section",
        element("h2", evaluation.title),
        *(element("p", sentence) for sentence in lines(chosen)),
        *([_senses(rows, chosen)] if is_wic else _similarities(rows)),
        *(element("details", element("summary", str(t.title)), as_in_terminal(t)) for t in tables(rows, chosen)),
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
    rows = [row for row in rows if row["aggregation"] == "all" and row["spearman"] == row["spearman"]]
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
