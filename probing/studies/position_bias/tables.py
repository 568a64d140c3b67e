"""Tables and sentences of `position-bias`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probing.results import (
    Row,
    Schema,
    Table,
    View,
    ends,
    estimate,
    estimated,
    in_brackets,
    interval,
    number,
    shown,
    sign_of_interval,
    text,
    whole,
)
from probing.statistics import few_sentences
from probing.tables.figures import Chart, Line, Panel, XAxis, spaced_layers

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
    MODEL: "unchanged", BAG: "bag of words", CENTRED: "mean subtracted", POSITION: "position parts subtracted",
    RANDOM: "random neurons fixed", NEURONS: "position neurons fixed",
}  # fmt: skip
AGAINST = {CENTRED: MODEL, POSITION: CENTRED, RANDOM: MODEL, NEURONS: RANDOM}

SENTENCES = {
    "answer": "In embeddings of {model}, the start of a document {verdict}: {edit} at the start moves the embedding by "
    "{at_start:.4f} (1 - cosine), at the end by {at_end:.4f}, with the same sentences at both ends{difference}.",
    "null": "Relative bias of the model, compared with a bag of word embeddings, which has no positions: {model} and "
    "{bag} if sentences are shuffled; {model_as_written} and {bag_as_written} as written, where the first sentence may "
    "contain more information.",
    "middle": "Start compared with the middle, sentences shuffled: {start:.4f} and {middle:.4f}{difference}; in the "
    "bag of words {bag_start:.4f} and {bag_middle:.4f}.",
    "weights": "In a least-squares fit, the weight of the first sentence is {at_start:.2f} times its share of the "
    "tokens and the weight of the last one {at_end:.2f} times{difference}; the weighted sum of the embeddings of the "
    "sentences explains {explained:.0%} of the embedding of a document.",
    "correction": "Relative bias with {correction}: {relative}; compared with {baseline}, {verdict} ({change}).",
    "correlation": "On {set}, Spearman's correlation of cosines and human scores is {spearman:.4f}; it changes by "
    "{changes}.",
    "change": "{difference} with {correction}, compared with {baseline}",
}
_VERDICTS = {
    1: "has more weight than its end", -1: "has less weight than its end",
    0: "is not shown to have more or less weight than its end",
}  # fmt: skip
_UNTESTED = "is not tested against its end, because there are too few documents"
_CHANGED = {1: "it increases", -1: "it decreases", 0: "no change is resolved"}
_CORRECTIONS = {
    CENTRED: "one mean vector subtracted from all embeddings", POSITION: "the part of each position subtracted, too",
    RANDOM: "random neurons fixed at their mean (mean over draws)",
    NEURONS: "the neurons that encode position most fixed at their mean",
}  # fmt: skip
_BASELINES = {MODEL: "the model", CENTRED: "the mean alone subtracted", RANDOM: "as many random neurons"}

_EMBEDDING = text(
    "embedding", "Vector of a text: `model`, the unchanged embedding of the model; `bag`, the mean of its word "
    "embeddings, without positions and without the model's blocks, as the null; `centred`, the embedding minus the "
    "mean of all tokens; `position_removed`, minus that mean and the position part of each token; `random_held` and "
    "`neurons_held`, with random neurons fixed at their mean (mean over draws), and with the neurons that encode "
    "position most.", "vector", labels=EMBEDDINGS,
)  # fmt: skip
_MEASURE = text(
    "measure", "What is measured at each place: how far the vector moves, as 1 minus the cosine, if a sentence is "
    "replaced, deleted or inserted there; or the weight of the sentence there in a least-squares fit of the document's "
    "vector, 1 for a sentence whose weight is its share of the tokens.", labels=MEASURES,
)  # fmt: skip
_ORDER = text(
    "order", "Order of the sentences of a document: as written, or shuffled, which is the mean of a random order and "
    "of its reverse, so that the same sentences are at both ends.", labels=ORDERS,
)  # fmt: skip
BIAS = Schema("bias", "a row per measure, order and vector", (
    _MEASURE, _ORDER, _EMBEDDING,
    number("at_start", "The measure at the first place.", "start", form=".4f"),
    number("at_middle", "In the middle: at the middle place, or the mean of both.", "middle", form=".4f"),
    number("at_end", "At the last place.", "end", form=".4f"),
    estimate("start_end", "Start minus end, paired by document: above 0, the start has more weight.", "start - end",
             "+.4f"),
    number("start_end_p", "p-value of a difference of 0 (Student's t over documents, as the interval); not corrected "
           "for several measures.", "p", ".2g"),
    estimate("start_middle", "Start minus middle, paired by document.", "start - middle", "+.4f"),
    number("start_middle_p", "Its p-value.", "p (middle)", ".2g"),
    estimate("relative", "Start minus end, divided by the mean of all places, so that vectors can be compared: +.5 if "
             "the start exceeds the end by half of the mean.", "bias", "+.3f"),
    text("against", "The vectors with which these are compared.", "baseline", labels=EMBEDDINGS),
    estimate("relative_difference", "Relative bias minus the relative bias of the vectors in `against`, paired by "
             "document.", "change", "+.3f"),
    number("least", "Of random neurons: least relative bias of a draw.", form="+.3f"),
    number("most", "Of random neurons: largest relative bias of a draw.", form="+.3f"),
    whole("n_documents", "Number of documents.", "documents"),
))  # fmt: skip
PLACES = Schema("places", "a row per measure, order, vector and place in the document", (
    _MEASURE, _ORDER, _EMBEDDING,
    whole("position", "Place of the sentence in the document, from 1; a sentence is inserted before the sentence at "
          "this place, or at the end.", "place"),
    number("value", "The measure there, mean over documents; low, high: its 95% interval.", form=".4f", interval=""),
    whole("n_documents", "Number of documents.", "documents"),
))  # fmt: skip
SIMILARITY = Schema("similarity", "a row per set of sentence pairs and vector", (
    text("set", "The set of pairs with human scores."), _EMBEDDING,
    number("spearman", "Spearman's correlation of cosines and scores, over all pairs; low, high: its 95% interval over "
           "pairs.", form=".4f", interval=""),
    text("against", "The vectors with which these are compared.", "baseline", labels=EMBEDDINGS),
    estimate("difference", "Correlation minus the correlation of the vectors in `against`, paired by pair of "
             "sentences.", form="+.4f"),
    whole("n_pairs", "Number of pairs.", "pairs"),
), optional=True)  # fmt: skip

VIEWS = (
    View(BIAS, ("measure", "at_start", "at_middle", "at_end", "start_end*", "start_end_p"),
         "The embedding of the model, sentences {order}", "order", {"embedding": MODEL}),
    View(BIAS, ("embedding", "relative*", "relative_difference*"), "Relative bias of all vectors, sentences shuffled: "
         "{measure}", "measure", {"order": SHUFFLED}),
    View(SIMILARITY, ("set", "embedding", "spearman", "difference*"),
         "Similar sentences: Spearman's correlation of cosines and human scores"),
)  # fmt: skip


def answer(bias: Table, model: str) -> list[str]:
    """Return whether the start has more weight than the end, with the same sentences at both."""
    (row,) = bias.where(measure=bias[0]["measure"], order=SHUFFLED, embedding=MODEL)
    verdict = _VERDICTS[sign_of_interval(row, "start_end")] if ends(row, "start_end") else _UNTESTED
    edit, difference = WORDS[row["measure"]], _difference(row, "start_end")
    return [SENTENCES["answer"].format(**row, model=model, verdict=verdict, edit=edit, difference=difference)]


def _difference(row: Row, of: str, form: str = "+.4f") -> str:
    p = BIAS[f"{of}_p"].show(row)
    return in_brackets(f"difference {shown(row[of], form)}", interval(row, of, " to ", form), f"p = {p}" if p else "")


def conclusions(bias: Table, pairs: Table, results: Mapping[str, Any]) -> Iterator[str]:
    """Yield the null, the middle, the weights, and the effect of each correction."""
    rows = {(row["embedding"], row["order"]): row for row in bias.where(measure=bias[0]["measure"])}
    model, bag = rows[MODEL, SHUFFLED], rows[BAG, SHUFFLED]
    relative = {key: estimated(row, "relative", "+.3f") for key, row in rows.items()}
    yield SENTENCES["null"].format(
        model=relative[MODEL, SHUFFLED], bag=relative[BAG, SHUFFLED],
        model_as_written=relative[MODEL, AS_WRITTEN], bag_as_written=relative[BAG, AS_WRITTEN],
    )  # fmt: skip
    yield SENTENCES["middle"].format(
        start=model["at_start"], middle=model["at_middle"], difference=_difference(model, "start_middle"),
        bag_start=bag["at_start"], bag_middle=bag["at_middle"],
    )  # fmt: skip
    (weights,) = bias.where(measure=WEIGHT, order=SHUFFLED, embedding=MODEL)
    explained, difference = results["explained"][SHUFFLED], _difference(weights, "start_end", "+.2f")
    yield SENTENCES["weights"].format(**weights, explained=explained, difference=difference)
    for name, baseline in AGAINST.items():
        if row := rows.get((name, SHUFFLED)):
            tested = ends(row, "relative_difference")
            yield SENTENCES["correction"].format(
                correction=_CORRECTIONS[name], relative=shown(row["relative"], "+.3f"), baseline=_BASELINES[baseline],
                verdict=_CHANGED[sign_of_interval(row, "relative_difference")] if tested else "not tested",
                change=", ".join(filter(None, [
                    shown(row["relative_difference"], "+.3f"), interval(row, "relative_difference", " to ", "+.3f"),
                ])),
            )  # fmt: skip
    for name, rows_of_set in pairs.by("set").items():
        changes = [
            SENTENCES["change"].format(
                difference=estimated(row, "difference", "+.4f"), correction=_CORRECTIONS[row["embedding"]],
                baseline=_BASELINES[row["against"]],
            )
            for row in rows_of_set.where(embedding=tuple(AGAINST))
        ]  # fmt: skip
        (row,) = rows_of_set.where(embedding=MODEL)
        yield SENTENCES["correlation"].format(set=name, spearman=row["spearman"], changes="; ".join(changes))
    if few := few_sentences(model["n_documents"], "document"):
        yield few


# The lines of a chart, from the vectors and the order of sentences.
LINES = {
    (MODEL, SHUFFLED): "model, shuffled",
    (MODEL, AS_WRITTEN): "model, as written",
    (BAG, SHUFFLED): "bag of words, shuffled",
}
BY_PLACE = XAxis(
    "place", lambda places: "place of the sentence (1 = first)", lambda places: places,
    lambda places, _: [str(place) if place in spaced_layers(places, 12) else "" for place in places],
)  # fmt: skip


def charts(rows: Table) -> list[Chart]:
    """Return what an edit changes, and the weight of a sentence, by place: a panel for each measure."""
    panels = [
        Panel(
            [_line(of_measure, *which) for which in LINES], WORDS[measure],
            "relative to the mean of all places", True,
        )
        for measure, of_measure in rows.by("measure").items()
    ]  # fmt: skip
    title = "weight of each place of a document in its embedding (bars: 95% over documents)"
    return [Chart("position_bias", title, panels, x=BY_PLACE, reference=1)]


def _line(rows: Table, embedding: str, order: str) -> Line:
    """Return the line of some vectors, over its mean of all places; all 0 if the mean is 0."""
    shown_rows = rows.where(embedding=embedding, order=order)
    mean = sum(shown_rows.column("value")) / len(shown_rows)
    return Line.of(shown_rows, "value", LINES[embedding, order], "", "position", 1 / mean if mean else 0.0)
