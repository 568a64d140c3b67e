"""Tables of `fit`, `probe` and `rank`, and columns shared by several commands."""

from __future__ import annotations

from collections.abc import Iterator

from probing.data import ADDED_CONTROLS, CONTROLS
from probing.results import (
    LAYER_NAME,
    Column,
    Schema,
    Type,
    estimate,
    label_of_class,
    layer_number,
    number,
    text,
    whole,
)
from probing.statistics import SIZE_COLUMNS
from probing.tables import BASIS_COLUMNS, CONDITIONS, DIRECTION_COLUMNS, ROTATED_COLUMNS

INTERVAL = "95% interval"


def layer_column(meaning: str = "Number of the layer; 0 is the embedding output, k the output of block k.") -> Column:
    """Return the column of the layer."""
    return Column("layer", layer_number, meaning)


_LAYER_NAME = text(
    LAYER_NAME, "Name of the layer, of arrays that were given under names; the number is then its place, from 0."
)
# The column of the layer, and its name where it has one.
LAYER = layer_column(), _LAYER_NAME


def block(meaning: str = "Number of the block, from 1.") -> Column:
    """Return the column of the layer for tables where it is the number of a block."""
    return Column("layer", layer_number, meaning)


HEAD = whole("head", "Number of the attention head within its block, from 1.")
HEAD_NAME = "An attention head: 3-9 is head 9 of layer 3, both counted from 1."


def ends(of: str, meaning: str, kind: Type = float) -> tuple[Column, Column]:
    """Return the columns of both ends of an interval that does not belong to the column before it."""
    return tuple(Column(f"{of}_{end}".lstrip("_"), kind, meaning) for end in ("low", "high"))  # type: ignore[return-value]


def value(meaning: str) -> Column:
    """Return the column `value` with its interval, `low` and `high`."""
    return Column("value", float, f"{meaning}; low, high: its {INTERVAL}.", form=".3f", interval="")


def effect(meaning: str) -> Column:
    """Return the column `effect` with its interval, `low` and `high`."""
    return Column("effect", float, f"{meaning}; low, high: its {INTERVAL}.", form="+.3f", interval="")


_SIZES = {
    "n_fitted_sentences": "Number of sentences on which the transform was fitted.",
    "n_fitted_vectors": "Number of vectors on which the transform was fitted.",
    "n_fitted_dimensions": "Number of dimensions that the transform estimates.",
}
# The size of the sample that a transform was fitted on; only of transforms that estimate a covariance.
SIZES = (
    *(whole(name, meaning) for name, meaning in _SIZES.items()),
    number("vectors_per_dimension", "Vectors per estimated dimension; whitening is unreliable below ten.", form=".1f"),
)
assert tuple(column.name for column in SIZES) == tuple(SIZE_COLUMNS)

N_TRAIN_TOKENS = whole("n_train_tokens", "Number of training tokens, or other examples.")
N_TEST_TOKENS = whole("n_test_tokens", "Number of test tokens, or of sentences or rows where these are classified.",
                      "n test")  # fmt: skip


def _controls(score: str, words: str) -> Iterator[Column]:
    for name, control in {**CONTROLS, **ADDED_CONTROLS}.items():
        meaning = f"{words} of the control {control.words}, a mean over its draws."
        yield Column(f"{name}_{score}", float, meaning, control.words, ".3f", f"above_{name}")


