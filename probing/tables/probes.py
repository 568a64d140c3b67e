"""Tables and sentences of `fit`: ranked neurons, accuracies, controls and the choice of the penalty."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from probing.models import what_is_a_neuron
from probing.results import (
    RANGE,
    Row,
    capitalised,
    cells_table,
    ends,
    in_brackets,
    interval,
    layers_named,
    shown,
    shown_table,
)
from probing.runtime.terminal import plain_table
from probing.statistics import MIN_SENTENCES, label, size_lines
from probing.tables import (
    FAR,
    NEGLIGIBLE,
    NEGLIGIBLE_NATS,
    R2,
    UNINFORMATIVE,
    UNRESOLVED,
    Order,
    centred_of,
    controls_of,
    has_intercept,
    is_far,
    neuron_name,
    ordered,
    score_of,
    score_of_neurons,
    with_intercept,
)
from probing.tables.conclusions import (
    Sentences,
    basis,
    compare_layers_with_controls,
    covariate_words,
    dependent_unit,
    favours_neurons,
    first_unflagged,
    held_fixed,
    leading,
    on_neuron,
    overlaps,
    scope,
    why_leading,
)
from probing.tables.evidence_sentences import say
from probing.tables.schema import ACCURACY, CLASS_SCORES, NEURONS, NUMBERS

# --------------------------------------------------------------------------------------------------------------------
# How well each class is read: its table, what is confused, and a sentence on the class that is read worst.
# --------------------------------------------------------------------------------------------------------------------

Rows = Sequence[Row]
# Classes are unequal where a constant answer is off by less than this share of what it is with equal ones, in nats.
EQUAL = 0.9
# Of a class with fewer test tokens a sentence would say more than is known.
FEW = 10
# Most classes in the table of a terminal.
MOST = 20
# Columns of the table of classes; an asterisk shows the interval.
SHOWN = "class", "n_test_tokens", "recall*", "precision*", "f1"


def are_unequal(row: Row) -> bool:
    """Return whether the classes of a run (a row of `accuracy.csv`) are too unequal for accuracy to be informative."""
    if "macro_f1" not in row or "prior_cross_entropy" not in row:
        return False
    return bool(row["prior_cross_entropy"] < EQUAL * math.log(row["n_classes"]))


def classes_table(rows: Rows, most: int = MOST) -> Any:
    """Return the classes of one layer as a rich table, those with most test tokens first, at most `most`."""
    shown = sorted(rows, key=lambda row: -row["n_test_tokens"])[:most]
    which = f", of {len(rows)} the {most} with most test tokens" * (len(rows) > most)
    title = f"Layer {rows[0]['layer']}: recall and precision of each class{which}"
    table = shown_table(CLASS_SCORES, shown, title, SHOWN, {CLASS_SCORES["confused_with"].words: _taken_for})
    if any(ends(row, name) is None for row in shown for name in ("recall", "precision")):
        table.caption = say("note_of_classes", least=MIN_SENTENCES)
    return table


def _taken_for(row: Row) -> str:
    return f"{row['confused_with']} ({row['n_confused']})" if row["n_confused"] else ""


def worst_class(row: Row, scores: Rows) -> str:
    """Return a sentence on the class with the lowest F1 among those with `FEW` test tokens; empty for numbers."""
    frequent = [scored for scored in scores if scored["n_test_tokens"] >= FEW]
    if "macro_f1" not in row or "within_one" in row or row["accuracy"] == 1 or len(frequent) < 2:
        return ""
    worst = min(frequent, key=lambda scored: (scored["f1"], -scored["n_test_tokens"]))
    taken = say("taken_for", other=worst["confused_with"], n=worst["n_confused"]) if worst["n_confused"] else ""
    return say(
        "worst_class", layer=row["layer"], macro=row["macro_f1"], few=FEW, label=worst["class"], f1=worst["f1"],
        right=round(worst["recall"] * worst["n_test_tokens"]), n=f"{worst['n_test_tokens']:,}",
        taken=taken,
    )  # fmt: skip


def confusion_shares(scores: Rows, confusions: Rows) -> list[list[float]]:
    """Return the share of each class's test tokens predicted as each class, shape (n_classes, n_classes).

    A class without test tokens has NaN. Takes rows of `class_scores.csv` and `confusions.csv` of one layer.
    """
    index, counts = {row["class"]: i for i, row in enumerate(scores)}, [[0] * len(scores) for _ in scores]
    for row in confusions:
        counts[index[row["class"]]][index[row["predicted"]]] = row["n_test_tokens"]
    totals = [sum(row) for row in counts]
    return [[n / total if total else math.nan for n in row] for row, total in zip(counts, totals, strict=True)]


# Columns of neurons that a terminal shows, and those that a narrow one leaves out first.
_OF_NEURONS = (
    "rank", "rank_low", "neuron", "feature", "head", "contribution", "ratio", "share", "contribution_centred",
    "eta_squared", "eta_squared_z", "within_covariate_eta_squared",
)  # fmt: skip
_FIRST_LEFT_OUT = (
    "share", "eta_squared_z", "ratio", "rank_low", "within_covariate_eta_squared", "head", "feature", "eta_squared",
    "contribution",
)  # fmt: skip
# What the headings of the table of accuracies mean.
_MEANINGS = {
    "within 1": "share of tokens at most 1 class off",
    "error": "mean absolute error",
    "macro F1": "mean F1 over classes",
    "compression": "of the labels, encoded online",
    "nats": "cross-entropy",
    "constant": "cross-entropy of a constant answer",
    "gap": "upper bound of the distance to the optimum, in nats",
}


def result_line(row: Row, top: Sequence[Row]) -> str:
    """Return a layer's result in one line, for --quiet."""
    if score_of(row) is R2:
        return (
            f"layer {row['layer']}: R² {row['r2']:.3f}{in_brackets(interval(row, 'r2', ' to '))}, error "
            f"{row['mean_absolute_error']:.3g}, relative gradient {row['relative_gradient']:.1e}, "
            f"top neurons {', '.join(map(neuron_name, top))}"
        )
    within = in_brackets(interval(row, "accuracy", " to "))
    return (
        f"layer {row['layer']}: accuracy {row['accuracy']:.3f}{within}, majority {row['majority_accuracy']:.3f}, "
        f"gap {row['optimality_gap']:.1e} nats, top neurons {', '.join(map(neuron_name, top))}"
    )


