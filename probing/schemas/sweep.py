"""The table of `sweep`."""

from __future__ import annotations

from probing.results.schema import Schema, Type
from probing.schemas.common import text
from probing.schemas.probes import ACCURACY, NUMBERS


def _option(name: str) -> Type | None:
    """Return the type of an option that a sweep varies, or of the agreement with runs that differ in it."""
    return float if name.endswith(("_spearman", "_overlap")) else str


SWEEP = Schema("sweep", "a row per trial and layer: the options that vary, and the columns of accuracy.csv", (
    text("trial", "Name of the trial."),
    *{column.name: column for column in (*ACCURACY.columns, *NUMBERS.columns)}.values(),
), further=_option)  # fmt: skip
