"""Columns, tables and sentences of `finetune`, for files, the terminal and pages.

This file imports nothing heavy, because the command line reads it before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias

from probing.errors import out_of_range
from probing.page.charts import SHARES, YAxis, line_chart
from probing.results import Html, Schema, element, ends, in_brackets, interval, listed, number, shown_table, text, whole
from probing.results import estimate as with_interval
from probing.runs import Result, folded, framed, section_of
from probing.statistics import few_sentences
from probing.tables.figures import BY_STEP, Line, XAxis

# From where the model starts: its trained weights, or random ones; or its trained weights on labels that mean nothing.
STARTS = PRETRAINED, RANDOM, SHUFFLED = "pretrained", "random", "shuffled"

# The layer on which the head stands if it is the highest one.
LAST = -1


@dataclass(frozen=True)
class TuningOptions:
    """How the model is tuned.

    Args:
        learning_rate: Highest learning rate of AdamW.
        epochs: Number of times that the training text is read; 0 leaves the model as it starts.
        warm_up: Share of the steps in which the learning rate rises; then it falls linearly to 0.
        batch_tokens: Most tokens of a batch, padding included, over all processes.
        weight_decay: Weight decay of AdamW, of weight matrices alone.
        clip: Largest norm of the gradient; 0 does not limit it.
        frozen: Number of the lowest layers that are not tuned: 1 is the embeddings alone, 3 also blocks 1 and 2.
        layer_decay: Factor of the learning rate from each layer to the one below it.
        layer: Layer on which the head stands, such as 4, or -1 for the last one and -2 for the one below it; the blocks
            above are left out of the model and of its checkpoints.
        save_every: Number of steps between saved states, from which an interrupted run continues.
    """

    learning_rate: float = 5e-5
    epochs: int = 3
    warm_up: float = 0.1
    batch_tokens: int = 1024
    weight_decay: float = 0.01
    clip: float = 1.0
    frozen: int = 0
    layer_decay: float = 1.0
    layer: int = LAST
    save_every: int = 200

    def problems(self) -> list[str]:
        """Return the problems with values that are out of range."""
        return [
            *out_of_range("tuning.learning_rate", self.learning_rate, 1e-30, 1e30),
            *out_of_range("tuning.epochs", self.epochs, 0, 100_000),
            *out_of_range("tuning.warm_up", self.warm_up, 0, 1),
            *out_of_range("tuning.batch_tokens", self.batch_tokens, 1),
            *out_of_range("tuning.weight_decay", self.weight_decay, 0, 1e30),
            *out_of_range("tuning.clip", self.clip, 0, 1e30),
            *out_of_range("tuning.frozen", self.frozen, 0),
            *out_of_range("tuning.layer_decay", self.layer_decay, 1e-6, 1),
            *out_of_range("tuning.save_every", self.save_every, 1),
        ]


# In Python, a group of options may be a mapping; the parser of arguments sees only the group.
if TYPE_CHECKING:
    TuningGroup: TypeAlias = TuningOptions | Mapping[str, Any]
else:
    TuningGroup = TuningOptions

Row = Mapping[str, Any]

Tables = Mapping[str, Sequence[Row]]

# What models are compared with.
MAJORITY, CONSTANT, BAG, SECOND = "majority", "mean", "bag", "second"

CALLED = {
    PRETRAINED: "the pretrained model",
    RANDOM: "the randomly initialised model",
    SHUFFLED: "the pretrained model with shuffled labels",
    MAJORITY: "the majority class",
    CONSTANT: "the mean of the training numbers",
    BAG: "a bag of static vectors",
    SECOND: "the second sentence alone",
}

# What varies the score of one tuning.
SOURCES = {
    "seed": "the seed",
    "order": "the order of the data",
    "rest": "seed and order together",
    "test": "the choice of test sentences",
}

# Short forms of some of them, for tables and figures.
SHORT = {
    SHUFFLED: "shuffled labels", MAJORITY: "majority class", CONSTANT: "mean of training", BAG: "static vectors",
    SECOND: "second sentence",
}  # fmt: skip

# Share of the variance from which on a source of it matters.
_MUCH = 0.2

_CORRELATIONS = (
    number(
        "pearson",
        "Pearson's correlation of predicted and true numbers of sentences or pairs; of several tunings, the mean.",
        "Pearson",
    ),
    number("spearman", "Spearman's correlation, likewise.", "Spearman"),
)

_START = text(
    "start", "From where the model starts: `pretrained`, `random` (the same model, randomly initialised) or `shuffled` "
    "(pretrained, tuned on labels that are exchanged at random among the training examples).",
    labels={SHUFFLED: SHORT[SHUFFLED]},
)  # fmt: skip

_SEED = whole("seed", "Seed of the head, of all that is randomly initialised, and of the draw of shuffled labels.")

_ORDER = whole("order_seed", "Seed of the order of the training sentences and of dropout.", "order")

TUNINGS = Schema("tunings", "a row per start, seed and order", (
    _START, _SEED, _ORDER,
    with_interval("score", "Accuracy on test examples, or R² where numbers are predicted."),
    number("cross_entropy", "Mean cross-entropy of test examples, in nats."),
    number("macro_f1", "Mean F1 over classes.", "macro F1"),
    *_CORRELATIONS,
    whole("steps", "Number of steps of the optimiser.", form=","),
))  # fmt: skip

SCORES = Schema("scores", "a row per start, and one per baseline", (
    text("answer", "Whose answers are scored: a start, over all its tunings; `majority` is the most frequent training "
         "class and `mean` the mean of training numbers; `bag` (shown as static vectors) is a linear probe of the "
         "model's own input embeddings: of the token, or of their mean over the sentence; of pairs, of the means u and "
         "v of both sentences as [u, v, |u - v|, u * v], and `second` (shown as second sentence) of v alone.",
         labels=SHORT),
    whole("n_tunings", "Number of tunings.", "tunings"),
    with_interval("score", "Mean accuracy, or R²; the interval is over test sentences, pairs, or documents, alone."),
    number("overall_low", "Lower end of the interval of the mean score over other seeds, orders and test sentences.",
           "overall"),
    number("overall_high", "Its upper end.", "overall high"),
    *_CORRELATIONS,
    *(number(f"sd_{name}", f"Standard deviation of one tuning's score that is due to {words}.", f"sd of {name}", ".4f")
      for name, words in SOURCES.items()),
    *(number(f"share_{name}", f"Share of {words} in the variance of one tuning's score.", f"share of {name}", ".0%",
             interval=f"share_{name}")
      for name, words in SOURCES.items()),
))  # fmt: skip

DIFFERENCES = Schema("differences", "a row per pair of answers", (
    text("answer", "Whose score is compared.", labels=SHORT),
    text("against", "With whose it is compared; starts are compared at the same seed and order.", labels=SHORT),
    number("difference", "Score of the first less that of the second, with its interval over other seeds, orders and "
           "test sentences.", form="+.3f", interval=""),
))  # fmt: skip

CURVES = Schema("tuning_curves", "a row per tuning and step at which a loss was noted", (
    _START, _SEED, _ORDER, whole("step", "Number of steps of the optimiser.", form=","),
    number("train_loss", "Mean training loss since the row before, in nats, or squared error in sd."),
    number("validation_loss", "The same of validation sentences, without dropout, at the end of each epoch."),
))  # fmt: skip

# What the headings of the shown table mean.
TERMS = {
    **SCORES.terms(("answer", "n_tunings", "score*", "spearman", *(f"sd_{name}" for name in SOURCES))),
    "overall": "Interval of the mean score over other seeds, orders and test sentences.",
}


def starts_of(rows: Sequence[Row]) -> list[str]:
    """Return the starts, in the order of the rows of `scores.csv`."""
    return [row["answer"] for row in rows if row.get("n_tunings")]


def score_words(is_number: bool) -> str:
    """Return the name of the score."""
    return "R²" if is_number else "accuracy"


def losses_in(is_number: bool) -> str:
    """Return the name and the unit of the losses."""
    return "squared error, in sd" if is_number else "cross-entropy, nats"


def examples_of(results: Mapping[str, Any]) -> str:
    """Return the name of the test examples: sentences, or pairs; `results` is the content of `results.json`."""
    return "pairs" if "pairs" in results["corpora"] else "sentences"


def answer(by_name: Tables, model: str, results: Mapping[str, Any]) -> list[str]:
    """Return the score of each start, and the effect of pretraining; `results` is the content of `results.json`."""
    is_number = results["numbers"]
    what = score_words(is_number)
    lines = []
    for row in by_name["scores"]:
        if row.get("n_tunings"):
            overall = interval(row, "overall", " to ")
            over = in_brackets(f"{overall} over seeds, orders and {examples_of(results)}" if overall else "")
            ranks = f", Spearman's correlation {row['spearman']:.3f}" if known(row, "spearman") else ""
            lines.append(f"{model}, tuned from {CALLED[row['answer']]}: {what} {row['score']:.3f}{over}{ranks}.")
    if verdict := pretraining_verdict(by_name["differences"], what):
        lines.append(verdict)
    return lines


def pretraining_verdict(rows: Sequence[Row], what: str) -> str:
    """Return a sentence on the pretrained against the randomly initialised model; empty if one is missing."""
    for row in rows:
        if (row["answer"], row["against"]) == (PRETRAINED, RANDOM):
            apart = ends(row)
            if apart is None:
                return ""
            between = f"{row['difference']:+.3f} {what}, {apart[0]:+.3f} to {apart[1]:+.3f}"
            if apart[0] > 0:
                return f"Pretraining helps: {between}."
            if apart[1] < 0:
                return f"Pretraining does harm: {between}."
            return f"Whether pretraining helps is not resolved: {between}."
    return ""


def known(row: Row, column: str) -> bool:
    """Check whether a row has a number in a column."""
    value = row.get(column)
    return isinstance(value, float) and value == value


def conclusions(by_name: Tables, results: Mapping[str, Any]) -> list[str]:
    """Return the comparison with baselines, the sources of variance of the scores, and the validity of intervals."""
    lines = [_compare_with_baselines(by_name["differences"], start) for start in starts_of(by_name["scores"])]
    lines.append(_of_second(by_name["differences"]))
    lines += [_variance(row, examples_of(results)) for row in by_name["scores"] if row.get("n_tunings")]
    if n_sharing := results.get("n_test_pairs_sharing_sentences"):
        lines.append(
            f"{n_sharing:,} of {results['n_examples']['test']:,} test pairs have a sentence that training pairs have, "
            "too, so that scores hold for pairs of which one sentence may be known."
        )
    over = results["intervals_over"]
    groups = " of pairs that share a sentence" if over["unit"] == "group" else ""
    lines.append(
        few_sentences(over["n"], f"test {over['unit']}")
        or f"Intervals are over {over['n']:,} test {over['unit']}s{groups}, and those over seeds and orders also over "
        "other draws of these, which are few: they are wide where one source has two or three draws."
    )
    return [line for line in lines if line]


def _of_second(rows: Sequence[Row]) -> str:
    """Return a sentence on the second sentence without the first; empty where sentences are single."""
    for row in rows:
        if row["answer"] == SECOND and (apart := ends(row)):
            between = f"({row['difference']:+.3f}, {apart[0]:+.3f} to {apart[1]:+.3f})"
            if apart[0] > 0:
                return (
                    f"The second sentence alone is above {CALLED[row['against']]} {between}: part of the labels can be "
                    "told without the first one."
                )
            return f"The second sentence alone is not above {CALLED[row['against']]} {between}."
    return ""


def _compare_with_baselines(rows: Sequence[Row], start: str) -> str:
    """Compare a start with each baseline and with the model tuned on shuffled labels, in a sentence."""
    sides: dict[str, list[str]] = {}
    for row in rows:
        if row["answer"] == start and row["against"] not in (PRETRAINED, RANDOM) and (apart := ends(row)):
            side = "above" if apart[0] > 0 else "below" if apart[1] < 0 else "not distinguished from"
            between = f"{CALLED[row['against']]} ({row['difference']:+.3f}, {apart[0]:+.3f} to {apart[1]:+.3f})"
            sides.setdefault(side, []).append(between)
    sides_text = "; ".join(f"{side} {listed(names)}" for side, names in sides.items())
    return f"{CALLED[start][0].upper()}{CALLED[start][1:]}, tuned, is {sides_text}." if sides_text else ""


def _variance(row: Row, examples: str) -> str:
    """Return a sentence on the parts of the variance of a single tuning's score; empty with one tuning."""
    shares = {name: row.get(f"share_{name}") for name in SOURCES}
    known_shares = {name: share for name, share in shares.items() if isinstance(share, float) and share == share}
    if len(known_shares) < 2:
        return ""
    called = {**SOURCES, "test": f"the choice of test {examples}"}
    ends_of = {name: ends(row, f"share_{name}") for name in known_shares}
    between = {name: f" ({of[0]:.0%} to {of[1]:.0%})" if (of := ends_of[name]) else "" for name in known_shares}
    listed_shares = listed([f"{share:.0%}{between[name]} is of {called[name]}" for name, share in known_shares.items()])
    open_ones = [called[name] for name, of in ends_of.items() if of and of[0] <= _MUCH <= of[1]]
    cannot = (
        f"; so few tunings cannot tell whether a fifth of it is of {' or of '.join(open_ones)}" if open_ones else ""
    )
    sd = sum(row[f"sd_{name}"] ** 2 for name in known_shares) ** 0.5
    lacking = [SOURCES[name] for name in ("seed", "order") if name not in known_shares]
    unknown = f"; {listed(lacking)} was not varied" if lacking else ""
    return (
        f"Of {CALLED[row['answer']]}, the score of one tuning varies by {sd:.4f} (sd), and of that variance "
        f"{listed_shares}{unknown}{cannot}."
    )


