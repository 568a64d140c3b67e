"""Neurons at the top of every run, counted by hand, and what shuffled labels would leave of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from probing.comparison.pairs import Pair, Ranked
from probing.studies.compare.recipes import top_everywhere

pytestmark = pytest.mark.numeric

Array = NDArray[np.float64]


def ranked(
    label: str, tops: Sequence[Sequence[int]], shuffled: Sequence[Sequence[Sequence[int]]] | None = None
) -> Ranked:
    """Return a run of 6 neurons in some layers, of which those named are first, in this order; the others follow."""
    scores = np.stack([scored(top) for top in tops])
    drawn = None if shuffled is None else np.stack([np.stack([scored(top) for top in layer]) for layer in shuffled])
    return Ranked(label, list(range(len(tops))), scores, scores[:, None], shuffled=drawn)


def scored(top: Sequence[int]) -> Array:
    scores = np.linspace(0.6, 0.1, 6)
    scores[list(top)] = np.arange(9.0, 9 - len(top), -1)
    return scores


def by_index(n_layers: int) -> Pair:
    return Pair([], np.broadcast_to(np.arange(6), (n_layers, n_layers, 6)), True)


def test_neurons_of_every_top_are_listed_with_their_ranks_in_layers_of_one_depth() -> None:
    runs = [ranked("a", [(4, 1), (0, 2)]), ranked("b", [(1, 4), (2, 3)]), ranked("c", [(4, 1), (2, 5)])]
    found = top_everywhere(runs, {1: by_index(2), 2: by_index(2)}, 2)
    assert [(row["layer"], row["neuron"], row["rank"]) for row in found.rows] == [(0, 4, 1), (0, 1, 2), (1, 2, 2)]
    assert found.rows[0] == {
        "layer": 0, "neuron": 4, "rank": 1, "b layer": 0, "b neuron": 4, "b rank": 2, "c layer": 0, "c neuron": 4,
        "c rank": 1, "no_signal": "",
    }  # fmt: skip
    assert found.chance is None
    assert found.summary() == {"n_neurons": 3}


def test_matched_neurons_are_followed_and_those_without_a_partner_left_out() -> None:
    partners = np.array([[[5, 4, 3, 2, -1, 0]]])
    found = top_everywhere([ranked("a", [(4, 1)]), ranked("b", [(4, 1)])], {1: Pair([], partners, None)}, 2)
    assert [(row["neuron"], row["b neuron"]) for row in found.rows] == [(1, 4)]


def test_a_dead_neuron_is_in_no_top_even_where_fewer_are_alive() -> None:
    a, b = ranked("a", [(4, 1)]), ranked("b", [(4, 1)])
    a.scores[0, [0, 1, 2, 3, 5]] = 0
    assert [row["neuron"] for row in top_everywhere([a, b], {1: by_index(1)}, 3).rows] == [4]


def test_neurons_without_signal_are_marked_with_the_runs_where_they_have_none() -> None:
    a, b = ranked("a", [(4, 1)]), ranked("b", [(1, 4)])
    marks = np.zeros((2, 1, 6), dtype=bool)
    marks[:, 0, 4] = True
    marks[1, 0, 1] = True
    runs = [Ranked(r.label, r.layers, r.scores, r.draws, no_signal=own) for r, own in zip((a, b), marks, strict=True)]
    assert [row["no_signal"] for row in top_everywhere(runs, {1: by_index(1)}, 2).rows] == ["a, b", "b"]


def test_shuffled_labels_say_how_many_would_be_there_and_how_often_each() -> None:
    # Of three draws of a, neuron 4 is at the top in two and neuron 1 in none; of b, in one and in none.
    a = ranked("a", [(4, 1)], [[(4, 0), (4, 2), (0, 2)]])
    b = ranked("b", [(1, 4)], [[(3, 4), (0, 5), (0, 5)]])
    found = top_everywhere([a, b], {1: by_index(1)}, 2)
    assert {row["neuron"]: row["p_value"] for row in found.rows} == {4: 3 / 4, 1: 1 / 4}
    assert found.chance is not None
    # Against b's top two, a's draws leave 1, 1 and 0; against a's, b's leave 1, 0 and 0.
    assert found.chance.mean == pytest.approx(2 / 3)
    assert found.chance.p_value == 1 / 4
    assert found.summary()["n_neurons"] == 2
    assert found.summary()["chance_p_value"] == 1 / 4


def test_the_others_of_three_runs_stay_as_they_are() -> None:
    a = ranked("a", [(4, 1)], [[(4, 1), (4, 2)]])
    others = [ranked(name, [(1, 4)], [[(0, 5), (0, 5)]]) for name in "bc"]
    found = top_everywhere([a, *others], {1: by_index(1), 2: by_index(1)}, 2)
    assert found.chance is not None
    assert found.chance.mean == pytest.approx(1.5)  # what a's draws leave of the two; the others' leave nothing
    assert found.chance.p_value == 2 / 3


def test_random_tops_share_neurons_beyond_chance_as_seldom_as_it_says() -> None:
    generator, p_values, n_beyond, n_shared = np.random.default_rng(0), [], 0, 0
    size = np.geomspace(1, 30, 60)
    for _ in range(100):
        runs = []
        for name in "ab":
            scores = size * generator.exponential(size=(3, 20, 60))
            runs.append(Ranked(name, [0, 1, 2], scores[:, 0], scores[:, :1], shuffled=scores[:, 1:]))
        found = top_everywhere(runs, {1: Pair([], np.broadcast_to(np.arange(60), (3, 3, 60)), True)}, 10)
        assert found.chance is not None
        p_values.append(found.chance.p_value)
        n_shared += len(found.rows)
        n_beyond += sum(row["p_value"] <= 0.05 for row in found.rows)
    assert n_shared > 300  # size alone makes many
    assert n_beyond <= 0.02 * n_shared  # a neuron must be beyond chance in both runs
    assert np.mean(np.array(p_values) <= 0.05) <= 0.1