def accuracy_table(rows: Sequence[Row]) -> Any:
    """Return the accuracies by layer as a rich table; for numbers, R²."""
    if score_of(rows[0]) is R2:
        return _r2_table(rows)
    optional = ["macro_f1"] * ("within_one" not in rows[0]) + ["within_one", "mean_absolute_error", "compression"]
    optional = [name for name in [*optional, "cross_entropy", "prior_cross_entropy"] if name in rows[0]]
    table = shown_table(
        ACCURACY, rows, "Test accuracy by layer",
        ("layer", "accuracy*", "majority_accuracy", *optional, "optimality_gap"), cells={"optimality_gap": _gap},
        leave_out=("prior_cross_entropy", "compression", "mean_absolute_error", "within_one"),
    )  # fmt: skip
    headings = [ACCURACY[name].words for name in (*optional, "optimality_gap")]
    meanings = "; ".join(f"{heading}: {_MEANINGS[heading]}" for heading in headings)
    return _with_notes(table, [meanings, *_uninformative(rows, "in nats ")])


def _gap(row: Row) -> str:
    return ACCURACY["optimality_gap"].show(row) + ("" if row.get("converged", True) else " stopped short")


def _r2_table(rows: Sequence[Row]) -> Any:
    names = (
        "layer", "r2*", "train_r2", "mean_absolute_error", "root_mean_squared_error",
        "constant_root_mean_squared_error", "relative_gradient",
    )  # fmt: skip
    notes = [
        "R²: share of the constant answer's squared error that the probe saves; the constant is the training mean",
        "error: mean absolute error; rms error: root mean squared error; constant: rms error of the constant answer",
        "gradient: norm of the objective's gradient at the probe, divided by that at 0",
    ]
    return _with_notes(shown_table(NUMBERS, rows, "Test R² by layer", names), notes + _uninformative(rows))