def tables(by_name: Tables) -> list[Any]:
    """Return the scores of starts and baselines as a rich table."""
    from probing.runtime.terminal import plain_table

    ranked = any(known(row, "spearman") for row in by_name["scores"])
    correlation = ["Spearman"] * ranked
    # Where there is no room, what varies the score goes before the correlation.
    sources = [f"sd of {name}" for name in reversed(SOURCES)] if ranked else []
    table = plain_table("Scores on the test part, beside what needs no tuned model", sources)
    headings = (
        "answer", "tunings", "score", "95% range", "overall", *correlation, *(f"sd of {name}" for name in SOURCES)
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "answer" else "right")
    for row in by_name["scores"]:
        table.add_row(
            SCORES["answer"].show(row), SCORES["n_tunings"].show(row), SCORES["score"].show(row),
            interval(row, "score"), interval(row, "overall"), *[SCORES["spearman"].show(row)] * ranked,
            *(_known(row, name) for name in SOURCES),
        )  # fmt: skip
    table.caption = (
        "95% range: over the test part alone; overall: also over other seeds and orders; "
        "sd: of the score of one tuning, by what varies"
    )
    table.caption_justify = "left"
    return [table]


def _known(row: Row, name: str) -> str:
    return SCORES[f"sd_{name}"].show(row) if known(row, f"sd_{name}") else ""


