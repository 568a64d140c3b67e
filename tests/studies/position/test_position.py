"""`position`: planted position parts, their shapes, and the command from end to end."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from conftest import BARE
from families import make_checkpoint
from probing import WandbOptions, fit, report
from probing.__main__ import COMMANDS
from probing.cli.commandline import run
from probing.errors import UserError
from probing.results import Table
from probing.runs import Result
from probing.runs.loading import load_run
from probing.statistics.two_way import Design, TwoWaySums
from probing.studies.position import SCALES, TERMS, PositionTables, position, position_conclusions, position_tables
from probing.studies.position.survey import (
    ROTATIONS,
    Concentration,
    Folds,
    check_position,
    concentration,
    oriented,
    overlap,
    principal,
    random_subspace,
    read_positions,
    spectrum,
)
from synthetic import N_SENTENCES, NEURONS, D, Tables, helix, make_store, make_tokens, planted, rotation, surveyed
from wandb_stand_in import read_offline_runs

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
    split = PositionTables(found)
    assert [split.is_above_zero(layer) for layer in range(4)] == [True, True, True, False]


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
    by_layer = PositionTables(found)
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
        (first,), (rotated,) = (
            Table(found["position_held"]).where(layer=layer, scale="raw", order=order, k=3)
            for order in ("part", "rotated")
        )
        assert first["value"] > holds if holds else rotated["low"] - 0.05 < first["value"] < rotated["high"] + 0.05
    for order in ("fit", "eta_squared"):
        (first,) = Table(found["position_held"]).where(layer=0, scale="raw", order=order, k=3)
        assert first["value"] > 0.95
    assert {row["neuron"] for row in sorted(
        (row for row in found["position_by_neuron"] if row["layer"] == 0), key=lambda row: -row["held"])[:3]
    } == set(NEURONS)  # fmt: skip


def test_a_large_neuron_without_position_does_not_hold_it(tmp_path: Path) -> None:
    code = np.zeros((30, D))
    code[:, NEURONS] = 2 * helix(30)
    found = surveyed(planted(tmp_path / "store", [code], scale=30))
    split = PositionTables(found)
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
    assert lines[1].startswith("The position part has 3 directions")
    for line in lines[-2:]:
        assert "position favours neurons in layer 0: half of it is in 2 of 24 neurons, and in " in line
        assert "; it is not shown to favour neurons over random directions in layers 1 and 2: half of it is" in line
        assert "and is 0 in the other neurons" not in line
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
    assert raw.endswith("Position is in 20 of 384 neurons in layer 0, and is 0 in the other neurons.")
    assert "of 20 neurons that vary" in raw
    assert "of 20 neurons that vary" in standardised
    row = PositionTables(found).basis(0)
    assert row
    assert (row["n_nonzero"], row["n_live"], row["n_neurons"]) == (20, 20, 384)


@pytest.mark.parametrize("lengths", [[5, 5], [3] * 20, [1100] * 4])
def test_texts_that_cannot_be_split_are_refused(lengths: list[int]) -> None:
    with pytest.raises(UserError, match="`--corpus`: "):
        check_position(make_tokens(lengths), "exclude")


def test_few_sentences_have_no_intervals_and_say_so(found: Tables, tmp_path: Path) -> None:
    clear, generator = found, np.random.default_rng(3)
    tokens = make_tokens([9] * 10)
    found = surveyed(make_store(tmp_path / "store", [generator.normal(size=(90, D))], tokens))
    assert all(row["low"] is None for row in found["position_split"])
    assert position_conclusions(found) == ["10 sentences are too few for confidence intervals of the position part."]
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


def test_principal_directions_are_eigenvectors_of_the_weighted_covariance() -> None:
    generator = np.random.default_rng(0)
    part, n = generator.normal(size=(12, 6)), generator.integers(1, 50, 12).astype(float)
    squares, directions = principal(part, n)
    eigenvalues, vectors = np.linalg.eigh((part * n[:, None]).T @ part)
    np.testing.assert_allclose(squares, eigenvalues[::-1], rtol=1e-9)
    np.testing.assert_allclose(np.abs((directions * vectors[:, ::-1]).sum(0)), 1, rtol=1e-9)


def test_a_gain_is_what_a_part_of_other_sentences_explains_within_those_left_out() -> None:
    generator = np.random.default_rng(5)
    sizes = generator.integers(3, 8, 40)
    sentences = np.repeat(np.arange(40), sizes).astype(np.int32)
    positions = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
    states = np.sin(positions)[:, None] * [2.0, 1.0, 0.0, 0.0] + generator.normal(size=(len(positions), 4))
    design = Design(sentences, positions)
    sums = TwoWaySums(design, 4)
    sums.update(torch.from_numpy(states))
    folds = Folds(design)
    expected = np.zeros(4)
    for (fitted, solution), (judged, _) in folds.fitted_and_judged:
        part = sums.position_part(solution, fitted)
        _, directions = principal(part, solution.n)
        for k in range(4):
            cut = part @ directions[:, : k + 1] @ directions[:, : k + 1].T
            for c in np.flatnonzero(np.isin(design.groups, judged)):
                own = states[sentences == c] - states[sentences == c].mean(0)
                of_part = cut[design.index[sentences == c]]
                left = own - (of_part - of_part.mean(0))
                expected[k] += np.square(own).sum() - np.square(left).sum()
    np.testing.assert_allclose(np.cumsum(spectrum(sums, folds).gains), expected, rtol=1e-9)


def test_overlaps_are_those_of_scipys_angles() -> None:
    generator = np.random.default_rng(1)
    first, second = (random_subspace(20, 3, generator) for _ in "ab")
    angles = subspace_angles(first, second)
    mean, least = overlap(first, second)
    assert mean == pytest.approx(np.square(np.cos(angles)).mean())
    assert least == pytest.approx(np.degrees(angles.min()))
    assert overlap(first, first)[0] == pytest.approx(1)
    drawn = [overlap(first, random_subspace(20, 3, generator))[0] for _ in range(400)]
    assert np.mean(drawn) == pytest.approx(3 / 20, abs=0.01)


def test_a_curve_has_its_farthest_end_above_zero() -> None:
    curves = np.array([[1.0, -1.0], [-3.0, 2.0], [2.0, -0.5]])
    np.testing.assert_array_equal(oriented(curves), [[-1.0, -1.0], [3.0, 2.0], [-2.0, -0.5]])
    np.testing.assert_array_equal(oriented(np.zeros((2, 1))), np.zeros((2, 1)))


def halves_of(part: np.ndarray, noise: float, generator: np.random.Generator) -> list[np.ndarray]:
    """Return a part, shape (k, d_model), as each half of the sentences has it, with noise where it is not 0."""
    return [part + noise * generator.normal(size=part.shape) * (part != 0) for _ in "ab"]


def spread(halves: list[np.ndarray], live: np.ndarray | None = None, seed: int = 0) -> Concentration:
    return concentration(halves, np.ones(halves[0].shape[1], dtype=bool) if live is None else live, {}, seed, 3)


def in_twenty(generator: np.random.Generator) -> np.ndarray:
    """Return a part of four directions in 20 of 384 neurons, shape (4, 384)."""
    part = np.zeros((4, 384))
    part[:, generator.permutation(384)[:20]] = generator.normal(size=(4, 20))
    return part


def test_a_part_in_twenty_neurons_is_in_neurons_and_its_rotation_is_not() -> None:
    generator = np.random.default_rng(4)
    halves = halves_of(in_twenty(generator), 0.2, generator)
    in_neurons = spread(halves)
    assert in_neurons.half <= 10 < 30 < in_neurons.half_rotated.min()
    assert in_neurons.p_value == pytest.approx(1 / (1 + ROTATIONS))
    turn = np.linalg.qr(generator.normal(size=(384, 384)))[0]
    turned = spread([half @ turn for half in halves])
    assert turned.half_rotated.min() <= turned.half <= turned.half_rotated.max()
    assert turned.p_value > 0.05


def test_neurons_that_do_not_vary_are_not_rotated() -> None:
    """A part in all neurons that vary is 0 in the others, and in no fewer of them than in directions of these."""
    generator = np.random.default_rng(6)
    part = in_twenty(generator)
    live = np.abs(part).sum(0) > 0
    found = spread(halves_of(part, 0.2, generator), live)
    assert found.n_live == 20
    assert found.half_rotated.max() < 20
    assert found.p_value > 0.05
    alone = spread(halves_of(part, 0.2, np.random.default_rng(0)), live)
    without = spread([half[:, live] for half in halves_of(part, 0.2, np.random.default_rng(0))])
    np.testing.assert_array_equal(alone.half_rotated, without.half_rotated)
    assert alone.half == without.half


def test_p_is_uniform_where_neurons_mean_nothing() -> None:
    generator = np.random.default_rng(7)
    p_values = []
    for seed in range(200):
        part = generator.normal(size=(3, 40)) * [[3.0], [2.0], [1.0]]
        p_values.append(spread(halves_of(part, 0.5, generator), seed=seed).p_value)
    assert np.mean(np.array(p_values) <= 0.05) <= 0.05
    # Numbers of neurons tie, and ties count for the rotations.
    assert 0.45 < np.mean(p_values) < 0.7
    assert np.quantile(p_values, 0.25) < 0.45


def test_halves_of_parts_are_counted_as_by_plain_loops() -> None:
    generator = np.random.default_rng(8)
    halves = halves_of(generator.normal(size=(3, 30)), 0.4, generator)
    halves[1] *= 2  # a half counts no more for being larger
    found = spread(halves, seed=5)

    def plain(rows: list[np.ndarray]) -> tuple[int, list[float]]:
        shares = [[sum(float(x) ** 2 for x in half[:, j]) for j in range(30)] for half in rows]
        shares = [[value / sum(own) for value in own] for own in shares]
        sums = [0.0] * 30
        for chosen, measured in (shares, shares[::-1]):
            order = sorted(range(30), key=lambda j: -chosen[j])
            for n in range(30):
                sums[n] += sum(measured[j] for j in order[: n + 1]) / 2
        return next(n + 1 for n in range(30) if sums[n] >= 0.5), sums

    half, sums = plain(halves)
    assert found.half == half
    of = {(row["order"], row["k"]): row for row in found.prefix_shares}
    rotated = []
    for draw in range(ROTATIONS):
        normal = np.random.default_rng([5, 3, draw]).standard_normal((30, 30))
        q, r = np.linalg.qr(normal)
        rotated.append(plain([rows @ (q * np.sign(np.diag(r))) for rows in halves]))
    assert found.half_rotated.tolist() == [number for number, _ in rotated]
    at_most = sum(number <= half for number, _ in rotated)
    assert found.p_value == pytest.approx((1 + at_most) / (1 + ROTATIONS))
    for k in (1, 3, 10):
        assert of["part", k]["value"] == pytest.approx(sums[k - 1])
        tens = sorted(shares[k - 1] for _, shares in rotated)
        beside = of["rotated", k]
        assert (beside["low"], beside["value"], beside["high"]) == pytest.approx((tens[0], np.median(tens), tens[-1]))


def test_rankings_and_directions_are_measured_on_the_other_half() -> None:
    halves = [np.zeros((2, 12)), np.zeros((2, 12))]
    halves[0][0, 5], halves[0][1, 9] = 3, 4
    halves[1][0, 5], halves[1][1, 7] = 1, 1
    found = concentration(halves, np.ones(12, dtype=bool), {"fit": [[9], [9]], "eta_squared": [[9, 5], [5, 7]]}, 0)
    held = {(row["order"], row["k"]): row["value"] for row in found.prefix_shares}
    np.testing.assert_allclose(found.by_neuron[[5, 7, 9]], [(9 / 25 + 1 / 2) / 2, 1 / 4, 16 / 50])
    assert held["fit", 1] == pytest.approx((0 + 16 / 25) / 2)
    assert ("fit", 2) not in held
    assert held["eta_squared", 1] == pytest.approx((0 + 9 / 25) / 2)
    assert held["eta_squared", 2] == pytest.approx((1 / 2 + 9 / 25) / 2)
    assert held["directions", 2] == pytest.approx((1 / 2 + 9 / 25) / 2)
    assert held["random", 10] == pytest.approx(10 / 12, abs=0.2)


def test_positions_are_read_as_by_linear_discriminants() -> None:
    generator = np.random.default_rng(2)
    sizes = generator.integers(4, 9, 60)
    sentences = np.repeat(np.arange(60), sizes).astype(np.int32)
    positions = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
    design = Design(sentences, positions)
    centres = generator.normal(size=(design.n_positions, 3)) * 1.5
    states = centres[design.index] + generator.normal(size=(len(positions), 3)) @ generator.normal(size=(3, 3))
    fitted = sentences < 45
    means = np.stack([states[fitted & (positions == t)].mean(0) for t in design.values])
    read = read_positions(states, design, means, fitted, ~fitted, 0)
    assert read is not None
    discriminants = LinearDiscriminantAnalysis(solver="lsqr").fit(states[fitted], positions[fitted])
    expected = discriminants.score(states[~fitted], positions[~fitted])
    assert read.accuracy == pytest.approx(expected, abs=0.011)  # a token at the border of two
    assert read.n_tokens == int((~fitted).sum())
    assert read.by_chance < read.accuracy
    assert read.error < read.error_by_chance
    assert read.p_value == pytest.approx(1 / 21)
    assert read_positions(states, design, means, fitted, np.zeros_like(fitted), 0) is None


PLANTED = [1, 4, 6]
USUAL: dict[str, Any] = {"quiet": True, "trainer": {"accelerator": "cpu"}, "figure_format": "png"}
TABLES = ("position_split", "position_spectrum", "position_curves", "position_shape", "position_basis",
          "position_held", "position_by_neuron")  # fmt: skip


@pytest.fixture(scope="module")
def corpus_file(place: Path, sentences: list[str]) -> Path:
    (place / "some.txt").write_text("\n".join(sentences[:120]), encoding="utf-8")
    return place / "some.txt"


@pytest.fixture(scope="module")
def model(place: Path, sentences: list[str]) -> Path:
    """A BERT whose position table has nothing but three neurons."""
    from transformers import AutoModel

    folder = make_checkpoint(place / "planted", "bert", sentences)
    encoder: Any = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        table = encoder.embeddings.position_embeddings.weight
        angles = torch.arange(len(table)) / 2
        table.zero_()
        size = 3 * encoder.embeddings.word_embeddings.weight.std()
        table[:, PLANTED] = size * torch.stack([angles.sin(), angles.cos(), (angles / 2).sin()], dim=1)
    encoder.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def fitted(place: Path, model: Path, corpus_file: Path) -> Path:
    options = {**BARE, **USUAL, "transform": "none", "layer": "0,1", "wandb": WandbOptions("disabled")}
    made = fit(model=str(model), corpus=str(corpus_file), name="fitted", runs=str(place / "runs"), **options)
    return made.folder


@pytest.fixture(scope="module")
def made(place: Path, fitted: Path) -> Result:
    return position(
        run=str(fitted), runs=str(place / "runs"), name="made",
        wandb=WandbOptions("offline"), **USUAL,
    )  # fmt: skip


def test_its_tables_are_there_and_read_again(made: Result, fitted: Path) -> None:
    again = load_run(made.folder)
    for name in TABLES:
        assert made.by_name[name], name
        assert len(again.by_name[name]) == len(made.by_name[name])
    in_order = [row["neuron"] for row in load_run(fitted).top(0, 5)]
    held = {row["neuron"]: row["held"] for row in made.position_by_neuron if row["layer"] == 0}
    (of_fit,) = (
        row
        for row in made.position_held
        if (row["layer"], row["scale"], row["order"], row["k"]) == (0, "raw", "fit", 5)
    )
    assert of_fit["value"] == pytest.approx(sum(held[k] for k in in_order))
    # The run has two layers, and the others no ranking.
    assert {row["layer"] for row in made.position_held if row["order"] == "fit"} == {0, 1}


def test_the_planted_neurons_are_first_where_the_table_is_added(made: Result) -> None:
    first = [row for row in made.position_by_neuron if row["layer"] == 0]
    by_share = sorted(first, key=lambda row: -row["value"])
    assert {row["neuron"] for row in by_share[:3]} == set(PLANTED)


def test_every_layer_is_in_parts_that_add_up(made: Result) -> None:
    layers = {row["layer"] for row in made.position_split}
    for layer in layers:
        for scale in ("raw", "standardised"):
            rows = {row["part"]: row for row in made.position_split if (row["layer"], row["scale"]) == (layer, scale)}
            for what in ("value", "share"):
                parts = sum(rows[part][what] for part in ("position", "context", "shared", "rest"))
                np.testing.assert_allclose(parts, 1, atol=1e-9)


def test_the_terminal_the_page_and_wandb_have_it(made: Result, place: Path) -> None:
    lines = made.conclusions()
    assert any("of the variance" in line for line in lines)
    page = Path(report(str(made.folder), output=str(place / "page.html"))).read_text(encoding="utf-8")
    assert "<h2>Position: made</h2>" in page
    assert "Shares of the variance of the hidden states" in page
    headings = {str(column.header) for table in position_tables(made.by_name) for column in table.columns}
    assert headings - {"95% range"} == set(TERMS)
    assert all(meaning.split("`")[0] in page for meaning in TERMS.values())
    figures = {path.stem for path in (made.folder / "figures").iterdir()}
    assert {"position_split", "position_curves", "position_held"} <= figures
    (logged,) = read_offline_runs(made.folder)
    shares = {row["layer"]: row["value"] for row in made.position_split
              if (row["scale"], row["part"]) == ("raw", "position")}  # fmt: skip
    curve = {row["layer"]: row["by_layer/position_share"] for row in logged.rows("by_layer/position_share")}
    assert curve == pytest.approx(shares)
    assert len(logged.table("position_split")) == len(made.position_split)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--run", "nowhere"], "nowhere"),
        (["--corpus", "short.txt"], "too few to tell means"),
        (["--run", "FITTED", "--layer", "3"], "none of these is among layer 3"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    options: list[str], words: str, model: Path, corpus_file: Path, fitted: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("short.txt").write_text("one two three\nfour five six\n", encoding="utf-8")
    given = ["position", "--model", str(model), "--corpus", str(corpus_file), "--wandb.mode", "disabled"]
    assert run(COMMANDS, [*given, *(str(fitted) if option == "FITTED" else option for option in options)]) == 2
    assert words in capsys.readouterr().err
    assert not Path("runs").exists() or not any(path.suffix != ".lock" for path in Path("runs").glob("[!c]*"))


def test_one_layer_has_its_figures_in_every_format(place: Path, model: Path, corpus_file: Path) -> None:
    found = position(
        model=str(model), corpus=str(corpus_file), layer=1, runs=str(place / "runs"), name="one",
        wandb=WandbOptions("disabled"), **{**USUAL, "figure_format": "png,pdf"},
    )  # fmt: skip
    assert {path.suffix for path in (found.folder / "figures").glob("position_curves.*")} == {".png", ".pdf"}
    assert "of the variance in layer 1" in " ".join(found.conclusions())
