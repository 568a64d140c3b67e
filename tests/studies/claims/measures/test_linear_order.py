"""Answers by linear order and by hierarchy, against tables made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probing.results.rows import Table
from probing.studies.claims.measures import registry as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject
from written import results_of


def row(layer: int, linear: float, preference: float, condition: str = "model") -> dict[str, Any]:
    return {
        "task": "subject_noun", "condition": condition, "layer": layer, "test": 1 - layer / 100, "first_noun": linear,
        "first_noun_low": linear - 0.02, "first_noun_high": linear + 0.01, "preference": preference,
        "preference_low": preference - 0.03, "preference_high": preference + 0.02,
    }  # fmt: skip


def subject(*rows: dict[str, Any]) -> Subject:
    return Subject("any", {"hierarchy": results_of("hierarchy", Path("hierarchy"), {}, {}, Table(list(rows)), Table())})


ROWS = [
    row(0, 1.0, -1.0), row(1, 0.8, -0.7), row(2, 0.4, 0.1), row(3, 0.1, 0.7), row(4, 0.2, 0.5),
    row(0, 1.0, -1.0, "untrained"), row(1, 1.0, 0.9, "untrained"), row(3, 1.0, -0.8, "untrained"),
    row(4, 1.0, -0.9, "untrained"),
]  # fmt: skip


def test_the_first_layer_is_the_first_block_and_not_the_embeddings() -> None:
    found = measures.linear_answers_in_first_layer(subject(*ROWS), "subject_noun")
    assert (found.value, found.low, found.high) == pytest.approx((0.8, 0.78, 0.81))
    assert found.control == 0.99


def test_the_least_preference_is_that_of_upper_layers_of_the_model_and_its_control() -> None:
    found = measures.preference_for_hierarchy(subject(*ROWS), "subject_noun", 0.66)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.47, 0.52))
    assert found.control == -0.8  # of layers 3 and 4
    assert measures.preference_for_hierarchy(subject(*ROWS), "subject_noun", 0.5).value == 0.1


def test_a_task_that_was_not_run_and_a_missing_control_are_not_measurable() -> None:
    with pytest.raises(NotMeasurable, match="main_auxiliary"):
        measures.linear_answers_in_first_layer(subject(*ROWS), "main_auxiliary")
    with pytest.raises(NotMeasurable, match="untrained"):
        measures.preference_for_hierarchy(subject(*ROWS[:5]), "subject_noun", 0.66)
