"""Rows of effects of neurons: paired with the intact model, and among the effects of drawn sets."""

from __future__ import annotations

import numpy as np
import pytest

from probing.studies.geometry.neurons.sets import Line, NeuronSet, beside, effect_rows

pytestmark = pytest.mark.numeric


def test_an_effect_stands_beside_those_of_drawn_sets_on_their_part_of_the_sentences() -> None:
    n = np.array([4, 2, 0, 10])
    intact = np.array([[4.0, 2, 0, 8], [8.0, 4, 0, 20]])
    chosen = np.array([[2.0, 1, 0, 8], [9.0, 4, 0, 20]])
    lines = [Line("position", 3, n, {}), Line("mlm", 4, n, {"head": 2})]
    drawn = {
        NeuronSet(1, "mean", (i,), source, i + 1): sums
        for source in ("random", "matched")
        for i, sums in enumerate(([[4.0, 8], [8.0, 20]], [[1.0, 8], [12.0, 20]], [[2.0, 8], [8.0, 19]]))
    }
    results = {NeuronSet(1, "mean", ()): intact, NeuronSet(1, "mean", (7,)): chosen}
    arrays = {one: np.array(sums) for one, sums in drawn.items()}
    rows, draws = effect_rows(results, arrays, lines, np.array([0, 3]))
    accuracy, loss = rows
    assert accuracy["neurons"] == "7"
    assert (accuracy["intact"], accuracy["value"]) == (14 / 16, 11 / 16)
    assert accuracy["effect"] == pytest.approx(-3 / 16)
    # On the first and the last sentence: -2 of 14, among 0, -3 and -2.
    assert (accuracy["random_lowest"], accuracy["random_highest"]) == pytest.approx((-3 / 14, 0))
    assert accuracy["random"] == pytest.approx(-5 / 42)
    assert accuracy["random_percentile"] == pytest.approx(100 / 3)
    assert accuracy["random_p"] == pytest.approx(3 / 4)
    # Of a loss a rise is a harm: +1 of 14, among 0, +4 and -1.
    assert loss["matched_percentile"] == pytest.approx(200 / 3)
    assert loss["matched_p"] == pytest.approx(2 / 4)
    assert loss["head"] == 2
    assert [(row["set"], row["draw"]) for row in draws[:7]] == [
        ("chosen", 0), *((source, draw) for source in ("random", "matched") for draw in (1, 2, 3)),
    ]  # fmt: skip
    assert [row["effect"] for row in draws[:4]] == pytest.approx([-2 / 14, 0, -3 / 14, -2 / 14])


def test_a_p_value_is_the_rank_among_all_sets() -> None:
    others = np.linspace(-1, 1, 19)
    assert beside("random", -2.0, others, -1)["random_p"] == 1 / 20
    assert beside("random", 2.0, others, -1)["random_p"] == 1
    assert beside("random", 2.0, others, 1)["random_p"] == 1 / 20
    assert beside("random", 0.0, np.zeros(9), 1)["random_p"] == 1
    assert beside("random", 0.0, np.array([]), 1) == {}
