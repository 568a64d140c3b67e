"""Evaluation of the cosines of hidden states on word senses (`wic`) and similar sentences (`sts`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probing.downstream.names import WORDS
from probing.page.lines import Line, line_chart
from probing.page.terms import ACCURACY, TRANSFORMS, Terms
from probing.results.rows import Html, element
from probing.results.schema import Row, ends
from probing.runs.study import Result, folded, section_of
from probing.statistics.sample_size import label

EVALUATIONS: Terms = {
    **{words: TRANSFORMS[space] for space, words in WORDS.items()},
    "static vectors": "One vector per word type, the same in all sentences, instead of the model's hidden states.",
    "layer": ACCURACY["layer"],
    "space": "How hidden states were transformed before their cosines were taken.",
    "always yes": "Answering for every pair that the word means the same.",
    "threshold": "Cosine from which on a pair is predicted to mean the same, chosen on the training part.",
    "accuracy": "Share of the pairs that are predicted correctly.",
    "area": "Area under the ROC curve: the probability that a pair with the same meaning has a higher cosine than a "
    "pair with two meanings.",
    "95% range": "Interval over pairs, of the number to its left.",
    "gain": "Difference from untransformed hidden states.",
    "won": "Number of pairs that are predicted correctly only in this space.",
    "lost": "Number of pairs that are predicted correctly only from untransformed hidden states.",
    "p": "McNemar's test of pairs won against pairs lost.",
    "best layer": "Layer with the highest accuracy on the training part itself.",
    "best of 9 thresholds": "Threshold, among 0.1 to 0.9, with the highest accuracy on the training part itself.",
    "accuracy on train": "Accuracy of both on the pairs they were chosen on, which is too high for other pairs.",
    "set": "Collection of sentence pairs with human scores of how similar they are.",
    "vectors": "How the vector of a sentence is made from those of its tokens, and in which space.",
    "chosen on": "Pairs on which the layer was chosen.",
    "all": "Spearman's correlation of cosines and human scores, times 100, over all pairs of the set.",
    "mean": "The mean of that correlation over the subsets.",
    "wmean": "The same mean, each subset weighted by its number of pairs.",
}


def senses_section(made: Result, anchor: str) -> Html:
    """Return the results of `wic` in sentences, as lines over the layers, and in the tables that the terminal shows."""
    return _section(made, anchor, [_senses(made.wic, made.chosen)])


def similarity_section(made: Result, anchor: str) -> Html:
    """Return the results of `sts` in sentences, as lines over the layers, and in the tables that the terminal shows."""
    return _section(made, anchor, _similarities(made.sts))


def _section(made: Result, anchor: str, charts: Sequence[Html]) -> Html:
    return section_of(
        made,
        anchor,
        *charts,
        *folded(made.tables()),
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
