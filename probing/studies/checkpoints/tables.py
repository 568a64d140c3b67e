"""Columns, tables, charts and sentences of `checkpoints`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probing.results import (
    Row,
    Schema,
    Table,
    View,
    count,
    curve_points,
    grouped_table,
    interval,
    layers_named,
    listed,
    number,
    shown,
    text,
    whole,
)
from probing.tables.figures import BY_STEP, N_LOOKS, Chart, Line, Panel
from probing.tables.schema import layer_column, value

# Quantities whose emergence is measured.
LOSS, POSITION, HEADS, OUTLIERS = "loss", "position", "position heads", "outliers"
# Measures that the training itself wrote for its checkpoints.
LOST, UNIGRAM = "held_out_loss", "unigram_loss"


@dataclass(frozen=True)
class StepMeasure:
    """Measure in charts over the steps, with its title and unit.

    `quantity` emerges where the measure passes a threshold; `baseline` is a measure of the last layer to compare with,
    and its name.
    """

    name: str
    title: str
    unit: str
    quantity: str | None = None
    baseline: tuple[str, str] | None = None
    from_zero: bool = True


MEASURES = (
    StepMeasure(LOST, "held-out loss", "nats per token", LOSS, (UNIGRAM, "token frequencies"), from_zero=False),
    StepMeasure(
        "accuracy", "position by a linear probe", "test accuracy", POSITION, ("token_accuracy", "the token alone")
    ),
    StepMeasure("offset_mass", "strongest head at a fixed offset", "share of attention", HEADS),
    StepMeasure("largest_deviation", "farthest mean of a neuron", "sd of the means", OUTLIERS),
    StepMeasure("mean_cosine", "anisotropy", "mean cosine", from_zero=False),
    StepMeasure("special_mass", "attention to special tokens", "share of attention"),
)
# Most rows of the table of emergence, and most neurons in a sentence.
_SHOWN, _NEURONS = 30, 5
# Looks of a chart for the model, its baseline and the threshold; layers have the others.
_NOT_LAYERS = 3

SENTENCES = {
    # The beginning of a sentence on the step of a quantity.
    LOSS: "The held-out loss is at most {threshold:.2f} nats",
    POSITION: "A linear probe of position is more accurate than a probe of the token alone, by more than {points:.0f} "
    "percentage points,",
    HEADS: "A head attends to a fixed offset (with over half of its attention, or most in 90% of the queries)",
    OUTLIERS: "The mean of a neuron differs by more than {threshold:g} sd from the mean of the neurons' means",
    "from": "{quantity} from step {step} on ({since}){where}.",
    "since": "not yet at step {before}",
    "since_first": "the first checkpoint",
    "never": "{quantity} at no step.",
    "not_stable": "{quantity} at step {step}, but not in all later checkpoints.",
    "neurons": ": {neurons}",
    "neuron": "neuron {neuron} in {layers}",
    "layers": ", in {layers}",
    "only_embeddings": "{quantity}: only layer 0 was measured, which does not depend on the blocks.",
    "no_loss": "The loss is left out: it is not known for every checkpoint.",
    "one": "One checkpoint (step {step}) has no order; give several.",
    "same": "{steps} the same model as {name}, bit for bit: it was measured once, and counts only at the last of its "
    "steps.",
    "from_first": "Present at the first checkpoint (step {step}) and in all later ones: {names}; these checkpoints do "
    "not show when this emerged.",
    "order": "Order: {order}.",
    "together": "Order: {order}. These checkpoints do not show the order of quantities that emerged at one step.",
    "nothing": "No quantity emerged and stayed in this series.",
}

_CHECKPOINT = text("checkpoint", "Name of the checkpoint.")
_OF_TRAINING = whole("step", "Number of steps of the training, from the name of the checkpoint.")
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
    text("quantity", "Quantity whose emergence is measured: loss, position, position heads or outliers. It is present "
         "when its measure is past its threshold."),
    layer_column(), whole("neuron", "Neuron, of outliers."),
    text("measure", "What is compared with the threshold."),
    number("threshold", "Value of the measure from which on the quantity is present."),
    number("first_value", "Its measure at the first checkpoint.", "first"),
    number("last_value", "Its measure at the last checkpoint.", "last"),
    whole("first_seen", "First step at which the quantity was present."),
    whole("step_before", "Last step at which it was absent, before it is present in all later checkpoints.", "not at"),
    whole("step", "First step from which on it is present in every later checkpoint.", "stays from"),
    whole("half_step", "First step from which on at least half of its change over the series is complete.", "half way"),
))  # fmt: skip

EMERGED = View(EMERGENCE, (
    "quantity", "layer", "neuron", "first_seen", "step_before", "step", "half_step", "first_value", "last_value",
), "First step from which on each quantity stays")  # fmt: skip
# Meanings of the headings of the table of checkpoints.
TERMS = {
    "loss": "Mean loss on held-out text, in nats, as the training wrote it.",
    "position": "Accuracy of a linear probe of position in the last layer.",
    "95% range": "Confidence interval of that accuracy over sentences.",
    "token": "Accuracy of a probe of the token embedding alone, compared with the last layer.",
    "cosine": "Mean cosine of the hidden states of two tokens in the last layer.",
    "outliers": "Number of neurons whose mean is far from the means of the others, in all layers but the embeddings.",
    "largest": "The farthest mean, in standard deviations of the means, with its layer and neuron.",
    "heads": "Number of heads that give more than half of their attention to one offset, or attend there most in 90% "
    "of the queries.",
    "strongest": "Largest attention of a head to one offset, with the layer and the head.",
    "special": "Share of the attention that goes to special tokens, in all layers but the embeddings.",
    "same as": "The last checkpoint that is the same model, where there is a later one.",
    "baseline": "What the measure is compared with: token frequencies for the loss, the token alone for position.",
    "threshold": "Value of the measure from which on the quantity is present.",
}


def words_of(flag_value: str | Sequence[str] | None) -> list[str]:
    """Return the words of an option, separated by commas or given as a list."""
    several = [flag_value] if isinstance(flag_value, str) else flag_value or ()
    return [word.strip() for text in several for word in text.split(",") if word.strip()]


def series_name(model: str, revision: str | None) -> str:
    """Return the model on the hub, or the parent folder of local checkpoints (`revision` is None)."""
    return model.rsplit("/", 1)[-1] if revision else Path(model).absolute().parent.name


def _distinct(rows: Table) -> Table:
    """Return the rows of `checkpoints` without checkpoints that are the same model as a later one."""
    return rows.where(lambda row: not row.get("same_as"))


def first_rows(emergence: Table) -> dict[str, Table]:
    """Return for each quantity the rows with the first step from which it stays, above the embeddings."""
    firsts = {}
    for name, rows in emergence.by("quantity").items():
        stable = rows.where(lambda row: row.get("layer") != 0 and "step" in row)
        firsts[name] = stable.where(step=min(stable.column("step"), default=None))
    return firsts


def by_step(rows: Table) -> list[Row]:
    """Return a row for each step, with a column for each measure and layer, for W&B's curves."""

    def cells(row: Row) -> Row:
        return {row["measure"] + (f"_layer_{row['layer']:02d}" if "layer" in row else ""): row["value"]}

    return sorted(curve_points(rows, cells, "step"), key=lambda point: point["step"])


