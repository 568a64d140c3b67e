"""Encoders with and without positions: the verdict, the losses, and what each arm has in each layer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from probing.page.charts.axes import BY_STEP, Up
from probing.page.charts.line_chart import Line, line_chart
from probing.results.markup import Html, as_in_terminal, element, table
from probing.runs.result import Result
from probing.tables.pretraining import FREQUENCIES, OUTLIER, Row, is_outlier, last_rows, trainings_of


def pretraining_section(made: Result, anchor: str) -> Html:
    """Return what the experiment found, its losses, and outliers and positions by layer after the last step.

    Args:
        made: The results of `pretrain`.
        anchor: What the section is linked by.
    """
    end = last_rows(made.arms)
    return element(
        "section",
        element("h2", made.study.heading(made)),
        *(element("p", sentence) for sentence in made.conclusions()),
        _losses(made),
        element("div", _means(end), _positions(end), class_="panels"),
        *(element("figure", element("figcaption", one.title), as_in_terminal(one)) for one in made.tables()),
        element("details", element("summary", "Every arm, seed and layer after the last step"), _every_layer(end)),
        id=anchor,
    )


def _losses(made: Result) -> Html:
    """Return the held-out loss over the steps, drawn and as numbers, beside that of the frequencies of tokens."""
    lines, body = [], []
    for (arm, seed), rows in trainings_of(made.arms).items():
        losses = {row["step"]: row["loss"] for row in rows}
        steps = sorted(losses)
        lines.append(Line(arm, steps, [losses[step] for step in steps], which=f"seed {seed}"))
        first, last, unigram = losses[steps[0]], losses[steps[-1]], rows[0]["unigram_loss"]
        body.append([arm, seed, steps[-1], *(f"{loss:.3f}" for loss in (first, last, unigram, unigram - last))])
    steps = sorted({row["step"] for row in made.arms})
    lines.append(Line(FREQUENCIES, steps, [made.arms[0]["unigram_loss"]] * len(steps)))
    size = made.results["n_vocabulary"]
    title = f"Loss of masked tokens in held-out text, in nats, a line for each seed; a uniform guess has ln {size:,}"
    title += f" = {math.log(size):.2f}"
    up = Up.of(value for line in lines for value in line.values)
    head = ["arm", "seed", "steps", "loss at first", "loss", FREQUENCIES, "below it"]
    return element("figure", element("figcaption", title), line_chart(lines, title, BY_STEP, up), table(head, body))


def _means(end: Sequence[Row]) -> Html:
    """Return the farthest mean by layer, beside the distance beyond which it is an outlier."""
    layers = sorted({row["layer"] for row in end})
    lines = [*_by_layer(end, "max_mean_sd"), Line("an outlier is beyond", layers, [OUTLIER] * len(layers))]
    up = Up.of((value for line in lines for value in line.values), from_zero=True)
    title = "Farthest mean of a neuron after the last step, in sd, by layer"
    return element("figure", element("figcaption", title), line_chart(lines, title, up=up))


def _positions(end: Sequence[Row]) -> Html:
    """Return how well positions are read off by layer."""
    title = "Accuracy of position by a linear probe after the last step, by layer"
    return element("figure", element("figcaption", title), line_chart(_by_layer(end, "position_accuracy"), title))


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
