"""Random bases: what neurons owe to being these neurons, and what to the space they span."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from probing.builtin_tasks.position import Position
from torch.nn.functional import layer_norm
from torch.testing import assert_close

from probing.comparison.agreement import RotationNull, agreement, random_bases, rotation_null
from probing.comparison.pairs import CrossMomentsAccumulator, Ranked, compare_pair, holds, judge, match
from probing.data.labelling import label
from probing.rankings.methods import neuron_contributions
from synthetic import CORPUS, make_splits, make_store, make_tokens

pytestmark = pytest.mark.numeric

D = 40


def test_bases_are_rotations_that_keep_the_mean_and_differ() -> None:
    bases = random_bases(D, 3, seed=0)
    assert_close(bases @ bases.mT, torch.eye(D).expand(3, D, D), atol=1e-5, rtol=0)
    for axis in (1, 2):
        assert_close(bases.sum(axis), torch.ones(3, D), atol=1e-5, rtol=0)
    assert (bases[0] - bases[1]).abs().max() > 0.1
    assert torch.equal(bases, random_bases(D, 3, seed=0))
    assert torch.equal(bases[:1], random_bases(D, 1, seed=0))
    assert not torch.equal(bases, random_bases(D, 3, seed=1))


def test_two_neurons_are_too_few_to_turn() -> None:
    with pytest.raises(ValueError, match="three neurons or more, found 2"):
        random_bases(2, 1, seed=0)


def test_layer_norm_commutes_with_them() -> None:
    # Why an untrained model in such a basis is as likely as the model itself.
    basis, states = random_bases(D, 1, seed=0)[0], torch.randn(5, D, generator=torch.Generator().manual_seed(0))
    assert_close(layer_norm(states @ basis, (D,)), layer_norm(states, (D,)) @ basis, atol=1e-5, rtol=0)


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
        a, b = (words @ generator.normal(size=(60, D)) + generator.normal(size=(300, D)) for _ in range(2))
        halves = CrossMomentsAccumulator((1, 1), (D, D)), CrossMomentsAccumulator((1, 1), (D, D))
        for parity, half in enumerate(halves):
            half.update([torch.from_numpy(a[parity::2])], [torch.from_numpy(b[parity::2])])
        fit, held_out = (half.result() for half in halves)
        partner = match(fit.correlation(0, 0), "one_to_one")
        unrelated, qualities = [], []
        for basis in random_bases(D, 5, seed):
            turned = [moments.correlation(0, 0, basis) for moments in (fit, held_out)]
            other = match(turned[0], "one_to_one")
            unrelated.append((np.abs(a).mean(0), np.abs(b @ basis.numpy()).mean(0)[other]))
            qualities.append(holds(other, *turned))
        scores = np.abs(a).mean(0), np.abs(b).mean(0)[partner]
        correlations = fit.correlation(0, 0), held_out.correlation(0, 0)
        for given, p_values in (((), by_permutation), (unrelated, by_rotation)):
            found = agreement(*scores, unrelated=given, permutations=199, seed=seed)
            p_values.append([one.p_value for one in found if one.statistic in ("spearman", "kendall")])
        for known, p_values in (((), quality_by_permutation), (qualities, quality_by_rotation)):
            p_values.append(judge(partner, *correlations, known, permutations=199, seed=seed).p_value)
    small = [float(np.mean(np.array(p) < 0.05)) for p in (by_permutation, by_rotation)]
    assert small[0] > 0.12 > 0.08 > small[1]
    small = [float(np.mean(np.array(p) < 0.05)) for p in (quality_by_permutation, quality_by_rotation)]
    assert small[0] > 0.9 > 0.08 > small[1]


def test_the_rotation_null_is_chance_to_a_pair_of_runs() -> None:
    generator = np.random.default_rng(0)
    states, scores = generator.normal(size=(400, D)), generator.exponential(size=(1, D))
    halves = CrossMomentsAccumulator((1, 1), (D, D)), CrossMomentsAccumulator((1, 1), (D, D))
    for parity, half in enumerate(halves):
        half.update([torch.from_numpy(states[parity::2])], [torch.from_numpy(states[parity::2])])
    moments = halves[0].result(), halves[1].result()
    one, other = (Ranked(name, [0], scores, np.stack([scores, scores], 1)) for name in "ab")
    # Bases that leave the second run as it is: agreement is then no more than chance.
    same = RotationNull(torch.eye(D)[None].repeat(2, 1, 1), np.stack([scores, scores]))
    for known, chance, small in ((None, 0.0, True), (same, 1.0, False)):
        rows = compare_pair(one, other, moments, "correlation", "one_to_one", 5, 0, known).rows
        found = {row["statistic"]: row for row in rows}
        for name in ("spearman", "correlation"):
            assert found[name]["value"] == pytest.approx(1)
            assert found[name]["chance"] == pytest.approx(chance, abs=0.03)
            assert (found[name]["p_value"] < 0.01) is small