_AGREEMENT = (
    number("bootstrap_overlap", "Share of the first 20 neurons that bootstrapped probes have in common."),
    number("more_penalty_overlap", "Overlap of the first 10 neurons with those under a penalty 10 times stronger."),
    number("more_penalty_spearman", "Spearman's correlation with the ranking under that penalty."),
    number("less_penalty_overlap", "Overlap of the first 10 neurons with those under a penalty 10 times weaker."),
    number("less_penalty_spearman", "Spearman's correlation with the ranking under that penalty."),
)
_FLAG = text("flag", "uninformative where the probe is not shown to beat a constant answer.", may_be_empty=True)
ACCURACY = Schema("accuracy", "a row per layer", (
    *LAYER,
    estimate("accuracy", "Share of the test tokens whose class the probe predicts."),
    number("macro_accuracy", "Mean over the classes of the accuracy of each."),
    number("macro_f1", "Mean over the classes of F1, the harmonic mean of precision and recall; without classes that "
           "the test part has no token of and the probe never predicts.", "macro F1"),
    number("within_one", "Share of test tokens whose predicted class is at most 1 away, where classes are numbers.",
           "within 1"),
    number("mean_absolute_error", "Mean absolute distance of the predicted number from the true one.", "error", ".2f"),
    number("cross_entropy", "Cross-entropy of the test tokens, in nats.", "nats"),
    number("prior_cross_entropy", "Cross-entropy of a constant answer, in nats.", "constant"),
    number("train_cross_entropy", "Cross-entropy of the training tokens, in nats.", "training"),
    estimate("information", "Nats by which the probe is better than the constant answer."),
    number("optimality_gap", "By how many nats, at most, the training objective is above its minimum.", "gap", ".1e"),
    Column("majority_accuracy", float, "Accuracy of always predicting the most frequent class of training; "
           "above_majority: by how much the probe is above it, paired.", "majority", ".3f", "above_majority"),
    N_TRAIN_TOKENS, N_TEST_TOKENS,
    whole("n_classes", "Number of classes."),
    *_controls("accuracy", "Accuracy"),
    whole("n_clipped", "Number of neurons that `--transform clip` sets to 0."),
    number("selectivity", "Accuracy minus that of the control task."),
    *_AGREEMENT,
    number("online_code_bits", "Bits of the training labels encoded online, with `--mdl`.", form=".0f"),
    number("uniform_code_bits", "Bits of the labels in a code that knows only the number of classes.", form=".0f"),
    number("compression", "The second divided by the first.", form=".1f"),
    number("validation_cross_entropy", "Cross-entropy of the validation tokens, in nats."),
    *SIZES, _FLAG,
), needed=(
    "layer", "accuracy", "accuracy_low", "accuracy_high", "cross_entropy", "optimality_gap", "n_train_tokens",
    "n_test_tokens",
), shown=(
    "layer", "accuracy*", "macro_f1", "majority_accuracy", *(f"{name}_accuracy" for name in CONTROLS), "flag",
))  # fmt: skip
# Of numbers, where the R² of a ridge probe replaces the accuracy.
NUMBERS = Schema("accuracy", "a row per layer, of numbers", (
    *LAYER,
    estimate("r2", "R² on test examples: the share of the constant answer's squared error that the probe saves.", "R²"),
    number("train_r2", "R² on training examples.", "in training"),
    number("mean_absolute_error", "Mean absolute error, in units of the number.", "error", ".3g"),
    number("root_mean_squared_error", "Root of the mean squared error, in units of the number.", "rms error", ".3g"),
    number("constant_root_mean_squared_error", "Root of the mean squared error of the constant answer, in units of the "
           "number.", "constant", ".3g"),
    number("relative_gradient", "Norm of the gradient of the objective, divided by that at 0.", "gradient", ".1e"),
    N_TRAIN_TOKENS, N_TEST_TOKENS,
    *_controls("r2", "R²"), *_AGREEMENT, *SIZES, _FLAG,
), needed=("layer", "r2", "r2_low", "r2_high", "relative_gradient", "n_train_tokens", "n_test_tokens"),
    shown=("layer", "r2*", "mean_absolute_error", *(f"{name}_r2" for name in CONTROLS), "flag"))  # fmt: skip

