"""Columns of a run's tables, the words in their cells, and the tables of `rank`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from probing.data import ADDED_CONTROLS, CONTROLS
from probing.results import Column, Row, interval, number, text, whole
from probing.runtime.terminal import plain_table
from probing.tables.evidence_sentences import say

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


def accuracy_flag(row: Row) -> str:
    """Return `uninformative` unless the lower end of a layer's `information` is above 0, otherwise an empty text.

    `information` is the nats that the probe saves over a constant answer: the class shares in training, or a uniform
    guess if that is better. Too few test sentences for an interval show nothing.
    """
    return "" if row["information_low"] > 0 else UNINFORMATIVE


def r2_flag(row: Row) -> str:
    """Return `uninformative` unless the lower end of a ridge probe's R² is above 0, otherwise an empty text."""
    return "" if row["r2_low"] > 0 else UNINFORMATIVE


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


# Standard deviations between a neuron's mean and 0 beyond which its centred contribution is unreliable.
FAR = 3.0

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

# Number of neurons of a ranking that the terminal shows.
_SHOWN = 10

# Marks accuracies that are no better than chance.
_CHANCE = "°"


def rankings_lines(rankings: Mapping[str, Sequence[Row]]) -> list[str]:
    """Return a line with the first neurons for each layer and method, for --quiet."""
    return [
        f"layer {layer}, {method}: top neurons {', '.join(map(str, _first(rows, layer)[:5]))}"
        for layer in _layers_of(rankings)
        for method, rows in rankings.items()
    ]


def rankings_tables(rankings: Mapping[str, Sequence[Row]], directions: Sequence[Row] = ()) -> list[Any]:
    """Return a table per layer with the first neurons by each method, and their share compared with directions."""
    tables, beside = [], {(row["layer"], row["ranking"]): row for row in directions}
    share = f"first_{FIRST}_share"
    for layer in _layers_of(rankings):
        table = plain_table(f"Layer {layer}: first neurons by each ranking")
        table.add_column("ranking")
        for rank in range(1, _SHOWN + 1):
            table.add_column(str(rank), justify="right")
        for heading in (f"first {FIRST}", "directions", "p") if beside else ():
            table.add_column(heading, justify="right", no_wrap=True)
        for method, rows in rankings.items():
            shown: list[str] = []
            if row := beside.get((layer, method)):
                ends = f"{row[f'{share}_lowest']:.1%}-{row[f'{share}_highest']:.1%}"
                shown = [f"{row[share]:.1%}", ends, f"{row[f'{share}_p']:.2f}"]
            first = [*map(str, _first(rows, layer))]
            first += [""] * (_SHOWN - len(first))
            table.add_row(method, *first, *(shown or ["–"] * 3 if beside else ()))
        if beside:
            table.caption = say("note_of_rotated", first=FIRST, n=max(row["n_rotations"] for row in directions))
            table.caption_justify = "left"
        tables.append(table)
    return tables


def _layers_of(rankings: Mapping[str, Sequence[Row]]) -> list[int]:
    return sorted({row["layer"] for rows in rankings.values() for row in rows})


def _first(rows: Sequence[Row], layer: int) -> list[int]:
    return [row["neuron"] for row in rows if row["layer"] == layer][:_SHOWN]


def evaluation_tables(rows: Sequence[Row]) -> list[Any]:
    """Return a table per layer and probe with its accuracy on the neurons of each ranking."""
    tables_of = dict.fromkeys((row["layer"], row["probe"]) for row in rows)
    return [
        _evaluation_table([row for row in rows if (row["layer"], row["probe"]) == (layer, probe)])
        for layer, probe in tables_of
    ]


def _evaluation_table(rows: Sequence[Row]) -> Any:
    sizes = sorted({row["k"] for row in rows})
    probe = {"linear": "a linear probe", "gaussian": "a Gaussian probe"}[rows[0]["probe"]]
    known = [row for row in rows if row["share_of_entropy"]]
    of = f" (of {known[0]['mutual_information'] / known[0]['share_of_entropy']:.2f})" if known else ""
    majority = f" (majority {rows[0]['majority_accuracy']:.3f})"
    table = plain_table(
        f"Layer {rows[0]['layer']}: accuracy of {probe} on the top or bottom k neurons{majority}, "
        f"and bits of information in the top k{of}"
    )
    table.add_column("ranking", no_wrap=True)
    for heading in ("top", "bottom", "bits"):
        for k in sizes:
            table.add_column(f"{heading} {k}", justify="right")
    for ranking in dict.fromkeys(row["ranking"] for row in rows):
        of_ranking = [row for row in rows if row["ranking"] == ranking]
        ends = [[row for row in of_ranking if row["from"] in (end, "random")] for end in ("top", "bottom")]
        # The best draw of random neurons stands in the columns of the top, and the worst in those of the bottom.
        top = [max(row["accuracy"] for row in ends[0] if row["k"] == k) for k in sizes]
        bottom = [min(row["accuracy"] for row in ends[1] if row["k"] == k) for k in sizes]
        bits = [max(row["mutual_information"] for row in ends[0] if row["k"] == k) for k in sizes]
        n_draws = max(row.get("draw") or 0 for row in of_ranking)
        name = f"random x{n_draws}, best | worst" if n_draws else ranking
        is_above = {(row["from"], row["k"]): row.get("above_chance") != "no" for row in of_ranking}
        shown = [
            f"{value:.3f}" + _CHANCE * (not is_above.get((end, k), True))
            for end, values in (("top", top), ("bottom", bottom))
            for k, value in zip(sizes, values, strict=True)
        ]
        table.add_row(name, *shown, *(f"{value:.2f}" for value in bits))
    if any(row.get("above_chance") == "no" for row in rows):
        table.caption = say("note_of_choices", mark=_CHANCE)
        table.caption_justify = "left"
    return table


