"""Columns of the tables of `disable`."""

from __future__ import annotations

from probing.results.schema import Column, Schema, number, text, whole
from probing.tables.schema import effect, layer_column

# What is rounded, by which scale, and what is kept in full.
WEIGHTS, ACTIVATIONS, BOTH = "weights", "activations", "both"
TENSOR, CHANNEL = "tensor", "channel"
NOTHING, OUTLIERS, RANDOM_MEAN = "none", "outliers", "random_mean"
# Orders in which weights are pruned, and the mean of the random ones.
MAGNITUDE, RANDOM, MEAN = "magnitude", "random", "random_mean"

_UNIT = text("unit", "A head, such as 3-9, or the number of a layer.")
_UNITS = text("units", "heads or layers.")
_KIND = text("kind", "What replaces the output.")
_READOUT = text(
    "readout",
    "What is read: position, position_retrained, mlm, sts:NAME, wic, or of a tuned model its "
    "task: tuned (accuracy) or tuned_r2 (R²).",
)
_READ = layer_column("Layer that is read.")
_N = whole("n", "Number of sentences, or of pairs.")
_ORDER = text("order", "Order in which units are disabled: importance, reverse or random.")

DISABLED = Schema("disabled", "a row per unit, kind of replacement and layer that is read", (
    _UNIT, _KIND, _READOUT, _READ,
    number("intact", "The measure of the intact model."),
    number("value", "The measure with the unit disabled."),
    effect("The second minus the first"),
    number("percentile", "Percentage of the units of its kind that do less harm.", form=".0f"),
    number("p_value", "p-value of the effect, corrected for the units."),
    _N,
))  # fmt: skip
BETTER_WITHOUT = Schema("better_without", "a row per kind of unit, replacement, readout and layer", (
    _UNITS, _KIND, _READOUT, _READ,
    text("unit", "The unit without which the model is best, chosen on one half of the sentences."),
    number("effect_chosen_on", "Its effect on that half.", form="+.3f"),
    effect("Its effect on the other half"),
    number("p_value", "p-value, corrected for the number of rows."),
    whole("n", "Number of sentences, or of pairs, of the other half."),
))  # fmt: skip
RAISING = Schema("raising", "a row per kind of unit, replacement and readout", (
    _UNITS, _KIND, _READOUT, _READ,
    whole("n_units", "Number of heads or layers."),
    whole("n_better", "Number of them without which the measure is better, by however little."),
    whole("n_clear", "Number of them without which it is better by more than 1.645 standard errors."),
    whole("n_chance_low", "Lower end of the range of that number in 95% of draws in which the differences of each "
          "sentence, or pair, have the same or the opposite sign at random.", "by chance"),
    whole("n_chance_high", "Upper end."),
    number("p_value", "Share of draws with at least as many, corrected for the rows of the readout."),
), optional=True)  # fmt: skip
IMPORTANCE = Schema("importance", "a row per head", (
    _UNIT, _READOUT, _READ,
    Column("importance", float, "Mean of |dL/d xi| over sentences, in nats; low, high: its 95% interval.", form=".3f",
           interval=""),
    number("normalised", "That divided by the Euclidean norm over the heads of its layer."),
    whole("n", "Number of sentences."),
), optional=True)  # fmt: skip
PRUNING = Schema("pruning", "with `--prune`, a row per order and step", (
    _UNITS, _KIND, _READOUT, _READ, _ORDER,
    whole("draw", "Number of the random order."),
    whole("n_disabled", "Number of units that are disabled."),
    number("share", "That as a share of all."),
    number("value", "The measure."),
    effect("Its difference from the intact model"),
    text("disabled", "Units that this step disabled."),
    _N,
), optional=True)  # fmt: skip
PRUNING_AREAS = Schema("pruning_areas", "with `--prune`, a row per order that is not random", (
    _UNITS, _KIND, _READOUT, _READ, _ORDER,
    number("area", "Area under the curve of the order."),
    number("random_area", "Mean area of the random orders."),
    effect("The first minus the second"),
    number("percentile", "Percentage of the random orders that keep less.", form=".0f"),
    number("p_value", "Its p-value, by rank."),
    _N,
), optional=True)  # fmt: skip
WEIGHT_PRUNING = Schema("weight_pruning", "with `--prune weights`, a row per order, draw and share", (
    _READOUT, _READ,
    text("order", "Which weights of each matrix are pruned: magnitude (the smallest), random, or random_mean, the mean "
         "of the random draws."),
    whole("draw", "Number of the random draw."),
    number("share", "Share of the weights of each matrix that is 0.", form=".0%"),
    whole("n_weights", "Number of weights of all matrices.", form=","),
    number("value", "The measure."),
    effect("Its difference from the whole model; for the mean, with an interval over sentences and draws"),
    number("p_value", "p-value of the effect over sentences, corrected for the shares."),
    _N,
), optional=True)  # fmt: skip

QUANTISED = Schema("quantised", "with `--quantise`, a row per rounding and readout", (
    _READOUT, _READ,
    whole("bits", "Number of bits that numbers are rounded to."),
    text("rounded", "What is rounded: weights (the matrices of blocks), activations (the hidden states that enter "
         "blocks) or both."),
    text("scale", "tensor: a whole matrix, or layer, has one scale; channel: each unit, or neuron, has its own."),
    text("kept", "Neurons of hidden states that are not rounded: none, outliers, random (as many others), or "
         "random_mean, the mean of the random draws.", heading="kept in full"),
    whole("draw", "Number of the random draw."),
    whole("n_kept", "Number of these neurons, summed over blocks."),
    number("value", "The measure."),
    effect("Its difference from the model as it is; for the mean, with an interval over sentences and draws"),
    number("p_value", "p-value of the effect over sentences, corrected for all rows of the readout but single draws."),
    number("rank_p", "Of kept outliers, the share of the random draws, and of what is tested, that lose no more."),
    _N,
), optional=True)  # fmt: skip

SCHEMAS = DISABLED, BETTER_WITHOUT, RAISING, IMPORTANCE, PRUNING, PRUNING_AREAS, WEIGHT_PRUNING, QUANTISED