def _with_notes(table: Any, notes: Sequence[str], between: str = "\n") -> Any:
    """Return a table with notes below it."""
    table.caption = between.join(notes)
    return table


def _uninformative(rows: Sequence[Row], unit: str = "") -> list[str]:
    poor = [str(row["layer"]) for row in rows if row.get("flag") == UNINFORMATIVE]
    of = "layer" if len(poor) == 1 else "layers"
    return [say("not_better", layers=f"{of} {', '.join(poor)}", unit=unit)] if poor else []


def penalty_lines(penalty: Mapping[str, Any]) -> list[str]:
    """Return sentences on the choice of the penalty, from that entry of `results.json`; none if the user set it."""
    if "tried" not in penalty:
        return []
    of_numbers = "validation_r2" in penalty
    scores = penalty["validation_r2" if of_numbers else "validation_cross_entropy"]
    what, unit = ("highest mean R²", "") if of_numbers else ("lowest mean cross-entropy", " nats")
    tried, chosen = penalty["tried"], penalty["l2"]
    at = tried.index(chosen)
    near = [f"{scores[i]:.4f} with l2 {tried[i]:.1e}" for i in (at - 1, at + 1) if 0 <= i < len(tried)]
    alone: dict[float, list[str]] = {}
    for layer, l2 in penalty["alone"].items():
        alone.setdefault(l2, []).append(layer)
    for_all = " for all layers" if len(penalty["alone"]) > 1 else ""
    lines = [
        say(
            "chosen_penalty", l2=chosen, for_all=for_all, what=what, measured=scores[at], unit=unit,
            near=" and ".join(near),
        )
    ]  # fmt: skip
    if len(penalty["alone"]) > 1:
        by_layer = [
            f"{_end(l2, tried)}{l2:.1e} (layer{'s' * (len(of) > 1)} {', '.join(of)})" for l2, of in alone.items()
        ]
        lines.append(say("penalty_alone", own=", ".join(by_layer)))
    return lines


def _end(l2: float, tried: Sequence[float]) -> str:
    """Return the words before a penalty at either end of the tried values: a value beyond it may be better still."""
    return "at most " if l2 == tried[-1] else "at least " if l2 == tried[0] else ""


def layers_table(accuracy: Sequence[Row], neurons: Sequence[Row], by: Order = "contribution") -> Any:
    """Return a row for each layer as a rich table: its accuracy, its controls and its first neurons in this order."""
    controls, score = controls_of(accuracy), score_of(accuracy[0])
    with_f1 = any(are_unequal(row) for row in accuracy)
    title = f"Layers: test {score.words} of the probe and of its controls, and its first neurons"
    # What the task may be confused with stays longest, and what always the most frequent class gives still longer.
    least = sorted(controls, key=lambda name: name in ("token", "covariate"))
    leave_out = (*(controls[name] for name in least if name != "majority"), "first neurons", "macro F1")
    table = plain_table(title, leave_out)
    beside = ["macro F1"] * with_f1 + [*controls.values()]
    for heading in ("layer", score.words, RANGE, *beside, "first neurons", "unflagged"):
        table.add_column(heading, justify="left" if heading == "first neurons" else "right")
    for row in accuracy:
        ranked = ordered([neuron for neuron in neurons if neuron["layer"] == row["layer"]], by)
        unflagged = first_unflagged(ranked)
        table.add_row(
            str(row["layer"]), f"{row[score.name]:.3f}", interval(row, score.name),
            *([f"{row['macro_f1']:.3f}"] if with_f1 else []),
            *(f"{row[f'{name}_{score.name}']:.3f}" for name in controls),
            *(["not to be read", ""] if row.get("flag") == UNINFORMATIVE else [
                (", " if ranked[0].get("span") else " ").join(map(neuron_name, ranked[:3])),
                neuron_name(unflagged) if unflagged else "",
            ]),
        )  # fmt: skip
    table.caption = "unflagged: the first neuron without a flag" + "; by centred contribution" * (by == "centred")
    return table


