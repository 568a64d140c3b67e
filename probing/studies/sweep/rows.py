"""Results of a sweep: a row for each trial and layer, the agreement of rankings between trials, and the best trial."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probing.results.schema import count
from probing.runs.run import Run
from probing.statistics.rank_similarity import neuron_ranks, spearman, top_overlap
from probing.studies.sweep.metric import BEST_ACCURACY, rows_of, value_of
from probing.tables.columns import UNINFORMATIVE
from probing.tracking.results import summary_of

# Options that change the neurons themselves: rankings of trials that differ in them cannot be compared.
OTHER_NEURONS = ("model", "revision", "random_weights", "layer", "transform")
TOP = 10


@dataclass(frozen=True)
class Outcome:
    """A finished trial.

    Args:
        name: Name of the trial's folder.
        point: Options that vary between trials, by dotted name.
        accuracy: A row per layer, as in `accuracy.csv`.
        contributions: For each layer, the contribution of each neuron, shape (d_model,).
        objectives: For each layer, the objective that training reached, in nats.
    """

    name: str
    point: Mapping[str, Any]
    accuracy: Sequence[Mapping[str, Any]]
    contributions: Mapping[int, NDArray[np.float64]]
    objectives: Mapping[int, float] = field(default_factory=dict)


def outcome(name: str, point: Mapping[str, Any], run: Run) -> Outcome:
    """Return the outcome that a trial's run folder holds."""
    contributions = {}
    for row in run.accuracy:
        own = [neuron for neuron in run.neurons if neuron["layer"] == row["layer"]]
        values = np.zeros(len(own))
        values[[neuron["neuron"] for neuron in own]] = [neuron["contribution"] for neuron in own]
        contributions[row["layer"]] = values
    objectives = {row["layer"]: row["objective"] for row in run.results["layers"]}
    return Outcome(name, point, run.accuracy, contributions, objectives)


