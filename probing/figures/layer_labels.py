"""Which layers are named along an axis where not all names have room."""

from __future__ import annotations

from collections.abc import Sequence


def spaced_layers(layers: Sequence[int], most: int) -> list[int]:
    """Return the layers to name: the first, and each that stands far enough from the one named before it.

    Args:
        layers: Layers that were measured, ascending.
        most: Names that there is room for from the first layer to the last, side by side.
    """
    room = (layers[-1] - layers[0]) / most if layers else 0.0
    named: list[int] = []
    for layer in layers:
        if not named or layer - named[-1] >= room:
            named.append(layer)
    return named