def controls_table(rows: Sequence[Row]) -> Any:
    """Return the accuracies of the controls as a rich table."""
    score = score_of(rows[0])
    title = f"Controls: test {score.words} of the same probe on other labels or inputs"
    names = ("layer", score.name, *(f"{name}_{score.name}" for name in controls_of(rows)))
    return shown_table(NUMBERS if score is R2 else ACCURACY, rows, title, names)


def neurons_table(
    rows: Sequence[Row], site: str = "residual", n_removed: int = 0, by: Order = "contribution", in_full: bool = True
) -> Any:
    """Return the first neurons of one layer's ranking as a rich table.

    `n_removed` is the number of neurons that a probe was retrained without, one at a time. With `in_full` the notes
    also define a neuron of the residual stream and explain the intervals.
    """
    score = score_of_neurons(rows[0])
    order = {"contribution": "contribution", "centred": "centred contribution"}[by]
    has_removals = "removed" in rows[0]
    names = [name for name in _OF_NEURONS if name in rows[0]] + ["cross_entropy_without"] * has_removals + ["flag"]
    table = shown_table(
        NEURONS, rows, f"Layer {rows[0]['layer']}: neurons by {order} to {score.contribution}", names,
        cells={
            "neuron": neuron_name, "contribution_centred": _centred, "cross_entropy_without": _without,
        },
        leave_out=[name for name in _FIRST_LEFT_OUT if name in rows[0]],
    )  # fmt: skip
    notes = [what_is_a_neuron(site)] * (in_full or site != "residual")
    notes += [say("note_of_range")] * ("rank_low" in rows[0])
    notes += [say("note_of_eta_of_numbers" if score is R2 else "note_of_eta"), say("note_of_z")]
    notes += [say("note_of_covariate")] * ("within_covariate_eta_squared" in rows[0])
    notes += [say("note_of_loss", unit="R²" if score is R2 else "nats")] * has_removals
    if any(NEGLIGIBLE in str(row.get("removed")) for row in rows):
        notes.append(say("note_of_negligible", word=NEGLIGIBLE, least=NEGLIGIBLE_NATS))
    notes += [say("several_intervals", n=n_removed)] * bool(in_full and n_removed)
    if far := [row for row in rows if is_far(row)]:
        is_known = all(with_intercept(row) is not None for row in far)
        instead = "value from a probe with an intercept" if is_known else "unreliable"
        notes.append(say("note_of_far", far=FAR, instead=instead))
    return _with_notes(table, notes, "; ")


def heads_table(rows: Sequence[Row]) -> Any:
    """Return the heads of one layer as a rich table, by their share of the contributions."""
    table = plain_table(f"Layer {rows[0]['layer']}: heads by share of the contributions")
    has_accuracy = "accuracy" in rows[0]
    for heading in ("head", "neurons", "share", *["accuracy", "95% range", "random slices"] * has_accuracy):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: (-row["share"], row["head"])):
        cells = [str(row["head"]), f"{row['first_neuron']}-{row['first_neuron'] + row['n_neurons'] - 1}"]
        cells.append(f"{row['share']:.1%}")
        if has_accuracy:
            cells.append(f"{row['accuracy']:.3f}" + "°" * (row["above_chance"] == "no"))
            cells += [interval(row, "accuracy"), f"{row['random_lowest']:.3f}-{row['random_highest']:.3f}"]
        table.add_row(*cells)
    if has_accuracy:
        n_random, majority = rows[0]["n_random"], rows[0]["majority_accuracy"]
        captions = [say("note_of_heads_alone", majority=majority), say("note_of_random_slices", n=n_random)]
        if any(row["above_chance"] == "no" for row in rows):
            captions.append(say("note_of_heads"))
        table.caption = "\n".join(captions)
    return table