# False discovery rate of the neurons that are not flagged `no-signal`: the largest expected share without a signal.
FALSE_DISCOVERIES = 0.01
# Columns of the neurons of pairs of spans.
SPANS = (
    whole("span", "Of pairs of spans: the span whose vector the neuron is read in, 1 or 2. The row is of this span "
          "alone; in every logit, what a neuron contributes is the sum over both spans."),
    whole("span_neuron", "Of pairs of spans: index of the neuron in its layer. `neuron` counts the neurons of span 1, "
          "then those of span 2."),
)  # fmt: skip
_RANKED = (
    layer_column("0 is the embedding output, and layer k the output of block k; units of an MLP and outputs of heads "
                 "of layer k are inside block k."),
    _LAYER_NAME,
    whole("rank", "Rank of the neuron in its layer, by contribution; 1 contributes most. Equal contributions "
          "(within a hundred-thousandth) share the best rank of theirs."),
    whole("neuron", "Index of the neuron in its layer, from 0."),
    *SPANS,
    whole("head", "Attention head that the neuron belongs to, counted from 1; with `--site attention`."),
    whole("feature", "Number of the feature in its dictionary, where only some of a wide one are read, with `--site "
          "sae:FOLDER`; otherwise it is the index."),
    number("contribution", "Mean over the test tokens of |weight × activation| for the true class, in logit units, "
           "weights centred over classes; of a probe of numbers, for its prediction, in their unit. A high "
           "contribution does not show that the model uses the neuron.", form=".4f"),
    number("ratio", "Contribution in multiples of the mean of the layer's neurons.", form=".1f"),
    number("share", "Contribution as a share of the sum over the layer's neurons.", form=".1%"),
    Column("rank_low", int, "Best and worst rank over this probe and those trained on bootstrap samples of the "
           "training sentences. It shows how stable the rank is and is not a confidence interval.", "range"),
    Column("rank_high", int, "The worst of these ranks."),
    whole("correlated_group", "Where neurons correlate by .99 or more in size over training tokens, one by one: the "
          "lowest neuron of the group."),
    number("contribution_centred", "Contribution after subtracting the neuron's mean over training tokens: what is "
           "left once the neuron cannot stand in for the intercept that the probe lacks. * marks unreliable values.",
           "centred", ".4f"),
)  # fmt: skip
_COMPANION = number(
    "contribution_companion", "Centred contribution to a probe that has an intercept, for neurons whose centred "
    "contribution is marked unreliable by *.", "with intercept", ".4f",
)  # fmt: skip
# What labels explain of a neuron within a covariate (`--control_for`).
WITHIN_COVARIATE = (
    number("within_covariate_eta_squared", "The same among training tokens with the same value of the covariate "
           "(`--control_for`): the share of the variance that is left within these.", "within"),
    number("within_covariate_z", "By how many standard deviations that is more than by chance.", "z within", ".0f"),
    number("within_covariate_p", "Its p-value.", "p within"),
    number("within_covariate_q", "Lowest false discovery rate at which the neuron counts as having a signal with that "
           f"value held fixed. Above {FALSE_DISCOVERIES:g} the flag says confound, if it has a signal otherwise.",
           "q within"),
)  # fmt: skip
_SEPARATION = (
    number("eta_squared", "Eta squared: the share of the neuron's variance over training tokens that is between "
           "classes rather than within them, minus the share that is expected by chance. It is 0 for a neuron that "
           "tells nothing about the class by itself. Of numbers, the squared correlation, minus that by "
           "chance.", "eta sq."),
    number("eta_squared_z", "By how many standard deviations the labels explain more of the neuron than by "
           "chance.", "z",
           ".0f"),
    number("eta_squared_p", "Its p-value.", "p"),
    number("eta_squared_q", "Lowest false discovery rate over the neurons of the layer at which this one counts as "
           f"having a signal. Above {FALSE_DISCOVERIES:g} the flag says no-signal.", "q"),
    *WITHIN_COVARIATE,
    number("unique", "Estimate, without retraining, of what the probe loses without the neuron, from its weights and "
           "from how well the other neurons can stand in for it. It is good for the order of neurons, and several "
           "times too large as a number of nats.", form=".4f"),
)  # fmt: skip
_REMOVED = (
    text("removed", "Why a probe was trained without the neuron, and what its interval cannot tell."),
    number("removed_p", "p-value of the loss without it, corrected for all removed neurons."),
    number("mean", "Mean activation over training tokens."),
    number("sd", "Standard deviation of the activation over training tokens."),
    text("flag", "Warnings about the rank, separated by spaces.", may_be_empty=True),
)
_NEEDED = (
    "layer", "rank", "neuron", "contribution", "ratio", "share", "contribution_centred", "eta_squared", "eta_squared_z",
    "mean", "sd", "flag",
)  # fmt: skip
_SHOWN = (
    "layer", "rank", "rank_low", "neuron", "span", "head", "feature", "contribution", "share", "contribution_centred",
    "eta_squared", "eta_squared_z", "cross_entropy_without*", "r2_without*", "flag",
)  # fmt: skip
# `neuron_table` in `probing.probes.evidence` fills it. Which columns the page and the terminal show is said in
# `probing.page.terms` and `probing.tables.probes`; files and W&B have all of them.
NEURONS = Schema("neurons", "a row per layer and neuron, in ranked order", (
    *_RANKED,
    *DIRECTION_COLUMNS,
    _COMPANION,
    number("control_task_share", "Share of the neuron in the contributions to probes of random labels of word types, "
           "the mean over several draws. A neuron with as large a share there tells words apart rather than classes.",
           "in control tasks", ".1%"),
    number("selectivity", "Its share of the layer's sum minus that."),
    *_SEPARATION,
    estimate("cross_entropy_without", "Ablation effect: by how many nats a probe that is retrained without the neuron "
             "predicts the test tokens worse. Little is lost where other neurons carry the same information.",
             "without it", "+.4f"),
    *_REMOVED,
), needed=_NEEDED, shown=_SHOWN)  # fmt: skip
NUMBER_NEURONS = Schema("neurons", "a row per layer and neuron, in ranked order, of numbers", (
    *_RANKED, *DIRECTION_COLUMNS, _COMPANION,
    number("correlation", "Correlation of the neuron with the number over training tokens.", form="+.3f"),
    *_SEPARATION,
    estimate("r2_without", "Ablation effect: by how much the R² of the test tokens falls for a probe that is solved "
             "again without the neuron. Little is lost where other neurons carry the same "
             "information.", "R² lost", "+.4f"),
    *_REMOVED,
), needed=_NEEDED, shown=_SHOWN)  # fmt: skip
POSITIONS = Schema("positions", "of positions, a row per layer and position", (
    *LAYER,
    whole("position", "Position of the token in its sentence, special tokens included."),
    estimate("accuracy", "Share of the test tokens at the position that are predicted."),
    N_TRAIN_TOKENS, N_TEST_TOKENS,
), optional=True, needed=("layer", "position", "accuracy"))  # fmt: skip
CLASS_SCORES = Schema("class_scores", "of classes, a row per layer and class", (
    *LAYER,
    Column("class", label_of_class, "Label of the class."),
    N_TRAIN_TOKENS, N_TEST_TOKENS,
    whole("n_predicted", "Number of test tokens that the probe takes for the class.", "predicted"),
    estimate("recall", "Share of the class's test tokens that the probe takes for it."),
    estimate("precision", "Share of the test tokens that the probe takes for the class which are of it."),
    number("f1", "Harmonic mean of precision and recall.", "F1"),
    Column("confused_with", label_of_class, "The class that most of its other test tokens are taken for.",
           "mostly taken for", may_be_empty=True),
    whole("n_confused", "Number of its test tokens that are taken for that one."),
), optional=True, needed=(
    "layer", "class", "n_test_tokens", "n_predicted", "recall", "precision", "f1", "confused_with",
))  # fmt: skip
CONFUSIONS = Schema("confusions", "of classes, a row per layer, class and predicted class that occur together", (
    *LAYER,
    Column("class", label_of_class, "Label of the class."),
    Column("predicted", label_of_class, "Label of the class that the probe predicts."),
    whole("n_test_tokens", "Number of test tokens of the one that are taken for the other.", "n test"),
), optional=True, needed=("layer", "class", "predicted", "n_test_tokens"))  # fmt: skip
CLASSES = Schema("classes", "a row per layer, class and neuron among the first 20 of the class", (
    *LAYER,
    Column("class", label_of_class, "Label of the class."),
    whole("n_test_tokens", "Number of test tokens of the class.", "n test"),
    whole("rank", "Rank of the neuron for the class."),
    whole("neuron", "Index of the neuron."),
    number("contribution", "Mean contribution over the class's test tokens."),
    number("share", "Its share of the class's sum."),
    number("weight", "The probe's centred weight; its sign says whether high values speak for or against the class."),
), optional=True, needed=("layer", "class", "rank", "neuron", "contribution", "share", "weight"))  # fmt: skip
HEADS = Schema("heads", "with `--site attention`, a row per layer and head", (
    layer_column(),
    whole("head", "Number of the head, from 1."),
    whole("first_neuron", "Its first neuron."),
    whole("n_neurons", "Number of its neurons."),
    number("contribution", "Sum of the contributions of its neurons."),
    number("share", "That as a share of the layer's sum."),
    estimate("accuracy", "Accuracy of a probe of the head's neurons alone."),
    number("majority_accuracy", "Accuracy of always predicting the most frequent class."),
    number("random_accuracy", "Mean accuracy of probes of as many random neurons."),
    number("random_lowest", "The lowest of these."),
    number("random_highest", "The highest of these."),
    whole("n_random", "Number of random sets."),
    text("above_chance", "Whether the head is above both, corrected for the number of heads: yes or no."),
    N_TRAIN_TOKENS, N_TEST_TOKENS,
), optional=True, needed=("layer", "head", "first_neuron", "n_neurons", "contribution", "share"))  # fmt: skip

