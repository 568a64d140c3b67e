"""Tables of `geometry --extremes`."""

from __future__ import annotations

from probing.results.schema import Schema, measured, number, text, whole
from probing.studies.geometry.extremes.names import DEFINITIONS, MOST_TOKENS
from probing.tables.schema import HEAD, block, layer_column

_DEFINITION = text(
    "definition", "Why a value is large. " + "; ".join(f"{name}: {why}" for name, why in DEFINITIONS.items()) + "."
)
_TOKEN = text("token", "Kind of token: the text of a special or of a frequent one, first token (of a sentence, where "
              "it is no special one), other tokens, or all tokens.")  # fmt: skip
_TERMS = "f(x) = (x W_V + b_V) W_O"
MASSIVE = Schema("massive", "with `--extremes`, a row per layer, definition, kind of token and neuron", (
    layer_column(), _DEFINITION, _TOKEN,
    whole("neuron", "Index of the neuron; empty in rows over all neurons. At most five are listed for each kind."),
    whole("count", "Number of tokens of the kind on which the neuron, or some neuron, is large.", form=",d"),
    whole("n_tokens", "Number of tokens of the kind.", form=",d"),
    number("share", "The first number divided by the second.", form=".1%"),
    number("largest_magnitude", "Largest on these tokens, of the neuron or of any, large by the definition or not.",
           "largest", form=".2f"),
    number("median", "Median magnitude of all values of the layer.", form=".3g"),
    whole("n_neurons", "Number of neurons that are large on some token of the kind."),
    number("value_share", "Share of the values of all neurons on these tokens that are large.", form=".2g"),
), optional=True)  # fmt: skip
MASSIVE_COURSE = Schema(
    "massive_course",
    f"with `--extremes`, a row per definition, kind of token and neuron that is large on at least {MOST_TOKENS:.0%} of "
    "the tokens of the kind in some layer", (
    _DEFINITION, _TOKEN,
    whole("neuron", "Index of the neuron."),
    whole("first_layer", "Layer from which on it is large on so many of them, in the longest run of layers.", "from"),
    whole("last_layer", "Last layer of that run.", "to"),
    whole("gone_layer", "The measured layer after it, in which it is no longer; empty at the last one.", "gone in"),
    whole("n_layers", "Number of layers in which it is large on so many of them."),
    number("largest_magnitude", "The largest on these tokens in any layer.", "largest", form=".2f"),
    whole("largest_layer", "The layer of that.", "in layer"),
    number("times_median", "That divided by the median magnitude of the layer.", "x median", form=",.0f"),
), optional=True)  # fmt: skip
SINKS = Schema("sinks", "with `--extremes`, a row per block, kind of token and head, and of all heads of the block", (
    block(),
    HEAD,
    text("token", "Kind of token: the text of a special one, first token, punctuation, or other tokens."),
    number("share", "Share of the tokens that are of the kind.", form=".1%"),
    number("uniform", "Attention to the kind if every query attended alike to all tokens that it sees.", form=".1%"),
    measured("mass", "Attention to the kind, a mean over all queries; of a block the mean of its heads.", form=".1%"),
    measured("norm_mass", f"The same of weights times the norm of {_TERMS}, rows divided by their sum.", "by norm",
             form=".1%"),
    number("value_norm", f"Mean norm of {_TERMS} of the tokens of the kind.", "value norm"),
    number("value_ratio", "That divided by the same of tokens of no other kind.", "x others", form=".2f"),
    measured("added", f"Norm of the sum of attention times {_TERMS} over the tokens of the kind, a mean over queries; "
             "of a block, of the sum over its heads."),
    measured("of_output", "That divided by the norm of all that the head adds, or of the output of the attention.",
             "of output", form=".1%"),
    measured("of_stream", "Of a block, the norm of what is added to a query divided by that of the hidden state "
             "of the query that enters the block, a mean over queries.", "of stream", form=".1%"),
), optional=True)  # fmt: skip
_HELD = "with the outliers held at their mean in the queries and keys of the head"
_MATCHED = "with as many other neurons of about the same sd held"
_SCALED = f"{_MATCHED}, and what is taken away scaled to the variance of the outliers"
_CORRECTED = "The p-value beside matched sets, corrected for the number of heads, or of blocks (Holm)."
HELD_OUTLIERS = Schema(
    "held_outliers", "with `--extremes`, a row per head of blocks that outliers enter, per block, and over all", (
    block("Number of the block; all for all of these blocks together."), HEAD,
    text("neurons", "The outlier neurons of the layer that enters the block."),
    whole("k", "Their number."),
    number("sd_ratio", "Root of their variance divided by that of the matched neurons, a mean over the sets.",
           "sd ratio", form=".2f"),
    whole("n_draws", "Number of distinct matched sets."),
    number("divergence", f"Jensen-Shannon divergence from the whole head's attention {_HELD}, in nats, a mean over "
           "queries; in rows without a head the mean over heads, each changed alone.", form=".4f"),
    number("divergence_matched", f"The same {_MATCHED}, a mean over the sets.", "matched", form=".4f"),
    number("divergence_matched_low", "The least of these sets.", form=".4f"),
    number("divergence_matched_high", "The largest of these sets.", form=".4f"),
    number("divergence_p", "Share of the matched sets, and of the outliers, with at least this divergence.", "p",
           form=".2g"),
    number("divergence_scaled", f"The same {_SCALED}, a mean over the sets.", "scaled", form=".4f"),
    number("divergence_scaled_p", "Share of these sets, and of the outliers, with at least this divergence.", "p",
           form=".2g"),
    number("divergence_p_holm", _CORRECTED, "p (Holm)", form=".2g"),
    number("special", "Attention of the whole head to special tokens, in causal models to the first token too.",
           form=".1%"),
    number("special_held", f"The same {_HELD}.", "held", form=".1%"),
    number("special_matched", f"The same {_MATCHED}, a mean over the sets.", "matched", form=".1%"),
    number("special_matched_low", "The least of these sets.", form=".1%"),
    number("special_matched_high", "The largest of these sets.", form=".1%"),
    number("special_p", "Share of the sets, and of the outliers, that change this attention at least as much, in "
           "either direction.", "p", form=".2g"),
    number("special_scaled", f"The same {_SCALED}, a mean over the sets.", "scaled", form=".1%"),
    number("special_scaled_p", "Share of these sets, and of the outliers, that change it at least as much.", "p",
           form=".2g"),
    number("special_p_holm", _CORRECTED, "p (Holm)", form=".2g"),
), optional=True)  # fmt: skip

EXTREMES = (MASSIVE, MASSIVE_COURSE, SINKS, HELD_OUTLIERS)
NAMES = tuple(schema.name for schema in EXTREMES)
