"""Tables and sentences of `wic` and `sts` for the terminal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from probing.downstream.names import CLIPPING, TRANSDUCTIVE, WORDS
from probing.page.lines import Line, line_chart
from probing.page.terms import ACCURACY, TRANSFORMS
from probing.results.rows import Html, element
from probing.results.schema import Column, Schema, ends, in_brackets, interval, measured, number, text, whole
from probing.runs.study import Result, Terms, folded, section_of
from probing.statistics.intervals import few_sentences
from probing.statistics.sample_size import label, size_lines
from probing.tables.schema import SIZES, layer_column

Row = Mapping[str, Any]

# Advice where a covariance was fitted on too few vectors.
FEWER_DIRECTIONS = "Keep fewer directions of whitening with `--components`."
MORE_TEXT = "Fit it on more text with `--fit_on`, or keep fewer directions of whitening with `--components`."


def wic_tables(rows: Sequence[Row], chosen: Sequence[Row]) -> list[Any]:
    """Return rich tables: the accuracies by layer, and the layer and threshold that each protocol chose."""
    spaces = list(dict.fromkeys(row["transform"] for row in rows))
    part = next(row["reported_on"] for row in chosen if row["protocol"] == "held_out")
    headings = [heading for space in spaces for heading in (_label(space, rows), "area")]
    layers = _table(f"Accuracy on {part} and area under the ROC curve, by layer", "layer", *headings)
    for layer in dict.fromkeys(row["layer"] for row in rows):
        here = {row["transform"]: row for row in rows if row["layer"] == layer}
        cells = [f"{here[space][measure]:.3f}" for space in spaces for measure in ("accuracy", "auc")]
        layers.add_row(str(layer), *cells)
    columns = ("layer", "threshold", "accuracy", "95% range", "gain", "95% range", "won", "lost", "p")
    held_out = _table(f"Layer and threshold chosen on train, reported on {part}", "space", *columns)
    published = _table(
        "As published, which is too high: chosen on train and reported on train",
        "space", "best layer", "best of 9 thresholds", "accuracy on train",
    )  # fmt: skip
    for row in chosen:
        name = _label(row["transform"], [row]) if "transform" in row else "always yes"
        start = [name, str(row.get("layer", ""))]
        if row["protocol"] == "published":
            published.add_row(*start, f"{row['threshold']:.1f}", f"{row['accuracy']:.3f}")
        else:
            held_out.add_row(
                *start,
                f"{row['threshold']:.3f}" if "threshold" in row else "",
                f"{row['accuracy']:.3f}",
                interval(row, "accuracy"),
                *(_gain(row, "+.3f", 1) if "gain" in row else ["", ""]),
                *((str(row["n_gained"]), str(row["n_lost"]), f"{row['p_value']:.2g}") if "gain" in row else ()),
            )
    return [layers, held_out, published]


def wic_lines(chosen: Sequence[Row]) -> list[str]:
    """Return a sentence for each space, then on how much text the transforms were fitted."""
    lines = []
    constant = next(row for row in chosen if row["protocol"] == "constant_true")["accuracy"]
    for row in chosen:
        if row["protocol"] == "held_out":
            name = label(WORDS[row["transform"]].capitalize(), [row])
            line = (
                f"{name}: accuracy {row['accuracy']:.3f} on {row['reported_on']}"
                f"{in_brackets(interval(row, 'accuracy', ' to '), f'always yes {constant:.3f}')} in layer "
                f"{row['layer']}, chosen on train"
            )
            lines.append(line + _verdict(row, "+.3f", 1, f"{row['n_pairs']} pairs") + ".")
    return lines + _why_no_intervals(chosen) + size_lines(chosen, FEWER_DIRECTIONS)


def sts_tables(rows: Sequence[Row], chosen: Sequence[Row]) -> list[Any]:
    """Return rich tables: the correlations by layer for the first pooling, and the layers that each protocol chose."""
    rows = [row for row in rows if row["aggregation"] == "all"]
    pooling = rows[0]["pooling"]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    tables = []
    for space in dict.fromkeys(row["transform"] for row in rows if row["pooling"] == pooling):
        of_pooling = [row for row in rows if row["pooling"] == pooling]
        table = _table(f"Spearman x 100: {pooling}, {_label(space, of_pooling)}", "layer", *sets)
        for layer in dict.fromkeys(row["layer"] for row in rows if row["pooling"] == pooling):
            here = {r["set"]: r for r in rows if (r["pooling"], r["layer"], r["transform"]) == (pooling, layer, space)}
            table.add_row(str(layer), *(_spearman(here[name]) for name in sets))
        static = {r["set"]: r for r in rows if (r["pooling"], r["transform"]) == ("static", space)}
        if static:
            table.add_row("static", *(_spearman(static[name]) for name in sets))
        tables.append(table)
    return [*tables, *_chosen_sts(chosen, "held_out"), *_chosen_sts(chosen, "published")]


def _chosen_sts(chosen: Sequence[Row], protocol: str) -> list[Any]:
    """Return the layers that one protocol chose as a rich table; an empty list where it chose none."""
    title = {
        "held_out": "Spearman x 100 with the layer chosen on other pairs, in three aggregations",
        "published": "As published, which can be too high: Spearman x 100 with the layer chosen on the set itself",
    }[protocol]
    is_own = any(TRANSDUCTIVE in row.get("fitted_on", "") for row in chosen)
    title += "; transforms fitted on the set's own sentences (transductive)" if is_own else ""
    found: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in chosen:
        if row["protocol"] == protocol:
            found.setdefault((row["set"], row["pooling"], row["transform"]), {})[row["aggregation"]] = row
    on = ["chosen on"] if protocol == "held_out" else []
    table = _table(title, "set", "vectors", "layer", *on, "all", "95% range", "mean", "wmean", "gain", "95% range")
    for (name, pooling, space), by in found.items():
        row = by["all"]
        table.add_row(
            name,
            f"{pooling}, {_label(space, [row])}",
            str(row["layer"]),
            *[str(row.get("chosen_on", "")) for _ in on],
            _spearman(row),
            interval(row, times=100, form=".1f"),
            *(_spearman(by[how]) for how in ("mean", "wmean")),
            *(_gain(row, "+.1f", 100) if "gain" in row else ()),
        )
    return [table] if found else []


def sts_lines(chosen: Sequence[Row]) -> list[str]:
    """Return a sentence for each set and space over all pairs; where no layer could be chosen, it is on the best one.

    The last sentences say on how much text the transforms were fitted.
    """
    protocols = [row["protocol"] for row in chosen if row["pooling"] != "static"]
    protocol = "held_out" if "held_out" in protocols else "published"
    lines = []
    for row in chosen:
        if row["aggregation"] == "all" and (row["protocol"] == protocol or row["pooling"] == "static"):
            where = f" in layer {row['layer']}" if row["layer"] != "" else ""
            on = f", chosen on {row['chosen_on']}" if "chosen_on" in row else ""
            if protocol == "published" and where:
                on += " itself, which can be too high"
            name = f"{row['set']}, {row['pooling']}, {_label(row['transform'], [row])}"
            line = f"{name}: Spearman {_spearman(row)}{in_brackets(interval(row, '', ' to ', '.1f', 100))}{where}{on}"
            lines.append(line + _verdict(row, "+.1f", 100, f"{row['n_pairs']} pairs") + ".")
    return lines + _why_no_intervals(chosen) + size_lines(chosen, MORE_TEXT)


def _label(space: str, rows: Sequence[Row]) -> str:
    return label(WORDS[space], [row for row in rows if row.get("transform") == space])


def _why_no_intervals(chosen: Sequence[Row]) -> list[str]:
    few = few_sentences(min(row["n_pairs"] for row in chosen if "n_pairs" in row), "pair")
    return [few] if few else []


def _gain(row: Row, form: str, times: int) -> list[str]:
    return [format(times * row["gain"], form), interval(row, "gain", " to ", form, times)]


def _verdict(row: Row, form: str, times: int, pairs: str) -> str:
    """Return a clause that compares the space with the plain one."""
    if "gain" not in row:
        return ""
    (gain, within), found = _gain(row, form, times), ends(row, "gain")
    p_value = f"McNemar p = {row['p_value']:.2g}" if "p_value" in row else ""
    comment = "" if found and (found[0] > 0 or found[1] < 0) else f", a difference that {pairs} do not resolve"
    if row["transform"] in CLIPPING and not row["n_clipped"]:
        comment = ", because no neuron is an outlier there"
    return f"; {gain} compared with plain{in_brackets(within, p_value)}{comment}"


def _spearman(row: Row) -> str:
    """Return a correlation in points, `-` where it is undefined, such as where all sentences have one vector.

    A file leaves it out, and what is in memory is NaN.
    """
    value = row.get("spearman", math.nan)
    return f"{100 * value:.1f}" if value == value else "-"


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title, collapse_padding=True)
    for heading in headings:
        is_name = heading in ("space", "set", "vectors", "chosen on")
        table.add_column(heading, justify="left" if is_name else "right", no_wrap=not is_name)
    return table


_SPACE = text("transform", "How the hidden states are transformed before their cosines are taken.")
_N_CLIPPED = whole("n_clipped", "Number of neurons that are clipped.")
_CLIPPED = text("clipped", "The neurons that are clipped.", may_be_empty=True)
_N_PAIRS = whole("n_pairs", "Number of pairs.")
_THRESHOLD = number("threshold", "Cosine from which on a pair is predicted to mean the same, chosen on train.")
_PROTOCOL = text("protocol", "How the layer was chosen: held_out, on other pairs, or published, on the same.")
_GAIN = measured("gain", "Difference from the untransformed hidden states.", form="+.3f")

WIC = Schema("wic", "a row per layer and space", (
    layer_column(), _SPACE, _THRESHOLD,
    number("train_accuracy", "Accuracy on the training pairs."),
    measured("accuracy", "Share of the pairs that are predicted correctly."),
    measured("auc", "Area under the ROC curve."),
    number("train_auc", "The same of the training pairs."),
    number("published_threshold", "The best of the nine thresholds 0.1 to 0.9 on the reported pairs themselves."),
    number("published_accuracy", "Its accuracy."),
    number("constant_true_accuracy", "Accuracy of answering for every pair that the word means the same."),
    _N_CLIPPED, _CLIPPED,
    whole("n_train_pairs", "Number of training pairs."), _N_PAIRS, *SIZES,
))  # fmt: skip
WIC_CHOSEN = Schema("chosen", "a row per protocol and space", (
    _PROTOCOL, _SPACE, layer_column("The chosen layer."), _THRESHOLD,
    measured("accuracy", "Accuracy in the chosen layer."),
    text("reported_on", "Part whose pairs the accuracy is of."),
    _GAIN,
    whole("n_gained", "Number of pairs that are predicted correctly only in this space."),
    whole("n_lost", "Number of pairs that are predicted correctly only from untransformed hidden states."),
    number("p_value", "McNemar's test of the first against the second."),
    _N_CLIPPED, _N_PAIRS, *SIZES,
))  # fmt: skip

_SET = text("set", "Collection of pairs of sentences with human scores.")
_POOLING = text("pooling", "How the vector of a sentence is made from those of its tokens.")
# Static vectors have no layer: the cell is empty.
_LAYER = replace(layer_column("Number of the layer; empty of static vectors."), may_be_empty=True)
_AGGREGATION = text("aggregation", "all pairs together, the mean of the subsets, or wmean, weighted by their pairs.")
_CORRELATION = (
    Column("spearman", float, "Spearman's correlation of cosines and human scores; low, high: its 95% interval.",
           form=".3f", interval=""),
    _GAIN, _N_PAIRS, _N_CLIPPED, _CLIPPED,
    text("fitted_on", "Text that the transform was fitted on."),
    *SIZES,
)  # fmt: skip
STS = Schema("sts", "a row per set, pooling, layer, space and aggregation", (
    _SET, _POOLING, _LAYER, _SPACE, _AGGREGATION, *_CORRELATION,
))  # fmt: skip
STS_CHOSEN = Schema("chosen", "a row per protocol, set, pooling, space and aggregation", (
    _PROTOCOL, _SET, _POOLING, _SPACE, replace(_LAYER, meaning="The chosen layer; empty of static vectors."),
    text("chosen_on", "Pairs on which the layer was chosen."),
    whole("n_chosen_on", "Number of these."),
    _AGGREGATION, *_CORRELATION,
))  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# Evaluation of the cosines of hidden states on word senses (`wic`) and similar sentences (`sts`).
# --------------------------------------------------------------------------------------------------------------------

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
