"""Similarity of maps and fusions of layers, against values planted in the tables of a survey."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planted_claims import with_interval
from probing.results.rows import Table
from probing.studies.claims.measures import layers as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of


def subject(**tables: list[dict[str, Any]]) -> Subject:
    run = results_of("attention", Path("attention"), {}, {}, **{name: Table(rows) for name, rows in tables.items()})
    return Subject("any", {"attention": run, "fusion": run, "change": run})


def changed(measure: str, *values: float, of: str = "same") -> list[dict[str, Any]]:
    return [
        {"measure": measure, "of": of, "layer": layer, **with_interval(value)}
        for layer, value in enumerate(values, start=1)
    ]


def test_the_last_layers_change_most_if_each_of_them_changes_more_than_every_other() -> None:
    rows = [*changed("cosine", 0.9, 0.8, 0.95, 0.6, 0.7), *changed("jensen_shannon", 0.1, 0.3, 0.2, 0.5, 0.35)]
    rows += [*changed("cosine", 0.1, 0.1, 0.1, 0.9, 0.9, of="other heads")]
    rows += [{**row, "head": 2, "value": 0.0} for row in changed("cosine", 0, 0, 0, 0, 0)]
    found = measures.lead_of_change_in_last_layers(subject(change=rows), 2)
    assert (found.value, found.low, found.high) == pytest.approx((0.8 - 0.7, 0.096, 0.104))
    assert found.control == pytest.approx(0.35 - 0.3)
    assert measures.lead_of_change_in_last_layers(subject(change=rows[::-1]), 3).value == pytest.approx(0.8 - 0.95)
    with pytest.raises(NotMeasurable, match="more layers"):
        measures.lead_of_change_in_last_layers(subject(change=rows), 5)


def pairs_of_layers(measure: str, *values: float) -> list[dict[str, Any]]:
    return [
        {"measure": measure, "layer": layer, "other_layer": layer + 1, **with_interval(value)}
        for layer, value in enumerate(values, start=1)
    ]


@pytest.mark.parametrize(("n_layers", "first"), [(12, 5), (6, 3), (24, 10), (2, 1)])
def test_maps_are_compared_from_a_depth_on(n_layers: int, first: int) -> None:
    values = [0.1 if layer < first else 0.9 - layer / 1000 for layer in range(1, n_layers)]
    rows = [
        *pairs_of_layers("cosine", *values),
        *pairs_of_layers("cosine_without_special", *[value - 0.05 for value in values]),
        *pairs_of_layers("cosine_matched", *[0.0] * (n_layers - 1)),
        {"measure": "jensen_shannon", "layer": n_layers, "other_layer": n_layers, **with_interval(0.0)},
    ]
    found = measures.least_similarity_of_maps(subject(similarity=rows), 0.4)
    least = 0.9 - (n_layers - 1) / 1000
    assert (found.value, found.low, found.high) == pytest.approx((least, least - 0.002, least + 0.002))
    assert found.control == pytest.approx(least - 0.05)


def test_one_layer_has_none_to_be_compared_with() -> None:
    with pytest.raises(NotMeasurable, match="two consecutive layers"):
        measures.least_similarity_of_maps(subject(), 0.4)


def difference(task: str, fusion: str, against: str, value: float) -> dict[str, Any]:
    about = {"task": task, "fusion": fusion, "measure": "difference", "against": against, "layer": 2}
    return {**about, **with_interval(value)}


def cosine(fusion: str, value: float, **others: Any) -> dict[str, Any]:
    return {"fusion": fusion, "measure": "cosine", **with_interval(value), **others}


FUSION = [
    difference("upos", "gate", "last layer", 0.1), difference("upos", "gate", "best layer", -0.01),
    difference("position", "gate", "last layer", 0.3), difference("position", "gate", "best layer", -0.04),
    difference("position", "gate", "equal", -0.5), difference("upos", "max", "last layer", -0.2),
    cosine("layer", 0.2, layer=1), cosine("layer", 0.4, layer=3), cosine("layer", 0.9, layer=2), cosine("equal", 0.25),
    cosine("gate", 0.3, task="upos"), cosine("gate", 0.1, task="position"), cosine("max", 0.7, task="upos"),
]  # fmt: skip


def test_the_gain_by_fusion_is_that_of_the_task_with_least_over_the_last_layer() -> None:
    found = measures.least_gain_by_fusion(subject(fusion=FUSION), "gate")
    assert (found.value, found.low, found.high) == pytest.approx((0.1, 0.098, 0.102))
    assert found.control == -0.04


def test_similarity_after_fusion_is_that_of_the_task_with_most_less_the_last_layer() -> None:
    found = measures.similarity_after_fusion(subject(fusion=FUSION), "gate")
    assert (found.value, found.low, found.high) == pytest.approx((-0.1, -0.104, -0.096))
    assert found.control == pytest.approx(-0.15)


def test_fusions_need_a_task() -> None:
    for measure in (measures.least_gain_by_fusion, measures.similarity_after_fusion):
        with pytest.raises(NotMeasurable, match="a task"):
            measure(subject(), "gate")
