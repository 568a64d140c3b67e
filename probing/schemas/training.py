"""Tables of `pretrain` and `series`."""

from __future__ import annotations

from probing.results.schema import Schema
from probing.schemas.common import layer, number, text, value, whole

_ARM = text("arm", "What tells the encoder positions.")
_SEED = whole("seed", "Seed of the training.")
_STEP = whole("step", "Number of steps of the optimiser.")
_LOSS = number("loss", "Mean cross-entropy of masked tokens in held-out text, in nats.")
_UNIGRAM = number("unigram_loss", "The loss of a model that knows how often each token occurs and nothing else.")
ARMS = Schema("arms", "a row per arm, seed, checkpoint and layer", (
    _ARM, _SEED, _STEP, _LOSS, _UNIGRAM, layer(),
    whole("outlier_neuron", "The neuron with the farthest mean, where that is beyond 5 sd."),
    number("max_mean_sd", "How far the farthest mean of a neuron is from the mean of all, in sd of these."),
    number("argmax_share", "Share of tokens in which that neuron is the largest."),
    number("argmin_share", "Share of tokens in which it is the smallest."),
    number("position_accuracy", "Accuracy of a linear probe of position."),
    number("token_accuracy", "The same of a probe of the token embedding alone."),
    number("equivariance", "Largest difference of states if a row is read permuted, in root mean squares."),
))  # fmt: skip
LOSSES = Schema("losses", "a row per arm, seed and step at which a loss was noted", (
    _ARM, _SEED, _STEP,
    number("train_loss", "Mean training loss since the row before, in nats."),
    _LOSS, _UNIGRAM,
))  # fmt: skip

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
