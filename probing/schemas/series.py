"""Tables of `series`."""

from __future__ import annotations

from probing.results.schema import Schema
from probing.schemas.common import layer, number, text, value, whole

_CHECKPOINT = text("checkpoint", "Name of the checkpoint.")
_OF_TRAINING = whole("step", "Number of steps, from the checkpoint's name.")
_NEURON = whole("neuron", "Neuron that the measure is of.")
SERIES = Schema("series", "a row per checkpoint, layer and measure", (
    _OF_TRAINING, _CHECKPOINT,
    text("command", "Command whose measure it is: fit, geometry, attention, or training for losses."),
    layer("Number of the layer; absent for a loss."),
    text("measure", "What is measured."),
    value("Its value"),
    whole("n", "What it is over: test tokens of fit, tokens of geometry, sentences of attention."),
    _NEURON,
    whole("head", "Head that the measure is of."), whole("offset", "Offset that it attends to."),
))  # fmt: skip
SERIES_OUTLIERS = Schema("series_outliers", "a row per checkpoint, layer and outlier", (
    _OF_TRAINING, _CHECKPOINT, layer(), _NEURON,
    number("deviations", "Distance of its mean from the mean of all neurons' means, in sd."),
), optional=True)  # fmt: skip
EMERGENCE = Schema("emergence", "a row per quantity, layer and neuron", (
    text("quantity", "What comes: loss, position, position heads or outliers."),
    layer(), whole("neuron", "Neuron, of outliers."),
    text("measure", "What is compared with the threshold."),
    number("threshold", "From where on the quantity is there."),
    number("first_value", "Its measure at the first checkpoint."),
    number("last_value", "Its measure at the last checkpoint."),
    whole("first_seen", "First step at which it was there."),
    whole("step_before", "Last step at which it was not there before it came to stay."),
    whole("step", "First step from which it is there in every later checkpoint."),
    whole("half_step", "First step from which half of its change is made."),
))  # fmt: skip
