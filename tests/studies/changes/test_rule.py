"""When a change is called the task's: planted changes are, seeds alone are not, however many orders and layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from probing.studies.changes.survey import START, layer_rows
from probing.studies.changes.tables import MEASURES, Tables, answer, conclusions

pytestmark = pytest.mark.numeric

LAYERS, DRAWS = 7, 60


def changes(value: Callable[[str, str, int, int, int], float], seeds: int, orders: int) -> list[dict[str, Any]]:
    """Return rows whose change is a function of group, measure, layer, seed and order."""
    return [
        {
            "checkpoint": f"{start}-{seed}-{order}", "start": start, "seed": seed, "order_seed": order,
            "against": START, "measure": measure, "layer": layer,
            "change": value(start, measure, layer, seed, order),
        }
        for start in ("pretrained", "shuffled")
        for seed in range(seeds)
        for order in range(orders)
        for measure in MEASURES
        for layer in range(LAYERS)
    ]  # fmt: skip


@pytest.mark.parametrize(("seeds", "orders"), [(3, 1), (3, 3), (5, 1)])
def test_seeds_alone_are_called_the_tasks_in_few_runs(seeds: int, orders: int) -> None:
    """At most 1 in 20 is expected, and more than 8 of 60 have a probability of .003; all 70 rows of a run count."""
    generator, claimed = np.random.default_rng(0), 0
    for _ in range(DRAWS):
        # What a seed does, it does at all orders; most layers move together.
        drawn = {
            (start, seed): 0.3 + 0.02 * generator.normal(size=(1, 1)) + 0.02 * generator.normal(size=(10, LAYERS))
            for start in ("pretrained", "shuffled")
            for seed in range(seeds)
        }
        names = list(MEASURES)

        def value(
            start: str, measure: str, layer: int, seed: int, order: int, drawn: Any = drawn, names: Any = names
        ) -> float:
            return float(drawn[start, seed][names.index(measure), layer] + 0.002 * generator.normal())

        rows = layer_rows(changes(value, seeds, orders), {})
        claimed += any(row["by_task"] == "yes" for row in rows)
    assert claimed <= 8


def test_what_the_task_changes_is_called_the_tasks_in_its_layers_and_no_other() -> None:
    generator = np.random.default_rng(1)

    def value(start: str, measure: str, layer: int, seed: int, order: int) -> float:
        by_task = 0.4 * (start == "pretrained" and layer >= 5 and measure in ("states_cosine", "position_accuracy"))
        sign = -1 if measure == "position_accuracy" else 1
        return float(0.1 + 0.002 * generator.normal() + sign * by_task)

    rows = layer_rows(changes(value, 3, 2), {("position_accuracy", 5): 0.8})
    claimed = {(row["measure"], row["layer"]) for row in rows if row["by_task"] == "yes"}
    assert claimed == {(measure, layer) for measure in ("states_cosine", "position_accuracy") for layer in (5, 6)}
    by_key = {(row["measure"], row["layer"]): row for row in rows}
    assert by_key["position_accuracy", 5]["start_value"] == 0.8
    assert by_key["states_cosine", 6]["ratio"] == pytest.approx(5, rel=0.1)
    assert by_key["position_accuracy", 6]["difference"] == pytest.approx(-0.4, abs=0.01)


def test_a_distance_that_shuffled_labels_change_more_is_not_the_tasks() -> None:
    generator = np.random.default_rng(2)

    def value(start: str, measure: str, layer: int, seed: int, order: int) -> float:
        return float((0.5 if start == "shuffled" else 0.1) + 0.002 * generator.normal())

    claimed = {row["measure"] for row in layer_rows(changes(value, 3, 1), {}) if row["by_task"] == "yes"}
    assert claimed == {name for name, one in MEASURES.items() if not one.is_distance}  # whose change has two sides


def test_sentences_say_where_and_how_much() -> None:
    def value(start: str, measure: str, layer: int, seed: int, order: int) -> float:
        return (0.01 + 0.1 * (layer >= 5) * (start == "pretrained")) * (1 + 0.01 * seed) + 0.001 * layer

    rows = changes(value, 3, 1)
    made: Tables = {"layer_changes": layer_rows(rows, {}), "checkpoint_changes": rows}
    assert answer(made, "bert")[1] == "bert: the task changes hidden states in layers 5 and 6."
    said = conclusions(made, {"n_seeds": {"pretrained": 3, "shuffled": 3}})
    assert "Hidden states: the last two layers, 5 and 6, change most in all 3 checkpoints." in said
    assert any(line.startswith("Hidden states: changed most in layer 6 (0.117, ") for line in said)
    assert said[-1].startswith(
        "A change is the task's where it is larger than that by tuning on shuffled labels: Welch's"
    )
