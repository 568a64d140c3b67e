"""Tables of `disable`."""

from __future__ import annotations

from probing.results.schema import Column, Schema
from probing.schemas.common import effect, layer, number, text, whole

_UNIT = text("unit", "A head, such as 3-9, or the number of a layer.")
_UNITS = text("units", "heads or layers.")
_KIND = text("kind", "What replaces the output.")
_READOUT = text("readout", "What is read: position, position_retrained, mlm, sts:NAME or wic.")
_READ = layer("Layer that is read.")
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

SCHEMAS = DISABLED, BETTER_WITHOUT, IMPORTANCE, PRUNING, PRUNING_AREAS