def tables(checkpoints: Table, emergence: Table) -> list[Any]:
    """Return the main measures of each checkpoint, and the step of each quantity."""
    last = max(checkpoints.column("layer"), default=0)
    columns: dict[str, Callable[[Table], str]] = {
        "loss": lambda rows: _cell(rows.where(measure=LOST)),
        "position": lambda rows: _cell(rows.where(measure="accuracy", layer=last)),
        "95% range": lambda rows: "".join(
            interval(row, form=".2f") for row in rows.where(measure="accuracy", layer=last)
        ),
        "token": lambda rows: _cell(rows.where(measure="token_accuracy", layer=last)),
        "cosine": lambda rows: _cell(rows.where(measure="mean_cosine", layer=last)),
        "outliers": lambda rows: _sum(_above(rows, "n_outliers")),
        "largest": lambda rows: _largest(_above(rows, "largest_deviation"), "{value:.1f} ({layer}:{neuron})"),
        "heads": lambda rows: _sum(_above(rows, "n_position_heads")),
        "strongest": lambda rows: _largest(_above(rows, "offset_mass"), "{value:.2f} ({layer}-{head})"),
        "special": lambda rows: _cell(_above(rows, "special_mass")),
        "same as": lambda rows: rows[0].get("same_as") or "",
    }  # fmt: skip
    title = (
        f"Checkpoints: accuracy of position, of the token alone, and mean cosine in layer {last}; in all layers but "
        "the embeddings: outliers, the farthest mean in sd (layer:neuron), position heads, the largest attention of a "
        "head to an offset, attention to special tokens"
    )
    by_step = sorted(checkpoints.by("step").items())
    emerged = emergence.where(lambda row: "first_seen" in row)
    others = f" ({_SHOWN} of {count(len(emerged), 'row')}; emergence.csv has all)" if len(emerged) > _SHOWN else ""
    view = replace(EMERGED, title=EMERGED.title + others)
    steps = [grouped_table(CHECKPOINTS, [rows for _, rows in by_step], title, ("step",), columns)] if by_step else []
    return [*steps, *view.tables(emerged[:_SHOWN])]


