"""Axes of layers, which label as many as there is room for, and of the steps of a training, with step 0 apart."""

from __future__ import annotations

import math
from collections.abc import Sequence


def spaced_layers(layers: Sequence[int], most: int) -> list[int]:
    """Return the layers to label: the first, and each that is far enough from the last labelled one.

    Args:
        layers: Layers that were measured, ascending.
        most: Number of labels that fit side by side between the first and the last layer.
    """
    room = (layers[-1] - layers[0]) / most if layers else 0.0
    named: list[int] = []
    for layer in layers:
        if not named or layer - named[-1] >= room:
            named.append(layer)
    return named


# Least distance between two labels, in characters; distance between step 0 and the next step, as a share of the
# distance from there to the last step; and the least such distance, in powers of ten.
_BETWEEN, _APART, _LEAST_APART = 1.5, 0.12, 0.3


def coordinates(steps: Sequence[int]) -> list[float]:
    """Return where each step stands on a logarithmic axis; step 0, which has no logarithm, stands apart on the left.

    Args:
        steps: Distinct steps, ascending.
    """
    positive = [math.log10(step) for step in steps if step > 0]
    if len(positive) == len(steps):
        return positive
    if not positive:
        return [0.0] * len(steps)
    return [positive[0] - max(_LEAST_APART, _APART * (positive[-1] - positive[0])), *positive]


def labels(steps: Sequence[int], n_characters: float) -> list[str]:
    """Return the label of each step, such as 143k; empty where there is no room beside the one before and the last.

    Args:
        steps: Distinct steps, ascending.
        n_characters: Length of the axis, in characters.
    """
    at, names = coordinates(steps), [short(step) for step in steps]
    width, end = (at[-1] - at[0]) / n_characters, len(steps) - 1

    def fit(i: int, j: int) -> bool:
        return at[j] - at[i] >= width * ((len(names[i]) + len(names[j])) / 2 + _BETWEEN)

    named = [0]
    for i in range(1, len(steps)):
        if fit(named[-1], i) and (i == end or fit(i, end)):
            named.append(i)
    return [name if i in named else "" for i, name in enumerate(names)]


def name(steps: Sequence[int]) -> str:
    """Return the name of the axis, with how it is scaled."""
    return f"step (logarithmic{', 0 apart' if 0 in steps else ''})"


def short(step: int) -> str:
    """Return a step in few letters: 143000 as 143k."""
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if step >= size and step % (size // 10) == 0:
            return f"{step / size:g}{unit}"
    return str(step)
