"""The checkpoints of a training: what came first, and each measure over the steps."""

from __future__ import annotations

from collections.abc import Sequence

from probing.page.lines import BY_STEP, LOOKS, Line, Up, line_chart
from probing.page.terms import ACCURACY, BY_TOKEN
from probing.results.rows import Html, element
from probing.runs.study import Result, Terms, framed, section_of
from probing.studies.series.tables import Panel, Tables, course, first_rows, layers_of, panels

SERIES_TERMS: Terms = {
    "step": "Number of steps of the training, from the name of the checkpoint.",
    "loss": "Mean loss on held-out text, in nats, as the training wrote it.",
    "token frequencies": "The loss of a model that knows how often each token occurs and nothing else.",
    "position": "Accuracy of a linear probe of position.",
    "95% range": "Confidence interval of that accuracy over sentences.",
    "token, the token alone": BY_TOKEN,
    "cosine": "Mean cosine of the hidden states of two tokens.",
    "outliers": "Number of neurons whose mean is far from the means of the others.",
    "largest": "The farthest mean, in standard deviations of the means, with its layer and neuron.",
    "heads": "Number of heads that give more than half of their attention to one offset, or attend there most of all "
    "in 90% of the queries.",
    "strongest": "Most that a head gives to one offset, with the layer and the head.",
    "special": "Share of the attention that goes to special tokens.",
    "same as": "The last checkpoint that is the same model, where there is a later one.",
    "quantity": "What comes: loss, position, position heads or outliers. It is there where its measure is past its "
    "threshold.",
    "threshold": "From where on a quantity is there.",
    "layer": ACCURACY["layer"],
    "neuron": "Coordinate of the hidden state.",
    "first seen": "First step at which the quantity was there.",
    "not at": "Last step at which it was not there before it came to stay.",
    "stays from": "First step from which it is there in every later checkpoint.",
    "half way": "First step from which at least half of its change over the series is made.",
    "first": "Its measure at the first checkpoint.",
    "last": "Its measure at the last checkpoint.",
}

# Looks of a chart that are left for what a measure is compared with, and for its threshold.
_BESIDE = 2


def series_section(made: Result, anchor: str) -> Html:
    """Return what came first, the measures over the steps, and the tables of the terminal.

    Args:
        made: The results of `series`.
        anchor: What the section is linked by.
    """
    return section_of(
        made,
        anchor,
        *framed(made.tables()),
        element("div", *(_chart(made.by_name, panel) for panel in panels(made.by_name)), class_="panels"),
    )


def _chart(made: Tables, panel: Panel) -> Html:
    """Return a measure over the steps, with what it is compared with and its threshold."""
    steps = sorted({row["step"] for row in made["series"] if not row.get("same_as")})
    spread, layers = _spread(layers_of(made), LOOKS - _BESIDE), layers_of(made, panel.measure)
    drawn = [layer for layer in spread if layer in layers]
    lines = [Line(_named(layer), *course(made, panel.measure, layer)) for layer in drawn]
    of_model = course(made, panel.measure)
    lines += [Line("the model", *of_model)] if of_model[0] else []
    compared = panel.compared(made)
    lines += [Line(panel.beside[1], *compared)] if panel.beside and compared[0] else []
    if (threshold := panel.threshold(made)) is not None:
        lines.append(Line("threshold", steps, [threshold] * len(steps)))
    title = f"{panel.title[0].upper()}{panel.title[1:]} over the steps, in {panel.unit}"
    title += f"; {len(drawn)} of {len(layers)} layers" if len(drawn) < len(layers) else ""
    if rows := first_rows(made).get(panel.quantity or ""):
        title += f"; past its threshold for good from step {rows[0]['step']:,} on"
    up = Up.of((value for line in lines for value in line.values), panel.from_zero)
    chart = line_chart(lines, title, BY_STEP, up, labels=[_named(layer) for layer in spread])
    return element("figure", element("figcaption", title), chart)


def _named(layer: int) -> str:
    return f"layer {layer}"


def _spread(layers: Sequence[int], most: int) -> list[int]:
    """Return at most so many layers at equal distances, the first and the last among them."""
    if len(layers) <= most:
        return list(layers)
    return [layers[round(i * (len(layers) - 1) / (most - 1))] for i in range(most)]
