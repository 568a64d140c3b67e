"""Columns, tables, charts and sentences of `finetune`.

This file imports nothing heavy, because the command line reads it before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from probing.cli.options import LARGEST, SMALLEST, Options, option
from probing.results import (
    Row,
    Schema,
    Table,
    capitalised,
    count,
    ends,
    estimated,
    in_brackets,
    interval,
    listed,
    number,
    shown,
    shown_table,
    sign_of_interval,
    text,
    whole,
)
from probing.results import estimate as with_interval
from probing.runs import Result
from probing.statistics import few_sentences
from probing.tables.conclusions import known
from probing.tables.figures import BY_STEP, Chart, Line, Panel, XAxis

# From where the model starts: its trained weights, or random ones; or its trained weights on labels that mean nothing.
STARTS = PRETRAINED, RANDOM, SHUFFLED = "pretrained", "random", "shuffled"

# The layer on which the head stands if it is the highest one.
LAST = -1


@dataclass(frozen=True)
class TuningOptions(Options):
    """How the model is tuned."""

    learning_rate: float = option(5e-5, at_least=SMALLEST, at_most=LARGEST)
    """Highest learning rate of AdamW."""
    epochs: int = option(3, at_least=0, at_most=100_000)
    """Number of times that the training text is read; 0 leaves the model as it starts."""
    warm_up: float = option(0.1, at_least=0, at_most=1)
    """Share of the steps in which the learning rate rises; then it falls linearly to 0."""
    batch_tokens: int = option(1024, at_least=1)
    """Most tokens of a batch, padding included, over all processes."""
    weight_decay: float = option(0.01, at_least=0, at_most=LARGEST)
    """Weight decay of AdamW, of weight matrices alone."""
    clip: float = option(1.0, at_least=0, at_most=LARGEST)
    """Largest norm of the gradient; 0 does not limit it."""
    frozen: int = option(0, at_least=0)
    """Number of the lowest layers that are not tuned: 1 is the embeddings alone, 3 also blocks 1 and 2."""
    layer_decay: float = option(1.0, at_least=1e-6, at_most=1)
    """Factor of the learning rate from each layer to the one below it."""
    layer: int = LAST
    """Layer on which the head stands, such as 4, or -1 for the last one and -2 for the one below it; the blocks above
    are left out of the model and of its checkpoints."""
    save_every: int = option(200, at_least=1)
    """Number of steps between saved states, from which an interrupted run continues."""


# In Python, a group of options may be a mapping; the parser of arguments sees only the group.
if TYPE_CHECKING:
    TuningGroup: TypeAlias = TuningOptions | Mapping[str, Any]
else:
    TuningGroup = TuningOptions

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

SENTENCES = {
    "score": "{model}, tuned from {start}: {score_name} {score}{overall}{spearman}.",
    "overall": "{interval} over seeds, orders and {examples}",
    "spearman": ", Spearman's correlation {:.3f}",
    "helps": "Pretraining helps: {score_name} {difference}.",
    "harms": "Pretraining does harm: {score_name} {difference}.",
    "unresolved": "Whether pretraining helps is not resolved: {score_name} {difference}.",
    "baselines": "{start}, tuned, is {verdicts}.",
    "compared": "{baseline} ({difference}, {interval})",
    "second_above": "The second sentence alone is above {baseline}: part of the labels is predictable without the "
    "first sentence.",
    "second": "The second sentence alone is not above {baseline}.",
    "variance": "{start}: the score of one tuning varies by {sd} (sd); of this variance, {shares}{fixed}{unresolved}.",
    "share": "{share}{interval} is due to {source}",
    "fixed": "; {sources} was not varied",
    "share_unresolved": "; with so few tunings, it is not resolved whether a fifth is due to {sources}",
    "sharing": "{n:,} of {n_test:,} test pairs have a sentence that also occurs in training pairs: scores are of pairs "
    "of which one sentence may be known.",
    "intervals": "Intervals are over {units}{groups}. Intervals over seeds and orders also include other draws of "
    "these; they are wide where a source has only two or three draws.",
}
_VERDICTS = {1: "above", -1: "below", 0: "not distinguished from"}

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


def starts_of(scores: Table) -> list[str]:
    """Return the starts, in the order of the rows of `scores.csv`."""
    return scores.where(lambda row: bool(row.get("n_tunings"))).column("answer")


def score_words(is_number: bool) -> str:
    """Return the name of the score."""
    return "R²" if is_number else "accuracy"


def examples_of(results: Mapping[str, Any]) -> str:
    """Return the name of the test examples: sentences, or pairs; `results` is the content of `results.json`."""
    return "pairs" if "pairs" in results["corpora"] else "sentences"


def answer(scores: Table, differences: Table, model: str, results: Mapping[str, Any]) -> list[str]:
    """Return the score of each start, and the effect of pretraining; `results` is the content of `results.json`."""
    score_name, examples = score_words(results["numbers"]), examples_of(results)
    lines = []
    for row in scores.where(lambda row: bool(row.get("n_tunings"))):
        overall = interval(row, "overall", " to ")
        over = SENTENCES["overall"].format(interval=overall, examples=examples) if overall else ""
        ranks = SENTENCES["spearman"].format(row["spearman"]) if known(row, "spearman") else ""
        lines.append(
            SENTENCES["score"].format(
                model=model, start=CALLED[row["answer"]], score_name=score_name, score=shown(row["score"], ".3f"),
                overall=in_brackets(over), spearman=ranks,
            )
        )  # fmt: skip
    verdicts = {1: "helps", -1: "harms", 0: "unresolved"}
    for row in differences.where(ends_known, answer=PRETRAINED, against=RANDOM):
        verdict = SENTENCES[verdicts[sign_of_interval(row)]]
        lines.append(verdict.format(score_name=score_name, difference=estimated(row, "difference", "+.3f", "")))
    return lines


def ends_known(row: Row) -> bool:
    """Check whether a row has its interval."""
    return ends(row) is not None


def conclusions(scores: Table, differences: Table, results: Mapping[str, Any]) -> list[str]:
    """Return the comparison with baselines, the sources of variance of the scores, and the validity of intervals."""
    starts = starts_of(scores)
    lines = [_compare_with_baselines(differences, start) for start in starts]
    for row in differences.where(ends_known, answer=SECOND):
        sentence = SENTENCES["second_above" if sign_of_interval(row) > 0 else "second"]
        lines.append(sentence.format(baseline=_compared(row)))
    lines += [_variance(row, examples_of(results)) for row in scores if row["answer"] in starts]
    if n_sharing := results.get("n_test_pairs_sharing_sentences"):
        lines.append(SENTENCES["sharing"].format(n=n_sharing, n_test=results["n_examples"]["test"]))
    over = results["intervals_over"]
    groups = " of pairs that share a sentence" if over["unit"] == "group" else ""
    units = count(over["n"], f"test {over['unit']}")
    few = few_sentences(over["n"], f"test {over['unit']}")
    return [line for line in (*lines, few or SENTENCES["intervals"].format(units=units, groups=groups)) if line]


def _compare_with_baselines(differences: Table, start: str) -> str:
    """Compare a start with each baseline and with the model tuned on shuffled labels; empty without intervals."""
    baselines = tuple(name for name in CALLED if name not in (PRETRAINED, RANDOM))
    by_verdict: dict[str, list[str]] = {}
    for row in differences.where(ends_known, answer=start, against=baselines):
        by_verdict.setdefault(_VERDICTS[sign_of_interval(row)], []).append(_compared(row))
    verdicts = "; ".join(f"{verdict} {listed(names)}" for verdict, names in by_verdict.items())
    return SENTENCES["baselines"].format(start=capitalised(CALLED[start]), verdicts=verdicts) if verdicts else ""


def _compared(row: Row) -> str:
    difference, between = shown(row["difference"], "+.3f"), interval(row, between=" to ", form="+.3f")
    return SENTENCES["compared"].format(baseline=CALLED[row["against"]], difference=difference, interval=between)


def _variance(row: Row, examples: str) -> str:
    """Return a sentence on the parts of the variance of a single tuning's score; empty with one tuning."""
    sources = {**SOURCES, "test": f"the choice of test {examples}"}
    shares = {name: f"share_{name}" for name in sources if known(row, f"share_{name}")}
    if len(shares) < 2:
        return ""
    due = [
        SENTENCES["share"].format(
            share=shown(row[column], ".0%"), source=sources[name],
            interval=in_brackets(interval(row, column, " to ", ".0%")),
        )
        for name, column in shares.items()
    ]  # fmt: skip
    unresolved = [
        sources[name] for name, column in shares.items() if (of := ends(row, column)) and of[0] <= _MUCH <= of[1]
    ]
    fixed = [sources[name] for name in ("seed", "order") if name not in shares]
    return SENTENCES["variance"].format(
        start=capitalised(CALLED[row["answer"]]), shares=listed(due),
        sd=shown(sum(row[f"sd_{name}"] ** 2 for name in shares) ** 0.5, ".4f"),
        fixed=SENTENCES["fixed"].format(sources=listed(fixed)) if fixed else "",
        unresolved=SENTENCES["share_unresolved"].format(sources=" or to ".join(unresolved)) if unresolved else "",
    )  # fmt: skip


