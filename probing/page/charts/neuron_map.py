"""A map of every neuron of every layer as an image of shades in the page's own colour."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from probing.page.packing import shades
from probing.page.sources import Subject
from probing.results.markup import Html, element

# Contributions from a tenth of the layer's mean to ten times it, on a logarithmic scale.
LOW, HIGH = 0.1, 10.0
WIDEST = 920
# Height of all layers together, unless rows would become too low or too high.
HEIGHT, LOWEST_ROW, HIGHEST_ROW = 240, 18, 30


def neuron_map(subject: Subject, title: str) -> Html:
    """Return the map with its axes and scale."""
    layers, d_model = subject.layers, subject.d_model
    cell = max(1, min(24, WIDEST // d_model))
    row = max(LOWEST_ROW, min(HIGHEST_ROW, HEIGHT // len(layers)))
    size = f"width:{cell * d_model}px;height:{row * len(layers)}px"
    image = f"{size};mask-image:url({shades(ratio_shades(ratios(subject)))})"
    names = [element("span", layer) for layer in layers]
    every = next(step for step in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, d_model) if step * cell >= 60)
    ticks = [element("span", neuron, style=f"left:{cell * (neuron + 0.5):g}px") for neuron in range(0, d_model, every)]
    field = element(
        "div", element("div", class_="shades", style=image),
        class_="field", role="img", aria_label=title, style=size,
    )  # fmt: skip
    axes = element("div", *ticks, class_="ticks", aria_hidden="true", style=f"width:{cell * d_model}px")
    return element(
        "div",
        element(
            "div",
            element("div", *names, class_="layers", aria_hidden="true", style=f"grid-auto-rows:{row}px"),
            element("div", field, axes),
            class_="map",
        ),
        class_="scroll",
    )


def scale() -> Html:
    """Return the scale of the shades."""
    return element(
        "p",
        element("span", f"{LOW:g}"),
        element("span", class_="ramp"),
        element("span", f"{HIGH:g}"),
        element("span", "× the layer's mean contribution, logarithmic"),
        class_="scale",
    )


def ratios(subject: Subject) -> NDArray[np.float64]:
    """Return contributions in multiples of the layer's mean, by neuron, shape (n_layers, d_model)."""
    values = np.zeros((len(subject.layers), subject.d_model))
    for i, rows in enumerate(subject.ranked.values()):
        for row in rows:
            values[i, row["neuron"]] = row["ratio"]
    return values


def ratio_shades(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shade of each ratio, 0 for a tenth of the mean and less, 1 for ten times it and more."""
    return (np.log(np.clip(values, LOW, HIGH)) - np.log(LOW)) / (np.log(HIGH) - np.log(LOW))
