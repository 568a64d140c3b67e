"""Numbers and lists as people read them in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def two_decimals(value: float) -> str:
    """Return a number with two decimals, and 0 without a sign."""
    return f"{round(value, 2) + 0.0:.2f}"


def listed(items: Sequence[object]) -> str:
    """Return items as a list in a sentence."""
    *first, last = map(str, items)
    return f"{', '.join(first)} and {last}" if first else last


def layers_named(layers: Sequence[int]) -> str:
    """Return layers, ascending, with their noun; several in a row by the first and the last."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    in_a_row = len(layers) > 2 and layers[-1] - layers[0] == len(layers) - 1
    return f"layers {layers[0]} to {layers[-1]}" if in_a_row else f"layers {listed(layers)}"


def count(n: int, one: str, many: str = "") -> str:
    """Return a number with its noun."""
    return f"{n:,} {one if n == 1 else many or one + 's'}"
