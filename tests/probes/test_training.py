"""`LinearProbe` and its training, whatever happens meanwhile."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from sklearn.linear_model import LogisticRegression

from fault_loop import in_two_ranks
from probing.activations.store import ActivationStore
from probing.data.examples import Batch
from probing.data.module import ActivationDataModule, layer_moments, shuffled
from probing.errors import UserError
from probing.probes.linear import Descent, FullPasses, LinearProbe
from probing.probes.solvers import Penalty, Problem
from probing.probes.training import LayerFit, Lbfgs, Training, train_problems
from probing.runtime.processes import launched
from probing.runtime.trainer import build_trainer, check_trainer_options, preserve_algorithms
from probing.statistics.moments import Moments, MomentsAccumulator, PenaltySpace
from synthetic import Data, make_store, make_tokens, objective, optimum, positional, scaled_features, sides

L2 = 1e-3  # what `Data.fit` takes by default


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    """Two layers that tell position, well and badly, with a third of unlike scales; 6 to 12 shards."""
    tokens = make_tokens(np.random.default_rng(0).integers(8, 13, 120).tolist())
    good, bad = positional(tokens, 12, 0.5, 0), positional(tokens, 12, 0.2, 1)
    layers = [good, bad, positional(tokens, 12, 0.5, 2) * 10.0 ** np.linspace(-3, 3, 12)]
    return sides(make_store(tmp_path_factory.mktemp("training") / "store", layers, tokens))


@pytest.fixture(scope="module")
def fits(data: Data) -> list[LayerFit]:
    return data.fit((0, 1, 2))


def distance_to_optimum(data: Data, fit: LayerFit, l1: float = 0.0, l2: float = L2) -> float:
    """Return the fit's objective above its minimum, both computed in float64 by other means."""
    x, y = scaled_features(data.train, fit.layer)
    scaled_weight = fit.weight.double().numpy() * fit.moments.sd.numpy()
    best = optimum(x, y, len(data.classes), l1, l2)
    return objective(scaled_weight, x, y, l1, l2)[0] - objective(best, x, y, l1, l2)[0]


def test_every_layer_ends_within_the_tolerance_of_its_minimum(data: Data, fits: list[LayerFit]) -> None:
    for fit in fits:
        assert fit.converged
        assert fit.optimality_gap <= 1e-5
        # float32 activations and weights: the value is known to 1e-6.
        assert -1e-6 <= distance_to_optimum(data, fit) <= fit.optimality_gap + 1e-6


def test_the_test_accuracy_is_that_of_scikit_learn(data: Data, fits: list[LayerFit]) -> None:
    test = data.test.labels >= 0
    for fit in fits:
        x, y = scaled_features(data.train, fit.layer)
        states = np.concatenate([data.test.store.read(fit.layer, s.index) for s in data.test.store.plan.shards])
        reference = LogisticRegression(fit_intercept=False, C=1 / (2 * len(y) * L2), max_iter=5000).fit(x, y)
        accuracy = reference.score(states[test] / fit.moments.sd.numpy(), data.test.labels[test])
        # One token of 200 whose two best classes are a rounding apart.
        assert fit.metrics["accuracy"] == pytest.approx(accuracy, abs=0.005 + 1e-6)
        assert fit.correct_by_sentence.sum() == round(fit.metrics["accuracy"] * data.test.n_tokens)
    assert fits[0].metrics["accuracy"] > 0.5 > 0.35 > fits[1].metrics["accuracy"]


def test_with_l1_the_layer_ends_within_the_tolerance_too(data: Data) -> None:
    fit = data.fit(l1=5e-3)[0]
    assert fit.converged
    assert (fit.weight == 0).any()
    assert -1e-6 <= distance_to_optimum(data, fit, l1=5e-3) <= fit.optimality_gap + 1e-6 <= 1.1e-5


def test_layers_trained_together_equal_each_alone(data: Data, fits: list[LayerFit]) -> None:
    for fit in fits:
        alone = data.fit((fit.layer,))[0]
        assert alone.n_passes == fit.n_passes
        # The same float32 products in batches of another shape.
        torch.testing.assert_close(alone.weight, fit.weight, rtol=1e-3, atol=1e-4 * float(fit.weight.abs().max()))
        assert alone.metrics == pytest.approx(fit.metrics, abs=1e-4)


