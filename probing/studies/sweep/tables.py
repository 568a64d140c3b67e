"""The table of `sweep`, for its file and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from probing.results.schema import Schema, Type, interval, text
from probing.runtime.terminal import plain_table
from probing.studies.sweep.definition import column_of
from probing.tables.schema import ACCURACY, NUMBERS

BEST = 10


def best_table(rows: Sequence[Mapping[str, Any]], varied: Sequence[str], metric: str | None, goal: str) -> Any:
    """Return the best rows, one for each trial and layer, as a rich table.

    Args:
        rows: A row for each trial and layer.
        varied: Names of the options that differ between trials.
        metric: Metric by which trials are ranked, as W&B names it.
        goal: `minimize` or `maximize` the metric.
    """
    column = (column_of(metric) if metric else None) or "accuracy"
    column = column if rows and column != "layer" and column in rows[0] else "accuracy"
    sign = 1 if column != "accuracy" and goal == "minimize" else -1
    ranked = sorted(rows, key=lambda row: (sign * row[column], row.get("cross_entropy", 0)))[:BEST]
    shown = list(dict.fromkeys([*varied, "layer"]))
    extra = [name for name in dict.fromkeys([column, "cross_entropy"]) if name != "accuracy" and name in rows[0]]
    table = plain_table(f"The best {len(ranked)} of {len(rows)} rows by {column}")
    for name in ("trial", *shown, "accuracy", "95% interval", *extra):
        table.add_column(name.replace("_", " ") if "." not in name else name, justify="right")
    for row in ranked:
        table.add_row(
            row["trial"].partition("-")[0], *(str(row[name]) for name in shown), f"{row['accuracy']:.3f}",
            interval(row, "accuracy"), *(f"{row[name]:.3f}" for name in extra),
        )  # fmt: skip
    return table


def _option(name: str) -> Type | None:
    """Return the type of an option that a sweep varies, or of the agreement with runs that differ in it."""
    return float if name.endswith(("_spearman", "_overlap")) else str


SWEEP = Schema("sweep", "a row per trial and layer: the options that vary, and the columns of accuracy.csv", (
    text("trial", "Name of the trial."),
    *{column.name: column for column in (*ACCURACY.columns, *NUMBERS.columns)}.values(),
), further=_option)  # fmt: skip
