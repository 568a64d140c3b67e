"""Columns of a run's tables, and the words that their cells hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from probing.data.control_names import ADDED_CONTROLS, CONTROLS
from probing.statistics.sample_size import SIZE_COLUMNS

Row = Mapping[str, Any]

# Columns of the tables in their order; what was not measured is absent.
ACCURACY_COLUMNS = (
    "layer", "accuracy", "accuracy_low", "accuracy_high", "macro_accuracy", "within_one", "mean_absolute_error",
    "cross_entropy", "prior_cross_entropy", "train_cross_entropy", "information", "information_low", "information_high",
    "optimality_gap", "majority_accuracy", "above_majority_low", "above_majority_high", "n_train_tokens",
    "n_test_tokens", "n_classes",
    *(
        column
        for control in (*CONTROLS, *ADDED_CONTROLS)
        for column in (f"{control}_accuracy", f"above_{control}_low", f"above_{control}_high")
    ),
    "n_clipped", "selectivity", "bootstrap_overlap", "more_penalty_overlap", "more_penalty_spearman",
    "less_penalty_overlap", "less_penalty_spearman", "online_code_bits", "uniform_code_bits", "compression",
    "validation_cross_entropy", *SIZE_COLUMNS, "flag",
)  # fmt: skip
# Of numbers, where the R² of a ridge probe stands in the place of the accuracy.
NUMBER_COLUMNS = (
    "layer", "r2", "r2_low", "r2_high", "train_r2", "mean_absolute_error", "root_mean_squared_error",
    "constant_root_mean_squared_error", "relative_gradient", "n_train_tokens", "n_test_tokens",
    *(
        column
        for control in (*CONTROLS, *ADDED_CONTROLS)
        for column in (f"{control}_r2", f"above_{control}_low", f"above_{control}_high")
    ),
    "bootstrap_overlap", "more_penalty_overlap", "more_penalty_spearman", "less_penalty_overlap",
    "less_penalty_spearman", *SIZE_COLUMNS, "flag",
)  # fmt: skip
# What labels explain of a neuron with something else held fixed (`--given`).
GIVEN_COLUMNS = ("given_eta_squared", "given_z", "given_p", "given_q")
NEURON_COLUMNS = (
    "layer", "rank", "neuron", "head", "contribution", "ratio", "share", "rank_low", "rank_high",
    "contribution_centred", "contribution_companion", "control_task_share", "selectivity", "eta_squared",
    "eta_squared_z", "eta_squared_p", "eta_squared_q", *GIVEN_COLUMNS, "unique", "cross_entropy_without",
    "cross_entropy_without_low", "cross_entropy_without_high", "removed",
    "removed_p", "mean", "sd", "flag",
)  # fmt: skip
NUMBER_NEURON_COLUMNS = (
    "layer", "rank", "neuron", "head", "contribution", "ratio", "share", "rank_low", "rank_high",
    "contribution_centred", "correlation", "eta_squared", "eta_squared_z", "eta_squared_p", "eta_squared_q",
    *GIVEN_COLUMNS, "unique",
    "r2_without", "r2_without_low", "r2_without_high", "removed", "removed_p", "mean", "sd", "flag",
)  # fmt: skip
HEAD_COLUMNS = (
    "layer", "head", "first_neuron", "n_neurons", "contribution", "share", "accuracy", "accuracy_low", "accuracy_high",
    "majority_accuracy", "random_accuracy", "random_lowest", "random_highest", "n_random", "above_chance",
    "n_train_tokens", "n_test_tokens",
)  # fmt: skip

# Flag of a layer whose probe does not beat a constant answer in nats, beyond the interval: do not read its ranking.
UNINFORMATIVE = "uninformative"
# What the interval of an ablation effect says: it cannot tell, or the effect is negligible.
BELOW_RESOLUTION = "below resolution"
NEGLIGIBLE = "negligible"
# An effect is negligible if its interval is within this many nats of 0: the perplexity changes by a thousandth.
NEGLIGIBLE_NATS = 1e-3


def accuracy_flag(row: Row) -> str:
    """Return `uninformative` where a layer's probe is not shown to beat a constant answer, otherwise an empty text.

    A probe beats it if the lower end of `information` is above 0. With too few test sentences for an interval, nothing
    shows that it does. `information` is the nats that the probe saves over the constant answer: the shares of the
    classes in training, or a uniform guess if that is better.
    """
    return "" if row["information_low"] > 0 else UNINFORMATIVE


def r2_flag(row: Row) -> str:
    """Return `uninformative` where a ridge probe is not shown to beat the constant answer, otherwise an empty text.

    A probe beats it where the lower end of R² is above 0, which needs enough test sentences for an interval.
    """
    return "" if row["r2_low"] > 0 else UNINFORMATIVE


@dataclass(frozen=True)
class Score:
    """How well a probe predicts: what a table has of it, and in which words.

    Args:
        name: The column, and the last word of the columns of controls.
        words: What it is called in tables and figures.
        without: Column of what is lost without a neuron.
        unit: Unit of that loss.
        contribution: What contributions are to, and in which unit, for titles and axes.
        axis: Unit of contributions.
    """

    name: str
    words: str
    without: str
    unit: str
    contribution: str
    axis: str


ACCURACY = Score("accuracy", "accuracy", "cross_entropy_without", " nats", "the true class's logit", "logit units")
R2 = Score("r2", "R²", "r2_without", " of R²", "the predicted number", "units of the number")


def score_of(row: Row) -> Score:
    """Return how a run's probes are scored, given a row of its `accuracy.csv`."""
    return R2 if "r2" in row else ACCURACY