def test_moments_are_those_of_training_examples_alone(data: Data, fits: list[LayerFit]) -> None:
    for layer, found in enumerate(layer_moments(data.train, [0, 1, 2])):
        store, kept = data.train.store, data.train.labels >= 0
        states = np.concatenate([store.read(layer, s.index).double() for s in store.plan.shards])[kept]
        assert found.n_tokens == kept.sum()
        np.testing.assert_allclose(found.mean, states.mean(0), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.sd, states.std(0), rtol=1e-6)  # squares in float32
        assert torch.equal(found.sd, fits[layer].moments.sd)


def test_a_second_training_gives_the_same_bits(data: Data, fits: list[LayerFit]) -> None:
    again = data.fit((0, 1, 2))
    assert all(torch.equal(one.weight, other.weight) for one, other in zip(fits, again, strict=True))


def test_half_precision_activations_are_trained_in_single(data: Data, tmp_path: Path, fits: list[LayerFit]) -> None:
    store = data.train.store
    states = torch.cat([store.read(0, s.index) for s in store.plan.shards])
    half = sides(make_store(tmp_path / "half", [states], store.tokens, dtype="float16"))
    fit = half.fit()[0]
    assert fit.converged
    assert fit.weight.dtype == torch.float32
    # float16 keeps three digits of an activation.
    assert fit.metrics["accuracy"] == pytest.approx(fits[0].metrics["accuracy"], abs=0.02)


def test_with_labels_shuffled_within_sentences_accuracy_falls_to_chance(data: Data, fits: list[LayerFit]) -> None:
    chance = shuffled(data, 0)
    assert isinstance(chance, Data)
    fit = chance.fit()[0]
    s, n = len(chance.test.sentences()), chance.test.n_tokens
    # No predictor can expect more than one token a sentence, with a standard error near sqrt(S) / N.
    bound = s / n + 3 * np.sqrt(s) / n
    assert fit.metrics["accuracy"] <= bound < fits[0].metrics["accuracy"]


def test_too_few_passes_are_admitted_with_a_gap_that_still_bounds(data: Data) -> None:
    fit = data.fit(trainer={"max_epochs": 4})[0]
    assert fit.converged is False
    assert fit.n_passes == 4
    assert fit.optimality_gap >= distance_to_optimum(data, fit) > 1e-5


@pytest.mark.parametrize("trainer", [{}, {"precision": "16-true"}])
def test_a_training_that_diverges_is_refused(data: Data, trainer: Any) -> None:
    with pytest.raises(UserError, match=r"`--probe.learning_rate .*e\+30`: the training diverged; lower it"):
        data.fit(solver="adam", learning_rate=1e30, trainer={"max_epochs": 3, **trainer})


def test_no_pass_at_all_is_refused(data: Data) -> None:
    with pytest.raises(UserError, match=r"`--trainer.max_epochs` or `--trainer.max_time` ended.*first pass"):
        data.fit(trainer={"max_epochs": 0})
    with pytest.raises(UserError, match=r"`--trainer.max_time`"):
        data.fit(trainer={"max_time": {"seconds": 0}})


def test_no_pass_at_all_is_refused_for_any_stack(data: Data) -> None:
    penalty = Penalty(0.0, L2)
    training = Training(penalty, Lbfgs(1e-5), trainer={"max_time": {"seconds": 0}})
    problem, moments = Problem("one", 0, penalty), layer_moments(data.train, [0])
    with pytest.raises(UserError, match=r"`--trainer.max_time` ended the training before its first pass"):
        train_problems(data, [0], moments, [problem], training)


@pytest.mark.parametrize("space", ["rms", "raw"])
def test_other_penalty_spaces_have_their_own_minimum(data: Data, fits: list[LayerFit], space: PenaltySpace) -> None:
    fit = data.fit((2,), penalty_space=space, tolerance=1e-4)[0]
    store, kept = data.train.store, data.train.labels >= 0
    states = np.concatenate([store.read(2, s.index).double() for s in store.plan.shards])[kept]
    scale = {"rms": np.sqrt(np.square(states).mean(0)), "raw": np.ones(12)}[space]
    weight = fit.weight.double().numpy() * scale
    value = objective(weight, states / scale, data.train.labels[kept], 0, L2)[0]
    assert fit.converged
    assert fit.objective == pytest.approx(value, abs=1e-4)  # raw: logits of neurons near 1e3 in float32
    if space == "rms":
        best = objective(optimum(states / scale, data.train.labels[kept], len(data.classes), 0, L2),
                         states / scale, data.train.labels[kept], 0, L2)[0]  # fmt: skip
        assert -1e-6 <= value - best <= fit.optimality_gap + 1e-6
    else:
        # The space matters: without division the penalty falls on the smallest neurons alone.
        assert not torch.allclose(fit.weight, fits[2].weight, rtol=0.5)


