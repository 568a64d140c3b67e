"""Directions, angles, rotations and readings of position parts, one function at a time."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from probing.statistics.two_way import TwoWaySums
from probing.statistics.two_way_design import Design
from probing.studies.geometry.position.concentration import ROTATIONS, concentration
from probing.studies.geometry.position.reading import read_positions
from probing.studies.geometry.position.spectrum import (
    Folds,
    Spectrum,
    oriented,
    overlap,
    principal,
    random_subspace,
    spectrum,
)

pytestmark = pytest.mark.numeric


def spectrum_of(directions: np.ndarray, squares: list[float]) -> Spectrum:
    """Return a spectrum with these directions, as columns, and their sums of squares."""
    found = np.array(squares)
    return Spectrum(found, float(found.sum()), found, directions, np.zeros((5, len(squares))))


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


def test_neurons_hold_between_a_rotation_and_the_directions() -> None:
    d_model, k = 60, 3
    axes = np.eye(d_model)[:, [5, 9, 30]]
    in_neurons = concentration(spectrum_of(axes, [3.0, 2.0, 1.0]), k, {"fit": [5, 9, 30]}, 0)
    assert in_neurons.alignment == pytest.approx(1)
    assert in_neurons.p_value == pytest.approx(1 / (1 + ROTATIONS))
    np.testing.assert_allclose(in_neurons.by_neuron[[5, 9, 30]], [1 / 2, 1 / 3, 1 / 6])
    held = {(one.order, one.k): one.share for one in in_neurons.held}
    assert held["fit", 3] == held["part", 3] == held["directions", 3] == pytest.approx(1)
    assert held["part", 1] == held["directions", 1] == pytest.approx(1 / 2)
    assert held["random", 10] == pytest.approx(10 / d_model, abs=0.02)
    p_values = []
    for seed in range(20):
        turned = random_subspace(d_model, k, np.random.default_rng([seed, 99]))
        found = concentration(spectrum_of(turned, [3.0, 2.0, 1.0]), k, {}, seed)
        assert abs(found.alignment) < 0.2
        p_values.append(found.p_value)
    # Uniform where the part is itself a random rotation.
    assert min(p_values) > 0.001
    assert 0.25 < np.mean(p_values) < 0.75


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
