"""Distances of hidden states against loops over Gram matrices and planted rotations."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import orthogonal_procrustes

from probing.cache.store import ActivationStore
from probing.studies.changes.survey import state_distances
from synthetic import make_store, make_tokens

pytestmark = pytest.mark.numeric

LENGTHS = [7, 4, 9, 12, 3, 8, 11, 5] * 6
TOKENS, D = make_tokens(LENGTHS), 12


def stores(folder: Path, a: NDArray[np.float64], b: NDArray[np.float64]) -> tuple[ActivationStore, ActivationStore]:
    one, other = (make_store(folder / name, [x, x], TOKENS) for name, x in (("a", a), ("b", b)))
    return one, other


def states(seed: int) -> NDArray[np.float64]:
    generator = np.random.default_rng(seed)
    spread = np.linspace(0.2, 3, D)
    return as_stored(generator.normal(size=(sum(LENGTHS), D)) * spread + generator.normal(size=D))


def as_stored(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x.astype(np.float32).astype(np.float64)


def units(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def test_distances_are_those_of_naive_formulas(tmp_path: Path) -> None:
    a, b = states(0), as_stored(0.5 * states(0)[:, ::-1] + states(1))
    found = state_distances(*stores(tmp_path, a, b), [1])[1]
    assert found.cosine == pytest.approx(1 - (units(a) * units(b)).sum(1).mean(), abs=1e-12)
    grams = [x @ x.T for x in (a - a.mean(0), b - b.mean(0))]
    cka = (grams[0] * grams[1]).sum() / np.sqrt((grams[0] ** 2).sum() * (grams[1] ** 2).sum())
    assert found.cka == pytest.approx(1 - cka, abs=1e-10)
    half = np.repeat(np.arange(len(LENGTHS)) % 2, LENGTHS)
    cosines = np.empty(len(a))
    for one in (0, 1):
        rotation, _ = orthogonal_procrustes(units(b)[half != one], units(a)[half != one])
        cosines[half == one] = (units(a) * (units(b) @ rotation))[half == one].sum(1)
    assert found.rotated == pytest.approx(1 - cosines.mean(), abs=1e-10)


def test_a_planted_rotation_is_undone_and_cka_does_not_see_it(tmp_path: Path) -> None:
    a = states(0)
    rotation, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(D, D)))
    found = state_distances(*stores(tmp_path, a, a @ rotation), [0])[0]
    assert found.cosine > 0.3
    assert found.rotated == pytest.approx(0, abs=1e-5)
    assert found.cka == pytest.approx(0, abs=1e-5)


def test_unrelated_states_stay_far_apart_on_other_sentences(tmp_path: Path) -> None:
    centred = states(0) - states(0).mean(0), states(9) - states(9).mean(0)
    found = state_distances(*stores(tmp_path, *centred), [0])[0]
    assert found.rotated == pytest.approx(1, abs=0.12)


@pytest.mark.parametrize("seed", range(6))
def test_equal_states_are_exactly_0_apart(seed: int, tmp_path: Path) -> None:
    found = state_distances(*stores(tmp_path, states(seed), states(seed)), [1])[1]
    assert vars(found) == {"cosine": 0.0, "rotated": 0.0, "cka": 0.0}
