"""Directions, angles, rotations and readings of position parts, one function at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from probing.statistics.two_way import TwoWaySums
from probing.statistics.two_way_design import Design
from probing.studies.geometry.position.spectrum import Folds, oriented, overlap, principal, random_subspace, spectrum
from probing.studies.geometry.position.survey import ROTATIONS, Concentration, concentration, read_positions

pytestmark = pytest.mark.numeric


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
    of = {(one.order, one.k): one for one in found.held}
    rotated = []
    for draw in range(ROTATIONS):
        normal = np.random.default_rng([5, 3, draw]).standard_normal((30, 30))
        q, r = np.linalg.qr(normal)
        rotated.append(plain([rows @ (q * np.sign(np.diag(r))) for rows in halves]))
    assert found.half_rotated.tolist() == [number for number, _ in rotated]
    at_most = sum(number <= half for number, _ in rotated)
    assert found.p_value == pytest.approx((1 + at_most) / (1 + ROTATIONS))
    for k in (1, 3, 10):
        assert of["part", k].share == pytest.approx(sums[k - 1])
        tens = sorted(shares[k - 1] for _, shares in rotated)
        beside = of["rotated", k]
        assert (beside.low, beside.share, beside.high) == pytest.approx((tens[0], np.median(tens), tens[-1]))


def test_rankings_and_directions_are_measured_on_the_other_half() -> None:
    halves = [np.zeros((2, 12)), np.zeros((2, 12))]
    halves[0][0, 5], halves[0][1, 9] = 3, 4
    halves[1][0, 5], halves[1][1, 7] = 1, 1
    found = concentration(halves, np.ones(12, dtype=bool), {"fit": [[9], [9]], "eta_squared": [[9, 5], [5, 7]]}, 0)
    held = {(one.order, one.k): one.share for one in found.held}
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