def rows(outcomes: Sequence[Outcome], varied: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of `sweep.csv`, one for each trial and layer.

    `OPTION_spearman` and `OPTION_overlap` compare a ranking with those of the trials that differ from this one only in
    that option: the mean correlation of ranks, and the mean share of the first 10 neurons.

    Args:
        outcomes: Finished trials.
        varied: Names of the options that differ between trials.
    """
    compared = [name for name in varied if name not in OTHER_NEURONS]
    groups = {name: _neighbours(outcomes, name) for name in compared}
    found = []
    for one in outcomes:
        for row in one.accuracy:
            layer = row["layer"]
            agreement: dict[str, float] = {}
            for name in compared:
                others = [
                    other.contributions[layer]
                    for other in groups[name][_without(one.point, name)]
                    if other is not one and layer in other.contributions
                ]
                agreement |= _agreement(name, one.contributions[layer], others)
            found.append({"trial": one.name, **one.point, **row, **agreement})
    return found


def metric_of(one: Outcome, metric: str | None) -> float:
    """Return a trial's metric, NaN where it has none."""
    return value_of([{**row, "objective": one.objectives.get(row["layer"], math.nan)} for row in one.accuracy], metric)


def not_measured(outcomes: Sequence[Outcome], metric: str | None) -> str | None:
    """Return that no trial has the metric, with what there is; None if some trial has it."""
    if metric is None or any(not math.isnan(metric_of(one, metric)) for one in outcomes):
        return None
    columns = dict.fromkeys(key.partition("/")[2] for one in outcomes for key in summary_of(one.accuracy))
    there = f"best_accuracy, best_layer and, after layer_06/ or by_layer/, {', '.join(filter(None, columns))}"
    return f"`metric.name: {metric}` was not measured in any trial; there are {there}"


def best(outcomes: Sequence[Outcome], metric: str | None, goal: str) -> Outcome:
    """Return the trial with the best metric, the lowest cross-entropy of equals, and the first if that is equal, too.

    Without a metric, it is the highest accuracy.
    """
    sign = -1 if metric is not None and goal == "minimize" else 1
    known = [one for one in outcomes if not math.isnan(metric_of(one, metric))]
    return min(known or outcomes, key=lambda one: (-sign * metric_of(one, metric), cross_entropy_of(one, metric)))


def cross_entropy_of(one: Outcome, metric: str | None) -> float:
    """Return the cross-entropy of the layer that a trial's metric is of, infinity where there is none."""
    found = [row.get("cross_entropy", math.nan) for row in rows_of(one.accuracy, metric)]
    return min((value for value in found if not math.isnan(value)), default=math.inf)


def _is_above_constant(one: Outcome, metric: str | None) -> bool:
    """Whether the probe of the layer that a metric is of is shown to predict better than a constant answer."""
    return any(UNINFORMATIVE not in row.get("flag", "") for row in rows_of(one.accuracy, metric) or one.accuracy)


def conclusion(
    rows: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome], varied: Sequence[str], metric: str | None, goal: str
) -> list[str]:
    """Return sentences on how far rankings agree between trials, and on which trial is best.

    Args:
        rows: A row for each trial and layer.
        outcomes: Finished trials.
        varied: Names of the options that differ between trials.
        metric: Metric by which it is the best.
        goal: Whether the metric was to be low (`minimize`) or high (`maximize`).
    """
    lines = []
    for name in varied:
        values = [row[f"{name}_spearman"] for row in rows if f"{name}_spearman" in row]
        if values:
            shared = np.mean([row[f"{name}_overlap"] for row in rows if f"{name}_overlap" in row])
            lines.append(
                f"Rankings of trials that differ only in {name} have a rank correlation of {np.mean(values):.2f} on "
                f"average ({min(values):.2f} to {max(values):.2f}) and share {TOP * shared:.1f} of the top {TOP}."
            )
    winner, n = best(outcomes, metric, goal), len(outcomes)
    wanted = "highest" if metric is None else {"minimize": "lowest", "maximize": "highest"}[goal]
    point = ", ".join(f"{name} {value}" for name, value in winner.point.items()) or winner.name
    line = f"Best of {n} trials: {point}, with the {wanted} {metric or BEST_ACCURACY}, {metric_of(winner, metric):.4g}"
    if n > 1:
        line += "; it was chosen on the sentences it is measured on, so expect a slightly worse value on others"
    lines.append(f"{line}.")
    tied = [one for one in outcomes if metric_of(one, metric) == metric_of(winner, metric)]
    if len(tied) > 1:
        least, most = cross_entropy_of(winner, metric), max(cross_entropy_of(one, metric) for one in tied)
        why = (
            "the first of them is named"
            if least == most
            else (f"the one with the lowest cross-entropy is named, {least:.3f} nats; the highest is {most:.3f}")
        )
        lines.append(f"{len(tied)} trials have this {metric or BEST_ACCURACY}: {why}.")
    if not _is_above_constant(winner, metric):
        n_above = sum(_is_above_constant(one, metric) for one in outcomes)
        others = f"; {count(n_above, 'other trial')} {'is' if n_above == 1 else 'are'}" if n_above else ""
        subject = "The best trial is not shown" if n_above else "No trial is shown" if n > 1 else "It is not shown"
        lines.append(f"{subject} to predict better than a constant answer{others}: do not read its ranking.")
    return lines


def _neighbours(outcomes: Sequence[Outcome], name: str) -> dict[Any, list[Outcome]]:
    groups: dict[Any, list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault(_without(one.point, name), []).append(one)
    return groups


def _without(point: Mapping[str, Any], name: str) -> str:
    return repr([(key, value) for key, value in point.items() if key != name])


def _agreement(name: str, scores: NDArray[np.float64], others: Sequence[NDArray[np.float64]]) -> dict[str, float]:
    alike = [other for other in others if len(other) == len(scores)]
    if not alike:
        return {}
    theirs, k = np.stack(alike), min(TOP, len(scores))
    return {
        f"{name}_spearman": float(spearman(rankdata(scores), rankdata(theirs, axis=-1)).mean()),
        f"{name}_overlap": float(top_overlap(neuron_ranks(scores), neuron_ranks(theirs), k).mean()),
    }
