"""`geometry --position` on planted hidden states: how much, how many directions, of which shape, in which neurons."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing.errors import UserError
from probing.studies.geometry.position.survey import check_position
from probing.studies.geometry.position.tables import SCALES, Found, position_conclusions, position_tables
from synthetic import N_SENTENCES, NEURONS, D, Tables, helix, make_store, make_tokens, planted, rotation, surveyed

pytestmark = pytest.mark.numeric


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Layers: a helix in three neurons, the same rotated, the same as the layer before, and none."""
    code = np.zeros((30, D))
    code[:, NEURONS] = helix(30)
    turned = code @ rotation()
    store = planted(tmp_path_factory.mktemp("planted") / "store", [code, turned, turned, None])
    return surveyed(store, {0: [*NEURONS, *(k for k in range(D) if k not in NEURONS)]})


def shape(found: Tables, layer: int, measure: str) -> dict[str, Any]:
    (row,) = (row for row in found["position_shape"] if (row["layer"], row["measure"]) == (layer, measure))
    return row


def test_a_helix_has_its_three_directions_and_noise_has_none(found: Tables) -> None:
    for layer in range(3):
        assert shape(found, layer, "directions")["value"] == 3
        # Its own spectrum does not tell: noise has a share in every direction.
        assert shape(found, layer, "directions_in_sample")["value"] > 3
        held_out = [row["held_out"] for row in found["position_spectrum"]
                    if (row["layer"], row["scale"]) == (layer, "raw")]  # fmt: skip
        assert max(held_out) == held_out[2] == 1
    assert shape(found, 3, "directions")["value"] == 0
    split = Found(found)
    assert [split.is_there(layer) for layer in range(4)] == [True, True, True, False]


def test_its_curves_are_the_helix(found: Tables) -> None:
    """Its three components span the planted curves, up to noise and their means."""
    rows = [row for row in found["position_curves"] if row["layer"] == 0 and row["n_tokens"] >= 50]
    positions = sorted({row["position"] for row in rows})
    curves = np.array([[row["value"] for row in rows if row["component"] == i] for i in (1, 2, 3)]).T
    true = helix(30)[positions]
    x = np.hstack([np.ones((len(true), 1)), curves])
    residual = true - x @ np.linalg.lstsq(x, true, rcond=None)[0]
    assert (residual.var(0) / true.var(0)).max() < 0.05
    inside = [row["low"] <= row["value"] <= row["high"] for row in rows]
    assert all(inside)


def test_it_changes_slowly_and_noise_does_not(found: Tables, tmp_path: Path) -> None:
    slow = shape(found, 0, "low_frequencies")
    assert slow["value"] > 3 * slow["chance"]
    assert slow["p_value"] < 0.01
    order = np.random.default_rng(5).permutation(30)
    code = np.zeros((30, D))
    code[:, NEURONS] = helix(30)[order]
    shuffled = shape(surveyed(planted(tmp_path / "store", [code])), 0, "low_frequencies")
    assert shuffled["value"] < slow["value"] / 2
    assert shuffled["p_value"] > 0.01


def test_coordinates_are_told_from_directions(found: Tables) -> None:
    by_layer = Found(found)
    for scale in SCALES:
        in_neurons, turned = (by_layer.basis(layer, scale) for layer in (0, 1))
        assert in_neurons
        assert turned
        assert in_neurons["half"] < in_neurons["half_lowest"] <= in_neurons["half_directions"]
        assert in_neurons["half_p"] == pytest.approx(1 / 21)
        assert turned["half_lowest"] <= turned["half"] <= turned["half_highest"]
        assert turned["half_p"] > 0.05
        assert by_layer.basis(3, scale) is None
    for layer, holds in ((0, 0.95), (1, None)):
        first, rotated = (by_layer.held(layer, order, 3) for order in ("part", "rotated"))
        assert first
        assert rotated
        assert first["value"] > holds if holds else rotated["low"] - 0.05 < first["value"] < rotated["high"] + 0.05
    for order in ("fit", "eta_squared"):
        first = by_layer.held(0, order, 3)
        assert first
        assert first["value"] > 0.95
    assert {row["neuron"] for row in sorted(
        (row for row in found["position_by_neuron"] if row["layer"] == 0), key=lambda row: -row["held"])[:3]
    } == set(NEURONS)  # fmt: skip


def test_a_large_neuron_without_position_does_not_hold_it(tmp_path: Path) -> None:
    code = np.zeros((30, D))
    code[:, NEURONS] = 2 * helix(30)
    found = surveyed(planted(tmp_path / "store", [code], scale=30))
    split = Found(found)
    assert split.split(0)["value"] < 0.02 < split.split(0, scale="standardised")["value"]
    row = next(row for row in found["position_by_neuron"] if row["neuron"] == 0)
    assert abs(row["value"]) < 0.01


def test_the_subspace_stays_or_turns(found: Tables) -> None:
    assert shape(found, 1, "below_overlap")["value"] < 0.6
    assert shape(found, 2, "below_overlap")["value"] > 0.9
    for layer in range(3):
        assert shape(found, layer, "halves_overlap")["value"] > 0.85
        assert shape(found, layer, "context_overlap")["p_value"] > 0.01


