"""Columns, tables and sentences of `checkpoints`, for files and the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probing.results import Schema, interval, number, text, whole
from probing.tables.schema import layer_column, value

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]


# Quantities for which tables and sentences say when they emerged.
LOSS, POSITION, HEADS, OUTLIERS = "loss", "position", "position heads", "outliers"
# Measures that the training itself wrote for its checkpoints.
LOST, UNIGRAM = "held_out_loss", "unigram_loss"


@dataclass(frozen=True)
class Panel:
    """Measure in figures, over the steps, with its title and unit.

    `quantity` emerges where the measure passes a threshold; `beside` is a measure of the last layer to compare with.
    """

    measure: str
    title: str
    unit: str
    quantity: str | None = None
    beside: tuple[str, str] | None = None
    from_zero: bool = True

    def threshold(self, rows_by_table: Tables) -> float | None:
        """Return the threshold of the quantity, if it is in the unit of the axis."""
        if self.quantity not in (LOSS, OUTLIERS):
            return None
        return next((row["threshold"] for row in rows_by_table["emergence"] if row["quantity"] == self.quantity), None)

    def compared(self, rows_by_table: Tables) -> tuple[list[int], list[float]]:
        """Return the steps and values of the compared measure; empty without any."""
        if self.beside is None:
            return [], []
        layers = layers_of(rows_by_table, self.beside[0])
        return course(rows_by_table, self.beside[0], layers[-1] if layers else None)


PANELS = (
    Panel(LOST, "held-out loss", "nats per token", LOSS, (UNIGRAM, "token frequencies"), from_zero=False),
    Panel("accuracy", "position by a linear probe", "test accuracy", POSITION, ("token_accuracy", "the token alone")),
    Panel("offset_mass", "strongest head at a fixed offset", "share of attention", HEADS),
    Panel("largest_deviation", "farthest mean of a neuron", "sd of the means", OUTLIERS),
    Panel("mean_cosine", "anisotropy", "mean cosine", from_zero=False),
    Panel("special_mass", "attention to special tokens", "share of attention"),
)

# What a quantity is at its threshold, as the beginning of a sentence.
_IS_THERE = {
    LOSS: "The held-out loss is at most {threshold:.2f} nats",
    POSITION: "A probe reads positions better than one that sees the token alone, by more than {points:.0f} points",
    HEADS: "A head attends to a fixed offset (over half of its attention, or most in 90% of the queries)",
    OUTLIERS: "The mean of a neuron is more than {threshold:g} sd from the others'",
}
# Columns of the table of when each quantity came, and their headings.
_STEPS = {
    "layer": "layer", "neuron": "neuron", "first_seen": "first seen", "step_before": "not at", "step": "stays from",
    "half_step": "half way",
}  # fmt: skip
# Most rows of the table of when each quantity came.
_SHOWN = 30


def series_name(model: str, revision: str | None) -> str:
    """Return the model on the hub, or the parent folder of local checkpoints (`revision` is None)."""
    return model.rsplit("/", 1)[-1] if revision else Path(model).absolute().parent.name


def panels(rows_by_table: Tables) -> list[Panel]:
    """Return the panels of the present measures."""
    names = {row["measure"] for row in rows_by_table["checkpoints"]}
    return [panel for panel in PANELS if panel.measure in names]


def course(rows_by_table: Tables, measure: str, layer: int | None = None) -> tuple[list[int], list[float]]:
    """Return the steps of a measure, ascending, and its values; `layer` is None for a measure of the whole model."""
    measure_rows = [
        row for row in _distinct_rows(rows_by_table) if row["measure"] == measure and row.get("layer") == layer
    ]
    measure_rows.sort(key=lambda row: int(row["step"]))
    return [row["step"] for row in measure_rows], [row["value"] for row in measure_rows]


def _distinct_rows(rows_by_table: Tables) -> list[Row]:
    return [row for row in rows_by_table["checkpoints"] if not row.get("same_as")]


def layers_of(rows_by_table: Tables, measure: str | None = None) -> list[int]:
    """Return the layers of a measure, or of any measure, ascending."""
    return sorted(
        {row["layer"] for row in rows_by_table["checkpoints"] if "layer" in row and measure in (None, row["measure"])}
    )


def first_rows(rows_by_table: Tables) -> dict[str, list[Row]]:
    """Return for each quantity the rows with the first step from which it stays, above the embeddings."""
    stable_rows: dict[str, list[Row]] = {}
    for row in rows_by_table["emergence"]:
        stable_rows.setdefault(row["quantity"], [])
        if row.get("layer") != 0 and "step" in row:
            stable_rows[row["quantity"]].append(row)
    return {
        name: [row for row in rows if row["step"] == min(other_row["step"] for other_row in rows)]
        for name, rows in stable_rows.items()
    }


def by_step(rows_by_table: Tables) -> list[Row]:
    """Return a row for each step, with a column for each measure and layer, for W&B's curves."""
    points: dict[int, dict[str, Any]] = {}
    for row in rows_by_table["checkpoints"]:
        name = row["measure"] + (f"_layer_{row['layer']:02d}" if "layer" in row else "")
        points.setdefault(row["step"], {"step": row["step"]})[name] = row["value"]
    return [points[step] for step in sorted(points)]


