"""What a model loses without a head or a layer: maps of heads, the tables of the terminal, and pruning curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from probing.page.heads import HEAD, HeadMeasure, Place, head_map
from probing.readouts.names import measure_of
from probing.results.rows import Html, element, table
from probing.results.schema import in_brackets, interval
from probing.runs.study import Result, Terms, framed, section_of
from probing.studies.disable.tables import PLACES, Row, at_last_layer, is_head, kinds_of, named, readouts_of

DISABLED: Terms = {
    "head": HEAD,
    "layer": "The heads of a layer are disabled together.",
    **{kind: f"With {place} in its place." for kind, place in PLACES.items() if kind != "skip"},
    "skip": "With the whole block skipped.",
    "*": "The p-value is below .05 after correction for the number of heads or layers (Holm).",
    "without": "The head or the layer that is disabled.",
    "kind": "What stands in its place.",
    "probe as it was": "Effect on the probe that was trained on the whole model.",
    "trained again": "Effect on a probe that is trained on what the changed model gives.",
}

# Of the table of `--prune weights`.
PRUNED: Terms = {
    "pruned": "Share of the weights of each matrix that is 0.",
    "smallest": "The measure without the weights of the smallest magnitude.",
    "random": "The measure without weights drawn at random, as a mean over draws.",
    "change": "Difference from the whole model.",
    "*": DISABLED["*"].replace("heads or layers", "shares"),
}

# Of the table of `--quantise`.
ROUNDED: Terms = {
    "bits": "Number of bits that numbers are rounded to.",
    "rounded": "The weight matrices of blocks, the hidden states that enter them (activations), or both.",
    "scale": "tensor: a whole matrix, or layer, has one scale; channel: each unit, or neuron, has its own.",
    "kept in full": "Neurons of hidden states that are not rounded: outliers, or as many random ones (mean of draws).",
    "value": "The measure of the rounded model.",
    "change": "Difference from the model as it is.",
    "*": DISABLED["*"].replace("heads or layers", "rows"),
}


def disabling_section(made: Result, anchor: str) -> Html:
    """Return what was found, a map of heads for each kind of replacement and readout, and the numbers.

    Args:
        made: The results of `disable`.
        anchor: What the section is linked by.
    """
    of = made.by_name
    return section_of(
        made,
        anchor,
        *(one for readout in readouts_of(of) for one in _maps(at_last_layer(of, readout))),
        *framed(made.tables()),
        *_curves(made.pruning),
    )


def _maps(rows: Sequence[Row]) -> Iterator[Html]:
    heads = [row for row in rows if is_head(row)]
    for kind in kinds_of(heads):
        here = {_place(row): row for row in heads if row["kind"] == kind}
        measure = measure_of(heads[0]["readout"])
        title = f"{named(heads[0]['readout'], heads[0]['layer'])} without the head ({kind}), in {measure.unit}"
        title = title[0].upper() + title[1:]
        caption = element("figcaption", f"{title}; darker where more is lost")
        # No head links to sentences, so that the survey's number is not used.
        yield element("figure", caption, head_map(_measure(here), sorted(here), 0, title, links=False))


def _place(row: Row) -> Place:
    layer, head = map(int, row["unit"].split("-"))
    return layer, head


def _measure(rows: dict[Place, Row]) -> HeadMeasure:
    measure = measure_of(next(iter(rows.values()))["readout"])

    def harm(row: Row) -> float:
        return float(-measure.sign * row["effect"])

    most = max(max(map(harm, rows.values())), 1e-12)

    def text(row: Row) -> str:
        return f"{measure.times * row['effect']:+.{measure.digits}f}"

    def told(row: Row) -> str:
        between = interval(row, between=" to ", form=f"+.{measure.digits}f", times=measure.times)
        return f"{text(row)} {measure.unit}{in_brackets(between)}"

    return HeadMeasure("effect", "", rows, text, lambda row: harm(row) / most, told)


def _curves(rows: Sequence[Row]) -> Iterator[Html]:
    """Yield a table for each readout: what is left at each step, by importance, in reverse and in random orders."""
    for readout, units in dict.fromkeys((row["readout"], row["units"]) for row in rows):
        here = [row for row in rows if (row["readout"], row["units"]) == (readout, units)]
        body: list[list[Any]] = []
        for n in sorted({row["n_disabled"] for row in here}):
            step = [row for row in here if row["n_disabled"] == n]
            by_order = {row["order"]: row["value"] for row in step if row["order"] != "random"}
            drawn = [row["value"] for row in step if row["order"] == "random"]
            between = f"{sum(drawn) / len(drawn):.3f} ({min(drawn):.3f} to {max(drawn):.3f})"
            body.append([n, f"{by_order['importance']:.3f}", f"{by_order['reverse']:.3f}", between])
        head = [f"{units} disabled", "least important first", "most important first", "random orders: mean (range)"]
        what = named(readout, here[0]["layer"])
        caption = f"{what[0].upper()}{what[1:]} as more and more {units} are disabled ({here[0]['kind']})"
        yield element("figure", element("figcaption", caption), table(head, body))
