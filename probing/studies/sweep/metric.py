"""The metric of a sweep: a number in the summary of its trials, as W&B names it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from probing.errors import did_you_mean
from probing.tables.schema import ACCURACY
from probing.tracking.results import summary_of

# Metric by which trials are ranked if the file names none.
BEST_ACCURACY = "best_accuracy"
_OF_THE_BEST = {BEST_ACCURACY: "accuracy", "best_layer": "layer"}
_FORM = re.compile(r"(?:(test|val|train)/)?(?:(by_layer|layer_\d+)/)?(\w+)")
_COLUMNS = {column: column for column, kind in ACCURACY.types.items() if kind in (int, float)}
# What training and tests log by themselves, by part, with the column that holds it.
_LOGGED = {
    "test": {
        name: name
        for name in ("accuracy", "macro_accuracy", "macro_f1", "within_one", "mean_absolute_error", "cross_entropy")
    },
    "val": {"cross_entropy": "validation_cross_entropy"},
    "train": {"objective": "objective", "optimality_gap": "optimality_gap"},
}
_THERE_ARE = (
    f"{', '.join(_OF_THE_BEST)}, layer_06/COLUMN and by_layer/COLUMN with the columns of accuracy.csv (accuracy, "
    "cross_entropy, information, ...), test/layer_06/METRIC, train/layer_06/objective, and of adam "
    "val/layer_06/cross_entropy"
)


def column_of(metric: str) -> str | None:
    """Return the column of `accuracy.csv`, or `objective`, that holds a metric; None if no trial has such a metric."""
    if metric in _OF_THE_BEST:
        return _OF_THE_BEST[metric]
    if not (form := _FORM.fullmatch(metric)):
        return None
    part, layer, name = form.groups()
    if part is None:
        return _COLUMNS.get(name) if layer else None
    return None if layer == "by_layer" else _LOGGED[part].get(name)


def layer_of(metric: str) -> int | None:
    """Return the layer in a metric's name, if there is one."""
    layer = re.search(r"layer_(\d+)/", metric)
    return int(layer[1]) if layer else None


def check_metric(metric: str | None) -> str | None:
    """Return what is wrong with the name of a metric, if anything."""
    if metric is None or column_of(metric):
        return None
    before, slash, name = metric.rpartition("/")
    near = did_you_mean(name, _COLUMNS, f"{before}{slash}") if slash else did_you_mean(name, _OF_THE_BEST)
    return f"`metric.name: {metric}` is not in the summary of a trial{near}; there are {_THERE_ARE}"


def check_layer(metric: str | None, layers: Sequence[int]) -> str | None:
    """Return what is wrong with the layer in a metric's name, given the layers of all trials."""
    layer = layer_of(metric) if metric else None
    if layer is None or layer in layers:
        return None
    there = ", ".join(f"layer_{one:02d}" for one in layers)
    return f"`metric.name: {metric}`: no trial has layer {layer}; there are {there}"


def value_of(rows: Sequence[Mapping[str, Any]], metric: str | None) -> float:
    """Return a trial's metric, NaN where it has none; under `by_layer/`, the last layer's.

    Args:
        rows: A row per layer, as in `accuracy.csv`, with the training's `objective`.
        metric: Name of the metric; the best accuracy if None.
    """
    metric = metric or BEST_ACCURACY
    if metric in _OF_THE_BEST:
        return float(summary_of(rows)[metric])
    rows = rows_of(rows, metric)
    return float(rows[-1].get(str(column_of(metric)), math.nan)) if rows else math.nan


def rows_of(rows: Sequence[Mapping[str, Any]], metric: str | None) -> list[Mapping[str, Any]]:
    """Return the rows of the layer that a metric is of, or of all layers with the best accuracy.

    Args:
        rows: A row per layer, as in `accuracy.csv`.
        metric: Name of the metric; the best accuracy if None.
    """
    if metric is None or metric in _OF_THE_BEST:
        best = summary_of(rows)[BEST_ACCURACY]
        return [row for row in rows if row["accuracy"] == best]
    if (layer := layer_of(metric)) is not None:
        return [row for row in rows if row["layer"] == layer]
    # Of several layers, `test/accuracy` means none.
    return list(rows[-1:]) if metric.startswith("by_layer/") or len(rows) == 1 else []
