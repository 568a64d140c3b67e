from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from probing.data.examples import Batch
from probing.data.module import ActivationDataModule, layer_moments
from probing.probes.linear import Descent, FullPasses, LinearProbe
from probing.probes.solvers import Penalty, Problem
from probing.runtime.trainer import build_trainer
from probing.statistics.moments import Moments, MomentsAccumulator
from synthetic import (
    LIGHTNING_WARNINGS,
    Data,
    make_store,
    make_tokens,
    objective,
    optimum,
    positional,
    scaled_features,
    sides,
)

pytestmark = [pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS]


Layers = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def layers() -> Layers:
    """Two layers of 40 tokens and 6 neurons of unlike scales; neuron 2 of the second is dead."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.tensor([1.0, 10.0, 0.1, 1.0, 1.0, 2.0])
    first, second = torch.randn(2, 40, 6, generator=generator) * scales + 1
    second[:, 2] = 3.0
    return first, second


def moments_of(layers: Sequence[torch.Tensor]) -> list[Moments]:
    accumulators = [MomentsAccumulator(6) for _ in layers]
    for accumulator, states in zip(accumulators, layers, strict=True):
        accumulator.update(states)
    return [accumulator.result() for accumulator in accumulators]


def build(layers: Layers, **options: Any) -> LinearProbe:
    problems = [Problem(f"p{i}", layer, Penalty(0.0, 1e-3)) for i, layer in enumerate((0, 1, 1))]
    probe = LinearProbe(6, [1, 2, 5], [3, 4], problems=problems, moments=moments_of(layers), **options)
    torch.nn.init.normal_(probe.scaled_weight, generator=torch.Generator().manual_seed(1))
    return probe


def test_logits_are_hidden_states_times_the_weight_and_nothing_else(layers: Layers) -> None:
    probe = build(layers)
    weight = probe.weight
    for logits, layer, w in zip(probe(layers), (0, 1, 1), weight, strict=True):
        assert torch.equal(logits, layers[layer] @ w.T)
    assert [name for name, _ in probe.named_parameters()] == ["scaled_weight"]
    assert all(not logits.any() for logits in probe([torch.zeros(2, 6)] * 2))  # no bias


def test_weights_are_the_scaled_weights_divided_by_the_sd(layers: Layers) -> None:
    probe = build(layers)
    expected = probe.scaled_weight[0].detach() / layers[0].double().std(0, correction=0)
    torch.testing.assert_close(probe.weight[0].double(), expected.double(), rtol=1e-6, atol=0)


def test_dead_neurons_have_no_weight(layers: Layers) -> None:
    weight = build(layers).weight
    assert not weight[1:, :, 2].any()
    assert weight[0, :, 2].all()


def test_without_scaling_the_weights_are_themselves(layers: Layers) -> None:
    probe = build(layers, penalty_space="raw")
    assert torch.equal(probe.weight[0], probe.scaled_weight.data[0])


def test_problems_are_grouped_by_layer(layers: Layers) -> None:
    probe = build(layers)
    assert probe.by_layer() == {0: [0], 1: [1, 2]}
    assert probe.by_layer([2]) == {1: [2]}


def test_examples_are_tested_once_and_an_empty_batch_changes_nothing(layers: Layers) -> None:
    probe, labels = build(layers), torch.randint(3, (40,), generator=torch.Generator().manual_seed(2))
    probe._begin_metrics(4)
    batch = Batch(layers, labels, torch.arange(40) // 10, torch.arange(40))
    for rows in (torch.arange(25), torch.arange(0), torch.arange(25, 40)):
        probe.test_step(batch.pick(rows))
    metrics: Any
    for metrics, logits in zip(probe.metrics, probe(layers), strict=True):
        right = logits.argmax(-1) == labels
        assert metrics.compute()["accuracy"] == pytest.approx(float(right.float().mean()), abs=1e-6)
        assert int(metrics.correct_by_sentence.compute().sum()) == int(right.sum())


# --- Adam ---


def adam(layers: Layers, patience: int = 2) -> LinearProbe:
    probe = build(layers, solver="adam", learning_rate=0.01, patience=patience)
    probe.trainer = pl.Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    return probe


def test_each_problem_keeps_the_weights_of_its_own_best_epoch(layers: Layers) -> None:
    probe = adam(layers)
    weights = []
    for values in ([3.0, 3.0, 3.0], [2.0, 4.0, 2.0], [2.5, 2.5, 1.0]):
        weights.append(torch.randn(3, 3, 6))
        probe.scaled_weight.data.copy_(weights[-1])
        probe.rule.end_validation(values)
    probe.on_train_end()
    for problem, best in enumerate((1, 2, 2)):
        assert torch.equal(probe.scaled_weight.data[problem], weights[best][problem])


def test_training_stops_once_no_problem_has_improved_for_its_patience(layers: Layers) -> None:
    probe = adam(layers)
    stopped = []
    for values in ([1, 3, 3], [2, 2, 3], [2, 1, 2], [0, 1, 2], [0, 1, 2]):
        probe.rule.end_validation(values)
        stopped.append(probe.trainer.should_stop)
    assert stopped == [False, False, False, False, True]
    # The first problem had stopped for good when it became better again.
    assert isinstance(probe.rule, Descent)
    assert probe.rule.best_cross_entropy == [1, 1, 2]


def test_weights_that_were_never_validated_are_kept(layers: Layers) -> None:
    probe = adam(layers)
    before = probe.scaled_weight.data.clone()
    probe.on_train_end()
    assert torch.equal(probe.scaled_weight.data, before)


@pytest.mark.parametrize("algorithm", ["norm", "value", None])
def test_gradients_are_clipped_problem_by_problem(layers: Layers, algorithm: str | None) -> None:
    probe = adam(layers)
    gradient = torch.randn(3, 3, 6, generator=torch.Generator().manual_seed(3))
    gradient[0] *= 1e-3
    probe.scaled_weight.grad = gradient.clone()
    nothing: Any = None  # the optimiser is not asked
    probe.configure_gradient_clipping(nothing, 0.5, algorithm)
    clipped = probe.scaled_weight.grad
    assert torch.equal(clipped[0], gradient[0])
    if algorithm == "value":
        assert torch.equal(clipped, gradient.clamp(-0.5, 0.5))
    else:
        for one, whole in zip(clipped[1:], gradient[1:], strict=True):
            torch.testing.assert_close(one, 0.5 * whole / whole.norm())


def test_gradients_are_left_alone_where_nothing_is_to_be_clipped(layers: Layers) -> None:
    probe = adam(layers)
    probe.scaled_weight.grad = torch.ones(3, 3, 6)
    nothing: Any = None
    probe.configure_gradient_clipping(nothing, None, None)
    assert torch.equal(probe.scaled_weight.grad, torch.ones(3, 3, 6))


# --- full passes ---


class StopsWithin(pl.Callback):
    """Asks for the end of training after the first shard of an epoch, as `max_time` does."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.current_epoch == self.epoch:
            trainer.should_stop = True