BASIS = Schema(
    "basis", "a row per layer and kind of contribution", (*LAYER, *BASIS_COLUMNS), optional=True,
    needed=("layer", *(column.name for column in BASIS_COLUMNS)),
)  # fmt: skip

BASES = Schema("bases", "with `--site sae:FOLDER`, a row per layer, basis and number of units", (
    layer_column(),
    text("basis", "What a unit is: one of the features, of the neurons of the layer, of random features (random "
         "directions, as many of which are active), or of the neurons after a random rotation (rotated neurons)."),
    whole("k", "Number of units that a probe with an intercept reads: the first by the share of their variance over "
          "training tokens that is between classes."),
    estimate("accuracy", "Accuracy on test tokens; of several draws the mean."),
    number("majority_accuracy", "Accuracy of always predicting the most frequent class."),
    number("lowest", "The lowest accuracy of a draw."),
    number("highest", "The highest."),
    whole("n_draws", "Number of draws."),
    Column("difference", float, "Accuracy of the first k features minus this one; difference_low, difference_high: its "
           "interval, paired by sentence, at the level that leaves 5% for all comparisons of the layer.", form="+.3f",
           interval="difference"),
    text("features", "Whether features are better, worse or unresolved: the interval is above or below 0, and so they "
         "are to every draw, or not."),
    text("units", "Indices of the first units, at most 16; of features their numbers in the dictionary."),
    whole("n_units", "Number of all units of the basis."),
    number("n_active", "Mean number of units that are not 0 on a test token.", form=".1f"),
    number("l2", "Penalty of the probe, chosen on validation tokens; of several draws the median.", form=".0e"),
    N_TRAIN_TOKENS, N_TEST_TOKENS,
), optional=True, needed=("layer", "basis", "k", "accuracy"))  # fmt: skip