def tables(rows_by_table: Tables) -> list[Any]:
    """Return the non-empty tables of the terminal as rich tables."""
    return [table for table in (_steps_table(rows_by_table), _emergence_table(rows_by_table)) if table is not None]


def _table(title: str, *headings: str) -> Any:
    from probing.runtime.terminal import plain_table

    table = plain_table(title)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _steps_table(rows_by_table: Tables) -> Any:
    """Return the main measures of each checkpoint; the file has every layer and measure."""
    rows = rows_by_table["checkpoints"]
    layers = [row["layer"] for row in rows if "layer" in row]
    last = max(layers, default=0)
    columns = {
        "loss": lambda step_rows: _cell(_of(step_rows, LOST)),
        "position": lambda step_rows: _cell(_of(step_rows, "accuracy", last)),
        "95% range": lambda step_rows: _range(_of(step_rows, "accuracy", last)),
        "token": lambda step_rows: _cell(_of(step_rows, "token_accuracy", last)),
        "cosine": lambda step_rows: _cell(_of(step_rows, "mean_cosine", last)),
        "outliers": lambda step_rows: _sum(_all(step_rows, "n_outliers")),
        "largest": lambda step_rows: _largest(step_rows, "largest_deviation", ".1f", _neuron),
        "heads": lambda step_rows: _sum(_all(step_rows, "n_position_heads")),
        "strongest": lambda step_rows: _largest(step_rows, "offset_mass", ".2f", _head),
        "special": lambda step_rows: _mean(_all(step_rows, "special_mass")),
        "same as": lambda step_rows: step_rows[0].get("same_as") or "",
    }  # fmt: skip
    cells = {
        step: [cell([row for row in rows if row["step"] == step]) for cell in columns.values()]
        for step in sorted({row["step"] for row in rows})
    }
    shown_columns = [i for i in range(len(columns)) if any(row_cells[i] for row_cells in cells.values())]
    table = _table(
        f"Checkpoints: accuracy of position, of the token alone, and mean cosine in layer {last}; in all layers "
        "but the embeddings: outliers, the farthest mean in sd (layer:neuron), position heads, the most that a head "
        "gives to an offset, attention to special tokens",
        "step", *(name for i, name in enumerate(columns) if i in shown_columns),
    )  # fmt: skip
    for step, row_cells in cells.items():
        table.add_row(str(step), *(row_cells[i] for i in shown_columns))
    return table


def _neuron(row: Row) -> str:
    return f"{row['layer']}:{row['neuron']}"


def _head(row: Row) -> str:
    return f"{row['layer']}-{row['head']}"


def _of(rows: Sequence[Row], measure: str, layer: int | None = None) -> Row | None:
    return next((row for row in rows if row["measure"] == measure and layer in (None, row.get("layer"))), None)