def _centred(row: Row) -> str:
    return f"{centred_of(row):.4f}" + "*" * is_far(row)


def _without(row: Row) -> str:
    if not row["removed"]:
        return ""
    if NEGLIGIBLE in row["removed"]:
        return NEGLIGIBLE
    return UNRESOLVED if UNRESOLVED in row["removed"] else shown(row[score_of_neurons(row).without], "+.4f")


MORE_SENTENCES = "Train on more sentences."
# Adjectives for what `fit --transform` did.
_DONE = {
    "clip": "clipped",
    "whiten": "whitened",
    "standardise": "standardised",
    "center": "centred",
    "all_but_the_top": "without the first components",
}


def transform_lines(transform: str, accuracy: Sequence[Row]) -> list[str]:
    """Return a line per layer on the effect of `fit --transform` on accuracy; nothing without a known transform."""
    done = _DONE.get(transform)
    if done is None:
        return []
    return [*(_transform_line(row, label(done, [row])) for row in accuracy), *transform_sizes(transform, accuracy)]


def transform_sizes(transform: str, accuracy: Sequence[Row]) -> list[str]:
    """Return the amount of text that `fit --transform` was fitted on, if it uses a covariance."""
    return size_lines(({**row, "transform": transform} for row in accuracy), MORE_SENTENCES)


def _transform_line(row: Row, done: str) -> str:
    difference = interval(row, "above_untransformed", " to ", "+.3f")
    score = score_of(row)
    plain, others = row[f"untransformed_{score.name}"], f"others_clipped_{score.name}"
    clipped = say("others_clipped", value=row[others]) if others in row else ""
    return say(
        "transformed", layer=row["layer"], done=done, words=score.words, value=row[score.name], plain=plain,
        difference=in_brackets(difference and f"difference {difference}"), others=clipped,
    )  # fmt: skip


# --------------------------------------------------------------------------------------------------------------------
# What a run of probes answers, in the order in which it is read: the answer first, then what to distrust.
# --------------------------------------------------------------------------------------------------------------------


def accuracies(rows: Rows) -> str:
    """Return the performance of the probes in the first, the best and the last layer."""
    first, last = rows[0], rows[-1]
    score = score_of(first)
    if len(rows) == 1:
        what = "an accuracy" if score is not R2 else "an R²"
        return f"In layer {first['layer']} the probe reaches {what} of {_share(first)}."
    # Of equal maxima, take the last layer: it shows up to which layer the task can be decoded.
    best = max(reversed(rows), key=lambda row: row[score.name])
    parts = [f"{_share(first)} in layer {first['layer']}"]
    if best not in (first, last):
        parts.append(f"{_share(best)} in layer {best['layer']}, the highest,")
    name, where = f"{score.words[0].upper()}{score.words[1:]}", _highest(best, first, last)
    return f"{name} is {', '.join(parts)} and {_share(last)} in layer {last['layer']}{where}."


