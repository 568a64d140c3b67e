"""Neurons of two models matched by their cross moments, and what neurons owe to the space that they span."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from probing.builtin_tasks.position import Position
from scipy.stats import kstest
from torch.nn.functional import layer_norm
from torch.testing import assert_close

from probing import runtime as memory
from probing.data.labelling import label
from probing.errors import UserError
from probing.probes.agreement import RotationNull, agreement, random_bases, rotation_null
from probing.probes.pairs import (
    CrossMoments,
    CrossMomentsAccumulator,
    Method,
    Ranked,
    compare_pair,
    cross_moments,
    judge,
    match,
    match_correlations,
)
from probing.probes.rankings import neuron_contributions
from synthetic import CORPUS, make_splits, make_store, make_tokens

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
    assert quality.test == pytest.approx(1 / np.sqrt(1 + noise**2), abs=0.02)
    assert quality.fit == pytest.approx(quality.test, abs=0.02)
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
        gaps.append(quality.fit - quality.test)
        held.append(quality.test)
    assert min(gaps) > 0.02
    assert abs(np.mean(held)) < 0.01
    assert kstest(p_values, "uniform").pvalue > 0.01


def test_neurons_that_all_go_together_are_matched_no_better_than_chance() -> None:
    common = normal(1000, 1)
    fit, held_out = halves(common + normal(1000, D, seed=1), common + normal(1000, D, seed=2))
    quality = judge(match(fit, "one_to_one"), fit, held_out)
    assert quality.test > 0.4
    assert quality.chance == pytest.approx(quality.test, abs=0.05)


def test_a_match_that_turns_its_sign_does_not_hold() -> None:
    a = normal(400, D)
    b = np.concatenate([a[:200], -a[200:]])
    fit, held_out = halves(a, b)
    assert judge(match(fit, "one_to_one"), fit, held_out).test < -0.99


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
    assert (quality.n_matched, quality.fit, quality.test) == (1, 0.9, 0.4)


def test_where_nothing_is_matched_nothing_is_claimed() -> None:
    quality = judge(np.array([-1, -1]), np.zeros((2, 2)), np.zeros((2, 2)))
    assert quality.n_matched == 0
    assert np.isnan([quality.fit, quality.test, quality.chance, quality.p_value]).all()


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


def layers(states: NDArray[Any]) -> list[torch.Tensor]:
    """Take an array of shape (n_layers, n_words, d_model) apart."""
    return [torch.from_numpy(np.ascontiguousarray(layer)) for layer in np.asarray(states)]


def moments(a: NDArray[Any], b: NDArray[Any], *cuts: int) -> CrossMoments:
    """Moments of arrays of shape (n_layers, n_words, d_model), fed in batches."""
    accumulator = CrossMomentsAccumulator((len(a), len(b)), (a.shape[2], b.shape[2]))
    for x, y in zip(np.split(a, cuts, axis=1), np.split(b, cuts, axis=1), strict=True):
        accumulator.update(layers(x), layers(y))
    return accumulator.result()


def naive_cka(x: NDArray[Any], y: NDArray[Any]) -> float:
    """Linear CKA from centred Gram matrices of words."""
    k, m = ((z - z.mean(0)) @ (z - z.mean(0)).T for z in (x, y))
    return (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())


def test_correlations_of_all_pairs_of_layers_are_those_of_numpy() -> None:
    a, b = normal(3, 500, 5), normal(2, 500, 7, seed=1)
    b[1, :, :5] += a[2]
    found = moments(a, b)
    assert found.n_words == 500
    for i in range(3):
        for j in range(2):
            expected = np.corrcoef(a[i].T, b[j].T)[:5, 5:]
            np.testing.assert_allclose(found.correlation(i, j), expected, atol=1e-6)  # products in float32


def test_correlations_with_the_neurons_of_another_basis_are_those_of_the_turned_states() -> None:
    a, b, basis = normal(1, 500, 5), normal(2, 500, 7, seed=1), normal(7, 4, seed=2)
    b[1, :, :5] += a[0]
    found = moments(a, b).correlation(0, 1, torch.from_numpy(basis))
    np.testing.assert_allclose(found, np.corrcoef(a[0].T, (b[1] @ basis).T)[:5, 5:], atol=1e-6)


def test_many_batches_give_what_one_gives() -> None:
    a, b = normal(2, 300, 5) + 3, normal(2, 300, 4, seed=1)
    whole, parts = moments(a, b), moments(a, b, 0, 1, 7, 7, 299)
    assert parts.n_words == whole.n_words
    for name in ("within_a", "within_b", "cross"):
        # Products are taken in float32 around another shift.
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=0, atol=1e-6)


def test_more_words_than_are_multiplied_at_a_time() -> None:
    a, b = normal(1, 9001, 2), normal(1, 9001, 2, seed=1)
    np.testing.assert_allclose(moments(a, b).correlation(0, 0), np.corrcoef(a[0].T, b[0].T)[:2, 2:], atol=1e-6)


@pytest.mark.parametrize("cuts", [(), (1,), (1000, 2000)])
def test_a_mean_ten_thousand_times_the_sd_keeps_the_correlations(cuts: tuple[int, ...]) -> None:
    shared = normal(1, 4000, 1)
    a = (1e4 + shared + normal(1, 4000, 6, seed=1)).astype(np.float32)
    b = (-1e4 + shared + normal(1, 4000, 6, seed=2)).astype(np.float32)
    wide = np.corrcoef(a[0].T.astype(np.float64), b[0].T.astype(np.float64))[:6, 6:]
    assert np.abs(wide).min() > 0.4
    np.testing.assert_allclose(moments(a, b, *cuts).correlation(0, 0), wide, atol=1e-5)


def test_a_first_batch_far_from_the_others_takes_no_digits_from_them() -> None:
    shared = normal(1, 20_000, 1)
    a, b = shared + normal(1, 20_000, 3, seed=1), shared + normal(1, 20_000, 3, seed=2)
    a[:, 0], b[:, 0] = 400, -400
    wide = np.corrcoef(a[0].T, b[0].T)[:3, 3:]
    a, b = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_allclose(moments(a, b, 1).correlation(0, 0), wide, atol=1e-5)


def test_dead_neurons_correlate_with_nothing() -> None:
    a, b = normal(400, D), normal(400, D, seed=1)
    b[:, 3:] = a[:, 3:]
    a[:, 0], a[:, 1], b[:, 2] = 7, 1e-9 * a[:, 1], 0
    b[:, 1] = a[:, 1]  # rounding errors may well be the same in two models
    found = moments(a[None], b[None]).correlation(0, 0)
    assert not found[:2].any()
    assert not found[:, 1:3].any()
    assert found[2:, [0, *range(3, D)]].all()


def test_cka_is_that_of_gram_matrices() -> None:
    a, b = normal(2, 80, 5) + 2, normal(2, 80, 9, seed=1)
    b[1, :, :5] += a[1]
    found = moments(a, b)
    for i in range(2):
        for j in range(2):
            assert found.cka(i, j) == pytest.approx(naive_cka(a[i], b[j]), rel=1e-5)  # products in float32


def test_cka_ignores_rotation_and_scale_and_nothing_else() -> None:
    a, b = normal(300, D) * np.arange(1, D + 1), normal(300, D, seed=1)
    b += a @ normal(D, D, seed=2) / 10
    rotation, _ = np.linalg.qr(normal(D, D, seed=3))
    plain = moments(a[None], b[None]).cka(0, 0)
    assert moments(5 * a[None] @ rotation, b[None] + 3).cka(0, 0) == pytest.approx(plain, rel=1e-5)
    assert moments(a[None] @ rotation, a[None]).cka(0, 0) == pytest.approx(1, rel=1e-5)
    assert abs(moments(a[None] / np.arange(1, D + 1), b[None]).cka(0, 0) - plain) > 0.01


def test_unrelated_layers_have_the_cka_of_chance() -> None:
    found = [moments(normal(1, 200, 30, seed=i), normal(1, 200, 20, seed=100 + i)) for i in range(30)]
    assert np.mean([one.cka(0, 0) for one in found]) == pytest.approx(found[0].cka_chance(0, 0), rel=0.03)
    assert found[0].cka_chance(0, 0) == pytest.approx(np.sqrt(30 * 20) / 200, rel=0.15)


def test_the_cka_of_a_constant_layer_is_undefined() -> None:
    assert np.isnan(moments(np.ones((1, 50, 3)), normal(1, 50, 3)).cka(0, 0))


def test_half_precision_is_taken_as_it_is() -> None:
    a = layers(normal(1, 300, 4))[0]
    accumulator = CrossMomentsAccumulator((1, 1), (4, 4))
    accumulator.update([a.bfloat16()], [a.half()])
    np.testing.assert_allclose(accumulator.result().correlation(0, 0).diagonal(), 1, atol=1e-4)


def test_what_does_not_fit_is_refused() -> None:
    accumulator = CrossMomentsAccumulator((1, 2), (3, 4))
    a, b = torch.ones(5, 3), torch.ones(5, 4)
    with pytest.raises(ValueError, match="no words"):
        accumulator.result()
    with pytest.raises(ValueError, match=r"2 layers of shape \(n_words, 4\), found \[\(5, 4\)\]"):
        accumulator.update([a], [b])
    with pytest.raises(ValueError, match=r"1 layers of shape \(n_words, 3\), found \[\(5, 4\)\]"):
        accumulator.update([b], [b, b])
    with pytest.raises(ValueError, match=r"the same words, found \[4, 5\]"):
        accumulator.update([a[:4]], [b, b])
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="finite"):
            accumulator.update([a], [b, torch.full_like(b, bad)])


def test_inputs_of_cross_moments_stay_as_they_were() -> None:
    a, b = layers(normal(1, 20, 3)), layers(normal(1, 20, 3, seed=1))
    before = a[0].clone(), b[0].clone()
    accumulator = CrossMomentsAccumulator((1, 1), (3, 3))
    accumulator.update(a, b)
    accumulator.result()
    assert torch.equal(a[0], before[0])
    assert torch.equal(b[0], before[1])


def test_covariances_that_do_not_fit_in_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wide: Any = SimpleNamespace(layers=range(25), store=SimpleNamespace(plan=SimpleNamespace(d_model=1024)))
    monkeypatch.setattr(memory, "memory_bytes", lambda: 4 * 10**9)
    with pytest.raises(UserError, match=r"25600 neurons with 25600.*5.2 GB.*this machine has 4.0 GB.*fewer layers"):
        cross_moments(wide, wide)


BASES_D = 40


def test_bases_are_rotations_that_keep_the_mean_and_differ() -> None:
    bases = random_bases(BASES_D, 3, seed=0)
    assert_close(bases @ bases.mT, torch.eye(BASES_D).expand(3, BASES_D, BASES_D), atol=1e-5, rtol=0)
    for axis in (1, 2):
        assert_close(bases.sum(axis), torch.ones(3, BASES_D), atol=1e-5, rtol=0)
    assert (bases[0] - bases[1]).abs().max() > 0.1
    assert torch.equal(bases, random_bases(BASES_D, 3, seed=0))
    assert torch.equal(bases[:1], random_bases(BASES_D, 1, seed=0))
    assert not torch.equal(bases, random_bases(BASES_D, 3, seed=1))


def test_two_neurons_are_too_few_to_turn() -> None:
    with pytest.raises(ValueError, match="three neurons or more, found 2"):
        random_bases(2, 1, seed=0)


def test_layer_norm_commutes_with_them() -> None:
    # Why an untrained model in such a basis is as likely as the model itself.
    basis, states = (
        random_bases(BASES_D, 1, seed=0)[0],
        torch.randn(5, BASES_D, generator=torch.Generator().manual_seed(0)),
    )
    assert_close(layer_norm(states @ basis, (BASES_D,)), layer_norm(states, (BASES_D,)) @ basis, atol=1e-5, rtol=0)


def test_scores_are_the_contributions_of_the_turned_probe_on_turned_activations(tmp_path: Path) -> None:
    tokens = make_tokens([5, 9, 7, 6] * 5)
    generator = np.random.default_rng(0)
    states = [generator.normal(size=(tokens.n_tokens, 6)) + 1 for _ in range(2)]
    store = make_store(tmp_path, states, tokens, shard_tokens=30)
    test = label(store, CORPUS, Position(), make_splits(20), np.arange(1, 5), "test")
    weight = torch.from_numpy(generator.normal(size=(2, 4, 6))).float()
    found = rotation_null(weight, test, [0, 1], seed=3, n=2)
    rows = test.labels >= 0
    assert rows.sum() > 10
    for basis, scores in zip(found.bases, found.scores, strict=True):
        for layer in (0, 1):
            turned = torch.from_numpy(states[layer][rows]).float() @ basis
            split = neuron_contributions(weight[layer] @ basis, turned)
            own = split[torch.arange(len(split)), torch.from_numpy(test.labels[rows])]
            np.testing.assert_allclose(scores[layer], own.abs().mean(0), rtol=1e-4)


@pytest.mark.slow
def test_models_that_share_their_words_alone_agree_no_more_than_random_rotations() -> None:
    # Words are points in 60 directions of unlike size, not centred; neurons of either model are Gaussian mixtures of
    # these and score by their size. Matched neurons are large on the same words: permutations call that agreement.
    sizes = np.geomspace(1, 0.1, 60)
    by_permutation: list[Any] = []
    by_rotation: list[Any] = []
    quality_by_permutation: list[Any] = []
    quality_by_rotation: list[Any] = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        words = (generator.standard_t(3, size=(300, 60)) + 2) * sizes
        a, b = (words @ generator.normal(size=(60, BASES_D)) + generator.normal(size=(300, BASES_D)) for _ in range(2))
        halves = (
            CrossMomentsAccumulator((1, 1), (BASES_D, BASES_D)),
            CrossMomentsAccumulator((1, 1), (BASES_D, BASES_D)),
        )
        for parity, half in enumerate(halves):
            half.update([torch.from_numpy(a[parity::2])], [torch.from_numpy(b[parity::2])])
        fit, held_out = (half.result() for half in halves)
        partner = match(fit.correlation(0, 0), "one_to_one")
        unrelated, qualities = [], []
        for basis in random_bases(BASES_D, 5, seed):
            turned = [moments.correlation(0, 0, basis) for moments in (fit, held_out)]
            other = match(turned[0], "one_to_one")
            unrelated.append((np.abs(a).mean(0), np.abs(b @ basis.numpy()).mean(0)[other]))
            qualities.append(float(match_correlations(other, *turned).mean()))
        scores = np.abs(a).mean(0), np.abs(b).mean(0)[partner]
        correlations = fit.correlation(0, 0), held_out.correlation(0, 0)
        for fixed, p_values in (((), by_permutation), (unrelated, by_rotation)):
            found = agreement(*scores, unrelated=fixed, permutations=199, seed=seed)
            p_values.append([one.p_value for one in found if one.statistic in ("spearman", "kendall")])
        for known, p_values in (((), quality_by_permutation), (qualities, quality_by_rotation)):
            p_values.append(judge(partner, *correlations, known, permutations=199, seed=seed).p_value)
    small = [float(np.mean(np.array(p) < 0.05)) for p in (by_permutation, by_rotation)]
    assert small[0] > 0.12 > 0.08 > small[1]
    small = [float(np.mean(np.array(p) < 0.05)) for p in (quality_by_permutation, quality_by_rotation)]
    assert small[0] > 0.9 > 0.08 > small[1]


def test_the_rotation_null_is_chance_to_a_pair_of_runs() -> None:
    generator = np.random.default_rng(0)
    states, scores = generator.normal(size=(400, BASES_D)), generator.exponential(size=(1, BASES_D))
    halves = CrossMomentsAccumulator((1, 1), (BASES_D, BASES_D)), CrossMomentsAccumulator((1, 1), (BASES_D, BASES_D))
    for parity, half in enumerate(halves):
        half.update([torch.from_numpy(states[parity::2])], [torch.from_numpy(states[parity::2])])
    moments = halves[0].result(), halves[1].result()
    one, other = (Ranked(name, [0], scores, np.stack([scores, scores], 1)) for name in "ab")
    # Bases that leave the second run as it is: agreement is then no more than chance.
    same = RotationNull(torch.eye(BASES_D)[None].repeat(2, 1, 1), np.stack([scores, scores]))
    for known, chance, small in ((None, 0.0, True), (same, 1.0, False)):
        rows = compare_pair(one, other, moments, "correlation", "one_to_one", 5, 0, known).rows
        found = {row["statistic"]: row for row in rows}
        for name in ("spearman", "correlation"):
            assert found[name]["value"] == pytest.approx(1)
            assert found[name]["chance"] == pytest.approx(chance, abs=0.03)
            assert (found[name]["p_value"] < 0.01) is small