def _above(rows: Table, measure: str) -> Table:
    return rows.where(lambda row: row["layer"] > 0, measure=measure)


def _cell(rows: Table) -> str:
    """Return the mean value; empty without rows."""
    return shown(sum(rows.column("value")) / len(rows), ".3f") if rows else ""


def _sum(rows: Table) -> str:
    return f"{sum(rows.column('value')):.0f}" if rows else ""


def _largest(rows: Table, form: str) -> str:
    return form.format(**max(rows, key=lambda row: row["value"])) if rows else ""


def charts(checkpoints: Table, emergence: Table) -> list[Chart]:
    """Return each measure over the steps, a line for each layer."""
    rows, layers = _distinct(checkpoints), sorted(checkpoints.values("layer"))
    named, firsts = _spread(layers, N_LOOKS - _NOT_LAYERS), first_rows(emergence)
    panels = []
    for measure in MEASURES:
        if not (chosen := rows.where(measure=measure.name)):
            continue
        by_layer = chosen.by("layer").items()
        lines = [_line(of_layer, f"layer {layer}", layer not in named) for layer, of_layer in by_layer]
        lines += [_line(chosen, "the model")] if not lines else []
        title = measure.title
        if measure.baseline and (baseline := rows.where(measure=measure.baseline[0])):
            last = max(baseline.column("layer"), default=None)
            lines.append(_line(baseline.where(layer=last), "baseline"))
            title += f" (baseline: {measure.baseline[1]})"
        passed = emergence.where(quantity=measure.quantity)
        if passed and measure.quantity in (LOSS, OUTLIERS):
            steps = sorted(rows.values("step"))
            lines.append(Line("threshold", steps, [passed[0]["threshold"]] * len(steps)))
        if first := firsts.get(measure.quantity or ""):
            title += f", past its threshold from step {first[0]['step']:,}"
        panels.append(Panel(lines, title, measure.unit, measure.from_zero))
    others = "grey: the other layers" if len(named) < len(layers) else ""
    title = "measures over the steps of the training" + (f"; {others}" if others else "")
    return [Chart("checkpoints", title, panels, x=BY_STEP, caption=others)] if panels else []


def _line(rows: Table, label: str, is_faint: bool = False) -> Line:
    line = Line.of(sorted(rows, key=lambda row: row["step"]), "value", label, x="step")
    return replace(line, is_faint=is_faint)


def _spread(layers: Sequence[int], most: int) -> list[int]:
    """Return at most `most` layers at equal distances, including the first and the last."""
    if len(layers) <= most:
        return list(layers)
    return [layers[round(i * (len(layers) - 1) / (most - 1))] for i in range(most)]