@pytest.mark.parametrize("epoch", [1, 4])
def test_part_of_a_pass_is_never_taken_for_the_whole(
    tmp_path: Path, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("probing.data.examples.SHARDS_IN_A_STEP", 1)
    tokens = make_tokens([8] * 60)
    data = sides(make_store(tmp_path / "s", [positional(tokens, 6, 0.5)], tokens))
    assert len(data.train.store.plan.shards) > 1
    fit = data.fit(l2=1e-2, callbacks=[StopsWithin(epoch)])[0]
    assert fit.n_passes == epoch
    assert not fit.converged
    x, y = scaled_features(data.train)
    sd = fit.moments.sd.numpy()
    value = objective(fit.weight.double().numpy() * sd, x, y, 0, 1e-2)[0]
    best = objective(optimum(x, y, len(data.classes), 0, 1e-2), x, y, 0, 1e-2)[0]
    assert fit.objective == pytest.approx(value, abs=1e-5)  # float32 logits
    assert fit.optimality_gap >= value - best > 0


@pytest.mark.parametrize("n", [2, 5])
def test_several_shards_in_a_step_are_a_pass_like_any_other(
    tmp_path: Path, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = make_tokens([8] * 60)
    data = sides(make_store(tmp_path / "s", [positional(tokens, 6, 0.5)], tokens))
    fits = []
    for at_a_time in (1, n):
        monkeypatch.setattr("probing.data.examples.SHARDS_IN_A_STEP", at_a_time)
        fits.append(data.fit(l2=1e-2)[0])
    assert torch.equal(fits[0].weight, fits[1].weight)
    assert (fits[0].objective, fits[0].n_passes) == (fits[1].objective, fits[1].n_passes)


def solve(data: Data, layers: Sequence[int], problems: Sequence[Problem]) -> LinearProbe:
    """Train a stack of problems by full passes."""
    moments = layer_moments(data.train, layers)
    probe = LinearProbe(6, data.classes.tolist(), layers, tolerance=1e-5, problems=problems, moments=moments)
    trainer = build_trainer({"max_epochs": 200, "accelerator": "cpu", "limit_val_batches": 0}, None, (), None)
    trainer.fit(probe, datamodule=ActivationDataModule(data, layers))
    return probe


def test_penalties_stacked_on_one_layer_equal_each_alone(tmp_path: Path) -> None:
    tokens = make_tokens([8] * 60)
    data = sides(
        make_store(tmp_path / "s", [positional(tokens, 6, s, seed) for seed, s in enumerate((0.5, 1))], tokens)
    )
    penalties = [(0, Penalty(0.0, 1e-2)), (1, Penalty(0.0, 1e-3)), (0, Penalty(0.0, 1e-3)), (1, Penalty(1e-2, 1e-3))]
    stack = [Problem(f"p{i}", layer, penalty) for i, (layer, penalty) in enumerate(penalties)]
    together = solve(data, [0, 1], stack).rule
    assert isinstance(together, FullPasses)
    for i, problem in enumerate(stack):
        rule = solve(data, [0, 1], [problem]).rule
        assert isinstance(rule, FullPasses)
        alone, solution = rule.solutions[0], together.solutions[i]
        assert solution.converged
        assert solution.n_passes == alone.n_passes
        # The same float32 products in batches of another shape.
        torch.testing.assert_close(solution.point, alone.point, rtol=1e-3, atol=1e-4)


def test_a_start_at_the_solution_needs_one_pass(tmp_path: Path) -> None:
    tokens = make_tokens([8] * 60)
    data = sides(make_store(tmp_path / "s", [positional(tokens, 6, 0.5)], tokens))
    start, passes = None, []
    for _ in range(2):
        probe = solve(data, [0], [Problem("p", 0, Penalty(0.0, 1e-2), start)])
        start = probe.weight[0].clone()
        assert isinstance(probe.rule, FullPasses)
        passes.append(probe.rule.solutions[0].n_passes)
        assert torch.equal(probe.rule.solutions[0].point, probe.scaled_weight.data[0])
        assert probe.rule.solutions[0].converged
        assert math.isfinite(probe.rule.first_objectives[0])
    assert passes[0] > 3
    assert passes[1] == 1
