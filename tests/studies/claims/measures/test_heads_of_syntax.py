"""Heads of relations, trees and neighbours, against values planted in the tables of a survey."""

from __future__ import annotations

from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planted_claims import with_interval
from probing.results.rows import Table
from probing.studies.claims.measures import heads as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of

pytestmark = pytest.mark.numeric


def subject(**tables: list[dict[str, Any]]) -> Subject:
    made = {name: Table(rows) for name, rows in tables.items()}
    return Subject("any", {"attention": results_of("attention", Path("attention"), {}, {}, **made)})


def relation(name: str, lead: float, offset: float, untrained: float) -> dict[str, Any]:
    return {
        "relation": name, "difference": lead, "difference_low": lead - 0.05, "difference_high": lead + 0.04,
        "offset_test": offset, "untrained": untrained,
    }  # fmt: skip


RELATIONS = [relation("det", 0.2, 0.6, 0.1), relation("obj", 0.4, 0.3, 0.2), relation("case", -0.3, 0.9, 0.95)]


def test_the_relation_with_the_least_lead_counts_and_the_control_is_of_the_same_relations() -> None:
    found = measures.least_lead_over_offset(subject(relations=RELATIONS), ["det", "obj"])
    assert (found.value, found.low, found.high) == pytest.approx((0.2, 0.15, 0.24))
    assert found.control == pytest.approx(-0.1)
    with pytest.raises(NotMeasurable, match="for each of amod, nsubj"):
        measures.least_lead_over_offset(subject(relations=RELATIONS), ["det", "amod", "nsubj"])


def tree(edges: float, **others: Any) -> dict[str, Any]:
    return {"measure": "uuas", "test": edges, "test_low": edges - 0.01, "test_high": edges + 0.02, "difference": 0.1,
            **others}  # fmt: skip


def test_trees_are_those_of_the_head_that_other_sentences_chose() -> None:
    rows = [tree(0.9, head=1), tree(0.5, head=2, chosen="yes"), tree(0.99, measure="uas", layer="all", chosen="yes")]
    found = measures.edges_of_best_head(subject(trees=rows))
    assert (found.value, found.low, found.high, found.control) == pytest.approx((0.5, 0.49, 0.52, 0.1))
    with pytest.raises(NotMeasurable, match="a treebank"):
        measures.edges_of_best_head(subject(trees=rows[:1]))


def test_heads_are_counted_above_a_half_with_those_that_the_interval_leaves_open() -> None:
    masses = {"previous": (0.9, 0.6, 0.501, 0.499, 0.1), "next": (0.2, 0.2, 0.2, 0.2, 0.3)}
    rows = [
        {"layer": 1, "head": head, "measure": name, **with_interval(mass)}
        for name, of_heads in masses.items()
        for head, mass in enumerate(of_heads, 1)
    ]
    found = measures.heads_at_neighbour(subject(heads=rows), "previous")
    assert (found.value, found.low, found.high, found.control) == (3, 2, 4, 0.9)
    none = measures.heads_at_neighbour(subject(heads=rows), "next")
    assert (none.value, none.low, none.high, none.control) == (0, 0, 0, 0.3)
    with pytest.raises(NotMeasurable, match="profile"):
        measures.heads_at_neighbour(subject(), "next")


def divergences(n_layers: int, n_heads: int, seed: int = 0, within: float = 1.0) -> list[dict[str, Any]]:
    draws = np.random.default_rng(seed)
    heads = product(range(1, n_layers + 1), range(1, n_heads + 1))
    return [
        {"measure": "jensen_shannon", "layer": a, "head": b, "other_layer": c, "other_head": d,
         **with_interval(float(draws.uniform(0.3, 0.5)) * (within if a == c else 1))}
        for (a, b), (c, d) in combinations(heads, 2)
    ]  # fmt: skip


def test_likeness_is_the_difference_of_mean_divergences() -> None:
    rows = divergences(3, 4, within=0.5)
    found = measures.likeness_within_layers(subject(similarity=[*rows, {"measure": "cosine", "layer": 1, "value": 9}]))
    within = [row["value"] for row in rows if row["layer"] == row["other_layer"]]
    between = [row["value"] for row in rows if row["layer"] != row["other_layer"]]
    assert (len(within), len(between)) == (18, 48)
    assert found.value == pytest.approx(float(np.mean(between) - np.mean(within)))
    assert (found.low, found.high) == pytest.approx((found.value - 0.004, found.value + 0.004))
    assert found.control == pytest.approx(11 / 3)  # every nearest head is in the layer; by chance 3 of 11 are


def test_heads_at_random_are_no_more_alike_within_a_layer() -> None:
    controls = [
        measures.likeness_within_layers(subject(similarity=divergences(4, 6, seed))).control for seed in range(8)
    ]
    assert all(control is not None for control in controls)
    assert float(np.mean([control or 0.0 for control in controls])) == pytest.approx(1, abs=0.3)
    with pytest.raises(NotMeasurable, match="two layers"):
        measures.likeness_within_layers(subject(similarity=divergences(1, 4)))