CONTEXTS = Schema("contexts", "of text, a row per layer, neuron among its first 10, end and test token", (
    layer_column(),
    whole("neuron", "Index of the neuron."),
    text("end", "highest or lowest: which activations of the neuron."),
    whole("place", "Place among the tokens of that end; 1 is the most extreme one."),
    number("activation", "Activation of the neuron on the token.", form=".3g"),
    text("token", "Its characters, or the word or the sentence where the task reads whole ones.", may_be_empty=True),
    Column("class", label_of_class, "True class of the token."),
    number("number", "Where numbers are predicted, that of the token.", form=".4g"),
    text("before", "The text before the token.", may_be_empty=True),
    text("after", "The text after it.", may_be_empty=True),
    whole("sentence", "Index of the sentence in the corpus."),
    whole("position", "Position of the token in its sentence, special tokens included."),
), optional=True, needed=(
    "layer", "neuron", "end", "place", "activation", "sentence", "before", "token", "after",
))  # fmt: skip
PROFILES = Schema("profiles", "of text, a row per layer, neuron among its first 10, and number that describes it", (
    layer_column(),
    whole("neuron", "Index of the neuron."),
    text("measure", "`mean`: its mean activation over test tokens; `position`: over those at a position; "
         "`correlation`: its correlation with another neuron of the layer over these, of the five strongest ones; "
         "`cosine_contribution`: what it adds to the mean cosine of two different test tokens; `cosine_share`: that as "
         "a share of the mean cosine, which can be below 0 or above 1."),
    whole("index", "The position, or the other neuron."),
    estimate("value", "The number, with the interval of a mean over sentences or documents."),
    N_TEST_TOKENS,
), optional=True, needed=("layer", "neuron", "measure", "value", "n_test_tokens"))  # fmt: skip
NEURON_CLASSES = Schema("neuron_classes", "of `Run.neuron`: a row per class", (
    layer_column(),
    whole("neuron", "Index of the neuron."),
    Column("class", label_of_class, "Label of the class."),
    number("weight", "The probe's weight, centred over classes; its sign says whether high values speak for or against "
           "the class. Of numbers, the weight itself.", form="+.3g"),
    number("contribution", "Mean contribution over the class's test tokens.", form=".3g"),
))  # fmt: skip
# Tables of a run of classes, and of one of numbers.
TABLES = ACCURACY, NEURONS, CLASS_SCORES, CONFUSIONS, POSITIONS, CLASSES, HEADS, BASES, BASIS, CONTEXTS, PROFILES
NUMBER_TABLES = NUMBERS, NUMBER_NEURONS, HEADS, BASIS, CONTEXTS, PROFILES
RANKING = Schema("METHOD", "a row per layer and neuron in ranked order, a file per method", (
    layer_column(), whole("rank", "Rank in the layer."), whole("neuron", "Index of the neuron."), *SPANS,
    number("score", "What the method ranks by."),
))  # fmt: skip
DIRECTIONS = Schema("directions", "a row per layer and ranking", (layer_column(), *ROTATED_COLUMNS), optional=True)
EVALUATION = Schema("evaluation", "a row per ranking, probe, end and size", (
    layer_column(), text("ranking", "Method of the ranking."),
    text("probe", "linear or gaussian."),
    text("from", "top, bottom or random: which of its neurons."),
    whole("k", "Number of neurons."),
    whole("draw", "Number of the draw of random neurons."),
    estimate("accuracy", "Accuracy on test tokens."),
    number("majority_accuracy", "Accuracy of the most frequent class."),
    text("above_chance", "Whether the accuracy is above that and every random draw: yes or no."),
    number("cross_entropy", "Cross-entropy, in nats."),
    number("mutual_information", "Bits by which the probe is better than the class shares of the test tokens."),
    number("share_of_entropy", "That as a share of the entropy of the classes."),
    N_TRAIN_TOKENS, N_TEST_TOKENS,
), optional=True)  # fmt: skip
ERASURE = Schema("erasure", "a row per layer and condition", (
    layer_column(),
    text("condition", "What a new probe reads: all neurons, the first alone, the others, or after erasure.",
         labels=CONDITIONS),
    whole("n_neurons", "Number of neurons that it reads.", "neurons"),
    whole("n_removed", "Number of directions that were erased.", "removed"),
    estimate("accuracy", "Accuracy on test tokens."),
    number("majority_accuracy", "Accuracy of the most frequent class."),
    number("cross_entropy", "Cross-entropy, in nats."),
    number("constant_cross_entropy", "Cross-entropy of a constant answer."),
    estimate("information", "Usable information: nats by which the probe is better than a constant answer.",
             "information (nats)"),
    number("share", "That as a share of the information of all neurons."),
    N_TEST_TOKENS,
), optional=True)  # fmt: skip
CURVES = Schema("curves", "a row per ranking, kind, end and number of neurons", (
    layer_column(),
    text("ranking", "Method of the ranking."),
    text("kind", "only these neurons, or without them."),
    text("from", "top, bottom or random: which of its neurons."),
    whole("k", "Number of neurons."),
    whole("draw", "Number of the draw of random neurons."),
    estimate("accuracy", "Accuracy on test tokens."),
    number("cross_entropy", "Cross-entropy, in nats."),
    number("validation_accuracy", "Accuracy on validation tokens."),
    N_TRAIN_TOKENS, N_TEST_TOKENS,
), optional=True)  # fmt: skip
_PREDICTIONS = (
    whole("sentence", "Index of the sentence."),
    whole("position", "Position of the token in its sentence, special tokens included."),
    text("token", "Characters of the token, or the word."),
    text("word", "The word that the token belongs to."),
    whole("word_index", "Index of that word in its sentence."),
    whole("row", "Index of the row, of arrays."),
    *LAYER,
    Column("predicted", label_of_class, "Label that the probe predicts, or number."),
    number("probability", "Probability that it gives to the label."),
)  # fmt: skip
PREDICTIONS = Schema(
    "predictions", "what `Run.predict` returns: a row per example and layer", _PREDICTIONS, optional=True
)
EXPLANATIONS = Schema("explanations", "what `Run.explain` returns: a row per example, layer and neuron", (
    *_PREDICTIONS,
    number("logit", "Logit of the predicted class: the sum of the contributions of all neurons, and of the intercept "
           "if there is one; of a number, how far it is from the constant answer.", form="+.2f"),
    number("intercept", "With `--probe.bias`: logit of the predicted class where all neurons have their mean.",
           form="+.2f"),
    whole("rank", "Rank of the neuron by the size of its contribution."),
    whole("neuron", "Index of the neuron."),
    number("contribution", "weight × activation, with weights centred over classes: above 0 it speaks for the "
           "predicted class.", form="+.3f"),
), optional=True)  # fmt: skip
