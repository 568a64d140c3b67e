"""Learned fusions: exact derivatives, planted signals, and the same examples as those of any probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.testing import assert_close

from probing.cache.tokens import Tokens
from probing.data.examples import Examples, Sides, read
from probing.heads import fusion as module
from probing.heads.fusion import (
    Family,
    FusedStates,
    Fusion,
    LayerMoments,
    LayersOfExamples,
    Objective,
    Start,
    Weighted,
    gated_family,
    learn,
    pooled,
    weighted_family,
)
from probing.probes.solvers import Penalty
from probing.probes.training import LayerFit, Lbfgs, Training, train_probes
from synthetic import LIGHTNING_WARNINGS, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

LAYERS, WIDTH, L2 = (0, 1, 2), 6, 1e-3
EQUAL = -1


@pytest.fixture
def planted(tmp_path: Path) -> Sides:
    """Three layers of noise, of which the second also has the position."""
    tokens = make_tokens([9, 8, 10] * 30)
    states = [positional(tokens, WIDTH, strength, seed=i) for i, strength in enumerate((0.0, 1.5, 0.0))]
    return sides(make_store(tmp_path / "store", states, tokens, shard_tokens=150))


def fitted(of: Sides, fusions: Mapping[int, Fusion], views: list[int]) -> list[LayerFit]:
    changed = of.each(lambda one: replace(one, store=FusedStates(one.store, LAYERS, fusions)))
    return train_probes(changed, views, Training(Penalty(0.0, L2), Lbfgs(1e-6)))


def equal_start(of: Sides, n_parameters: int) -> tuple[Start, LayerFit]:
    (fit,) = fitted(of, {EQUAL: Weighted.equal(3)}, [EQUAL])
    return Start(torch.zeros(n_parameters), fit.weight), fit


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
    states = np.random.default_rng(0).standard_normal((3, 180, WIDTH))
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
    moments = LayerMoments.of(LayersOfExamples(planted.train, LAYERS))
    states = [torch.cat([batch.hidden_states[i] for batch in read(planted.train, LAYERS)]).double() for i in range(3)]
    alpha = torch.tensor([0.2, -1.0, 0.7])
    vectors = sum(float(a) * one for a, one in zip(alpha, states, strict=True))
    assert isinstance(vectors, Tensor)
    assert_close(moments.inverse_scale(alpha), 1 / vectors.std(0, correction=0), rtol=1e-6, atol=0)
    assert_close(moments.mean, torch.stack([one.mean(0) for one in states]))


# --- derivatives ---


def families(examples: LayersOfExamples) -> dict[str, Family]:
    moments = LayerMoments.of(examples)
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
        weight, parameters = at[: objective.n_weights].view(n_classes, WIDTH), at[objective.n_weights :]
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
    weight = torch.randn(n_classes, WIDTH, generator=generator)
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
    start, fit = equal_start(of, family.n_parameters)
    return learn(Objective(examples, family, len(of.classes)), start, L2), fit


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
        weight, parameters = at[:-3].view(n_classes, WIDTH), at[-3:]
        fused = torch.tensordot(1 / 3 + rms.mean() / rms * parameters, states, 1)
        logits = (fused / fused.std(0, correction=0)) @ weight.T
        value = torch.nn.functional.cross_entropy(logits, labels) + L2 * at.square().sum()
        (gradient,) = torch.autograd.grad(value, at)
        return float(value.detach()), gradient.numpy()

    start = np.concatenate([np.zeros(n_classes * WIDTH), [-1 / 3, 2 / 3, -1 / 3]])
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
    (again,) = fitted(planted, {EQUAL: found.fusion}, [EQUAL])
    _, parameters_of = weighted_family(LayerMoments.of(LayersOfExamples(planted.train, LAYERS)))
    of_fusion = L2 * float(parameters_of(found.fusion).square().sum())
    assert again.objective + of_fusion == pytest.approx(found.objective, abs=2e-4)
    assert again.objective + of_fusion <= found.objective + 1e-6


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
