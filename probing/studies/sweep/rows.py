"""Results of a sweep: a row for each trial and layer, the agreement of rankings between trials, and the best trial."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from probing.runs.run import Run
from probing.statistics.rank_similarity import neuron_ranks, spearman, top_overlap
from probing.tables.schema import ACCURACY

# Options that change the neurons themselves: rankings of trials that differ in them cannot be compared.
OTHER_NEURONS = ("model", "revision", "random_weights", "layer", "transform")
TOP = 10
# Metric by which trials are ranked if the file names none.
BEST_ACCURACY = "best_accuracy"
_CURVE = "by_layer/"
# Metric that Adam logs after each epoch; a trial ends with the lowest value.
_VALIDATION = re.compile(r"val/layer_(\d+)/cross_entropy")


@dataclass(frozen=True)
class Outcome:
    """A finished trial.

    Args:
        name: Name of the trial's folder.
        point: Options that vary between trials, by dotted name.
        accuracy: A row per layer, as in `accuracy.csv`.
        contributions: For each layer, the contribution of each neuron, shape (d_model,).
    """

    name: str
    point: Mapping[str, Any]
    accuracy: Sequence[Mapping[str, Any]]
    contributions: Mapping[int, NDArray[np.float64]]


def outcome(name: str, point: Mapping[str, Any], run: Run) -> Outcome:
    """Return the outcome that a trial's run folder holds."""
    contributions = {}
    for row in run.accuracy:
        own = [neuron for neuron in run.neurons if neuron["layer"] == row["layer"]]
        values = np.zeros(len(own))
        values[[neuron["neuron"] for neuron in own]] = [neuron["contribution"] for neuron in own]
        contributions[row["layer"]] = values
    return Outcome(name, point, run.accuracy, contributions)


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


def check_metric(metric: str | None) -> str | None:
    """Return what is wrong with the name of a metric, if anything."""
    known = {BEST_ACCURACY, "best_layer", *(f"{_CURVE}{column}" for column in ACCURACY.types if column != "layer")}
    if metric is None or metric in known or _VALIDATION.fullmatch(metric):
        return None
    expected = f"{BEST_ACCURACY}, {_CURVE} with a column of accuracy.csv, or of adam val/layer_06/cross_entropy"
    return f"`metric.name: {metric}` is not what a trial ends with: expected {expected}"


def metric_of(one: Outcome, metric: str | None) -> float:
    """Return a trial's metric, NaN where it has none; of a curve over layers it is the last value, as in W&B."""
    if metric is not None and metric.startswith(_CURVE):
        return float(one.accuracy[-1].get(metric.removeprefix(_CURVE), float("nan")))
    if metric is not None and (layer := _VALIDATION.fullmatch(metric)):
        found = [
            row.get("validation_cross_entropy", float("nan")) for row in one.accuracy if row["layer"] == int(layer[1])
        ]
        return float(found[0]) if found else float("nan")
    best = max(one.accuracy, key=lambda row: (row["accuracy"], -row["layer"]))
    return float(best["layer" if metric == "best_layer" else "accuracy"])


def best(outcomes: Sequence[Outcome], metric: str | None, goal: str) -> Outcome:
    """Return the trial with the best metric, the first of equals; without a metric, it is the highest accuracy."""
    sign = -1 if metric is not None and goal == "minimize" else 1
    return max(outcomes, key=lambda one: value if (value := sign * metric_of(one, metric)) == value else -np.inf)


def conclusion(
    rows: Sequence[Mapping[str, Any]], winner: Outcome, varied: Sequence[str], metric: str | None, goal: str
) -> list[str]:
    """Return sentences on how far rankings agree between trials, and on which trial is best.

    Args:
        rows: A row for each trial and layer.
        winner: The best trial.
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
    n = len({row["trial"] for row in rows})
    wanted = "highest" if metric is None else {"minimize": "lowest", "maximize": "highest"}[goal]
    point = ", ".join(f"{name} {value}" for name, value in winner.point.items()) or winner.name
    line = f"Best of {n} trials: {point}, with the {wanted} {metric or BEST_ACCURACY}, {metric_of(winner, metric):.4g}"
    if n > 1:
        line += "; it was chosen on the sentences it is measured on, so expect a slightly worse value on others"
    return [*lines, f"{line}."]


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
