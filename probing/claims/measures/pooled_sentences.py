"""Which vector of a sentence is the better one, from runs of `sts` with several poolings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from probing.claims.measures.registry import NotMeasurable, Subject, difference, from_row, measure
from probing.claims.verdict import Measured
from probing.runs.result import Result


@measure("pooling")
def least_lead_of_pooling(subject: Subject, pooling: str, over: str) -> Measured:
    """Return how much higher Spearman's correlation is with one pooling than another, the least over the sets.

    Both are of the last layer, over all pairs of a set together. The covariance of the two correlations is not known,
    so that the interval is the widest that their intervals allow. The control is the least lead when the layer of each
    pooling is chosen on other pairs; None if the run chose no layers.

    Args:
        subject: The model.
        pooling: The pooling.
        over: The other pooling.
    """
    run: Result = subject.run("pooling")
    last = max(row["layer"] for row in run.sts if "layer" in row)
    own = _leads((row for row in run.sts if row.get("layer") == last), pooling, over)
    chosen = _leads((row for row in run.chosen if row["protocol"] == "held_out"), pooling, over)
    if not own:
        raise NotMeasurable(f"a run of `sts` with the poolings {pooling} and {over}")
    least = min(own, key=lambda one: one.value)
    return Measured(least.value, least.low, least.high, min(one.value for one in chosen) if chosen else None)


def _leads(rows: Iterable[Mapping[str, Any]], pooling: str, over: str) -> list[Measured]:
    """Return the lead of each set."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        if (row.get("transform"), row["aggregation"]) == ("none", "all"):
            found.setdefault(row["set"], {})[row["pooling"]] = row
    both = [of_set for of_set in found.values() if {pooling, over} <= set(of_set)]
    return [difference(*(from_row(of_set[name], "spearman", "") for name in (pooling, over))) for of_set in both]