def more_tables(by_name: Tables) -> list[Any]:
    """Return each tuning, and all differences."""
    return [shown_table(TUNINGS, by_name["tunings"]), shown_table(DIFFERENCES, by_name["differences"])]


# Most points of the curve of a tuning, and characters of labels that fit below an axis.
_POINTS, _CHARACTERS = 12, 68


def finetuning_section(result: Result, anchor: str) -> Html:
    """Return the conclusions, charts of scores and losses, and the tables of the terminal; further ones are folded."""
    return section_of(
        result,
        anchor,
        element("div", _scores(result), _losses(result), class_="panels"),
        *framed(result.tables()),
        *folded(result.study.more_tables(result)),
    )


def _scores(result: Result) -> Html:
    """Return a point for each tuning, with its interval over the test part; baselines are lines."""
    is_number = result.results["numbers"]
    rows = [row for start in starts_of(result.scores) for row in result.tunings if row["start"] == start]
    lines = [
        Line(_named(row["start"]), [i], [row["score"]], [ends(row, "score")], f"seed {row['seed']}, order {order}")
        for i, row in enumerate(rows)
        for order in [row["order_seed"]]
    ]
    places = list(range(len(rows)))
    for row in result.scores:
        if not row.get("n_tunings"):
            lines.append(Line(CALLED[row["answer"]], places, [row["score"]] * len(places)))
    values = [value for line in lines for value in (*line.values, *(end for of in line.ranges for end in of or ()))]
    title = (
        f"{score_words(is_number)[0].upper()}{score_words(is_number)[1:]} on the test part, a point for each tuning, "
        "with 95% intervals over the test part alone"
    )
    chart = line_chart(lines, title, _by_tuning(rows), YAxis.of(values) if is_number else SHARES)
    return element("figure", element("figcaption", title), chart)


