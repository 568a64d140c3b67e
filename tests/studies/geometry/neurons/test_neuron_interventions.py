"""What is said of neurons that are exchanged between texts with masks, and when."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from probing.studies.geometry.neurons.tables import conclusions, tables

CHANCE = "not shown to be more than by chance"


def row(n: int, n_as_given: int, **others: Any) -> dict[str, Any]:
    return {
        "changed_layer": 1, "kind": "interchange", "k": 5, "readout": "words", "layer": 3, "intact": 0.0, "value": 0.4,
        "effect": 0.4, "low": 0.3, "high": 0.5, "all_neurons": 0.9, "difference": 1.25, "n": n,
        "n_as_given": n_as_given, **others,
    }  # fmt: skip


def test_the_share_stands_beside_that_of_all_neurons_and_what_it_is_of() -> None:
    share, told = conclusions([row(40, 38)])
    assert share == (
        "Layer 1, 5 neurons exchanged between the sentences of pairs: log odds carried, layer 3 from 0.000 to 0.400 "
        "(+40.0 points (+30.0 to +50.0); all neurons +90.0)."
    )
    assert told == (
        "In the intact model, the log odds of the two words differ by 1.2 nats between the texts of a pair, in 38 of "
        "40 pairs as the file has it."
    )
    (table,) = tables([row(40, 38)])
    assert [list(column.cells)[1] for column in table.columns[1:3]] == ["all", "+90.0"]


def test_what_reads_no_words_says_nothing_of_them_and_has_no_row_of_all_neurons() -> None:
    other = {**row(40, 38), "kind": "mean", "readout": "position", "all_neurons": float("nan")}
    assert len(conclusions([other])) == 1
    (table,) = tables([other])
    assert table.row_count == 1


@pytest.mark.parametrize(
    ("n", "as_given", "is_chance"), [(40, 20, True), (40, 25, True), (40, 28, False), (5, 5, True)]
)
def test_pairs_that_the_model_does_not_tell_apart_are_said_to_be_chance(n: int, as_given: int, is_chance: bool) -> None:
    assert (CHANCE in conclusions([row(n, as_given)])[1]) is is_chance


def test_noise_is_called_chance_and_a_model_that_knows_the_words_is_not() -> None:
    generator = np.random.default_rng(0)
    noise, signal = (generator.binomial(60, share, size=400) for share in (0.5, 0.85))
    of_noise, of_signal = (
        np.mean([CHANCE in conclusions([row(60, int(n))])[1] for n in few]) for few in (noise, signal)
    )
    assert of_noise > 0.96  # one side of an exact interval of 95%
    assert of_signal == 0
