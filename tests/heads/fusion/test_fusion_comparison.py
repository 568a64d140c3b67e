"""Fusions beside layers: the same probes, planted and permuted labels, and rows against loops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from probing.data.controls import shuffled
from probing.data.examples import Sides
from probing.heads import fusion as module
from probing.heads.fusion import (
    CONCAT,
    EQUAL,
    GATE,
    LARGEST,
    FusedProbes,
    FusedStates,
    Fusion,
    Gated,
    Largest,
    Learned,
    Objective,
    Start,
    Weighted,
    accuracy_rows,
    compare_fusions,
    corrected,
    similarity_rows,
)
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training, train_probes
from probing.statistics.intervals import difference_interval
from synthetic import LIGHTNING_WARNINGS, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

LAYERS, WIDTH = (0, 1, 2), 6


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Sides:
    """Three layers of noise, of which the second also has the position."""
    tokens = make_tokens([9, 8, 10] * 50)
    states = [positional(tokens, WIDTH, strength, seed=i) for i, strength in enumerate((0.0, 1.5, 0.0))]
    return sides(make_store(tmp_path_factory.mktemp("planted") / "store", states, tokens))


@pytest.fixture(scope="module")
def tested(planted: Sides) -> FusedProbes:
    return compare_fusions(planted, LAYERS, {}, seed=0)


def differences(rows: list[module.Row]) -> dict[tuple[str, str], module.Row]:
    return {(row["fusion"], row["against"]): row for row in rows if row["measure"] == "difference"}


def test_a_signal_in_one_layer_is_found_by_the_weights_and_lost_by_the_mean(tested: FusedProbes) -> None:
    rows = accuracy_rows("position", tested)
    found = differences(rows)
    assert tested.best == 1
    assert tested.converged == {CONCAT: True, GATE: True}
    assert found["concat", "equal"]["low"] > 0.1
    assert found["concat", "last layer"]["low"] > 0.3
    assert found["concat", "best layer"]["low"] < 0 < found["concat", "best layer"]["high"]
    assert found["max", "best layer"]["high"] < -0.1
    assert {row["layer"] for row in rows if row.get("chosen") == "yes"} == {1}
    assert found["concat", "best layer"]["layer"] == 1
    assert found["concat", "last layer"]["layer"] == 2


def test_differences_are_paired_by_sentence_on_the_same_examples(tested: FusedProbes) -> None:
    rows = accuracy_rows("position", tested)
    accuracies = {(row["fusion"], row.get("layer")): row for row in rows if row["measure"] == "accuracy"}
    assert set(accuracies) == {
        ("layer", 0), ("layer", 1), ("layer", 2), ("equal", None), ("max", None), ("concat", None), ("gate", None)
    }  # fmt: skip
    for (name, against), row in differences(rows).items():
        baseline = {"last layer": ("layer", 2), "best layer": ("layer", 1), "equal": ("equal", None)}[against]
        assert row["value"] == pytest.approx(accuracies[name, None]["value"] - accuracies[baseline]["value"])
        assert row["n"] == accuracies[baseline]["n"] == tested.counts.sum()
    correct = [tested.fits[number].correct_by_sentence for number in (GATE, 1)]
    row = differences(rows)["gate", "best layer"]
    assert (row["low"], row["high"]) == difference_interval(correct[0] - correct[1], tested.counts)


def test_one_weight_gives_the_probe_of_that_layer_and_equal_weights_that_of_the_mean(
    planted: Sides, tmp_path: Path
) -> None:
    store = planted.train.store
    fusions = {-1: Weighted(torch.tensor([0.0, 1.0, 0.0])), -2: Weighted.equal(3)}
    fused = planted.each(lambda one: replace(one, store=FusedStates(store, LAYERS, fusions)))
    arrays = [torch.cat([store.read(layer, shard.index) for shard in store.plan.shards]) for layer in LAYERS]
    mean = make_store(tmp_path / "mean", [torch.stack(arrays).mean(0)], store.tokens)
    training = Training(Penalty(0.0, 1e-3), Lbfgs(1e-6))
    (of_layer,) = train_probes(planted, [1], training)
    (of_mean,) = train_probes(planted.each(lambda one: replace(one, store=mean)), [0], training)
    one_hot, equal = train_probes(fused, [-1, -2], training)
    assert torch.equal(one_hot.weight, of_layer.weight)
    assert_array_equal(one_hot.correct_by_sentence, of_layer.correct_by_sentence)
    torch.testing.assert_close(equal.weight, of_mean.weight, rtol=1e-3, atol=1e-4)
    assert_array_equal(equal.correct_by_sentence, of_mean.correct_by_sentence)


def test_permuted_labels_gain_nothing(planted: Sides) -> None:
    found = compare_fusions(shuffled(planted, 0), LAYERS, {}, seed=0)
    rows = corrected(accuracy_rows("position", found))
    assert not [row for row in differences(rows).values() if row["p_value"] < 0.05]
    chance = 1 / 7  # a position has about this share of the tokens
    assert all(row["value"] < 1.5 * chance for row in rows if row["measure"] == "accuracy")


def test_p_values_are_corrected_for_all_comparisons_together() -> None:
    rows = [{"p_value": 0.01}, {"value": 1.0}, {"p_value": 0.04}, {"p_value": 0.02}]
    assert [row.get("p_value") for row in corrected(rows)] == pytest.approx([0.03, None, 0.04, 0.04])


@pytest.mark.parametrize("budget", [1, 2**24])
def test_similarities_and_weights_are_those_of_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setattr(module, "BLOCK_BYTES", budget)
    lengths = [5, 1, 7, 4, 6] * 6
    tokens = make_tokens(lengths, special=False)
    generator = np.random.default_rng(0)
    arrays = [generator.standard_normal((tokens.n_tokens, WIDTH)) + 0.5 for _ in LAYERS]
    store = make_store(tmp_path / "store", arrays, tokens, shard_tokens=40)
    chosen = np.arange(len(lengths)) % 6 > 0
    fusions: Mapping[int, Fusion] = {
        1: Weighted(torch.tensor([0.0, 1.0, 0.0])), EQUAL: Weighted.equal(3), LARGEST: Largest(),
        CONCAT: Weighted(torch.tensor([1.0, -1.0, 2.0])), GATE: Gated(torch.ones(WIDTH)),
    }  # fmt: skip
    rows = similarity_rows(store, chosen, LAYERS, fusions, task="upos")
    assert all(row["task"] == "upos" for row in rows)
    states = np.stack(arrays).astype(np.float32).astype(np.float64)
    exponentials = np.exp(states.sum(2))
    vectors = {
        ("layer", 1): states[1], ("equal", None): states.mean(0), ("max", None): states.max(0),
        ("concat", None): states[0] - states[1] + 2 * states[2],
        ("gate", None): (exponentials[:, :, None] * states).sum(0) / exponentials.sum(0)[:, None],
    }  # fmt: skip
    ends = np.cumsum(lengths)
    for row in (row for row in rows if row["measure"] == "cosine"):
        own = vectors[row["fusion"], row.get("layer")]
        means = []
        for s in np.flatnonzero(chosen & (np.array(lengths) > 1)):
            one = own[ends[s] - lengths[s] : ends[s]]
            cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for i, a in enumerate(one) for b in one[:i]]
            means.append(np.mean(cosines))
        assert row["value"] == pytest.approx(np.mean(means), rel=1e-5)
        assert row["low"] < row["value"] < row["high"]
        assert row["n"] == len(means)
    there = chosen[tokens.sentences]
    weights = {(row["fusion"], row["layer"]): row["value"] for row in rows if row["measure"] == "weight"}
    assert len(weights) == 9
    for k in LAYERS:
        gates = exponentials[k] / exponentials.sum(0)
        assert weights["gate", k] == pytest.approx(gates[there].mean(), rel=1e-5)
        assert weights["max", k] == pytest.approx((states.argmax(0) == k)[there].mean())
        assert weights["concat", k] == pytest.approx([0.25, -0.25, 0.5][k])


def test_of_both_starts_of_the_weights_the_lower_minimum_counts(
    planted: Sides, tested: FusedProbes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training begins at the mean and at the layer that is best in training, here the second."""
    starts: list[torch.Tensor] = []

    def end_at_the_start(objective: Objective, start: Start, l2: float) -> Learned:
        starts.append(start.parameters)
        return Learned(objective.family.fusion(start.parameters), start.weight, -float(len(starts)), 1, True)

    monkeypatch.setattr(module, "learn", end_at_the_start)
    found = compare_fusions(planted, LAYERS, {}, seed=0)
    weighted, gated = found.fusions[CONCAT], found.fusions[GATE]
    assert isinstance(weighted, Weighted)
    assert isinstance(gated, Gated)
    assert [int(start.count_nonzero()) for start in starts] == [0, 3, 0]
    torch.testing.assert_close(weighted.alpha, torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)
    assert_array_equal(found.fits[CONCAT].correct_by_sentence, tested.fits[1].correct_by_sentence)