def accuracies_table(accuracy_of_run: Mapping[str, Rows]) -> Any:
    """Return the accuracy of several runs by layer, side by side, as a rich table; R² where numbers are predicted."""
    by_layer = {label: {row["layer"]: row for row in rows} for label, rows in accuracy_of_run.items()}
    scores = {label: score_of(rows[0]) for label, rows in accuracy_of_run.items()}
    headings = ["layer", *(heading for label in by_layer for heading in (label, RANGE))]
    body = []
    for layer in sorted({layer for rows in by_layer.values() for layer in rows}):
        rows = [(rows.get(layer, {}), scores[label].name) for label, rows in by_layer.items()]
        cells = [(f"{row[name]:.3f}" if row else "", interval(row, name)) for row, name in rows]
        body.append([str(layer), *(cell for pair in cells for cell in pair)])
    words = " and ".join(dict.fromkeys(score.words for score in scores.values()))
    table = cells_table(f"{capitalised(words)} of the probes of each run by layer", headings, body)
    constants = [ACCURACY["majority_accuracy"].show(rows[0]) for rows in accuracy_of_run.values()]
    if any(constants):
        table.add_row("majority", *(cell for constant in constants for cell in (constant, "")))
        table.caption = "majority: always predicting the most frequent class"
    return table


def _highest(best: Row, first: Row, last: Row) -> str:
    if best is last:
        return ", the highest"
    return f"; it is highest in layer {first['layer']}" if best is first else ""


def _share(row: Row) -> str:
    name = score_of(row).name
    return f"{row[name]:.3f}{in_brackets(interval(row, name, ' to '))}"


def _led_by_means(neurons: Rows) -> str:
    led = sorted({row["layer"] for row in neurons if row["rank"] == 1 and "offset" in row["flag"]})
    return say("led_by_means", layers=layers_named(led)) if led else ""


def caveats(
    accuracy: Rows, neurons: Rows, task: str, results: Mapping[str, Any], config: Mapping[str, Any], beside: Rows = (),
    of_neuron: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Return evidence against a ranking and limits of its meaning; `beside` has rows of `basis.csv`.

    `of_neuron` is what speaks against the first neuron. A leading layer that favours neurons is none of it.
    """
    is_in_neurons = favours_neurons(beside, leading(accuracy)["layer"])
    on_basis = [] if is_in_neurons else basis(accuracy, beside, task, config, in_short=True)
    poor = [row["layer"] for row in accuracy if row.get("flag") == UNINFORMATIVE] if len(accuracy) > 1 else []
    # With `--sort centred`, the neurons shown first are others.
    led = _led_by_means(neurons) if len(accuracy) > 1 and config.get("sort") != "centred" else ""
    short = [row["layer"] for row in results["layers"] if not row.get("converged", True)]
    sentences = [
        say("unread_layers", layers=layers_named(poor)) if poor else "",
        say("stopped_short_report", layers=layers_named(short)) if short else "",
        *of_neuron, led, *on_basis, scope(results, config["test_corpus"]),
    ]  # fmt: skip
    return [sentence for sentence in sentences if sentence]


def run_sentences(
    accuracy: Rows, neurons: Rows, scores: Rows, task: str, results: Mapping[str, Any], config: Mapping[str, Any],
    beside: Rows = (), transform: str = "none",
) -> Sentences:  # fmt: skip
    """Return the answer of a run (its accuracy, its controls, and the top neuron of the leading layer), and more.

    `scores` has rows of `class_scores.csv`, `beside` rows of `basis.csv`.
    """
    row = leading(accuracy)
    ranked = [neuron for neuron in neurons if neuron["layer"] == row["layer"]]
    first = on_neuron(ranked, task, row, covariate_words(config), has_intercept(config), dependent_unit(results))
    answer = [accuracies(accuracy), *first.answer, compare_layers_with_controls(accuracy, task)]
    if favours_neurons(beside, row["layer"]):
        answer += basis(accuracy, beside, task, config, in_short=True)
    details = [
        why_leading(accuracy), *first.details, worst_class(row, scores) if len(accuracy) == 1 else "",
        overlaps(row, len(ranked)), held_fixed(results, config), *transform_sizes(transform, accuracy),
    ]  # fmt: skip
    doubts = caveats(accuracy, neurons, task, results, config, beside, first.doubts)
    return Sentences(*([sentence for sentence in part if sentence] for part in (answer, doubts, details)))