def conclusions(checkpoints: Table, emergence: Table) -> list[str]:
    """Return the step of each quantity and the order of emergence."""
    steps, firsts = sorted(_distinct(checkpoints).values("step")), first_rows(emergence)
    lines = [*_equal(checkpoints)]
    lines += [_when(emergence.where(quantity=name), name, rows) for name, rows in firsts.items()]
    if LOSS not in firsts:
        lines.append(SENTENCES["no_loss"])
    if len(steps) == 1:
        return [*lines, SENTENCES["one"].format(step=steps[0])]
    return [*lines, *_order(firsts, steps[0])]


def _equal(checkpoints: Table) -> Iterator[str]:
    for name, rows in checkpoints.where(lambda row: bool(row.get("same_as"))).by("same_as").items():
        steps = sorted(rows.values("step"))
        which = f"Step {steps[0]} is" if len(steps) == 1 else f"Steps {listed(steps)} are"
        yield SENTENCES["same"].format(steps=which, name=name)


def _when(rows: Table, name: str, firsts: Table) -> str:
    """Return the sentence on a quantity, from its rows and those with the first step from which it stays."""
    above = rows.where(lambda row: row.get("layer") != 0)
    if not above:
        return SENTENCES["only_embeddings"].format(quantity=name.capitalize())
    threshold = above[0]["threshold"]
    quantity = SENTENCES[name].format(threshold=threshold, points=100 * threshold)
    if not firsts:
        seen = min(above.column("first_seen"), default=None)
        return SENTENCES["never" if seen is None else "not_stable"].format(quantity=quantity.rstrip(","), step=seen)
    before = firsts[0].get("step_before")
    since = SENTENCES["since_first"] if before is None else SENTENCES["since"].format(before=before)
    return SENTENCES["from"].format(quantity=quantity, step=firsts[0]["step"], since=since, where=_where(firsts))


def _where(rows: Table) -> str:
    if "neuron" in rows[0]:
        neurons = [
            SENTENCES["neuron"].format(neuron=neuron, layers=layers_named(sorted(of_neuron.column("layer"))))
            for neuron, of_neuron in [*rows.by("neuron").items()][:_NEURONS]
        ]
        return SENTENCES["neurons"].format(neurons=", ".join(neurons))
    return SENTENCES["layers"].format(layers=layers_named(sorted(rows.layers()))) if "layer" in rows[0] else ""


def _order(firsts: Mapping[str, Table], first: int) -> Iterator[str]:
    at: dict[int, list[str]] = {}
    for name, rows in firsts.items():
        if rows:
            at.setdefault(rows[0]["step"], []).append(name)
    if from_first := at.pop(first, []):
        yield SENTENCES["from_first"].format(step=first, names=listed(from_first))
    if at:
        order = ", then ".join(f"{listed(names)} (step {step})" for step, names in sorted(at.items()))
        yield SENTENCES["together" if any(len(names) > 1 for names in at.values()) else "order"].format(order=order)
    elif not from_first:
        yield SENTENCES["nothing"]


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
    table = Table(rows, CHECKPOINTS)
    return [
        *_loss(table, steps, thresholds.loss),
        *_by_layer(
            table, steps, (POSITION, "above_token", thresholds.position),
            lambda row: _lower_end(row) > thresholds.position,
        ),
        *_by_layer(table, steps, (HEADS, "n_position_heads", 1.0), lambda row: row["value"] >= 1),
        *_outliers(deviations, steps, thresholds.outliers),
    ]  # fmt: skip


def _loss(rows: Table, steps: Sequence[int], nats: float) -> Iterator[dict[str, Any]]:
    losses, unigram = ({row["step"]: row["value"] for row in rows.where(measure=name)} for name in (LOST, UNIGRAM))
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
    rows: Table, steps: Sequence[int], what: tuple[str, str, float], is_past: Callable[[Row], bool]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each layer; `what` is the quantity, its measure in the rows, and its threshold."""
    quantity, measure, threshold = what
    row_of = {(row["step"], row["layer"]): row for row in rows.where(measure=measure)}
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
