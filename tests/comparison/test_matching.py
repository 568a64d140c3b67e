from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kstest

from probing.comparison.agreement import agreement
from probing.comparison.pairs import Method, judge, match

pytestmark = pytest.mark.numeric

D = 12


def normal(*shape: int, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal(shape)


def correlation(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Correlations of the neurons of a with those of b, by numpy."""
    return np.corrcoef(a.T, b.T)[: a.shape[1], a.shape[1] :]


def halves(a: NDArray[Any], b: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Correlations on the first and on the second half of the words."""
    half = len(a) // 2
    return correlation(a[:half], b[:half]), correlation(a[half:], b[half:])


@pytest.mark.parametrize("method", ["one_to_one", "many_to_one"])
@pytest.mark.parametrize("noise", [0, 0.5])
def test_permuted_neurons_are_recovered_whatever_their_sign_scale_and_offset(method: Method, noise: float) -> None:
    generator = np.random.default_rng(0)
    a, order = normal(2000, 40) @ normal(40, 40, seed=1), generator.permutation(40)
    changed = (a + noise * a.std(0) * normal(2000, 40, seed=2)) * generator.choice([-1, 1], 40)
    b = (changed * generator.uniform(0.1, 10, 40) + generator.normal(size=40))[:, order]
    fit, held_out = halves(a, b)
    partner = match(fit, method)
    assert (order[partner] == np.arange(40)).all()
    quality = judge(partner, fit, held_out)
    assert quality.held_out == pytest.approx(1 / np.sqrt(1 + noise**2), abs=0.02)
    assert quality.fit == pytest.approx(quality.held_out, abs=0.02)
    assert quality.chance_high < 0.3
    assert quality.p_value == 1 / 2000


def test_a_ranking_carried_over_by_the_match_agrees_with_the_original() -> None:
    a, order = normal(500, 40), np.random.default_rng(0).permutation(40)
    scores = np.random.default_rng(1).exponential(size=40)
    partner = match(halves(a, a[:, order])[0], "one_to_one")
    by_match, by_index = agreement(scores, scores[order][partner]), agreement(scores, scores[order])
    assert [found.value for found in by_match] == pytest.approx([1, 1, 1, 1])
    # Neuron i with neuron i, as if the models shared a lineage, shows nothing.
    assert all(found.p_value > 0.01 for found in by_index)


@pytest.mark.parametrize("method", ["one_to_one", "many_to_one"])
def test_unrelated_neurons_match_by_luck_which_the_held_out_half_shows(method: Method) -> None:
    p_values, gaps, held = [], [], []
    for seed in range(100):
        mix = normal(4, 2, 20, seed=seed + 1000)  # neurons of a layer go together, as real ones do
        a, b = (
            normal(400, 20, seed=2 * seed + i) + normal(400, 4, seed=5000 + 2 * seed + i) @ mix[:, i] for i in (0, 1)
        )
        fit, held_out = halves(a, b)
        quality = judge(match(fit, method), fit, held_out, permutations=199, seed=seed)
        p_values.append(quality.p_value)
        gaps.append(quality.fit - quality.held_out)
        held.append(quality.held_out)
    assert min(gaps) > 0.02
    assert abs(np.mean(held)) < 0.01
    assert kstest(p_values, "uniform").pvalue > 0.01


def test_neurons_that_all_go_together_are_matched_no_better_than_chance() -> None:
    common = normal(1000, 1)
    fit, held_out = halves(common + normal(1000, D, seed=1), common + normal(1000, D, seed=2))
    quality = judge(match(fit, "one_to_one"), fit, held_out)
    assert quality.held_out > 0.4
    assert quality.chance == pytest.approx(quality.held_out, abs=0.05)


def test_a_match_that_turns_its_sign_does_not_hold() -> None:
    a = normal(400, D)
    b = np.concatenate([a[:200], -a[200:]])
    fit, held_out = halves(a, b)
    assert judge(match(fit, "one_to_one"), fit, held_out).held_out < -0.99


def test_many_to_one_takes_the_strongest_and_one_to_one_the_best_sum() -> None:
    correlation = np.array([[0.9, -0.8], [-0.95, 0.1]])
    assert match(correlation, "many_to_one").tolist() == [0, 0]
    assert match(correlation, "one_to_one").tolist() == [1, 0]


def test_ties_go_to_the_lower_index() -> None:
    assert match(np.array([[0.5, -0.5], [0.1, 0.1]]), "many_to_one").tolist() == [0, 0]


@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 1000))
def test_one_to_one_is_the_best_of_all_assignments(rows: int, columns: int, seed: int) -> None:
    correlation = np.random.default_rng(seed).uniform(-1, 1, (rows, columns))
    partner = match(correlation, "one_to_one")
    matched = np.flatnonzero(partner >= 0)
    assert len(matched) == len(set(partner[matched])) == min(rows, columns)
    size = np.abs(correlation) if rows <= columns else np.abs(correlation).T
    best = max(
        sum(size[i, j] for i, j in enumerate(chosen)) for chosen in permutations(range(size.shape[1]), len(size))
    )
    assert np.abs(correlation)[matched, partner[matched]].sum() == pytest.approx(best)


def test_the_neurons_left_over_have_no_partner() -> None:
    partner = match(np.array([[0.9], [0.95], [0.1]]), "one_to_one")
    assert partner.tolist() == [-1, 0, -1]
    quality = judge(partner, np.full((3, 1), 0.9), np.full((3, 1), 0.4))
    assert (quality.n_matched, quality.fit, quality.held_out) == (1, 0.9, 0.4)


def test_where_nothing_is_matched_nothing_is_claimed() -> None:
    quality = judge(np.array([-1, -1]), np.zeros((2, 2)), np.zeros((2, 2)))
    assert quality.n_matched == 0
    assert np.isnan([quality.fit, quality.held_out, quality.chance, quality.p_value]).all()


@pytest.mark.parametrize("method", ["one_to_one", "many_to_one"])
def test_dead_neurons_have_no_partner(method: Method) -> None:
    correlation = np.array([[0.0, 0.0, 0.0], [0.9, 0.0, -0.3], [0.2, 0.0, 0.8]])
    assert match(correlation, method).tolist() == [-1, 0, 2]


def test_correlations_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        match(np.array([[np.nan]]), "one_to_one")


def test_inputs_stay_as_they_were() -> None:
    correlation = normal(3, 3)
    before = correlation.copy()
    partner = match(correlation, "one_to_one")
    kept = partner.copy()
    judge(partner, correlation, correlation, permutations=3)
    assert (correlation == before).all()
    assert (partner == kept).all()