def _all(rows: Sequence[Row], measure: str) -> list[Row]:
    return [row for row in rows if row["measure"] == measure and row["layer"] > 0]


def _cell(row: Row | None) -> str:
    return "" if row is None else f"{row['value']:.3f}"


def _range(row: Row | None) -> str:
    return "" if row is None else interval(row, form=".2f")


def _sum(rows: Sequence[Row]) -> str:
    return str(int(sum(row["value"] for row in rows))) if rows else ""


def _mean(rows: Sequence[Row]) -> str:
    return f"{sum(row['value'] for row in rows) / len(rows):.3f}" if rows else ""


def _largest(rows: Sequence[Row], measure: str, form: str, name: Callable[[Row], str]) -> str:
    layer_rows = _all(rows, measure)
    most = max(layer_rows, key=lambda row: row["value"], default=None)
    return "" if most is None else f"{most['value']:{form}} ({name(most)})"


def _emergence_table(rows_by_table: Tables) -> Any:
    rows = [row for row in rows_by_table["emergence"] if "first_seen" in row]
    if not rows:
        return None
    title = "First step from which each stays" + (
        f" ({_SHOWN} of {len(rows)} rows; the others are in emergence.csv)" if len(rows) > _SHOWN else ""
    )
    table = _table(title, "quantity", *_STEPS.values(), "first", "last")
    for row in rows[:_SHOWN]:
        steps = (str(row.get(name, "")) for name in _STEPS)
        table.add_row(row["quantity"], *steps, f"{row['first_value']:.3f}", f"{row['last_value']:.3f}")
    return table


def conclusions(rows_by_table: Tables) -> list[str]:
    """Return the step of each quantity and the order of emergence."""
    steps = sorted({row["step"] for row in _distinct_rows(rows_by_table)})
    firsts = first_rows(rows_by_table)
    lines = [*_equal(rows_by_table), *(_when(rows_by_table, name, rows, steps) for name, rows in firsts.items())]
    if "loss" not in firsts:
        lines.append("The loss is left out: it is not told for every checkpoint.")
    if len(steps) == 1:
        return [*lines, f"One checkpoint (step {steps[0]}) tells no order; give several."]
    return [*lines, *_order(firsts, steps)]


def _equal(rows_by_table: Tables) -> Iterator[str]:
    same: dict[str, set[int]] = {}
    for row in rows_by_table["checkpoints"]:
        if row.get("same_as"):
            same.setdefault(row["same_as"], set()).add(row["step"])
    for name, steps in same.items():
        listed = _and([str(step) for step in sorted(steps)])
        which = f"Step {listed} is" if len(steps) == 1 else f"Steps {listed} are"
        note = "it was measured once, and counts at the last of its steps alone"
        yield f"{which} the same model as {name}, to the bit: {note}."


def _when(rows_by_table: Tables, name: str, rows: Sequence[Row], steps: Sequence[int]) -> str:
    """Return the sentence on a quantity, from its rows with the first step from which it stays."""
    quantity_rows = [row for row in rows_by_table["emergence"] if row["quantity"] == name and row.get("layer") != 0]
    if not quantity_rows:
        return f"{name[0].upper()}{name[1:]}: only layer 0 was measured, which says nothing of what the blocks do."
    threshold = quantity_rows[0]["threshold"]
    what = _IS_THERE[name].format(threshold=threshold, points=100 * threshold)
    if not rows:
        seen = sorted({row["first_seen"] for row in quantity_rows if "first_seen" in row})
        but = f", though it was so at step {seen[0]}" if seen else ""
        return f"{what}: at no step for good{but}."
    step, before = rows[0]["step"], rows[0].get("step_before")
    since = f"not yet at step {before}" if before is not None else "the first checkpoint"
    return f"{what} from step {step} on ({since}){_where(rows)}."


