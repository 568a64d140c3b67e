"""Tables of `geometry`."""

from __future__ import annotations

from probing.results.schema import Column, Schema, measured, number, text, whole
from probing.studies.geometry.extremes.tables import EXTREMES
from probing.studies.geometry.position import tables as position
from probing.tables.schema import SIZES, block, effect, layer_column, value

_NEURON = whole("neuron", "Index of the neuron.")
_N_TOKENS = whole("n_tokens", "Number of tokens that were measured.")
_P = (
    number("percentile", "Percentage of the draws of random neurons that do less harm.", form=".0f"),
    number("p_value", "Share of these draws, and of what is tested, that do at least as much harm."),
)
_SPECIAL = text("special_tokens", "Whether special tokens are included: exclude or include.", may_be_empty=True)
_WHERE = "Where neurons are changed"

GEOMETRY = Schema("geometry", "a row per layer, transform and measure", (
    layer_column(),
    text("transform", "Transform of the hidden states: none, clip, clip_random (mean and range of the draws), whiten, "
         "standardise, center or all_but_the_top."),
    text("measure", "What is measured."),
    value("Its value"),
    _N_TOKENS, *SIZES,
))  # fmt: skip
OUTLIERS = Schema("outliers", "a row per definition, layer and outlier", (
    text("definition", "Definition by which the neuron is an outlier."),
    layer_column("Number of the layer; all stands for all layers but the embeddings."),
    _NEURON,
    number("value", "How strong an outlier it is, in the unit of the definition."),
    _SPECIAL,
))  # fmt: skip
DIMENSIONS = Schema("dimensions", "a row per layer and neuron", (
    layer_column(), _NEURON,
    number("mean", "Mean activation."),
    number("sd", "Standard deviation of the activation."),
    number("cosine_share", "Share of the mean cosine that the neuron contributes."),
    number("argmin_share", "Share of tokens in which it is the smallest."),
    number("argmax_share", "Share of tokens in which it is the largest."),
    number("beyond_share", "Share of tokens in which it is more than 3 sd from the mean of that token's neurons."),
))  # fmt: skip
PARAMETERS = Schema("parameters", "a row per outlier and parameter", (
    text("parameter", "Which parameter: position, segment, mean_token, gain or bias."),
    text("module", "Name of the module that holds it."),
    layer_column("The layer that the module makes or reads."),
    whole("row", "Row of the embedding table."),
    whole("position", "Position that the row is of."),
    _NEURON,
    number("value", "The neuron's parameter."),
    whole("rank", "Its rank among the neurons, 1 for the largest."),
    whole("absolute_rank", "Its rank by absolute value."),
    number("deviations", "Its distance from the mean of the neurons, in standard deviations."),
    whole("n_outliers", "Number of neurons that are more than 5 standard deviations away."),
))  # fmt: skip
EXPLAINED = Schema("explained", "a row per layer, neuron and source of variance", (
    layer_column(), _NEURON,
    text("kind", "outlier, or random for ten other neurons."),
    _SPECIAL,
    text("source", "What explains: position, token, sentence, ..."),
    number("alone", "Share of the neuron's variance that the source explains alone."),
    number("partial", "Share that it explains of what the other sources leave."),
    _N_TOKENS,
))  # fmt: skip
FIRST_TOKEN = Schema("first_token", "with `--first_token exclude`, a row per layer, choice of tokens and measure", (
    layer_column(),
    text("first_token", "Tokens that are measured: exclude (without the first), include, only."),
    text("measure", "rms_norm, mean_energy_share, mean_cosine, farthest_mean, or the definition of an outlier."),
    whole("neuron", "Neuron that the measure is of."),
    number("value", "Its value."),
    _N_TOKENS,
), optional=True)  # fmt: skip
_OF_BOUND = text("measure", "Term of the bound of Shi et al. (2022).")
SMOOTHING = Schema("smoothing", "with `--smoothing_bound`, a row per block and term of the bound", (
    layer_column("The block's output."), _OF_BOUND,
    value("Mean over sentences"),
    whole("n_sentences", "Number of sentences."),
), optional=True)  # fmt: skip
_OF_SENTENCE = {
    "sigma_1": "Least standard deviation, over neurons, among the tokens that enter the first LayerNorm.",
    "sigma_2": "The same of the second LayerNorm.",
    "lambda_max": "Largest eigenvalue of the attention's part.",
    "attention_factor": "Largest factor by which the attention multiplies the distance.",
    "distance_before": "Distance of the sentence to equal rows before the block.",
    "distance_after": "The same after the block.",
    "bound_published": "The bound as published.",
    "bound": "The bound of this block.",
    "bound_per_matrix": "The bound with one singular value for each matrix.",
    "attention_reach": "Share of the attention's factor that is reached.",
}
INTERVENTIONS = Schema("interventions", "with `--interventions`, a row per measure and set of neurons", (
    text("measure", "What is measured while neurons are 0."),
    text("where", f"{_WHERE}: inside the model, or after it.", may_be_empty=True),
    text("kind", "intact, outliers, largest_gain or random."),
    whole("draw", "Number of the random draw."),
    text("neurons", "The neurons."),
    value("The measure"),
    measured("effect", "Its difference from the intact model.", form="+.3f"),
    *_P, _N_TOKENS,
), optional=True)  # fmt: skip
NORMS = Schema("norms", "with `--norms`, a row per norm of a block and neuron", (
    block(),
    whole("norm", "Number of the norm within the block."),
    text("module", "Name of the norm's module."),
    _NEURON,
    text("kind", "outlier, or random for ten other neurons."),
    number("mean", "Mean output."),
    number("deviations", "Its distance from other neurons, in standard deviations."),
    number("gain", "The neuron's gain."),
    number("bias", "The neuron's bias."),
    number("others_gain", "Mean gain of other neurons."),
    number("others_bias", "Mean bias of other neurons."),
    number("standardised", "Mean input as the norm standardises it."),
    number("by_scaled_input", "Term of the formula: the scaled input."),
    number("by_centring", "Term of the formula: the subtracted mean."),
    number("by_input", "What the mean would be with the gain of other neurons and no bias."),
    number("by_gain", "What the neuron's own gain adds."),
    number("by_bias", "What the neuron's own bias adds to that of other neurons."),
    number("by_others_bias", "Mean bias of other neurons."),
    text("largest", "The largest of the terms of input, own gain and own bias."),
    _N_TOKENS,
), optional=True)  # fmt: skip
NORM_CHANGES = Schema("norm_changes", "with `--norms`, a row per measure and change of gains and biases", (
    text("measure", "deviations, mlm_loss, position_accuracy or position_accuracy_retrained."),
    layer_column(), _NEURON,
    text("where", f"{_WHERE}: in the first norm of every block, the second, or both.", may_be_empty=True),
    text("kind", "intact, outliers or random."),
    whole("draw", "Number of the random draw."),
    text("neurons", "The neurons."),
    value("The measure"),
    measured("effect", "Its difference from the intact model.", form="+.3f"),
    text("outlier", "Whether the neuron is an outlier: yes or no."),
    *_P, _N_TOKENS,
), optional=True)  # fmt: skip
PATH = Schema("path", "with `--path`, a row per place of the residual stream and neuron", (
    whole("step", "Number of the place on the stream."),
    block("Number of the block; 0 for the embeddings."),
    text("site", "Name of the place."),
    text("term", "Whether it is added to the stream: yes or no."),
    text("tokens", "first or words: what the mean is over."),
    _NEURON,
    text("kind", "Where the neuron is an outlier: first_row, layers, both, or random for ten others."),
    number("value", "Mean value."),
    number("deviations", "Its distance from other neurons, in standard deviations."),
    _N_TOKENS,
), optional=True)  # fmt: skip
FIRST_ROW = Schema("first_row", "with `--path`, a row per outlier and change of the first position's embedding", (
    layer_column(), _NEURON,
    text("kind", "intact, outliers or random: which entries of the first row are those of other rows."),
    whole("draw", "Number of the random draw."),
    text("neurons", "The neurons whose entries are changed."),
    number("value", "Distance of the neuron from others, in standard deviations."),
    number("effect", "Its difference from the intact model.", form="+.3f"),
    text("outlier", "Whether it is an outlier: yes or no."),
    *_P, _N_TOKENS,
), optional=True)  # fmt: skip
SMOOTHING_SENTENCES = Schema("smoothing_sentences", "with `--smoothing_bound`, a row per block and sentence", (
    whole("sentence", "Index of the sentence."), layer_column("The block's output."), _N_TOKENS,
    *(number(name, meaning) for name, meaning in _OF_SENTENCE.items()),
), optional=True)  # fmt: skip