def tables(scores: Table) -> list[Any]:
    """Return the scores of starts and baselines as a rich table."""
    sources, ranked = [f"sd_{name}" for name in SOURCES], any(known(row, "spearman") for row in scores)
    correlation = ["spearman"] if ranked else []
    table = shown_table(
        SCORES, scores, "Scores on the test part, and baselines without a tuned model",
        ("answer", "n_tunings", "score*", "overall_low", *correlation, *sources),
        cells={"overall_low": lambda row: interval(row, "overall")},
        # Where there is no room, what varies the score goes before the correlation.
        leave_out=[*reversed(sources)] if ranked else (),
    )  # fmt: skip
    table.caption = (
        "95% range: over the test part alone; overall: also over other seeds and orders; "
        "sd: of the score of one tuning, by what varies"
    )
    return [table]


# Most points of the training losses of a tuning.
_POINTS = 12


def charts(result: Result) -> list[Chart]:
    """Return a point for each tuning with its interval over the test part, with the baselines, and losses by step."""
    is_number = result.results["numbers"]
    score, losses = score_words(is_number), "squared error, in sd" if is_number else "cross-entropy, nats"
    rows = result.tunings.where(start=tuple(starts_of(result.scores)))
    lines = [
        Line(_named(row["start"]), [at], [row["score"]], [ends(row, "score")], _which(row["seed"], row["order_seed"]))
        for at, row in enumerate(rows)
    ]
    places = range(len(rows))
    for row in result.scores:
        if not row.get("n_tunings"):
            lines.append(Line(CALLED[row["answer"]], places, [row["score"]] * len(places)))
    shown_charts = [
        Chart(
            "scores", f"{score} of each tuning on the test part, with 95% intervals over the test part alone",
            [Panel(lines)], f"test {score}", None if is_number else (0, 1), x=_by_tuning(rows),
            caption=f"{capitalised(score)} of each tuning, over the test part alone",
        )
    ]  # fmt: skip
    if curves := _losses(result.tuning_curves):
        caption = f"Losses by step, {losses}, a line for each tuning; validation after each epoch"
        title = "losses of each tuning; validation after each epoch"
        shown_charts.append(Chart("losses", title, [Panel(curves)], losses, x=BY_STEP, caption=caption))
    return shown_charts


def _which(seed: int, order: int) -> str:
    return f"seed {seed}, order {order}"


def _by_tuning(rows: Table) -> XAxis:
    """Return an axis of tunings, labelled by seed and order; without room, labels are left out."""
    names = [f"{row['seed']}, {row['order_seed']}" for row in rows]

    def labels(at: Sequence[int], n_characters: int) -> list[str]:
        every = -(-sum(len(name) + 1 for name in names) // n_characters)
        return [names[i] if i % every == 0 else "" for i in at]

    return XAxis("tuning", lambda _: "seed, order of a tuning", lambda at: at, labels)


def _losses(curves: Table) -> list[Line]:
    """Return the losses of each tuning by step."""
    lines = []
    for (start, seed, order), curve in curves.by("start", "seed", "order_seed").items():
        which = _which(seed, order)
        lines.append(Line(f"{_named(start)}, training", *_thinned(curve), which=which))
        ended = curve.where(lambda row: isinstance(row.get("validation_loss"), float))
        if ended := ended[:: -(-len(ended) // _POINTS) or 1]:
            lines.append(Line.of(ended, "validation_loss", f"{_named(start)}, validation", x="step", which=which))
    return lines


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