def _by_tuning(rows: Sequence[Row]) -> XAxis:
    """Return an axis of tunings, labelled by seed and order; without room, labels are left out."""
    labels = [f"{row['seed']}, {row['order_seed']}" for row in rows]
    every = -(-sum(len(label) + 1 for label in labels) // _CHARACTERS)
    shown = [label if i % every == 0 else "" for i, label in enumerate(labels)]
    return XAxis("tuning", lambda at: "seed, order of a tuning", lambda at: at, lambda at, _: [shown[i] for i in at])


def _losses(result: Result) -> Html | None:
    """Return the losses of each tuning by step; None without any step."""
    lines: list[Line] = []
    of_tuning = groupby(result.tuning_curves, lambda row: (row["start"], row["seed"], row["order_seed"]))
    for (start, seed, order), rows in of_tuning:
        which, curve = f"seed {seed}, order {order}", list(rows)
        steps, losses = _thinned(curve)
        lines.append(Line(f"{_named(start)}, training", steps, losses, which=which))
        ended = [row for row in curve if isinstance(row.get("validation_loss"), float)]
        ended = ended[:: -(-len(ended) // _POINTS)] if ended else []
        if ended:
            validation = [row["validation_loss"] for row in ended]
            lines.append(Line(f"{_named(start)}, validation", [row["step"] for row in ended], validation, which=which))
    if not lines:
        return None
    title = (
        f"Losses by step, {losses_in(result.results['numbers'])}, a line for each tuning; validation after each epoch"
    )
    up = YAxis.of(value for line in lines for value in line.values)
    return element("figure", element("figcaption", title), line_chart(lines, title, BY_STEP, up))


def _thinned(curve: Sequence[Row]) -> tuple[list[int], list[float]]:
    """Return steps and mean training losses since the step before, for at most `_POINTS` points."""
    steps, losses, every, before = [], [], -(-len(curve) // _POINTS), 0
    for i in range(0, len(curve), every):
        total, first = 0.0, before
        for row in curve[i : i + every]:
            total += row["train_loss"] * (row["step"] - before)
            before = row["step"]
        steps.append(before)
        losses.append(total / (before - first))
    return steps, losses


def _named(start: str) -> str:
    return SHORT.get(start, start)
