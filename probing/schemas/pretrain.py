"""Tables of `pretrain`."""

from __future__ import annotations

from probing.results.schema import Schema
from probing.schemas.common import layer, number, text, whole

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
