"""The axes of a line chart: layers or steps along it, shares or other values up it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from probing.figures import step_axis
from probing.figures.layer_labels import spaced_layers

# Labels of layers, and characters of the labels of steps, that fit side by side.
MOST_LAYERS, CHARACTERS = 26, 68
# Most intervals between the ticks of an axis of values.
MOST_TICKS = 6


@dataclass(frozen=True)
class Across:
    """The x axis.

    Args:
        unit: What one of the numbers along it is called.
        name: Returns what stands below the axis, from the numbers.
        places: Returns where the numbers stand, in any unit.
        labels: Returns the label of each number, empty where there is no room for it.
    """

    unit: str
    name: Callable[[Sequence[int]], str]
    places: Callable[[Sequence[int]], Sequence[float]]
    labels: Callable[[Sequence[int]], Sequence[str]]


@dataclass(frozen=True)
class Up:
    """The y axis.

    Args:
        low: Value at its lower end.
        high: Value at its upper end.
        ticks: Values that are labelled.
    """

    low: float
    high: float
    ticks: Sequence[float]

    @classmethod
    def of(cls, values: Iterable[float], from_zero: bool = False) -> Up:
        """Return an axis with round ends that holds all values."""
        finite = [value for value in values if math.isfinite(value)] or [0.0]
        least, most = min(finite), max(finite)
        least = min(least, 0.0) if from_zero else least
        step = _round_step(most - least or abs(most) or 1.0)
        first, last = math.floor(least / step), math.ceil(most / step)
        ticks = [i * step for i in range(first, max(last, first + 1) + 1)]
        return cls(ticks[0], ticks[-1], ticks)


def _round_step(span: float) -> float:
    """Return a distance of 1, 2 or 5 times a power of ten that is at most so many times in a span."""
    least = span / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(least))
    return next(times * power for times in (1, 2, 5, 10) if times * power >= least)


def _spaced(layers: Sequence[int]) -> list[str]:
    named = spaced_layers(layers, MOST_LAYERS)
    return [str(layer) if layer in named else "" for layer in layers]


SHARES = Up(0.0, 1.0, (0, 0.25, 0.5, 0.75, 1))
BY_LAYER = Across("layer", lambda layers: "layer (0 = embeddings)", lambda layers: layers, _spaced)
BY_STEP = Across("step", step_axis.name, step_axis.coordinates, lambda steps: step_axis.labels(steps, CHARACTERS))
