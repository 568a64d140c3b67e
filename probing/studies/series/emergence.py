"""The checkpoint from which on each quantity stays past its threshold: loss, position, position heads, outliers.

This is the first checkpoint such that the quantity is past its threshold there and at all later checkpoints. The
quantity emerged between this checkpoint and the one before; if it is the first of the series, before the series begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.studies.series.tables import HEADS, LOSS, LOST, OUTLIERS, POSITION, UNIGRAM

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Thresholds:
    """The thresholds past which a quantity counts as present.

    Args:
        loss: Nats by which the held-out loss is below that of a model of token frequencies, or, where that is not
            known, below that of the first checkpoint.
        position: Accuracy of the position probe above that of one that sees the token alone: lower end of the interval.
        outliers: Standard deviations between the mean of a neuron and the mean of the neurons' means.
    """

    loss: float = 1.0
    position: float = 0.05
    outliers: float = 5.0


@dataclass(frozen=True)
class Course:
    """A quantity over the checkpoints of a series.

    Args:
        values: Its value at each checkpoint; NaN where it was not measured.
        is_past: Whether it is past its threshold there.
    """

    values: Sequence[float]
    is_past: Sequence[bool]

    def row(self, steps: Sequence[int]) -> dict[str, Any]:
        """Return when it came, as in `emergence.csv`.

        Args:
            steps: The step of each checkpoint, ascending.
        """
        found: dict[str, Any] = {"first_value": self.values[0], "last_value": self.values[-1]}
        if any(self.is_past):
            found["first_seen"] = steps[self.is_past.index(True)]
        if (at := stays_from(self.is_past)) is not None:
            found["step"] = steps[at]
            if at:
                found["step_before"] = steps[at - 1]
                found["half_step"] = steps[self._half()]
        return found

    def _half(self) -> int:
        """Return the index of the checkpoint from which on at least half of the change over the series is made."""
        first, last = self.values[0], self.values[-1]
        middle, sign = (first + last) / 2, 1 if last >= first else -1
        at = stays_from([sign * value >= sign * middle for value in self.values])
        return len(self.values) - 1 if at is None else at


def stays_from(is_past: Sequence[bool]) -> int | None:
    """Return the index from which on all are true; None if the last one is not."""
    at = len(is_past)
    while at and is_past[at - 1]:
        at -= 1
    return at if at < len(is_past) else None


def emergence(
    rows: Sequence[Row], deviations: Sequence[Mapping[int, Sequence[float]]], steps: Sequence[int],
    thresholds: Thresholds,
) -> Rows:  # fmt: skip
    """Return the rows of `emergence.csv`: when each quantity came to stay, by layer, for outliers also by neuron.

    Args:
        rows: Rows of `series.csv`.
        deviations: For each checkpoint by layer how far each neuron's mean is from the others', in sd.
        steps: The step of each checkpoint, ascending.
        thresholds: The thresholds past which a quantity counts as present.
    """
    return [
        *_loss(rows, steps, thresholds.loss),
        *_by_layer(
            rows, steps, (POSITION, "above_token", thresholds.position),
            lambda row: _lower_end(row) > thresholds.position,
        ),
        *_by_layer(rows, steps, (HEADS, "n_position_heads", 1.0), lambda row: row["value"] >= 1),
        *_outliers(deviations, steps, thresholds.outliers),
    ]  # fmt: skip


def _loss(rows: Sequence[Row], steps: Sequence[int], nats: float) -> Iterator[dict[str, Any]]:
    """Yield the row of the held-out loss, if every checkpoint has one."""
    losses, unigram = (
        {row["step"]: row["value"] for row in rows if row["measure"] == name} for name in (LOST, UNIGRAM)
    )
    if set(losses) != set(steps):
        return
    values = [losses[step] for step in steps]
    threshold = unigram.get(steps[-1], values[0]) - nats
    course = Course(values, [value <= threshold for value in values])
    yield {"quantity": LOSS, "measure": LOST, "threshold": threshold, **course.row(steps)}


def _lower_end(row: Row) -> float:
    """Return the lower end of a number's interval, or the number itself where the text is too short for one."""
    low = row.get("low", math.nan)
    return float(row["value"] if math.isnan(low) else low)


def _by_layer(
    rows: Sequence[Row], steps: Sequence[int], what: tuple[str, str, float], is_past: Callable[[Row], bool]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each layer.

    Args:
        rows: Rows of `series.csv`.
        steps: The step of each checkpoint.
        what: The quantity, its measure in the rows, and its threshold.
        is_past: Whether a row is past the threshold.
    """
    quantity, measure, threshold = what
    here = {(row["step"], row["layer"]): row for row in rows if row["measure"] == measure}
    for layer in sorted({layer for _, layer in here}):
        found = [here.get((step, layer)) for step in steps]
        values = [math.nan if row is None else row["value"] for row in found]
        course = Course(values, [row is not None and is_past(row) for row in found])
        yield {"quantity": quantity, "layer": layer, "measure": measure, "threshold": threshold, **course.row(steps)}


def _outliers(
    deviations: Sequence[Mapping[int, Sequence[float]]], steps: Sequence[int], threshold: float
) -> Iterator[dict[str, Any]]:
    """Yield a row for each layer and neuron that is an outlier at some checkpoint, or one for a layer without any."""
    for layer in sorted({layer for one in deviations for layer in one}):
        of_layer = [one.get(layer, ()) for one in deviations]
        about = {"quantity": OUTLIERS, "layer": layer, "measure": "deviation", "threshold": threshold}
        neurons = sorted({k for values in of_layer for k, value in enumerate(values) if abs(value) > threshold})
        for k in neurons:
            values = [here[k] if k < len(here) else math.nan for here in of_layer]
            yield {**about, "neuron": k, **Course(values, [abs(value) > threshold for value in values]).row(steps)}
        if not neurons:
            yield about