# --- Adam ---


@pytest.mark.slow
def test_adam_comes_near_the_minimum_of_an_easy_problem_and_says_how_near(data: Data) -> None:
    fit = data.fit(trainer={"max_epochs": 60}, solver="adam", l2=1e-2, learning_rate=0.02, patience=60)[0]
    assert fit.converged is False
    distance = distance_to_optimum(data, fit, l2=1e-2)
    # Not at the minimum: mini-batches are noisy and the best epoch is chosen by validation.
    assert 0 < distance < 0.05
    # The reference of the measurement is itself within 1e-5 of the minimum.
    assert distance - 1e-6 <= fit.optimality_gap <= distance + 1e-5 + 1e-6


def test_adam_that_was_stopped_early_reports_how_far_it_stayed(data: Data) -> None:
    fit = data.fit(trainer={"max_epochs": 1}, solver="adam")[0]
    distance = distance_to_optimum(data, fit)
    assert distance > 0.3
    assert fit.optimality_gap == pytest.approx(distance, abs=2e-5)  # the reference's tolerance, and float32
    assert fit.n_passes == 1


@pytest.mark.slow
@pytest.mark.parametrize("trainer", [{}, {"gradient_clip_val": 0.05}, {"accumulate_grad_batches": 3}])
def test_adam_trains_layers_together_as_it_trains_each_alone(data: Data, trainer: Any) -> None:
    trainer = {"max_epochs": 3, **trainer}
    for fit in data.fit((0, 2), trainer, solver="adam"):
        alone = data.fit((fit.layer,), trainer, solver="adam")[0]
        # The same float32 products in batches of another shape.
        torch.testing.assert_close(alone.weight, fit.weight, rtol=1e-4, atol=1e-5 * float(fit.weight.abs().max()))


def test_adam_without_a_validation_keeps_its_last_weights(data: Data) -> None:
    trainer = {"max_epochs": 2, "check_val_every_n_epoch": 5}
    fit = data.fit(trainer=trainer, solver="adam", learning_rate=0.02)[0]
    assert fit.weight.any()
    assert fit.metrics["accuracy"] > 0.3


def test_the_measuring_of_adam_is_not_cut_short_with_adam(data: Data) -> None:
    fit = data.fit(trainer={"max_epochs": 5, "max_time": {"milliseconds": 1}}, solver="adam")[0]
    assert fit.optimality_gap == pytest.approx(distance_to_optimum(data, fit), abs=2e-5)


def test_the_seed_repeats_adam_and_another_seed_does_not(data: Data) -> None:
    one, same, other = (data.fit(trainer={"max_epochs": 1}, solver="adam", seed=seed)[0].weight for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("solver", ["lbfgs", "adam"])
def test_checkpoints_hold_the_weights_that_are_reported(data: Data, tmp_path: Path, solver: str) -> None:
    trainer = {"enable_checkpointing": True, "max_epochs": 6}
    fit = data.fit(trainer=trainer, solver=solver, folder=str(tmp_path))[0]
    saved = torch.load(tmp_path / "checkpoints" / "probe.ckpt", weights_only=True)["state_dict"]
    assert torch.equal(saved["scaled_weight"][0] * saved["inverse_scale"][0], fit.weight)


@pytest.mark.parametrize("solver", ["lbfgs", "adam"])
def test_nothing_is_written_unless_asked_for(
    data: Data, tmp_path: Path, solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data.fit(trainer={"max_epochs": 2}, solver=solver, folder=str(tmp_path))
    assert not list(tmp_path.iterdir())


# --- the Trainer's options ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 3}, r"`--trainer.patience` is not an argument of Lightning's Trainer"),
        ({"precision": "16-mixed"}, r"`--trainer.precision` cannot be used with the solver lbfgs"),
        ({"logger": True}, r"`--trainer.logger true`: expected some of csv"),
        ({"max_epochs": -7}, r"`--trainer.max_epochs -7` is out of range: expected at least -1"),
        ({"max_epochs": 0}, r"`--trainer.max_epochs 0` allows no pass"),
        ({"max_time": "00:00:00:00"}, r"`--trainer.max_time 00:00:00:00` leaves no time to train"),
        ({"benchmark": "often"}, r"`--trainer.benchmark often`: expected true or false"),
        ({"max_epochs": "many"}, r"`--trainer.max_epochs many`: expected a whole number"),
        ({"max_epochs": 1.5}, r"`--trainer.max_epochs 1.5`: expected a whole number"),
        ({"accelerator": "abacus"}, r"Lightning refuses it.*abacus"),
        ({"max_time": "soon"}, r"Lightning refuses it.*soon"),
        ({"strategy": "ddp_spawn", "devices": 2}, r"`--trainer.strategy ddp_spawn`: expected auto or ddp"),
        ({"accelerator": "cpu", "devices": 9999}, r"`--trainer.devices 9999`: this machine has \d+ usable cores"),
    ],
)
def test_options_that_cannot_be_met_are_refused_before_any_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_trainer_options(options, "lbfgs")


