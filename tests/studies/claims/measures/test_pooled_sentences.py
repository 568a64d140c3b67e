"""Which pooling is better, against tables made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.studies.claims.measures.heads import least_lead_of_pooling
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of


def row(name: str, pooling: str, value: float, layer: int = 6, **others: Any) -> dict[str, Any]:
    usual = {"set": name, "pooling": pooling, "layer": layer, "transform": "none", "aggregation": "all"}
    return {**usual, "spearman": value, "low": value - 0.02, "high": value + 0.01, **others}


ROWS = [
    row("STS12", "mean", 0.7), row("STS12", "cls", 0.5), row("SICK", "mean", 0.65), row("SICK", "cls", 0.6),
    row("SICK", "cls", 0.9, layer=3), row("SICK", "cls", 0.9, transform="whiten"),
    row("SICK", "cls", 0.9, aggregation="mean"), row("STS13", "mean", 0.1),
    {"set": "SICK", "pooling": "static", "transform": "none", "aggregation": "all", "spearman": 0.4},
]  # fmt: skip
CHOSEN = [
    row("STS12", "mean", 0.8, protocol="held_out"), row("STS12", "cls", 0.6, layer=2, protocol="held_out"),
    row("SICK", "mean", 0.6, protocol="held_out"), row("SICK", "cls", 0.7, protocol="held_out"),
    row("SICK", "cls", 0.1, protocol="published"),
]  # fmt: skip


def subject(chosen: list[dict[str, Any]] = CHOSEN) -> Subject:
    return Subject("any", {"pooling": results_of("sts", Path("sts"), {}, {}, Table(ROWS), Table(chosen))})


def test_the_lead_is_that_of_the_last_layer_and_of_the_set_with_least() -> None:
    found = least_lead_of_pooling(subject(), "mean", "cls")
    assert (found.value, found.low, found.high) == pytest.approx((0.05, 0.02, 0.08))
    assert found.control == pytest.approx(-0.1)  # at layers chosen on other pairs
    assert least_lead_of_pooling(subject(CHOSEN[-1:]), "mean", "cls").control is None


def test_both_poolings_are_needed() -> None:
    with pytest.raises(NotMeasurable, match="poolings first_last and mean"):
        least_lead_of_pooling(subject(), "first_last", "mean")
