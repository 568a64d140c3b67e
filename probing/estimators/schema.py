"""The table of neurons of an estimator."""

from __future__ import annotations

from probing.results.schema import Schema, number, text
from probing.tables.schema import NEURONS

RANKED = Schema("neurons", "a row per neuron, ranked", (
    NEURONS["rank"],
    NEURONS["neuron"],
    text("feature", "Name of the column, where X had names of columns."),
    number("contribution", "Mean over the training rows of |weight × activation| for the true class, in logit units, "
           "weights centred over classes; of a probe of numbers, for its prediction, in their unit.", form=".4f"),
    NEURONS["share"],
))  # fmt: skip
