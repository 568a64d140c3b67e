"""The type of every column of every CSV file: a name of a column means the same in all files."""

from __future__ import annotations

from collections.abc import Callable

# Stands for the layer in rows over all layers but the embeddings.
ALL_LAYERS = "all"

Value = int | float | str
Type = Callable[[str], Value]


def layer_number(text: str) -> int | str:
    """Return a layer's number, or the word for all layers."""
    return text if text == ALL_LAYERS else int(text)


def label_of_class(text: str) -> int | str:
    """Return the label of a class as it is written; `results.json` says whether labels are text or whole numbers."""
    return text


_WHOLE_NUMBERS = (
    "neuron", "rank", "rank_low", "rank_high", "absolute_rank", "head", "first_neuron", "position", "row", "k", "draw",
    "layer_a", "layer_b", "sentence", "n_classes", "n_train_tokens", "n_test_tokens", "n_tokens", "n_sentences",
    "n_neurons", "n_removed", "n_random", "n_no_signal", "n_pairs", "n_train_pairs", "n_chosen_on", "n_clipped",
    "n_gained", "n_lost", "word_index", "n_fitted_sentences", "n_fitted_vectors", "n_fitted_dimensions", "n_train",
    "n_test", "offset", "other_layer", "other_head", "n", "n_unmatched", "seed", "step", "outlier_neuron",
    "n_outliers", "first_seen", "step_before", "half_step", "norm", "changed_layer", "n_disabled", "id", "line",
    "n_right",
)  # fmt: skip
_NUMBERS = (
    "contribution", "ratio", "share", "contribution_centred", "contribution_companion", "correlation", "eta_squared",
    "eta_squared_z", "eta_squared_p", "eta_squared_q", "given_eta_squared", "given_z", "given_p", "given_q",
    "control_task_share", "unique", "cross_entropy_without", "r2_without", "removed_p",
    "mean", "sd",
    "score", "within_one", "mean_absolute_error", "root_mean_squared_error", "constant_root_mean_squared_error",
    "cross_entropy", "prior_cross_entropy", "train_cross_entropy", "constant_cross_entropy",
    "validation_cross_entropy", "information", "mutual_information", "share_of_entropy", "optimality_gap",
    "relative_gradient",
    "selectivity", "bootstrap_overlap", "more_penalty_overlap", "more_penalty_spearman", "less_penalty_overlap",
    "less_penalty_spearman", "online_code_bits", "uniform_code_bits", "compression",
    "value", "p_value", "p_uncorrected", "chance", "cosine_share", "argmin_share", "argmax_share", "deviations",
    "alone", "partial", "effect", "percentile", "spearman", "gain", "threshold", "published_threshold", "auc",
    "train_auc", "vectors_per_dimension", "sigma_1", "sigma_2", "lambda_max", "attention_factor", "distance_before",
    "distance_after", "bound_published", "bound", "bound_per_matrix", "attention_reach",
    "accuracy", "overlap", "weight", "probability",
    "train", "test", "offset_train", "offset_test", "difference", "difference_permuted", "p_permuted", "untrained",
    "baseline",
    "factor", "v", "d", "b", "b_moved", "share_moved", "class_entropy",
    "uniform", "share_lower_thresholds", "share_higher_thresholds", "unlinked", "z", "intact", "effect_chosen_on",
    "importance", "normalised", "area", "random_area",
    "mass", "word_mass", "hit", "told", "told_true", "contrast", "position_part", "bias_part", "use", "by_query",
    "by_key",
    "sd_of_positions", "sd_of_steps",
    *(f"{of}_{beside}{p}" for of in ("spearman", "partial") for beside in ("heads", "bases") for p in ("", "_p")),
    *(f"{of}_{beside}{p}" for of in ("contrast", "word_mass") for beside in ("random", "matched") for p in ("", "_p")),
    "contrast_held", "word_mass_held", "loss", "train_loss", "unigram_loss", "max_mean_sd", "equivariance",
    "first_value", "last_value", "bias", "others_gain", "others_bias", "standardised", "by_scaled_input",
    "by_centring", "by_input", "by_gain", "by_bias", "by_others_bias",
    "measured", "control", "published_value", "beyond_share",
    "generalisation", "first_auxiliary", "first_noun", "preference", "good_log_probability", "bad_log_probability",
    "clear_share",
    *(f"{of}{column}" for of in ("random", "matched") for column in ("", "_lowest", "_highest", "_percentile", "_p")),
)  # fmt: skip
_TEXTS = (
    "flag", "removed", "ranking", "probe", "from", "above_chance", "kind", "condition", "model_a", "model_b",
    "matching", "statistic", "null", "no_signal", "transform", "measure", "definition", "special_tokens", "parameter",
    "module", "source", "where", "neurons", "set", "pooling", "aggregation", "clipped", "fitted_on", "protocol",
    "chosen_on", "reported_on", "trial", "token", "word", "relation", "role", "query", "of", "chosen", "to",
    "unit", "units", "readout", "task", "fusion", "against", "converged", "position_head", "arm", "checkpoint",
    "command", "quantity", "largest", "outlier", "site", "term", "tokens", "order", "disabled", "first_token", "claim",
    "published", "model", "verdict", "met", "criterion", "control_criterion", "lacking", "distractor", "group",
    "text", "good", "bad",
)  # fmt: skip

TYPES: dict[str, Type] = {
    "layer": layer_number,
    "class": label_of_class,
    "predicted": label_of_class,
    **dict.fromkeys(_WHOLE_NUMBERS, int),
    **dict.fromkeys(_NUMBERS, float),
    **dict.fromkeys(_TEXTS, str),
}
# What the last word of a name says, where names are made of others: `shuffled_accuracy`, `seed_overlap`.
_NUMBERS_BY_LAST_WORD = ("accuracy", "r2", "low", "high", "spearman", "overlap")


def type_of(column: str) -> Type:
    """Return the type of a column; a column that no version of the program has is text.

    In `top_everywhere.csv`, the columns of each run begin with its label: `bert neuron`.
    """
    name = column.rsplit(" ", 1)[-1]
    if name in TYPES:
        return TYPES[name]
    return float if name.rsplit("_", 1)[-1] in _NUMBERS_BY_LAST_WORD else str


def is_known(column: str) -> bool:
    """Return whether some version of the program has a column of this name; others are options of a sweep."""
    return type_of(column) is not str or column in TYPES
