"""Heads of roles and of subjects, against values planted in the tables of a survey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planted_claims import with_interval
from probing.results.rows import Table
from probing.studies.claims.measures import heads as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of


def subject(**tables: list[dict[str, Any]]) -> Subject:
    made = {name: Table(rows) for name, rows in tables.items()}
    return Subject("any", {"attention": results_of("attention", Path("attention"), {}, {}, **made)})


def role(layer: int, head: int, score: float, unlinked: float, p_value: float, **others: Any) -> dict[str, Any]:
    usual = {"role": "all", "query": "predicate", "layer": layer, "head": head}
    numbers = {"score": score, "low": score - 0.01, "high": score + 0.02, "unlinked": unlinked, "p_value": p_value}
    return {**usual, **numbers, **others}


ROLES = [
    role(1, 1, 0.10, 0.05, 0.2), role(1, 1, 0.20, 0.11, 0.04, query="filler"), role(1, 2, 0.30, 0.15, 0.01),
    role(2, 1, 0.15, 0.01, 0.001), role(2, 1, 0.9, 0.1, 0.001, role="obj"),
]  # fmt: skip


def test_the_excess_is_that_of_the_head_with_least_and_of_the_side_with_the_higher_score() -> None:
    found = measures.least_role_excess(subject(roles=ROLES), heads=["1-1", "1-2"])
    assert (found.value, found.low, found.high) == pytest.approx((0.09, 0.08, 0.11))
    assert found.control == 0.04
    alone = measures.least_role_excess(subject(roles=ROLES), heads=["2-1"])
    assert alone.value == pytest.approx(0.14)  # all roles together, not one of them
    assert alone.control == 0.001


def test_without_names_the_heads_with_the_highest_scores_count() -> None:
    found = measures.least_role_excess(subject(roles=ROLES))
    assert found.value == pytest.approx(0.09)  # 1-2 with .30 and 1-1 with .20, though 2-1 has a larger excess than 1-1
    assert measures.least_role_excess(subject(roles=ROLES), n_heads=1).value == pytest.approx(0.15)


def test_roles_need_links_and_the_heads_that_are_named() -> None:
    with pytest.raises(NotMeasurable, match="a treebank as `--corpus`"):
        measures.least_role_excess(subject())
    with pytest.raises(NotMeasurable, match="the model has no head 7-6"):
        measures.least_role_excess(subject(roles=ROLES), heads=["1-2", "7-6"])


RELATIONS = [
    {"relation": "det", "layer": 1, "head": 1, "difference": 0.7},
    {"relation": "nsubj", "layer": 2, "head": 1, "difference": 0.25},
]


def near(layer: int, head: int, **values: float) -> list[dict[str, Any]]:
    return [{"layer": layer, "head": head, "measure": name, **with_interval(value)} for name, value in values.items()]


def test_the_head_of_subjects_is_near_by_its_attention_to_one_neighbour() -> None:
    heads = [*near(1, 1, previous=0.9, next=0.0), *near(2, 1, previous=0.2, next=0.4, self=0.99)]
    found = measures.nearness_of_subject_head(subject(heads=heads, relations=RELATIONS))
    assert (found.value, found.low, found.high) == pytest.approx((0.4, 0.398, 0.402))
    assert found.control == 0.25


def test_subjects_need_a_treebank() -> None:
    with pytest.raises(NotMeasurable, match="a treebank as `--corpus`"):
        measures.nearness_of_subject_head(subject(heads=near(1, 1, previous=0.9), relations=RELATIONS[:1]))