def test_contexts_in_the_directions_of_position_are_seen(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    tokens = make_tokens([14] * N_SENTENCES)
    code = np.zeros((30, D))
    code[:, NEURONS] = helix(30)
    contexts = np.zeros((N_SENTENCES, D))
    contexts[:, NEURONS] = 2 * generator.normal(size=(N_SENTENCES, 3))
    states = generator.normal(size=(tokens.n_tokens, D)) + code[tokens.positions] + contexts[tokens.sentences]
    found = surveyed(make_store(tmp_path / "store", [states], tokens, 700))
    assert shape(found, 0, "context_overlap")["value"] > 0.9
    assert shape(found, 0, "context_overlap")["p_value"] < 0.01
    assert shape(found, 0, "context_angle")["value"] < 10


def test_positions_are_read_in_sentences_left_out_and_in_longer_ones(found: Tables, tmp_path: Path) -> None:
    for measure in ("read_accuracy", "read_longer_accuracy"):
        row = shape(found, 0, measure)
        assert row["low"] > row["chance"]
        assert row["p_value"] < 0.05
    code = np.zeros((30, D))
    code[:, NEURONS] = 20 * helix(30)
    clear = surveyed(planted(tmp_path / "store", [code]))
    assert shape(clear, 0, "read_accuracy")["value"] > 0.99
    assert shape(clear, 0, "read_longer_accuracy")["value"] > 0.99
    assert shape(clear, 0, "read_error")["value"] < 0.1 < 3 < shape(clear, 0, "read_error")["chance"]


def test_sentences_say_what_is_planted(found: Tables) -> None:
    assert len(position_tables(found)) == 4
    lines = position_conclusions(found)
    assert "in layers 0 to 2:" in lines[0]
    assert lines[1].startswith("It has 3 directions")
    for line in lines[-2:]:
        assert "position favours neurons in layer 0: half of it is in 2 of 24 neurons, in " in line
        assert "; it is not shown to favour neurons over random directions in layers 1 and 2: half of it is" in line
        assert "and is 0 in the others" not in line
    only = {name: [row for row in rows if row["layer"] == 3] for name, rows in found.items()}
    assert position_conclusions(only)[0].startswith("No layer has a position part")
    first = {name: [row for row in rows if row["layer"] == 0] for name, rows in found.items()}
    assert not any("not shown to favour" in line for line in position_conclusions(first))
    turned = {name: [row for row in rows if row["layer"] == 1] for name, rows in found.items()}
    assert any(", position is not shown to favour neurons" in line for line in position_conclusions(turned))


def test_a_part_that_is_0_in_neurons_that_do_not_vary_is_said_to_lie_in_the_others(tmp_path: Path) -> None:
    generator = np.random.default_rng(9)
    tokens = make_tokens([14] * N_SENTENCES)
    states = np.full((tokens.n_tokens, 384), 0.3)
    chosen = generator.permutation(384)[:20]
    code = generator.normal(size=(16, 2)) @ generator.normal(size=(2, 20))
    states[:, chosen] = code[tokens.positions] + generator.normal(size=(tokens.n_tokens, 20))
    states[:, chosen[0]] *= 1e-15  # small, and not 0
    found = surveyed(make_store(tmp_path / "store", [states], tokens, 700))
    raw, standardised = position_conclusions(found)[-2:]
    assert raw.endswith("It lies in 20 of 384 neurons in layer 0, and is 0 in the others.")
    assert "of 20 neurons that vary" in raw
    assert "of 20 neurons that vary" in standardised
    row = Found(found).basis(0)
    assert row
    assert (row["n_nonzero"], row["n_live"], row["n_neurons"]) == (20, 20, 384)


@pytest.mark.parametrize("lengths", [[5, 5], [3] * 20, [1100] * 4])
def test_texts_that_cannot_be_split_are_refused(lengths: list[int]) -> None:
    with pytest.raises(UserError, match="--position"):
        check_position(make_tokens(lengths), "exclude")


def test_few_sentences_have_no_intervals_and_say_so(found: Tables, tmp_path: Path) -> None:
    clear, generator = found, np.random.default_rng(3)
    tokens = make_tokens([9] * 10)
    found = surveyed(make_store(tmp_path / "store", [generator.normal(size=(90, D))], tokens))
    assert all(row["low"] is None for row in found["position_split"])
    assert position_conclusions(found) == ["There are 10 sentences, too few for intervals of the position part."]
    assert position_tables(found)
    # As the tables are when they are read from files, too.
    read = {
        name: [{k: math.nan if v is None else v for k, v in row.items()} for row in rows]
        for name, rows in found.items()
    }
    assert position_conclusions(read) == position_conclusions(found)
    without = {name: [{**row, "low": None, "high": None} if name == "position_shape" else row for row in rows]
               for name, rows in clear.items()}  # fmt: skip
    assert not any("nan" in line for line in position_conclusions(without))
