"""Sets of neurons: the doses of those that were asked for, and what they are compared with."""

from __future__ import annotations

import numpy as np
import pytest

from probing.studies.geometry.neurons.sets import NeuronSet, chosen_sets, drawn_sets, sizes_up_to

pytestmark = pytest.mark.numeric


def test_doses_go_up_to_all_neurons_that_are_named() -> None:
    assert sizes_up_to(1) == [1]
    assert sizes_up_to(3) == [1, 2, 3]
    assert sizes_up_to(10) == [1, 2, 5, 10]
    assert sizes_up_to(96) == [1, 2, 5, 10, 20, 50, 96]


def test_the_first_neurons_of_the_ranking_are_changed_and_nothing_for_comparison() -> None:
    sets = chosen_sets(2, [7, 1, 5], ["zero", "direction"], 16)
    assert sets == [
        NeuronSet(2, "zero", ()),
        *(NeuronSet(2, kind, (7, 1, 5)[:k]) for kind in ("zero", "direction") for k in (1, 2, 3)),
    ]  # fmt: skip


def test_drawn_sets_have_the_size_of_the_chosen_ones_and_matched_ones_their_spread() -> None:
    sd = np.linspace(0.1, 10, 200)
    chosen = chosen_sets(1, [199, 198, 197, 196, 195], ["mean", "zero"], 200)
    drawn = list(drawn_sets(chosen, sd, 30, seed=3))
    assert len(drawn) == len(set(drawn)) == 2 * 3 * 2 * 30
    for one in drawn:
        assert len(set(one.neurons)) == one.k
        if one.source == "matched":
            assert min(one.neurons) >= 175
    random = {n for one in drawn if one.source == "random" for n in one.neurons}
    assert len(random) > 100
    assert random & {195, 196, 197, 198, 199}  # also those that they are compared with
    by_kind = [[(one.neurons, one.source, one.draw) for one in drawn if one.kind == kind] for kind in ("mean", "zero")]
    assert by_kind[0] == by_kind[1]
    again = list(drawn_sets(chosen, sd, 30, seed=3))
    assert drawn == again != list(drawn_sets(chosen, sd, 30, seed=4))


def test_all_neurons_of_a_layer_are_one_set_that_nothing_is_compared_with() -> None:
    sets = chosen_sets(1, range(16), ["direction"], 16)
    assert [one.k for one in sets] == [0, 16]
    assert list(drawn_sets(sets, np.ones(16), 20, 0)) == []