def erasure_tables(rows: Sequence[Row]) -> list[Any]:
    """Return a table per layer with the usable information under each condition."""
    return [_erasure_table([row for row in rows if row["layer"] == layer]) for layer in _layers_of({"": rows})]


def _erasure_table(rows: Sequence[Row]) -> Any:

    majority = f"{rows[0]['majority_accuracy']:.3f}"
    table = plain_table(
        f"Layer {rows[0]['layer']}: usable information for retrained linear probes (majority {majority})"
    )
    table.add_column("condition")
    for heading in ("neurons", "removed", "accuracy", "95% range", "information (nats)", "share"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(
            CONDITIONS[row["condition"]],
            str(row["n_neurons"]),
            str(row["n_removed"]),
            f"{row['accuracy']:.3f}",
            interval(row, "accuracy"),
            f"{row['information']:.3f}",
            f"{row['share']:.3f}",
        )
    return table


def curves_tables(rows: Sequence[Row]) -> list[Any]:
    """Return a table per layer and ranking with the accuracy by number of neurons."""
    return [_curves_table(of_ranking, beside) for of_ranking, beside in _curves(rows)]


def curves_lines(rows: Sequence[Row]) -> list[str]:
    """Return a sentence per layer and ranking on how many neurons are enough."""
    lines = []
    for of_ranking, random in _curves(rows):
        reached = {row["k"]: row["accuracy"] for row in of_ranking if (row["kind"], row["from"]) == ("only", "top")}
        d_model, fewest, sizes = max(reached), smallest(of_ranking), {row["k"] for row in random}
        first, *others = [k for k in (10, 100) if k in sizes] or [min(sizes)]
        within = f"{fewest['k']}, chosen on validation tokens, are the fewest within 1 point of all"
        parts = [
            f"{first} of {d_model} neurons reach {reached[first]:.3f}",
            *(f"{k} reach {reached[k]:.3f}" for k in others),
            f"all {reached[d_model]:.3f}",
        ]
        end = (
            f"{within} ({fewest['accuracy']:.3f})"
            if fewest["k"] < d_model
            else "no smaller number is within 1 point of all"
        )
        lines.append(say("fewest", layer=fewest["layer"], ranking=fewest["ranking"], parts=", ".join(parts), end=end))
    return lines


def _curves(rows: Sequence[Row]) -> Iterator[tuple[list[Row], list[Row]]]:
    for layer, ranking in dict.fromkeys((row["layer"], row["ranking"]) for row in rows if row["ranking"] != "random"):
        in_layer = [row for row in rows if row["layer"] == layer]
        yield tuple([row for row in in_layer if row["ranking"] == name] for name in (ranking, "random"))  # type: ignore[misc]


def _curves_table(rows: Sequence[Row], random: Sequence[Row]) -> Any:

    n_draws = max(row["draw"] for row in random)
    table = plain_table(
        f"Layer {rows[0]['layer']}, {rows[0]['ranking']}: accuracy by number of neurons, random draws: {n_draws}"
    )
    for heading in ("k", "only top", "only random", "only bottom", "without top", "without random", "without bottom"):
        table.add_column(heading, justify="right", no_wrap=True)
    # Of the numbers that bisection tried, only the one it found is shown.
    tried = {row["k"] for row in rows}
    for k in sorted({row["k"] for row in random} & tried | {smallest(rows)["k"], max(tried)}):
        cells = []
        for kind in ("only", "without"):
            top, drawn, bottom = (
                [row["accuracy"] for row in of if (row["kind"], row["k"], row["from"]) == (kind, k, end)]
                for of, end in ((rows, "top"), (random, "random"), (rows, "bottom"))
            )
            cells += [f"{top[0]:.3f}" if top else "", f"{min(drawn):.3f}-{max(drawn):.3f}" if drawn else ""]
            cells += [f"{bottom[0]:.3f}" if bottom else ""]
        table.add_row(str(k), *cells)
    return table


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
