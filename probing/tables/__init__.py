"""Columns of a run's tables, and the words in their cells."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from probing.data import ADDED_CONTROLS, CONTROLS
from probing.results import Column, Row, number, text, whole

# Error rate at which claims are made: for a single interval, and for all neurons together that were removed in a layer.
ALPHA = 0.05
# Share of the first neurons that two rankings have in common from which on they are called the same.
SAME = 0.5

# Flag of a layer whose probe does not beat a constant answer in nats, beyond the interval: do not read its ranking.
UNINFORMATIVE = "uninformative"

# What the interval of an ablation effect says: it cannot tell, or the effect is negligible.
UNRESOLVED = "unresolved"

NEGLIGIBLE = "negligible"

# An effect is negligible if its interval is within this many nats of 0: the perplexity changes by a thousandth.
NEGLIGIBLE_NATS = 1e-3


def has_intercept(config: Mapping[str, Any]) -> bool:
    """Return whether the probes of a run have an intercept; versions without the option have none."""
    return bool(config["probe"].get("bias", False))


def layer_flag(row: Row) -> str:
    """Return `uninformative` unless the lower end of a layer's `information`, or of a ridge probe's R², is above 0.

    `information` is the nats that the probe saves over a constant answer: the class shares in training, or a uniform
    guess if that is better. Too few test sentences for an interval show nothing. Otherwise an empty text.
    """
    return "" if row["r2_low" if "r2" in row else "information_low"] > 0 else UNINFORMATIVE


@dataclass(frozen=True)
class Score:
    """Score of a probe: its column, names and units in tables, and the column of the loss without a neuron."""

    name: str
    words: str
    without: str
    unit: str
    contribution: str
    axis: str


ACCURACY = Score("accuracy", "accuracy", "cross_entropy_without", " nats", "the true class's logit", "logit units")

R2 = Score("r2", "R²", "r2_without", " of R²", "the predicted number", "units of the number")


def score_of(row: Row) -> Score:
    """Return the score of a run's probes, given a row of its `accuracy.csv`."""
    return R2 if "r2" in row else ACCURACY


def score_of_neurons(row: Row) -> Score:
    """Return the score of a run's probes, given a row of its `neurons.csv`; numbers have correlations there."""
    return R2 if "correlation" in row else ACCURACY


def controls_of(rows: Sequence[Row]) -> dict[str, str]:
    """Return the controls of the table, majority class first, with their names for a reader."""
    known = {"majority": "majority"}
    known |= {name: control.words for name, control in {**CONTROLS, **ADDED_CONTROLS}.items()}
    score = score_of(rows[0]).name
    return {name: words for name, words in known.items() if f"{name}_{score}" in rows[0]}


# The orders that neurons are shown in.
Order = Literal["contribution", "centred"]


def ordered(neurons: Sequence[Row], by: Order) -> list[Row]:
    """Return the ranked neurons of a layer in another order, ties by rank."""
    return sorted(neurons, key=lambda row: -centred_of(row)) if by == "centred" else list(neurons)


def centred_of(row: Row) -> float:
    """Return a neuron's centred contribution, to a probe with an intercept if such a probe was trained for it."""
    value = with_intercept(row)
    return float(row["contribution_centred"]) if value is None else value


def with_intercept(row: Row) -> float | None:
    """Return a neuron's centred contribution to a probe with an intercept; None if no such probe was trained."""
    value = row.get("contribution_companion")
    return value if isinstance(value, float) else None


# How a map of neurons orders those of pairs of spans.
SPANS_IN_ORDER = "; those of span 1, then those of span 2"


def neuron_name(row: Row) -> str:
    """Return the index of a neuron for readers; of pairs of spans, its index in the layer and its span."""
    return f"{row['span_neuron']} of span {row['span']}" if row.get("span") else str(row["neuron"])


# Standard deviations between a neuron's mean and 0 beyond which its centred contribution is unreliable.
FAR = 3.0


def is_far(row: Row) -> bool:
    """Return whether a neuron's mean is so far from 0 that its centred contribution is unreliable."""
    return bool(row["flag"] != "dead" and abs(row["mean"]) > FAR * row["sd"])


# What contributions are split over in the table of bases of directions: as they are, and without neurons' means.
BASIS_KINDS = PLAIN, CENTRED = "plain", "centred"

