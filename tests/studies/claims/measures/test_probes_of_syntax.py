"""Expected layers and the lead of middle layers, against closed forms and simulated accuracies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing.results.rows import Table
from probing.runs.run import Run
from probing.studies.claims.measures import heads as measures
from probing.studies.claims.measures.registry import NotMeasurable, Subject

pytestmark = pytest.mark.numeric

HALF = 0.0098  # 1.96 sd of .005


def fit(accuracies: list[float], untrained: float | None = 0.3, half: float = HALF) -> Run:
    rows: list[dict[str, Any]] = [
        {"layer": layer, "accuracy": one, "accuracy_low": one - half, "accuracy_high": one + half}
        | ({} if untrained is None else {"untrained_accuracy": untrained + layer / 1000})
        for layer, one in enumerate(accuracies)
    ]
    return Run(Path("fit"), {}, {}, Table(rows), Table())


def subject(speech: list[float], relations: list[float], **options: Any) -> Subject:
    return Subject("any", {"parts_of_speech": fit(speech, **options), "relations": fit(relations, **options)})


def expected(accuracies: list[float]) -> float:
    """Return the expected layer by a loop over layers."""
    best, weighted, total = accuracies[0], 0.0, 0.0
    for layer, one in enumerate(accuracies[1:], 1):
        added = max(one - best, 0.0)
        weighted, total, best = weighted + layer * added, total + added, max(best, one)
    return weighted / total


EARLY, LATE = [0.5, 0.8, 0.9, 0.85, 0.9, 0.88, 0.7], [0.4, 0.42, 0.5, 0.7, 0.85, 0.9, 0.8]


def test_the_expected_layer_is_the_mean_layer_of_what_is_added() -> None:
    for one in (EARLY, LATE):
        assert float(measures.expected_layer(np.array(one))) == pytest.approx(expected(one))
    assert float(measures.expected_layer(np.array(EARLY))) == pytest.approx((0.3 * 1 + 0.1 * 2) / 0.4)
    assert measures.expected_layer(np.array([[0.9, 0.8], [0.5, 0.6]])).tolist() == [0.0, 1.0]


def test_the_difference_of_expected_layers_has_the_interval_of_independent_draws() -> None:
    found = measures.layers_from_speech_to_syntax(subject(EARLY, LATE))
    assert found.value == pytest.approx(expected(LATE) - expected(EARLY))
    draws = np.random.default_rng(5)
    drawn = [
        expected(draws.normal(LATE, 0.005).tolist()) - expected(draws.normal(EARLY, 0.005).tolist())
        for _ in range(1500)
    ]
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(drawn, (0.025, 0.975))), abs=0.05)
    assert 0 < found.low < found.value < found.high


def test_tasks_that_are_read_alike_are_not_told_apart() -> None:
    found = measures.layers_from_speech_to_syntax(subject(LATE, LATE))
    assert found.low < 0 == found.value < found.high
    exact = measures.layers_from_speech_to_syntax(subject(LATE, EARLY, half=0.0))
    assert exact.low == exact.value == exact.high < 0


def test_middle_layers_are_the_second_third_of_the_blocks() -> None:
    curve = [0.5, 0.6, 0.7, 0.9, 0.8, 0.75, 0.72]
    found = measures.lead_of_middle_layers(subject(curve, LATE), "parts_of_speech")
    assert (found.value, found.low, found.high) == pytest.approx((0.15, 0.15 - 2 * HALF, 0.15 + 2 * HALF))
    assert found.control == pytest.approx(-0.002)  # layer 4 beside layer 6
    assert measures.lead_of_middle_layers(subject(curve, LATE), "relations").value == pytest.approx(-0.05)
    above_in_embeddings = [0.99, *curve[1:]]
    found = measures.lead_of_middle_layers(subject(above_in_embeddings, LATE), "parts_of_speech")
    assert found.value == pytest.approx(-0.09)


def test_all_layers_and_the_control_are_needed() -> None:
    with pytest.raises(NotMeasurable, match="untrained"):
        measures.lead_of_middle_layers(subject(EARLY, LATE, untrained=None), "relations")
    with pytest.raises(NotMeasurable, match="second third"):
        measures.lead_of_middle_layers(subject([0.5, 0.6], LATE), "parts_of_speech")
    one_layer = Run(Path("fit"), {}, {}, Table(list(fit(EARLY).accuracy)[3:4]), Table())
    with pytest.raises(NotMeasurable, match="all layers"):
        measures.layers_from_speech_to_syntax(Subject("any", {"parts_of_speech": one_layer, "relations": one_layer}))