def _beside(kind: str) -> tuple[Column, ...]:
    """Return the columns of what drawn sets of neurons do."""
    return (
        number(kind, f"Mean effect of the {kind} sets.", form="+.3f"),
        number(f"{kind}_lowest", "The lowest of these effects.", form="+.3f"),
        number(f"{kind}_highest", "The highest of these effects.", form="+.3f"),
        number(f"{kind}_percentile", "Percentage of these sets that do less harm.", form=".0f"),
        number(f"{kind}_p", "(1 + number of these sets that do at least as much harm) / (1 + number of sets)."),
    )


_OF_CHANGE = (
    whole("changed_layer", "Layer whose neurons are changed."),
    text("kind", "What replaces the neurons."),
    whole("k", "Number of neurons that are changed."),
    text("task", "Task of the run whose classes are erased and read; absent for position."),
    text("readout", "What is read."),
    layer_column("Layer that is read."),
    whole("head", "Position head that is read."),
    whole("offset", "Its offset."),
)
NEURON_INTERVENTIONS = Schema("neuron_interventions", "with `--neurons` or `--from_run`, a row per set and readout", (
    *_OF_CHANGE,
    text("neurons", "The neurons."),
    number("intact", "The readout of the intact model."),
    number("value", "The readout with these neurons changed."),
    effect("The second minus the first, paired by sentence"),
    *_beside("random"), *_beside("matched"),
    number("all_neurons", "With kind interchange, the readout with all neurons of the layer exchanged."),
    number("difference", "Of readout words, by how many nats the intact log odds differ in a pair, on average."),
    whole("n_as_given", "Of readout words, the number of pairs in which this difference is as the file has it."),
    whole("n", "Number of sentences, or of pairs."),
), optional=True)  # fmt: skip
NEURON_DRAWS = Schema("neuron_draws", "with `--neurons` or `--from_run`, a row per set, drawn ones too, and readout", (
    *_OF_CHANGE,
    text("set", "chosen, random or matched."),
    whole("draw", "Number of the draw."),
    number("effect", "Difference from the intact model on the sentences that drawn sets are read on.", form="+.3f"),
), optional=True)  # fmt: skip

SCHEMAS = (
    GEOMETRY, OUTLIERS, DIMENSIONS, PARAMETERS, EXPLAINED, FIRST_TOKEN, SMOOTHING, SMOOTHING_SENTENCES, INTERVENTIONS,
    NORMS, NORM_CHANGES, PATH, FIRST_ROW, NEURON_INTERVENTIONS, NEURON_DRAWS, *position.SCHEMAS,
    *EXTREMES,
)  # fmt: skip