# How many of the first neurons are taken together.
FIRST = 10


def _beside_directions(name: str, meaning: str, form: str) -> Iterator[Column]:
    beside = {
        "directions": "The same of the directions of a rotation: the median of the rotations.",
        "lowest": "The lowest of a rotation.", "highest": "The highest of a rotation.",
    }  # fmt: skip
    yield number(name, meaning, form=form)
    yield from (number(f"{name}_{which}", description, form=form) for which, description in beside.items())
    yield number(f"{name}_p", "Share of the rotations, and of the neurons, that are at least as concentrated.")


_CONCENTRATION = {
    "first_share": ("Share of the first neuron in the sum over the layer's neurons.", ".1%"),
    f"first_{FIRST}_share": (f"Share of the first {FIRST} neurons.", ".1%"),
    "participation_ratio": (
        "Squared sum of the contributions divided by the sum of their squares: the number of neurons, if they "
        "contributed equally. The lower, the more concentrated.", ".1f",
    ),
}  # fmt: skip

CONCENTRATION = tuple(_CONCENTRATION)

# Columns of `basis.csv` beside the layer.
BASIS_COLUMNS = (
    text("kind", "plain: contributions; centred: those without the neurons' means over training tokens."),
    *(column for name, how in _CONCENTRATION.items() for column in _beside_directions(name, *how)),
    whole("n_above", "Number of neurons that contribute more than the largest direction of the rotations, at p = .05: "
          "with 20 rotations, of every one."),
    whole("n_neurons", "Number of neurons that were rotated: all but dead ones, divided by their standard deviations "
          "(or as --probe.penalty_space says)."),
    whole("n_rotations", "Number of random rotations; of more than 1,024 neurons they are products of sign changes and "
          "cosine transforms."),
    whole("n_test_tokens", "Number of test tokens that contributions were measured on: all, or whole sentences drawn "
          "evenly, up to 4,000 tokens."),
)  # fmt: skip

# Columns of `directions.csv` of `rank` beside the layer.
ROTATED_COLUMNS = (
    text("ranking", "Method of the ranking."),
    *(column for column in BASIS_COLUMNS if column.name.startswith(f"first_{FIRST}_share")),
    whole("n_above", "Number of neurons with a higher score than the highest of the directions, at p = .05."),
    whole("n_neurons", "Number of neurons that were standardised and rotated: all but dead ones."),
    whole("n_rotations", "Number of random rotations."),
)

# Columns of `neurons.csv` that say how a neuron compares with directions.
DIRECTION_COLUMNS = (
    number("direction_p", "Share of the random rotations, and of the neurons, whose largest direction contributes at "
           "least as much as the neuron, on the same test tokens. Above .05 the flag says direction.", "p direction",
           ".2f"),
    number("direction_p_centred", "The same of centred contributions.", form=".2f"),
    text("above_directions", "Whether the neuron contributes more than the largest direction, at p = .05: yes or no."),
    number("direction_lowest", "Contribution of the direction of the same rank, in the rotation where it is lowest.",
           form=".4f"),
    number("direction_highest", "The same, in the rotation where it is highest.", form=".4f"),
)  # fmt: skip

# The neurons or directions that a probe reads in each condition, in the order of the table.
CONDITIONS = {
    "all": "every neuron",
    "top": "the top neurons alone",
    "random": "as many random neurons alone",
    "without_top": "all but the top neurons",
    "without_random": "all but as many random neurons",
    "erased": "the class erased linearly",
    "erased_shuffled": "shuffled labels erased instead",
}

# Accuracy below that of all neurons at which a smaller number of neurons still counts as enough.
WITHIN = 0.01


def smallest(rows: Sequence[Row]) -> Row:
    """Return the row of the fewest first neurons whose validation accuracy is within 1 point of all neurons.

    Takes rows of one layer and ranking.
    """
    tops = [row for row in rows if is_top(row)]
    full = max(tops, key=lambda row: row["k"])
    enough = [row for row in tops if row["validation_accuracy"] >= full["validation_accuracy"] - WITHIN]
    return min(enough, key=lambda row: row["k"])


def is_top(row: Row) -> bool:
    """Return whether a row's probe reads only the first neurons of the ranking."""
    return bool(row["kind"] == "only" and row["from"] == "top")
