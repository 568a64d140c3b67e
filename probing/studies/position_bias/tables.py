"""Tables and sentences of `position-bias`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from probing.page.charts import YAxis, line_chart
from probing.results import (
    Html,
    Row,
    Schema,
    element,
    ends,
    estimate,
    in_brackets,
    interval,
    number,
    shown,
    shown_table,
    text,
    whole,
)
from probing.runs import Result, framed, section_of
from probing.statistics import few_sentences
from probing.tables.figures import Line, XAxis

Tables = Mapping[str, Sequence[Row]]

# What is measured at each place: the change by an edit, and the weight in a fit.
EDITS = REPLACE, DELETE, INSERT = "replace", "delete", "insert"
WEIGHT = "weight"
MEASURES = {REPLACE: "replaced", DELETE: "deleted", INSERT: "inserted", WEIGHT: "weight"}
WORDS = {
    REPLACE: "a sentence replaced", DELETE: "a sentence deleted", INSERT: "a sentence inserted",
    WEIGHT: "weight of a sentence",
}  # fmt: skip
# The order in which the sentences of a document are read.
AS_WRITTEN, SHUFFLED = "as_written", "shuffled"
ORDERS = {AS_WRITTEN: "as written", SHUFFLED: "shuffled"}
# Vectors of the same texts, and with which others each is compared.
MODEL, BAG = "model", "bag"
CENTRED, POSITION, RANDOM, NEURONS = "centred", "position_removed", "random_held", "neurons_held"
EMBEDDINGS = {
    MODEL: "as it is", BAG: "bag of words", CENTRED: "less their mean", POSITION: "less position parts",
    RANDOM: "random neurons held", NEURONS: "position neurons held",
}  # fmt: skip
AGAINST = {CENTRED: MODEL, POSITION: CENTRED, RANDOM: MODEL, NEURONS: RANDOM}

_EMBEDDING = text(
    "embedding", "Vector of a text: that of the model as it is; `bag`, the mean of its word embeddings, without "
    "positions and without the model's blocks, as the null; `centred`, the model's less the mean of all tokens; "
    "`position_removed`, less that mean and each token's position part; `random_held` and `neurons_held`, with "
    "random neurons held at their mean (mean over draws), and with those that read the position most.", "vector",
    labels=EMBEDDINGS,
)  # fmt: skip
_MEASURE = text(
    "measure", "What is measured at each place: how far the vector moves, as 1 less the cosine, where a sentence is "
    "replaced, deleted or inserted there; or the weight of the sentence there in a least-squares fit of the document's "
    "vector, 1 for a sentence that counts as its share of the tokens.", labels=MEASURES,
)  # fmt: skip
_ORDER = text(
    "order", "How the sentences of documents are ordered: as written, or shuffled, which is the mean of a random order "
    "and of its reverse, so that the same sentences stand at both ends.", labels=ORDERS,
)  # fmt: skip
BIAS = Schema("bias", "a row per measure, order and vector", (
    _MEASURE, _ORDER, _EMBEDDING,
    number("at_start", "The measure at the first place.", "start", form=".4f"),
    number("at_middle", "In the middle: at the middle place, or the mean of both.", "middle", form=".4f"),
    number("at_end", "At the last place.", "end", form=".4f"),
    estimate("start_end", "Start less end, paired by document: above 0, the start counts more.", "start - end", "+.4f"),
    number("start_end_p", "p-value of a difference of 0 (Student's t over documents, as the interval); not corrected "
           "for several measures.", "p", ".2g"),
    estimate("start_middle", "Start less middle, paired by document.", "start - middle", "+.4f"),
    number("start_middle_p", "Its p-value.", "p (middle)", ".2g"),
    estimate("relative", "Start less end over the mean of all places, so that vectors can be compared: +.5 if the "
             "start counts by half of the mean more than the end.", "bias", "+.3f"),
    text("against", "The vectors with which these are compared.", "beside", labels=EMBEDDINGS),
    estimate("relative_difference", "Relative bias less that of the vectors with which it is compared (`against`), "
             "paired by document.", "change", "+.3f"),
    number("least", "Of random neurons: least relative bias of a draw.", form="+.3f"),
    number("most", "Of random neurons: largest relative bias of a draw.", form="+.3f"),
    whole("n_documents", "Number of documents.", "documents"),
))  # fmt: skip
PLACES = Schema("places", "a row per measure, order, vector and place in the document", (
    _MEASURE, _ORDER, _EMBEDDING,
    whole("position", "Place of the sentence in the document, from 1; a sentence is inserted before the one that stood "
          "there, or at the end.", "place"),
    number("value", "The measure there, mean over documents; low, high: its 95% interval.", form=".4f", interval=""),
    whole("n_documents", "Number of documents.", "documents"),
))  # fmt: skip
SIMILARITY = Schema("similarity", "a row per set of sentence pairs and vector", (
    text("set", "The set of pairs with human scores."), _EMBEDDING,
    number("spearman", "Spearman's correlation of cosines and scores, over all pairs; low, high: its 95% interval over "
           "pairs.", form=".4f", interval=""),
    text("against", "The vectors with which these are compared.", "beside", labels=EMBEDDINGS),
    estimate("difference", "Correlation less theirs, paired by pair of sentences.", form="+.4f"),
    whole("n_pairs", "Number of pairs.", "pairs"),
), optional=True)  # fmt: skip

_OF_MODEL = ("measure", "at_start", "at_middle", "at_end", "start_end*", "start_end_p")
_OF_VECTORS = ("embedding", "relative*", "relative_difference*")
_OF_PAIRS = ("set", "embedding", "spearman", "difference*")


def rows_of(rows: Sequence[Row], **values: str) -> list[Row]:
    """Return the rows that have these values in these columns."""
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def measures_of(rows: Sequence[Row]) -> list[str]:
    """Return the present measures, edits first."""
    names = {row["measure"] for row in rows}
    return [name for name in MEASURES if name in names]


def tables(rows_by_table: Tables) -> list[Any]:
    """Return start, middle and end of the model, the bias of all vectors by measure, and any correlations."""
    bias = rows_by_table["bias"]
    shown_tables = [
        shown_table(
            BIAS, rows_of(bias, embedding=MODEL, order=order), f"The model as it is, sentences {words}", _OF_MODEL
        )
        for order, words in ORDERS.items()
    ]
    for name in measures_of(bias):
        title = f"Bias of other vectors, sentences shuffled: {WORDS[name]}"
        shown_tables.append(shown_table(BIAS, rows_of(bias, measure=name, order=SHUFFLED), title, _OF_VECTORS))
    if rows_by_table["similarity"]:
        title = "Similar sentences: Spearman's correlation of cosines and human scores"
        shown_tables.append(shown_table(SIMILARITY, rows_by_table["similarity"], title, _OF_PAIRS))
    return shown_tables


def terms() -> dict[str, str]:
    """Return the meanings of all headings."""
    return BIAS.terms(_OF_MODEL) | BIAS.terms(_OF_VECTORS) | SIMILARITY.terms(_OF_PAIRS)


def answer(rows_by_table: Tables, model: str) -> list[str]:
    """Return whether the start counts more than the end, with the same sentences at both."""
    bias = rows_by_table["bias"]
    first = measures_of(bias)[0]
    (row,) = rows_of(bias, measure=first, order=SHUFFLED, embedding=MODEL)
    verdict = {
        1: "counts more than its end", -1: "counts less than its end",
        0: "is not shown to count more or less than its end",
    }[_side(row, "start_end")]  # fmt: skip
    if ends(row, "start_end") is None:
        verdict = "is not tested against its end, since there are too few documents"
    return [
        f"In embeddings of {model}, the start of a document {verdict}: {WORDS[first]} at the start moves them by "
        f"{row['at_start']:.4f} (1 - cosine), at the end by {row['at_end']:.4f}, with the same sentences at both ends"
        f"{_difference(row, 'start_end')}."
    ]


def _side(row: Row, of: str) -> int:
    """Return the side of 0 on which an interval lies: 1, -1, or 0 if it contains 0 or is missing."""
    bounds = ends(row, of)
    return 0 if bounds is None else int(bounds[0] > 0) - int(bounds[1] < 0)


def _difference(row: Row, of: str, form: str = "+.4f") -> str:
    within = interval(row, of, " to ", form)
    p = row.get(f"{of}_p", math.nan)
    clauses = [f"difference {shown(row[of], form)}", within, f"p = {p:.2g}" if isinstance(p, float) and p == p else ""]
    return f" ({', '.join(clause for clause in clauses if clause)})"


def conclusions(rows_by_table: Tables, results: Mapping[str, Any]) -> list[str]:
    """Return the null, the middle, the weights, and the effect of each correction."""
    bias = rows_by_table["bias"]
    first = measures_of(bias)[0]
    by_order = {order: rows_of(bias, measure=first, order=order) for order in ORDERS}
    shuffled = {row["embedding"]: row for row in by_order[SHUFFLED]}
    written = {row["embedding"]: row for row in by_order[AS_WRITTEN]}
    lines = [
        f"Held against a bag of word embeddings, which has no positions: relative bias {_relative(shuffled[MODEL])} of "
        f"the model and {_relative(shuffled[BAG])} of the bag with shuffled sentences, {_relative(written[MODEL])} and "
        f"{_relative(written[BAG])} as written, where the first sentence may say more.",
        f"Start beside middle, shuffled: {shuffled[MODEL]['at_start']:.4f} and {shuffled[MODEL]['at_middle']:.4f}"
        f"{_difference(shuffled[MODEL], 'start_middle')}; of the bag {shuffled[BAG]['at_start']:.4f} and "
        f"{shuffled[BAG]['at_middle']:.4f}.",
        _of_weights(bias, results),
        *(_of_correction(shuffled[name]) for name in AGAINST if name in shuffled),
        *_of_pairs(rows_by_table["similarity"]),
    ]
    if few := few_sentences(shuffled[MODEL]["n_documents"], "document"):
        lines.append(few)
    return lines


def _relative(row: Row) -> str:
    return f"{shown(row['relative'], '+.3f')}{in_brackets(interval(row, 'relative', ' to ', '+.3f'))}"


def _of_weights(bias: Sequence[Row], results: Mapping[str, Any]) -> str:
    (row,) = rows_of(bias, measure=WEIGHT, order=SHUFFLED, embedding=MODEL)
    return (
        f"By least squares, a sentence at the start weighs {row['at_start']:.2f} times its share of the tokens, one at "
        f"the end {row['at_end']:.2f} times{_difference(row, 'start_end', '+.2f')}; the weighted sum of the sentences' "
        f"own embeddings explains {results['explained'][SHUFFLED]:.0%} of a document's."
    )


_CORRECTED = {
    CENTRED: "One mean vector subtracted from all embeddings",
    POSITION: "The part of each position subtracted, too, beside the mean alone",
    RANDOM: "Random neurons held at their mean (mean over draws)",
    NEURONS: "The neurons that read the position most held at their mean, beside as many random ones",
}


def _of_correction(row: Row) -> str:
    verdict = {1: "raised", -1: "lowered", 0: "not told from unchanged"}[_side(row, "relative_difference")]
    if ends(row, "relative_difference") is None:
        verdict = "not tested"
    within = interval(row, "relative_difference", " to ", "+.3f")
    return (
        f"{_CORRECTED[row['embedding']]}: relative bias {shown(row['relative'], '+.3f')}, {verdict} "
        f"({shown(row['relative_difference'], '+.3f')}{', ' + within if within else ''})."
    )


def _of_pairs(rows: Sequence[Row]) -> list[str]:
    lines = []
    for name in dict.fromkeys(row["set"] for row in rows):
        model_row, *others = rows_of(rows, set=name)
        changed = [
            f"{shown(row['difference'], '+.4f')}{in_brackets(interval(row, 'difference', ' to ', '+.4f'))} "
            f"{EMBEDDINGS[row['embedding']]}, beside {EMBEDDINGS[row['against']]}"
            for row in others
        ]
        lines.append(f"On {name}, Spearman's correlation is {model_row['spearman']:.4f}; {'; '.join(changed)}.")
    return lines


# The lines of a chart, from the vectors and the order of sentences.
LINES = {
    (MODEL, SHUFFLED): "model, shuffled",
    (MODEL, AS_WRITTEN): "model, as written",
    (BAG, SHUFFLED): "bag of words, shuffled",
}


class PlaceCurve(NamedTuple):
    """Measure by place, from 1, over its mean of all places, with interval ends over the same mean or None."""

    places: list[int]
    values: list[float]
    ends: list[tuple[float, float] | None]


def curve(rows: Sequence[Row], measure: str, order: str, embedding: str) -> PlaceCurve:
    """Return the line of some vectors, from rows of `places.csv`; all 0 if the mean is 0."""
    place_rows = rows_of(rows, measure=measure, order=order, embedding=embedding)
    mean = sum(row["value"] for row in place_rows) / len(place_rows)
    scale = 1 / mean if mean else 0.0
    intervals = [ends(row) for row in place_rows]
    return PlaceCurve(
        [row["position"] for row in place_rows], [scale * row["value"] for row in place_rows],
        [None if bounds is None else (scale * bounds[0], scale * bounds[1]) for bounds in intervals],
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# How much each place of a document counts in its embedding (`position-bias`).
# --------------------------------------------------------------------------------------------------------------------

_PLACES = XAxis(
    "place", lambda at: "place of the sentence (1 = first)", lambda at: at, lambda at, _: [str(place) for place in at]
)


def position_bias_section(result: Result, anchor: str) -> Html:
    """Return the answer, a chart for each measure, and the tables of the terminal."""
    charts = [_chart(result, name) for name in measures_of(result.bias)]
    return section_of(result, anchor, *charts, *framed(result.tables()))


def _chart(result: Result, measure: str) -> Html:
    lines = []
    for (embedding, order), words in LINES.items():
        line_curve = curve(result.places, measure, order, embedding)
        lines.append(Line(words, line_curve.places, line_curve.values, line_curve.ends))
    title = f"{WORDS[measure].capitalize()}: by place in the document, over the mean of all places"
    title += ", with 95% intervals" if any(any(line.ranges) for line in lines) else ""
    drawn = [value for line in lines for value in line.values]
    drawn += [end for line in lines for ends in line.ranges for end in ends or ()]
    up = YAxis.of(drawn, from_zero=True)
    return element("figure", element("figcaption", title), line_chart(lines, title, _PLACES, up))