def score_of_neurons(row: Row) -> Score:
    """Return the same, given a row of its `neurons.csv`, in which numbers have correlations."""
    return R2 if "correlation" in row else ACCURACY


def controls_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return the controls that the table has, the majority class first, with their names for a reader."""
    known, score = {"majority": "majority", **CONTROLS, **ADDED_CONTROLS}, score_of(rows[0]).name
    return {name: words for name, words in known.items() if f"{name}_{score}" in rows[0]}


def is_end(column: str) -> bool:
    """Return whether a column holds an end of an interval; its cell is empty where there is no interval."""
    return column.split("_")[-1] in ("low", "high")


def without_nan(row: Row) -> dict[str, Any]:
    """Return a row with None in place of NaN, which JSON does not have."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


def ends(row: Row, of: str = "") -> tuple[float, float] | None:
    """Return both ends of an interval, or None where the row has none.

    Args:
        row: A row, from memory or from a file.
        of: Name of the quantity; the columns are `OF_low` and `OF_high`, or `low` and `high` without a name.
    """
    low, high = (row.get(f"{of}_{end}".lstrip("_")) for end in ("low", "high"))
    there = all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high))
    return (float(low), float(high)) if there else None  # type: ignore[arg-type]


def interval(row: Row, of: str = "", between: str = "-", form: str = ".3f", times: float = 1) -> str:
    """Return an interval as text, empty where the row has none.

    Args:
        row: A row, from memory or from a file.
        of: Name of the quantity, as in `ends`.
        between: Text between the ends.
        form: Format of each end.
        times: Factor by which each end is multiplied; below 0 the ends change places.
    """
    found = sorted(times * end for end in ends(row, of) or ())
    return between.join(shown(end, form) for end in found)


def shown(value: float, form: str) -> str:
    """Return a number as text; one that is not 0 never looks like 0: it has as many digits as show its first one.

    So an interval that leaves out 0 is seen to do so, such as `2e-05 to 0.0036` in place of `0.0000 to 0.0036`.

    Args:
        value: The number.
        form: Its format, such as `.4f`.
    """
    text = format(value + 0.0 if value else 0.0, form)
    if value and math.isfinite(value) and not set(text) & set("123456789"):
        return format(value, f"{form[0] if form[0] == '+' else ''}.1g")
    return text


def in_brackets(*parts: str) -> str:
    """Return the parts that are not empty in brackets after a space; an empty text if all are empty."""
    said = "; ".join(part for part in parts if part)
    return f" ({said})" if said else ""


def with_intercept(row: Row) -> float | None:
    """Return a neuron's centred contribution to a probe that has an intercept; None if none was trained for it."""
    value = row.get("contribution_companion")
    return value if isinstance(value, float) else None


# Standard deviations between a neuron's mean and 0 beyond which its centred contribution is unreliable.
FAR = 3.0

# False discovery rate of the neurons that are not flagged `no-signal`: the largest expected share without a signal.
FALSE_DISCOVERIES = 0.01
