"""Tables of an estimator: its neurons, and neurons beside directions."""

from __future__ import annotations

from probing.results.schema import Schema, number, text, whole
from probing.tables.columns import BASIS_COLUMNS
from probing.tables.schema import NEURONS

RANKED = Schema("neurons", "a row per neuron, ranked", (
    NEURONS["rank"],
    NEURONS["neuron"],
    text("feature", "Name of the column, where X had names of columns."),
    number("contribution", "Mean over the training rows of |weight × activation| for the true class, in logit units, "
           "weights centred over classes; of a probe of numbers, for its prediction, in their unit.", form=".4f"),
    NEURONS["share"],
    NEURONS["direction_p"], NEURONS["direction_p_centred"], NEURONS["above_directions"],
))  # fmt: skip
# All but the last column of `basis.csv`: these are no test tokens.
BASIS = Schema("basis", "a row per kind of contribution", (
    *BASIS_COLUMNS[:-1],
    whole("n_rows", "Number of training rows that contributions were measured on: all, or 4,000 drawn evenly."),
))  # fmt: skip
