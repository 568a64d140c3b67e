"""Encoders with and without positions: the verdict, the losses, and what each arm has in each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from probing.page.lines import BY_LAYER, BY_STEP, LOOKS, SHARES, Across, Line, Up, line_chart
from probing.page.terms import ACCURACY, BY_TOKEN
from probing.results.rows import Html, element, table
from probing.runs.study import Result, Terms, framed, section_of
from probing.studies.pretrain.tables import (
    BETTER_THAN_NONE,
    BETTER_THAN_UNIGRAM,
    FREQUENCIES,
    NEXT_FREQUENCIES,
    OUTLIER,
    SEEDS,
    Row,
    frequencies_of,
    is_outlier,
    last_rows,
    predicted_in,
    trainings_of,
)

PRETRAINING: Terms = {
    "arm": "What tells the encoder positions: learned (a table that is trained), none, constant (every token is told "
    "the same position), causal (none, but attention to earlier tokens alone), sinusoidal (a fixed table), rotary, "
    "alibi (scores fall with the distance), relative (a trained number for each distance) or disentangled (trained "
    "embeddings of distances). causal_lm is as causal and predicts the next token; pre_norm and plain_norm are as "
    "learned, with norms before the parts of a block, and with norms without gain and bias.",
    "seed": "Seed of the initial weights, the order of the text and the masks, the same for all arms.",
    "steps": "Number of steps of the optimiser.",
    "loss at first": "The loss before the first step.",
    "loss": "Mean cross-entropy of masked tokens in held-out text (causal_lm: of the next), in nats, after the last "
    "step.",
    FREQUENCIES: "The loss of a model that knows how often each token occurs and nothing else.",
    NEXT_FREQUENCIES: "The same loss of next tokens, which are not only the masked ones.",
    "tokens": "Number of tokens in a row; the first length is usually that of the training.",
    "below it": "How many nats the loss is below that.",
    "verdict": f"On the last checkpoints. Not testable unless learned is better than none by {BETTER_THAN_NONE:g} nats "
    f"and than the frequencies of tokens by {BETTER_THAN_UNIGRAM:g}, for every seed; refuted if none or constant has "
    f"an outlier above the embeddings; confirmed if learned has one for every seed, of at least {SEEDS}; not testable "
    "if learned has none; otherwise unclear.",
    "layer": ACCURACY["layer"],
    "farthest mean, sd": "How far the mean of the farthest neuron is from the mean of all neurons' means, in standard "
    "deviations of these.",
    "outlier": f"The neuron with that mean, if it is beyond {OUTLIER:g} sd.",
    "an outlier is beyond": f"The limit of {OUTLIER:g} sd.",
    "largest in": "Share of the tokens in whose hidden state this neuron is the largest.",
    "smallest in": "Share of the tokens in whose hidden state it is the smallest.",
    "position accuracy": "Share of the test tokens whose position a linear probe predicts correctly.",
    "by the token alone": BY_TOKEN,
    "equivariance": "Largest difference between the states of a token in a row that is read as it is and permuted, in "
    "root mean squares of the layer's states: 0, up to rounding, where nothing tells positions.",
}


def pretraining_section(made: Result, anchor: str) -> Html:
    """Return what the experiment found, its losses, and outliers and positions by layer after the last step.

    Args:
        made: The results of `pretrain`.
        anchor: What the section is linked by.
    """
    end = last_rows(made.arms)
    return section_of(
        made,
        anchor,
        _losses(made),
        element("div", _means(end), _positions(end), class_="panels"),
        *framed(made.tables()),
        element("details", element("summary", "Every arm, seed and layer after the last step"), _every_layer(end)),
    )


def _losses(made: Result) -> Html:
    """Return the held-out loss over the steps, drawn and as numbers, beside that of the frequencies of tokens."""
    lines, body, unigrams = [], [], {}
    for (arm, seed), rows in trainings_of(made.arms).items():
        losses = {row["step"]: row["loss"] for row in rows}
        steps = sorted(losses)
        lines.append(Line(arm, steps, [losses[step] for step in steps], which=f"seed {seed}"))
        first, last, unigram = losses[steps[0]], losses[steps[-1]], rows[0]["unigram_loss"]
        unigrams[frequencies_of(arm)] = unigram
        body.append([arm, seed, steps[-1], *(f"{loss:.3f}" for loss in (first, last, unigram, unigram - last))])
    steps = sorted({row["step"] for row in made.arms})
    references = [Line(name, steps, [loss] * len(steps)) for name, loss in unigrams.items()]
    size = made.results["n_vocabulary"]
    title = (
        f"Loss of {predicted_in(made.arms)} in held-out text, in nats, a line for each seed; a uniform guess has ln "
    )
    title += f"{size:,} = {math.log(size):.2f}"
    head = ["arm", "seed", "steps", "loss at first", "loss", FREQUENCIES, "below it"]
    charts = _charts(lines, references, title, BY_STEP, _up([*lines, *references]))
    return element("figure", element("figcaption", title), *charts, table(head, body))


def _up(lines: Sequence[Line], from_zero: bool = False) -> Up:
    return Up.of((value for line in lines for value in line.values), from_zero)


def _charts(
    lines: Sequence[Line], references: Sequence[Line], title: str, across: Across = BY_LAYER, up: Up = SHARES
) -> list[Html]:  # fmt: skip
    """Return one chart, or several with the same axes where there are more arms than looks of lines."""
    arms = list(dict.fromkeys(line.label for line in lines))
    most = LOOKS - len(references)
    groups = [arms[first : first + most] for first in range(0, len(arms), most)]
    return [
        line_chart([*(line for line in lines if line.label in group), *references], title, across, up)
        for group in groups
    ]


def _means(end: Sequence[Row]) -> Html:
    """Return the farthest mean by layer, beside the distance beyond which it is an outlier."""
    layers = sorted({row["layer"] for row in end})
    lines, limit = _by_layer(end, "max_mean_sd"), Line("an outlier is beyond", layers, [OUTLIER] * len(layers))
    title = "Farthest mean of a neuron after the last step, in sd, by layer"
    charts = _charts(lines, [limit], title, up=_up([*lines, limit], from_zero=True))
    return element("figure", element("figcaption", title), *charts)


def _positions(end: Sequence[Row]) -> Html:
    """Return how well positions are read off by layer."""
    title = "Accuracy of position by a linear probe after the last step, by layer"
    return element("figure", element("figcaption", title), *_charts(_by_layer(end, "position_accuracy"), [], title))


def _by_layer(end: Sequence[Row], column: str) -> list[Line]:
    """Return a line for each arm and seed."""
    return [
        Line(arm, [row["layer"] for row in rows], [row[column] for row in rows], which=f"seed {seed}")
        for (arm, seed), rows in trainings_of(end).items()
    ]


def _every_layer(end: Sequence[Row]) -> Html:
    """Return a table of outliers, positions and equivariance."""
    head = [
        "arm", "seed", "layer", "farthest mean, sd", "outlier", "largest in", "smallest in", "position accuracy",
        "by the token alone", "equivariance",
    ]  # fmt: skip
    body: list[list[Any]] = [
        [
            arm, seed, row["layer"], f"{row['max_mean_sd']:.2f}",
            f"neuron {row['outlier_neuron']}" if is_outlier(row) else "none",
            *(f"{row[name]:.3f}" for name in ("argmax_share", "argmin_share", "position_accuracy", "token_accuracy")),
            f"{row['equivariance']:.1e}",
        ]
        for (arm, seed), rows in trainings_of(end).items()
        for row in rows
    ]  # fmt: skip
    return table(head, body)
