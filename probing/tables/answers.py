"""What a run of probes answers, in the order in which it is read: the answer first, then what to distrust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import Row, in_brackets, interval, layers_named
from probing.tables.classes import worst_class
from probing.tables.columns import R2, UNINFORMATIVE, has_intercept, score_of
from probing.tables.conclusions import basis, conclusion, dependent_unit, given_words, held_fixed, overlaps, scope
from probing.tables.controls import held_against_by_layer, leading, why_leading
from probing.tables.evidence_sentences import say

Rows = Sequence[Row]
# What shows the tables and sentences that are not printed.
IN_FULL = "--verbose, report.html"


def accuracies(rows: Rows) -> str:
    """Return how well the probes predict: in the first layer, in the best one and in the last one."""
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


def _highest(best: Row, first: Row, last: Row) -> str:
    if best is last:
        return ", the highest"
    return f"; it is highest in layer {first['layer']}" if best is first else ""


def _share(row: Row) -> str:
    name = score_of(row).name
    return f"{row[name]:.3f}{in_brackets(interval(row, name, ' to '))}"


def answer(
    accuracy: Rows, neurons: Rows, task: str, results: Mapping[str, Any], config: Mapping[str, Any]
) -> list[str]:
    """Return how well the task is read, the controls beside it, and which neuron contributes most in the leading layer.

    Args:
        accuracy: Rows of `accuracy.csv`.
        neurons: Rows of `neurons.csv`.
        task: Name of the task.
        results: The content of `results.json`.
        config: The resolved configuration.
    """
    row = leading(accuracy)
    own = [one for one in neurons if one["layer"] == row["layer"]]
    of_neuron = conclusion(own, task, row, given_words(config), has_intercept(config), dependent_unit(results))
    said = [accuracies(accuracy), why_leading(accuracy), of_neuron, held_against_by_layer(accuracy, task)]
    return [sentence for sentence in said if sentence]


def _led_by_means(neurons: Rows) -> str:
    """Return in which layers the first neuron contributes by its mean; empty where none does."""
    led = sorted({row["layer"] for row in neurons if row["rank"] == 1 and "offset" in row["flag"]})
    return say("led_by_means", layers=layers_named(led)) if led else ""


def distrust(
    accuracy: Rows, neurons: Rows, scores: Rows, task: str, results: Mapping[str, Any], config: Mapping[str, Any],
    beside: Rows = (),
) -> list[str]:  # fmt: skip
    """Return what speaks against a ranking, or limits what it says, for the end of what is printed.

    Args:
        accuracy: Rows of `accuracy.csv`.
        neurons: Rows of `neurons.csv`.
        scores: Rows of `class_scores.csv`.
        task: Name of the task.
        results: The content of `results.json`.
        config: The resolved configuration.
        beside: Rows of `basis.csv`.
    """
    said: list[str | None] = []
    if len(accuracy) == 1:
        said += [worst_class(accuracy[0], scores), overlaps(accuracy[0], len(neurons))]
    elif poor := [row["layer"] for row in accuracy if row.get("flag") == UNINFORMATIVE]:
        said.append(say("unread_layers", layers=layers_named(poor)))
    if len(accuracy) > 1 and config.get("sort") != "centred":  # there, the neurons shown first are others
        said.append(_led_by_means(neurons))
    if short := [row["layer"] for row in results["layers"] if not row.get("converged", True)]:
        said.append(say("stopped_short_report", layers=layers_named(short)))
    said += [
        *basis(accuracy, beside, task, config, in_short=True),
        held_fixed(results, config),
        scope(results, config["test_corpus"]),
    ]
    return [sentence for sentence in said if sentence]
