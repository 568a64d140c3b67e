"""Tables of `wic` and `sts`."""

from __future__ import annotations

from dataclasses import replace

from probing.results.schema import Column, Schema
from probing.schemas.common import SIZES, layer, measured, number, text, whole

_SPACE = text("transform", "How the hidden states are transformed before their cosines are taken.")
_N_CLIPPED = whole("n_clipped", "Number of neurons that are clipped.")
_CLIPPED = text("clipped", "The neurons that are clipped.", may_be_empty=True)
_N_PAIRS = whole("n_pairs", "Number of pairs.")
_THRESHOLD = number("threshold", "Cosine from which on a pair is predicted to mean the same, chosen on train.")
_PROTOCOL = text("protocol", "How the layer was chosen: held_out, on other pairs, or published, on the same.")
_GAIN = measured("gain", "Difference from the untransformed hidden states.", form="+.3f")

WIC = Schema("wic", "a row per layer and space", (
    layer(), _SPACE, _THRESHOLD,
    number("train_accuracy", "Accuracy on the training pairs."),
    measured("accuracy", "Share of the pairs that are predicted correctly."),
    measured("auc", "Area under the ROC curve."),
    number("train_auc", "The same of the training pairs."),
    number("published_threshold", "The best of the nine thresholds 0.1 to 0.9 on the reported pairs themselves."),
    number("published_accuracy", "Its accuracy."),
    number("constant_true_accuracy", "Accuracy of answering for every pair that the word means the same."),
    _N_CLIPPED, _CLIPPED,
    whole("n_train_pairs", "Number of training pairs."), _N_PAIRS, *SIZES,
))  # fmt: skip
WIC_CHOSEN = Schema("chosen", "a row per protocol and space", (
    _PROTOCOL, _SPACE, layer("The chosen layer."), _THRESHOLD,
    measured("accuracy", "Accuracy in the chosen layer."),
    text("reported_on", "Part whose pairs the accuracy is of."),
    _GAIN,
    whole("n_gained", "Number of pairs that are predicted correctly only in this space."),
    whole("n_lost", "Number of pairs that are predicted correctly only from untransformed hidden states."),
    number("p_value", "McNemar's test of the first against the second."),
    _N_CLIPPED, _N_PAIRS, *SIZES,
))  # fmt: skip

_SET = text("set", "Collection of pairs of sentences with human scores.")
_POOLING = text("pooling", "How the vector of a sentence is made from those of its tokens.")
# Static vectors have no layer: the cell is empty.
_LAYER = replace(layer("Number of the layer; empty of static vectors."), may_be_empty=True)
_AGGREGATION = text("aggregation", "all pairs together, the mean of the subsets, or wmean, weighted by their pairs.")
_CORRELATION = (
    Column("spearman", float, "Spearman's correlation of cosines and human scores; low, high: its 95% interval.",
           form=".3f", interval=""),
    _GAIN, _N_PAIRS, _N_CLIPPED, _CLIPPED,
    text("fitted_on", "Text that the transform was fitted on."),
    *SIZES,
)  # fmt: skip
STS = Schema("sts", "a row per set, pooling, layer, space and aggregation", (
    _SET, _POOLING, _LAYER, _SPACE, _AGGREGATION, *_CORRELATION,
))  # fmt: skip
STS_CHOSEN = Schema("chosen", "a row per protocol, set, pooling, space and aggregation", (
    _PROTOCOL, _SET, _POOLING, _SPACE, replace(_LAYER, meaning="The chosen layer; empty of static vectors."),
    text("chosen_on", "Pairs on which the layer was chosen."),
    whole("n_chosen_on", "Number of these."),
    _AGGREGATION, *_CORRELATION,
))  # fmt: skip
