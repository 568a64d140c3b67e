"""Choose which layers to label along an axis that has no room for all labels."""

from __future__ import annotations

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