def test_all_problems_are_named_at_once_with_what_can_be_set() -> None:
    options = {"patience": 3, "max_steps": 5, "max_epochs": "many"}
    with pytest.raises(UserError) as error:
        check_trainer_options(options, "adam")
    assert all(f"--trainer.{name}" in str(error.value) for name in options)
    assert "the arguments that can be set are accelerator, " in str(error.value)


def test_a_share_of_the_batches_is_refused_since_their_number_is_not_known() -> None:
    check_trainer_options({"limit_train_batches": 3}, "adam")
    check_trainer_options({"limit_train_batches": 1.0}, "adam")
    with pytest.raises(UserError, match=r"`--trainer.limit_train_batches 0.5`: expected a whole number"):
        check_trainer_options({"limit_train_batches": 0.5}, "adam")


@pytest.mark.parametrize(
    ("options", "solver"),
    [
        ({}, "lbfgs"),
        ({"max_epochs": 5, "devices": 1, "max_time": "00:01:00:00", "deterministic": True}, "lbfgs"),
        ({"accelerator": "cpu", "devices": 2, "strategy": "ddp"}, "lbfgs"),
        ({"precision": "bf16-mixed", "gradient_clip_val": 0.5, "accumulate_grad_batches": 2}, "adam"),
    ],
)
def test_options_that_can_be_met_are_accepted(options: Any, solver: str) -> None:
    with preserve_algorithms():
        check_trainer_options(options, solver)


# --- several processes ---


def test_what_is_at_odds_with_torchrun_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"`--trainer.devices 1`: torchrun or srun started 2 processes per host on 1"):
        check_trainer_options({"accelerator": "cpu", "devices": 1}, "lbfgs")


def found_by(data: Data, solver: str, **trainer: Any) -> list[dict[str, Any]]:
    """Return what a solver finds on two layers, as plain values."""
    trainer = {"accelerator": "cpu", "max_epochs": 1000 if solver == "lbfgs" else 5, **trainer}
    return [
        {"metrics": f.metrics, "correct": f.correct_by_sentence.tolist(), "gap": f.optimality_gap,
         "weight": f.weight.tolist(), "passes": f.n_passes}
        for f in data.fit((0, 1), trainer, solver=solver)
    ]  # fmt: skip


def found_in_rank(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what both solvers find on activations that other ranks read, too."""
    data = sides(ActivationStore(folder))
    return {solver: found_by(data, solver, **launched()) for solver in ("lbfgs", "adam")}


@pytest.mark.slow
def test_two_ranks_train_what_one_trains(data: Data) -> None:
    store = data.train.store
    assert isinstance(store, ActivationStore)
    by_two, by_second = (rank.found for rank in in_two_ranks(found_in_rank, store.folder))
    assert by_second == by_two
    for one, two in zip(found_by(data, "lbfgs", devices=1), by_two["lbfgs"], strict=True):
        # The same sums in another order.
        assert two["correct"] == one["correct"]
        assert two["passes"] == one["passes"]
        assert two["metrics"] == pytest.approx(one["metrics"], abs=1e-5)
        np.testing.assert_allclose(two["weight"], one["weight"], atol=1e-3 * np.abs(one["weight"]).max())
    for one, two in zip(found_by(data, "adam", devices=1), by_two["adam"], strict=True):
        # Every batch is shared, but for a token where it has an odd number.
        assert two["metrics"]["accuracy"] == pytest.approx(one["metrics"]["accuracy"], abs=0.05)
        assert two["gap"] == pytest.approx(one["gap"], rel=0.1)
        assert two["gap"] > 1e-3


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
