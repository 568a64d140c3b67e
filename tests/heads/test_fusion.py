"""Fusions of layers: what they return, how they are learned, and how they do beside layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from scipy.optimize import minimize
from torch import Tensor
from torch.testing import assert_close

from probing.data.examples import Examples, Sides, read
from probing.data.module import shuffled
from probing.heads import fusion as module
from probing.heads.fusion import (
    CONCAT,
    EQUAL,
    GATE,
    LARGEST,
    FusedProbes,
    FusedStates,
    Fusion,
    FusionFamily,
    FusionMoments,
    Gated,
    Largest,
    LayersOfExamples,
    Learned,
    Objective,
    Weighted,
    accuracy_rows,
    compare_fusions,
    gated_family,
    learn,
    pooled,
    similarity_rows,
    states_of,
    weighted_family,
)
from probing.heads.measures import corrected
from probing.probes.solvers import Penalty
from probing.probes.training import LayerFit, Lbfgs, Training, train_probes
from probing.statistics import difference_interval
from probing.text.tokens import Tokens
from synthetic import make_store, make_tokens, positional, sides

pytestmark = pytest.mark.numeric

N_LAYERS, N, WIDTH = 3, 7, 4
STATES = torch.randn(N_LAYERS, N, WIDTH, generator=torch.Generator().manual_seed(0))


def test_fusions_are_those_of_a_loop_over_tokens_and_neurons() -> None:
    alpha, direction = torch.tensor([0.5, -2.0, 1.0]), torch.tensor([1.0, 0.0, -1.0, 2.0])
    weighted, largest, gated = Weighted(alpha)(STATES), Largest()(STATES), Gated(direction)(STATES)
    shares = {"max": Largest().weights(STATES), "gate": Gated(direction).weights(STATES)}
    states = STATES.double().numpy()
    for t in range(N):
        gates = np.exp([float(states[k, t] @ direction.double().numpy()) for k in range(N_LAYERS)])
        gates /= gates.sum()
        assert shares["gate"][:, t].tolist() == pytest.approx(gates.tolist(), rel=1e-5)
        highest = [int(np.argmax(states[:, t, j])) for j in range(WIDTH)]
        assert shares["max"][:, t].tolist() == [highest.count(k) / WIDTH for k in range(N_LAYERS)]
        for j in range(WIDTH):
            of_layers = states[:, t, j]
            assert float(weighted[t, j]) == pytest.approx(
                0.5 * of_layers[0] - 2 * of_layers[1] + of_layers[2], rel=1e-5
            )
            assert float(largest[t, j]) == pytest.approx(max(of_layers))
            assert float(gated[t, j]) == pytest.approx(float(gates @ of_layers), rel=1e-4)
    assert_close(Weighted(alpha).weights(STATES), (alpha / 3.5)[:, None].expand(3, N))


def test_one_weight_is_that_layer_to_the_bit_and_equal_weights_are_the_mean() -> None:
    for layer in range(N_LAYERS):
        assert torch.equal(Weighted(torch.eye(N_LAYERS)[layer])(STATES), STATES[layer])
    assert_close(Weighted.equal(N_LAYERS)(STATES), STATES.mean(0))
    assert_close(Gated(torch.zeros(WIDTH))(STATES), STATES.mean(0))


def test_a_bias_of_the_gate_would_change_nothing_and_the_weights_of_a_token_sum_to_1() -> None:
    gate = Gated(torch.ones(WIDTH))
    shifted = STATES + torch.tensor([3.0, 0, 0, 0])  # adds the same to the gate of every layer
    assert_close(gate.weights(shifted), gate.weights(STATES))
    fusions: list[Fusion] = [gate, Largest(), Weighted.equal(3)]
    for one in fusions:
        assert_close(one.weights(STATES).sum(0), torch.ones(N))


@pytest.mark.parametrize("kept", [0, 2**20])
def test_a_store_has_its_layers_and_their_fusions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    monkeypatch.setattr(module, "FUSED_BYTES", kept)
    tokens = make_tokens([5, 6, 4])
    arrays = np.random.default_rng(0).standard_normal((3, tokens.n_tokens, WIDTH)).astype(np.float32)
    base = make_store(tmp_path / "store", list(arrays), tokens, shard_tokens=6, dtype="bfloat16")
    assert len(base.plan.shards) > 1
    store = FusedStates(base, [1, 2], {-1: Weighted.equal(2), -2: Largest()})
    for shard in base.plan.shards:
        both = states_of(base, [1, 2], shard.index)
        assert (both.dtype, both.shape) == (torch.float32, (2, shard.n_tokens, WIDTH))
        for _ in range(2):  # the second time, kept or fused again
            assert_close(store.read(-1, shard.index), both.mean(0))
            assert torch.equal(store.read(-2, shard.index), both.amax(0))
        assert torch.equal(store.read(0, shard.index), base.read(0, shard.index))
        assert shard.rows(store.tokens) == shard.rows(base.tokens)
        some = torch.tensor([2, 0])
        assert torch.equal(states_of(base, [1, 2], shard.index, some), both[:, some])


LAYERS, LEARNED_WIDTH, L2 = (0, 1, 2), 6, 1e-3
LEARNED_EQUAL = -1


@pytest.fixture
def planted(tmp_path: Path) -> Sides:
    """Three layers of noise, of which the second also has the position."""
    tokens = make_tokens([9, 8, 10] * 30)
    states = [positional(tokens, LEARNED_WIDTH, strength, seed=i) for i, strength in enumerate((0.0, 1.5, 0.0))]
    return sides(make_store(tmp_path / "store", states, tokens, shard_tokens=150))


def fitted(of: Sides, fusions: Mapping[int, Fusion], views: list[int]) -> list[LayerFit]:
    changed = of.each(lambda one: replace(one, store=FusedStates(one.store, LAYERS, fusions)))
    return train_probes(changed, views, Training(Penalty(0.0, L2), Lbfgs(1e-6)))


# --- examples ---


@pytest.mark.parametrize("word_means", [False, True])
@pytest.mark.parametrize("budget", [1, 2**24])
def test_the_examples_are_those_of_any_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int, word_means: bool
) -> None:
    """Tokens, or words as means over their one to three pieces, of training sentences in several shards."""
    monkeypatch.setattr(module, "BLOCK_BYTES", budget)
    words = np.array([-1, 0, 0, 1, 2, 2, 2, 3, -1] * 20, dtype=np.int16)
    tokens = Tokens(np.full(20, 9, dtype=np.int32), np.arange(180, dtype=np.int32), words)
    states = np.random.default_rng(0).standard_normal((3, 180, LEARNED_WIDTH))
    store = make_store(tmp_path / "store", list(states), tokens, shard_tokens=60)
    labels = np.where(tokens.first_pieces & (tokens.sentences % 4 > 0), np.arange(180) % 5 - 1, -1).astype(np.int32)
    train = Examples(store, labels, word_means=word_means)
    batches, examples = list(read(train, LAYERS)), LayersOfExamples(train, LAYERS)
    for i in range(3):
        found = torch.cat([pooled(states[i], block) for states, block in examples])
        assert_close(found, torch.cat([batch.hidden_states[i] for batch in batches]))
    found = torch.cat([block.labels for block in examples.blocks])
    assert torch.equal(found, torch.cat([batch.labels for batch in batches]))
    assert (len(examples.blocks) == examples.n) == (budget == 1)


def test_moments_of_a_weighted_sum_are_those_of_its_vectors(planted: Sides) -> None:
    moments = FusionMoments.of(LayersOfExamples(planted.train, LAYERS))
    states = [torch.cat([batch.hidden_states[i] for batch in read(planted.train, LAYERS)]).double() for i in range(3)]
    alpha = torch.tensor([0.2, -1.0, 0.7])
    vectors = sum(float(a) * one for a, one in zip(alpha, states, strict=True))
    assert isinstance(vectors, Tensor)
    assert_close(moments.inverse_scale(alpha), 1 / vectors.std(0, correction=0), rtol=1e-6, atol=0)
    assert_close(moments.mean, torch.stack([one.mean(0) for one in states]))


# --- derivatives ---


def families(examples: LayersOfExamples) -> dict[str, FusionFamily]:
    moments = FusionMoments.of(examples)
    return {"concat": weighted_family(moments)[0], "gate": gated_family(moments)}


@pytest.mark.parametrize("name", ["concat", "gate"])
def test_gradients_are_those_of_finite_differences_of_the_objective_in_float64(planted: Sides, name: str) -> None:
    examples = LayersOfExamples(planted.train, LAYERS)
    family = families(examples)[name]
    n_classes = len(planted.classes)
    objective = Objective(examples, family, n_classes)
    states = torch.stack([torch.cat([b.hidden_states[i] for b in read(planted.train, LAYERS)]) for i in range(3)])
    labels = torch.cat([batch.labels for batch in read(planted.train, LAYERS)])
    generator = torch.Generator().manual_seed(1)
    point = 0.3 * torch.randn(objective.n_weights + family.n_parameters, generator=generator)

    def by_definition(at: Tensor) -> float:
        weight, parameters = at[: objective.n_weights].view(n_classes, LEARNED_WIDTH), at[objective.n_weights :]
        fused = family.fusion(parameters)(states.double())
        scale = fused.std(0, correction=0) if name == "concat" else states.double().mean(0).std(0, correction=0)
        log_p = ((fused / scale) @ weight.T).log_softmax(1)
        return -float(log_p[torch.arange(len(labels)), labels].mean())

    found = objective(point)
    assert found.value == pytest.approx(by_definition(point.double()), rel=1e-6)
    for i in [0, 5, *range(objective.n_weights, len(point))]:
        step = torch.zeros(len(point), dtype=torch.float64)
        step[i] = 1e-5
        slope = (by_definition(point.double() + step) - by_definition(point.double() - step)) / 2e-5
        assert float(found.gradient[i]) == pytest.approx(slope, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["concat", "gate"])
def test_the_curvature_of_the_parameters_is_that_of_the_derivatives_of_all_logits(planted: Sides, name: str) -> None:
    examples = LayersOfExamples(planted.train, LAYERS)
    family, n_classes = families(examples)[name], len(planted.classes)
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(n_classes, LEARNED_WIDTH, generator=generator)
    parameters = 0.3 * torch.randn(family.n_parameters, generator=generator)
    states, block = next(iter(examples))
    states, block = states[:, :20], replace(block, rows=block.rows[:20], example=block.example[:20])

    def logits(of: Tensor) -> Tensor:
        return family.fusion(of)(states) @ weight.T

    p = logits(parameters).softmax(1)
    derivatives = torch.func.jacrev(logits)(parameters)  # (n, n_classes, n_parameters)
    middle = torch.diag_embed(p) - p[:, :, None] * p[:, None]
    expected = torch.einsum("ncq,ncd,ndr->qr", derivatives, middle, derivatives)
    a, f = family.derivatives(parameters, weight, states)
    assert_close(torch.einsum("knc,knq->ncq", a, f), derivatives, rtol=1e-4, atol=1e-4)
    assert_close(module._gauss_newton(a, f, p, block), expected, rtol=1e-3, atol=1e-3)


# --- learning ---


def learned(of: Sides, name: str) -> tuple[module.Learned, LayerFit]:
    examples = LayersOfExamples(of.train, LAYERS)
    family = families(examples)[name]
    (fit,) = fitted(of, {LEARNED_EQUAL: Weighted.equal(3)}, [LEARNED_EQUAL])
    objective = Objective(examples, family, len(of.classes))
    return learn(objective, torch.zeros(family.n_parameters), fit.weight, L2), fit


def test_a_signal_that_is_planted_in_one_layer_is_found(planted: Sides) -> None:
    found, equal = learned(planted, "concat")
    assert isinstance(found.fusion, Weighted)
    alpha = found.fusion.alpha / found.fusion.alpha.abs().sum()
    assert found.converged
    assert alpha[1] > 0.8 > 5 * alpha[[0, 2]].abs().max()
    assert found.objective < equal.objective - 0.1


def test_the_minimum_is_that_of_another_solver_in_float64(planted: Sides) -> None:
    found, _ = learned(planted, "concat")
    assert isinstance(found.fusion, Weighted)
    states = torch.stack([torch.cat([b.hidden_states[i] for b in read(planted.train, LAYERS)]) for i in range(3)])
    states, labels = states.double(), torch.cat([batch.labels for batch in read(planted.train, LAYERS)])
    rms = states.square().mean((1, 2)).sqrt()
    n_classes = len(planted.classes)

    def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
        at = torch.from_numpy(flat).requires_grad_()
        weight, parameters = at[:-3].view(n_classes, LEARNED_WIDTH), at[-3:]
        fused = torch.tensordot(1 / 3 + rms.mean() / rms * parameters, states, 1)
        logits = (fused / fused.std(0, correction=0)) @ weight.T
        value = torch.nn.functional.cross_entropy(logits, labels) + L2 * at.square().sum()
        (gradient,) = torch.autograd.grad(value, at)
        return float(value.detach()), gradient.numpy()

    start = np.concatenate([np.zeros(n_classes * LEARNED_WIDTH), [-1 / 3, 2 / 3, -1 / 3]])
    other = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "gtol": 1e-9})
    assert found.objective == pytest.approx(float(other.fun), abs=module.TOLERANCE)
    expected = 1 / 3 + (rms.mean() / rms) * torch.from_numpy(other.x[-3:])
    # The sum of the weights hardly changes the objective, because neurons are divided by their standard deviation.
    shares = [alpha.double() / alpha.abs().sum() for alpha in (found.fusion.alpha, expected)]
    assert_close(*shares, rtol=0, atol=0.01)


def test_training_ends_where_the_probe_alone_can_gain_nothing(planted: Sides) -> None:
    """A probe that is trained to its optimum on the learned fusion is the same one."""
    found, _ = learned(planted, "concat")
    assert isinstance(found.fusion, Weighted)
    (again,) = fitted(planted, {LEARNED_EQUAL: found.fusion}, [LEARNED_EQUAL])
    _, parameters_of = weighted_family(FusionMoments.of(LayersOfExamples(planted.train, LAYERS)))
    of_fusion = L2 * float(parameters_of(found.fusion).square().sum())
    assert again.objective + of_fusion == pytest.approx(found.objective, abs=2e-4)
    assert again.objective + of_fusion <= found.objective + 1e-6


@pytest.mark.slow
def test_a_gate_finds_which_layer_each_token_has_its_position_in(tmp_path: Path) -> None:
    """A flag in the first neuron says in which of two layers a token has its position; no alpha is right for all."""
    tokens = make_tokens([9, 8, 10] * 40)
    generator = np.random.default_rng(3)
    chosen = generator.integers(2, size=tokens.n_tokens)
    signal, states = positional(tokens, 12, 3.0), []
    for layer in (0, 1):
        own = np.where((chosen == layer)[:, None], signal, 4 * generator.standard_normal(signal.shape))
        own[:, 0] = np.where(chosen == layer, 3.0, -3.0)
        states.append(own)
    of = sides(
        make_store(tmp_path / "store", [*states, states[0] * 0 + generator.standard_normal(signal.shape)], tokens)
    )
    concat, _ = learned(of, "concat")
    gate, equal = learned(of, "gate")
    assert gate.converged
    assert gate.objective < min(concat.objective, equal.objective) - 0.1
    every = torch.cat([of.train.store.read(0, shard.index) for shard in of.train.store.plan.shards])
    both = torch.stack([every, torch.cat([of.train.store.read(1, s.index) for s in of.train.store.plan.shards])])
    right = gate.fusion.weights(both).argmax(0).numpy() == chosen
    assert right.mean() > 0.95


def test_training_that_is_cut_short_says_so(planted: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_PASSES", 3)
    found, equal = learned(planted, "concat")
    assert not found.converged
    assert found.n_passes == 3
    assert found.objective <= equal.objective + 1e-6


def test_a_point_at_the_optimum_of_every_parameter_stays(planted: Sides) -> None:
    """Three copies of one layer: no weights of them are better than others."""
    store = planted.train.store
    second = Weighted(torch.tensor([0.0, 1.0, 0.0]))
    copies = planted.each(lambda of: replace(of, store=FusedStates(store, LAYERS, dict.fromkeys(LAYERS, second))))
    found, equal = learned(copies, "concat")
    assert found.converged
    assert found.objective == pytest.approx(equal.objective, abs=1e-5)


COMPARED_LAYERS, COMPARED_WIDTH = (0, 1, 2), 6


@pytest.fixture(scope="module")
def compared_planted(tmp_path_factory: pytest.TempPathFactory) -> Sides:
    """Three layers of noise, of which the second also has the position."""
    tokens = make_tokens([9, 8, 10] * 50)
    states = [positional(tokens, COMPARED_WIDTH, strength, seed=i) for i, strength in enumerate((0.0, 1.5, 0.0))]
    return sides(make_store(tmp_path_factory.mktemp("planted") / "store", states, tokens))


@pytest.fixture(scope="module")
def tested(compared_planted: Sides) -> FusedProbes:
    return compare_fusions(compared_planted, COMPARED_LAYERS, {}, seed=0)


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
    compared_planted: Sides, tmp_path: Path
) -> None:
    store = compared_planted.train.store
    fusions = {-1: Weighted(torch.tensor([0.0, 1.0, 0.0])), -2: Weighted.equal(3)}
    fused = compared_planted.each(lambda one: replace(one, store=FusedStates(store, COMPARED_LAYERS, fusions)))
    arrays = [torch.cat([store.read(layer, shard.index) for shard in store.plan.shards]) for layer in COMPARED_LAYERS]
    mean = make_store(tmp_path / "mean", [torch.stack(arrays).mean(0)], store.tokens)
    training = Training(Penalty(0.0, 1e-3), Lbfgs(1e-6))
    (of_layer,) = train_probes(compared_planted, [1], training)
    (of_mean,) = train_probes(compared_planted.each(lambda one: replace(one, store=mean)), [0], training)
    one_hot, equal = train_probes(fused, [-1, -2], training)
    assert torch.equal(one_hot.weight, of_layer.weight)
    assert_array_equal(one_hot.correct_by_sentence, of_layer.correct_by_sentence)
    torch.testing.assert_close(equal.weight, of_mean.weight, rtol=1e-3, atol=1e-4)
    assert_array_equal(equal.correct_by_sentence, of_mean.correct_by_sentence)


def test_permuted_labels_gain_nothing(compared_planted: Sides) -> None:
    found = compare_fusions(shuffled(compared_planted, 0), COMPARED_LAYERS, {}, seed=0)
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
    arrays = [generator.standard_normal((tokens.n_tokens, COMPARED_WIDTH)) + 0.5 for _ in COMPARED_LAYERS]
    store = make_store(tmp_path / "store", arrays, tokens, shard_tokens=40)
    chosen = np.arange(len(lengths)) % 6 > 0
    fusions: Mapping[int, Fusion] = {
        1: Weighted(torch.tensor([0.0, 1.0, 0.0])), EQUAL: Weighted.equal(3), LARGEST: Largest(),
        CONCAT: Weighted(torch.tensor([1.0, -1.0, 2.0])), GATE: Gated(torch.ones(COMPARED_WIDTH)),
    }  # fmt: skip
    rows = similarity_rows(store, chosen, COMPARED_LAYERS, fusions, task="upos")
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
    for k in COMPARED_LAYERS:
        gates = exponentials[k] / exponentials.sum(0)
        assert weights["gate", k] == pytest.approx(gates[there].mean(), rel=1e-5)
        assert weights["max", k] == pytest.approx((states.argmax(0) == k)[there].mean())
        assert weights["concat", k] == pytest.approx([0.25, -0.25, 0.5][k])


def test_of_both_starts_of_the_weights_the_lower_minimum_counts(
    compared_planted: Sides, tested: FusedProbes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training begins at the mean and at the layer that is best in training, here the second."""
    starts: list[torch.Tensor] = []

    def end_at_the_start(objective: Objective, parameters: Tensor, weight: Tensor, l2: float) -> Learned:
        starts.append(parameters)
        return Learned(objective.family.fusion(parameters), weight, -float(len(starts)), 1, True)

    monkeypatch.setattr(module, "learn", end_at_the_start)
    found = compare_fusions(compared_planted, COMPARED_LAYERS, {}, seed=0)
    weighted, gated = found.fusions[CONCAT], found.fusions[GATE]
    assert isinstance(weighted, Weighted)
    assert isinstance(gated, Gated)
    assert [int(start.count_nonzero()) for start in starts] == [0, 3, 0]
    torch.testing.assert_close(weighted.alpha, torch.tensor([0.0, 1.0, 0.0]), atol=1e-6, rtol=0)
    assert_array_equal(found.fits[CONCAT].correct_by_sentence, tested.fits[1].correct_by_sentence)