def _where(rows: Sequence[Row]) -> str:
    if "neuron" in rows[0]:
        neurons: dict[int, list[int]] = {}
        for row in rows:
            neurons.setdefault(row["neuron"], []).append(row["layer"])
        return ": " + ", ".join(f"neuron {neuron} in {_layers(layers)}" for neuron, layers in list(neurons.items())[:5])
    return f", in {_layers([row['layer'] for row in rows])}" if "layer" in rows[0] else ""


def _layers(layers: Sequence[int]) -> str:
    return f"layer{'s' * (len(layers) > 1)} {', '.join(map(str, sorted(layers)))}"


def _order(firsts: Mapping[str, Sequence[Row]], steps: Sequence[int]) -> Iterator[str]:
    at: dict[int, list[str]] = {}
    for name, rows in firsts.items():
        if rows:
            at.setdefault(rows[0]["step"], []).append(name)
    first_names = at.pop(steps[0], [])
    if first_names:
        yield (
            f"There at the first checkpoint (step {steps[0]}) and in all later ones: {_and(first_names)}; these "
            "checkpoints cannot say when that came."
        )
    if at:
        order = ", then ".join(f"{_and(names)} (step {step})" for step, names in sorted(at.items()))
        together = any(len(names) > 1 for names in at.values())
        yield f"Order: {order}." + (" What came at one step, these checkpoints cannot put in order." * together)
    elif not first_names:
        yield "Nothing came to stay in this series."


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


_CHECKPOINT = text("checkpoint", "Name of the checkpoint.")
_OF_TRAINING = whole("step", "Number of steps, from the checkpoint's name.")
_SAME_AS = text("same_as", "The last checkpoint that is the same model, where there is a later one.")
_NEURON = whole("neuron", "Neuron that the measure is of.")
CHECKPOINTS = Schema("checkpoints", "a row per checkpoint, layer and measure", (
    _OF_TRAINING, _CHECKPOINT,
    text("command", "Command whose measure it is: fit, geometry, attention, or training for losses."),
    layer_column("Number of the layer; absent for a loss."),
    text("measure", "What is measured."),
    value("Its value"),
    whole("n", "What it is over: test tokens of fit, tokens of geometry, sentences of attention."),
    _NEURON,
    whole("head", "Head that the measure is of."), whole("offset", "Offset that it attends to."), _SAME_AS,
))  # fmt: skip
CHECKPOINT_OUTLIERS = Schema("checkpoint_outliers", "a row per checkpoint, layer and outlier", (
    _OF_TRAINING, _CHECKPOINT, layer_column(), _NEURON,
    number("deviations", "Distance of its mean from the mean of all neurons' means, in sd."), _SAME_AS,
), optional=True)  # fmt: skip
EMERGENCE = Schema("emergence", "a row per quantity, layer and neuron", (
    text("quantity", "What comes: loss, position, position heads or outliers."),
    layer_column(), whole("neuron", "Neuron, of outliers."),
    text("measure", "What is compared with the threshold."),
    number("threshold", "From where on the quantity is there."),
    number("first_value", "Its measure at the first checkpoint."),
    number("last_value", "Its measure at the last checkpoint."),
    whole("first_seen", "First step at which it was there."),
    whole("step_before", "Last step at which it was not there before it came to stay."),
    whole("step", "First step from which it is there in every later checkpoint."),
    whole("half_step", "First step from which half of its change is made."),
))  # fmt: skip

# --------------------------------------------------------------------------------------------------------------------
# The checkpoint from which on each quantity stays past its threshold: loss, position, position heads, outliers.
# --------------------------------------------------------------------------------------------------------------------

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Thresholds:
    """Thresholds past which a quantity counts as present.

    Args:
        loss: Nats by which the held-out loss is below that of a model of token frequencies or, if unknown, below that
            of the first checkpoint.
        position: Accuracy of the position probe above a probe of the token alone: lower end of the interval.
        outliers: Standard deviations between the mean of a neuron and the mean of the neurons' means.
    """

    loss: float = 1.0
    position: float = 0.05
    outliers: float = 5.0


