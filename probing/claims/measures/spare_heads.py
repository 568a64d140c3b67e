"""How many heads can be disabled without harm, and how much a model gains without some head, from runs of `disable`.

There is a measure for each of two readouts: `positions` is the accuracy of position probes of the last layer, `words`
the loss of masked words. A gain is a higher accuracy, or a lower loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from probing.claims.measures.registry import NotMeasurable, Subject, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result
from probing.tables.disabling import at_last_layer, is_head
from probing.tables.readout_names import MLM, POSITION, measure_of


@measure("disabled")
def spare_heads_of_positions(subject: Subject, at_most: float) -> Measured:
    """Return the share of heads without which positions are read as well, one head at a time: see `_spare`."""
    return _spare(subject.run("disabled"), POSITION, at_most)


@measure("disabled_words")
def spare_heads_of_words(subject: Subject, at_most: float) -> Measured:
    """Return the share of heads without which words are predicted as well, one head at a time: see `_spare`."""
    return _spare(subject.run("disabled_words"), MLM, at_most)


@measure("disabled")
def gain_for_positions(subject: Subject) -> Measured:
    """Return how much better positions are read without some head or layer: see `_gain`."""
    return _gain(subject.run("disabled"), POSITION)


@measure("disabled_words")
def gain_for_words(subject: Subject) -> Measured:
    """Return how much better words are predicted without some head or layer: see `_gain`."""
    return _gain(subject.run("disabled_words"), MLM)


def _spare(run: Result, readout: str, at_most: float) -> Measured:
    """Return the share of heads without which little is lost, one head at a time.

    The lower end of the interval counts the heads whose whole interval of the loss is within `at_most`, the upper end
    those for which a part of it is. The control is the share of layers whose heads can all be disabled together at
    such a loss, one layer at a time: at 1, this readout needs the heads of no single layer.

    Args:
        run: The run.
        readout: What is read.
        at_most: The largest loss that counts as little, in units of the readout.
    """
    rows = at_last_layer(run.by_name, readout)
    heads, layers = ([_gained(row, readout) for row in rows if is_head(row) is wanted] for wanted in (True, False))
    if not heads or not layers:
        raise NotMeasurable("a run of `disable` with heads and with layers")

    def share(of: Sequence[Measured], end: str) -> float:
        return sum(getattr(gain, end) >= -at_most for gain in of) / len(of)

    return Measured(share(heads, "value"), share(heads, "low"), share(heads, "high"), share(layers, "value"))


def _gain(run: Result, readout: str) -> Measured:
    """Return the gain in the last layer without some head or without some layer: the larger of the two.

    The head and the layer are those whose removal gains most on one half of the sentences; the gain is measured on the
    other half. The control is its p-value, corrected for the number of comparisons.

    Args:
        run: The run.
        readout: What is read.
    """
    rows = [row for row in run.better_without if row["readout"] == readout]
    last = max((row["layer"] for row in rows), default=0)
    found = [(_gained(row, readout), row) for row in rows if row["layer"] == last]
    if not found:
        raise NotMeasurable("a run of `disable` with more sentences")
    gain, row = max(found, key=lambda pair: pair[0].value)
    return Measured(gain.value, gain.low, gain.high, row["p_value"])


def _gained(row: Any, readout: str) -> Measured:
    """Return the effect of a row with the sign by which more is better."""
    effect = from_row(row, "effect")
    if measure_of(readout).higher_is_better:
        return effect
    return Measured(-effect.value, -effect.high, -effect.low)