@dataclass(frozen=True)
class CheckpointCourse:
    """Values of a quantity over the checkpoints (NaN where not measured), and where they are past its threshold."""

    values: Sequence[float]
    is_past: Sequence[bool]

    def row(self, steps: Sequence[int]) -> dict[str, Any]:
        """Return the steps of emergence, as in `emergence.csv`; `steps` ascend."""
        columns: dict[str, Any] = {"first_value": self.values[0], "last_value": self.values[-1]}
        if any(self.is_past):
            columns["first_seen"] = steps[self.is_past.index(True)]
        if (at := stays_from(self.is_past)) is not None:
            columns["step"] = steps[at]
            if at:
                columns["step_before"] = steps[at - 1]
                columns["half_step"] = steps[self._half()]
        return columns

    def _half(self) -> int:
        """Return the index of the checkpoint from which on at least half of the change over the series is complete."""
        first, last = self.values[0], self.values[-1]
        middle, sign = (first + last) / 2, 1 if last >= first else -1
        at = stays_from([sign * value >= sign * middle for value in self.values])
        return len(self.values) - 1 if at is None else at


def stays_from(is_past: Sequence[bool]) -> int | None:
    """Return the index from which on all are true; None if the last is not."""
    at = len(is_past)
    while at and is_past[at - 1]:
        at -= 1
    return at if at < len(is_past) else None


def emergence(
    rows: Sequence[Row], deviations: Sequence[Mapping[int, Sequence[float]]], steps: Sequence[int],
    thresholds: Thresholds,
) -> Rows:  # fmt: skip
    """Return the rows of `emergence.csv`: emergence of each quantity, by layer, for outliers also by neuron.

    `deviations` has, by checkpoint and layer, the distance of each neuron's mean from the others, in sd.
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
    losses, unigram = (
        {row["step"]: row["value"] for row in rows if row["measure"] == name} for name in (LOST, UNIGRAM)
    )
    if set(losses) != set(steps):
        return
    values = [losses[step] for step in steps]
    threshold = unigram.get(steps[-1], values[0]) - nats
    course = CheckpointCourse(values, [value <= threshold for value in values])
    yield {"quantity": LOSS, "measure": LOST, "threshold": threshold, **course.row(steps)}


def _lower_end(row: Row) -> float:
    """Return the lower end of a number's interval, or the number if the text is too short for an interval."""
    low = row.get("low", math.nan)
    return float(row["value"] if math.isnan(low) else low)


def _by_layer(
    rows: Sequence[Row], steps: Sequence[int], what: tuple[str, str, float], is_past: Callable[[Row], bool]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each layer; `what` is the quantity, its measure in the rows, and its threshold."""
    quantity, measure, threshold = what
    row_of = {(row["step"], row["layer"]): row for row in rows if row["measure"] == measure}
    for layer in sorted({layer for _, layer in row_of}):
        layer_rows = [row_of.get((step, layer)) for step in steps]
        values = [math.nan if row is None else row["value"] for row in layer_rows]
        course = CheckpointCourse(values, [row is not None and is_past(row) for row in layer_rows])
        yield {"quantity": quantity, "layer": layer, "measure": measure, "threshold": threshold, **course.row(steps)}


def _outliers(
    deviations: Sequence[Mapping[int, Sequence[float]]], steps: Sequence[int], threshold: float
) -> Iterator[dict[str, Any]]:
    """Yield a row for each layer and neuron that is an outlier at some checkpoint, or a row for a layer without any."""
    for layer in sorted({layer for checkpoint_values in deviations for layer in checkpoint_values}):
        of_layer = [checkpoint_values.get(layer, ()) for checkpoint_values in deviations]
        about = {"quantity": OUTLIERS, "layer": layer, "measure": "deviation", "threshold": threshold}
        neurons = sorted({k for values in of_layer for k, value in enumerate(values) if abs(value) > threshold})
        for k in neurons:
            values = [values_of[k] if k < len(values_of) else math.nan for values_of in of_layer]
            yield {
                **about,
                "neuron": k,
                **CheckpointCourse(values, [abs(value) > threshold for value in values]).row(steps),
            }
        if not neurons:
            yield about
