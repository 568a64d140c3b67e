"""Curvature: class by class, on the way of a training, and by the history of L-BFGS."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from probing.probes import solvers as midway_curvature
from probing.probes.solvers import (
    JUDGED_BY,
    LONGEST,
    MOST_BYTES,
    ClassCurvature,
    ClassCurvatureAccumulator,
    History,
    MidwayCurvature,
    Visited,
    _inverse,
    fits,
    remaining_passes,
    steps,
)
from probing.statistics.moments import Moments, Scaling
from synthetic import Data, make_store, make_tokens, objective, optimum, positional, scaled_features
from synthetic import sides as sides_of

pytestmark = pytest.mark.numeric

N, K, D, L2 = 400, 4, 6, 1e-2


def example(seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(N, D, generator=generator) + 0.5, torch.randn(K, D, generator=generator)


def hessian_blocks(states: Tensor, weight: Tensor) -> Tensor:
    """Return the blocks of classes of the mean cross-entropy's Hessian, by automatic differentiation in float64."""
    x = states.double()
    labels = torch.zeros(len(x), dtype=torch.int64)  # the Hessian does not depend on them
    whole: Tensor = torch.autograd.functional.hessian(
        lambda w: torch.nn.functional.cross_entropy(x @ w.T, labels), weight.double()
    )
    return torch.stack([whole[k, :, k] for k in range(K)])


def accumulated(states: Tensor, weight: Tensor, threshold: float, seed: int = 0, parts: int = 3) -> Tensor:
    sums = ClassCurvatureAccumulator(weight, torch.full((K,), threshold), seed)
    for part in states.chunk(parts):
        sums.update(part)
    return sums.blocks / len(states)


def test_all_tokens_give_the_blocks_of_the_hessian() -> None:
    states, weight = example()
    expected = hessian_blocks(states, weight).float()
    torch.testing.assert_close(accumulated(states, weight, 0.0), expected, rtol=1e-4, atol=1e-5)


def test_drawn_tokens_give_them_on_average_and_fewer_tokens_stand_for_all() -> None:
    states, weight = example()
    expected = hessian_blocks(states, weight).float()
    draws = torch.stack([accumulated(states, weight, 0.2, seed) for seed in range(400)])
    assert (draws[0] != draws[1]).any()
    error = draws.std(0) / 400**0.5
    assert ((draws.mean(0) - expected).abs() < 5 * error + 1e-6).all()


@pytest.mark.parametrize("least", [1e-3, -1e-9])
def test_a_block_whose_rounding_exceeds_the_penalty_has_an_inverse_like_any_other(least: float) -> None:
    axes = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(0)).double()).Q
    values = torch.linspace(0.5, 1, D).double()
    values[0] = least
    block, l2 = (axes * values) @ axes.T, 1e-12
    expected = (axes / (values + 2 * l2)) @ axes.T
    torch.testing.assert_close(_inverse(block, l2), expected, rtol=1e-6, atol=1e-6 / abs(least))


def scaling(sd: Tensor) -> Scaling:
    """Return the scaling of uncorrelated neurons with mean 0 and these standard deviations."""
    return Scaling(Moments(N, torch.zeros(D).double(), sd.double(), sd.double().square().diag()), "sd")


def curvature(states: Tensor, weight: Tensor, sd: Tensor) -> ClassCurvature:
    sums = ClassCurvatureAccumulator(weight, torch.zeros(K), 0)
    sums.update(states)
    return sums.result(scaling(sd), len(states), L2)


def test_a_step_solves_the_blocks_of_each_class_where_weights_are_penalised() -> None:
    states, weight = example()
    scale, gradient = torch.linspace(0.5, 2, D), torch.randn(K, D, generator=torch.Generator().manual_seed(1))
    found = curvature(states, weight, 1 / scale).at(torch.empty(0), L2)(gradient)
    blocks = hessian_blocks(states * scale, weight / scale) + 2 * L2 * torch.eye(D)
    step = torch.linalg.solve(blocks, gradient.double()[:, :, None]).squeeze(2)
    torch.testing.assert_close(found, (step - step.mean(0)).float(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("removed", [[2], [0, 5]])
def test_without_some_neurons_it_is_that_of_the_others(removed: list[int]) -> None:
    states, weight = example()
    rest = [i for i in range(D) if i not in removed]
    neurons = torch.ones(D)
    neurons[removed] = 0
    gradient = torch.randn(K, D, generator=torch.Generator().manual_seed(1))
    found = curvature(states, weight, torch.ones(D)).within(neurons).at(torch.empty(0), L2)(gradient)
    blocks = hessian_blocks(states, weight)[:, rest][:, :, rest] + 2 * L2 * torch.eye(len(rest))
    step = torch.linalg.solve(blocks, gradient.double()[:, rest, None]).squeeze(2)
    torch.testing.assert_close(found[:, rest], (step - step.mean(0)).float(), rtol=1e-3, atol=1e-4)
    assert not found[:, removed].any()


def test_steps_of_several_problems_are_those_of_each_alone() -> None:
    states, weight = example()
    generator = torch.Generator().manual_seed(2)
    one, other = (curvature(states, times * weight, torch.ones(D)) for times in (1, 2))
    without = one.within((torch.arange(D) != 3).float())
    problems = [one, without, other, one]
    gradients = [torch.randn(K, D, generator=generator) for _ in problems]
    for problem, gradient, step in zip(problems, gradients, steps(problems, gradients), strict=True):
        torch.testing.assert_close(step, problem.at(torch.empty(0), L2)(gradient), rtol=1e-4, atol=1e-5)
    assert not steps([], [])


def test_what_others_predict_of_a_neuron_is_read_off_them() -> None:
    states, weight = example()
    states[:, 2] = states[:, 0] - 2 * states[:, 4]
    sums = ClassCurvatureAccumulator(weight, torch.zeros(K), 0)
    sums.update(states)
    neurons = torch.ones(D)
    neurons[2] = 0
    start = sums.result(scaling(torch.ones(D)), N, 1e-7).within(neurons).without(weight)
    logits = states @ weight.T
    torch.testing.assert_close(states @ start.T, logits - logits.mean(1, keepdim=True), rtol=0, atol=0.02)


def test_of_very_many_classes_and_neurons_the_blocks_are_not_kept() -> None:
    assert fits(65, 384)
    assert fits(50, 1024)
    assert not fits(1000, 1024)
    assert MOST_BYTES < 4 * 1000 * 1024**2


SHAPE = torch.Size((3, 4))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let curvature be measured on few tokens, as soon as it can be judged, and note of which problems it is."""
    found: list[int] = []
    original = MidwayCurvature.end

    def noted(self: MidwayCurvature, problem: int, *args: object) -> ClassCurvature:
        found.append(problem)
        return original(self, problem, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(MidwayCurvature, "end", noted)
    for name, value in {"LEAST_TOKENS": 0, "NEAR": 10.0, "FAR": 1.0, "AFTER": -math.inf}.items():
        monkeypatch.setattr(midway_curvature, name, value)
    return found


@pytest.fixture
def data(tmp_path: Path) -> Data:
    """Two layers in which a class's tokens are elsewhere than the others', so that no Kronecker product fits well."""
    tokens = make_tokens(np.random.default_rng(0).integers(8, 13, 120).tolist())
    layers = [np.maximum(positional(tokens, 12, 1.0, seed), 0).astype(np.float32) for seed in (0, 1)]
    return sides_of(make_store(tmp_path / "store", layers, tokens, shard_tokens=400))


def points(gaps: Iterable[float]) -> list[Visited]:
    """Return points with these gaps, each a pass after the last one, of a probe that is nearly certain."""
    return [Visited(gap, i, 0.1) for i, gap in enumerate(gaps, 1)]


def test_the_passes_that_are_left_follow_from_those_behind() -> None:
    halved = points(0.5**i for i in range(JUDGED_BY + 3))
    assert remaining_passes(halved, halved[-1].gap / 2**7) == pytest.approx(7)
    # Where every other pass was a step that was too long, twice as many are left.
    slower = [one._replace(n_passes=2 * one.n_passes) for one in halved]
    assert remaining_passes(slower, halved[-1].gap / 2**7) == pytest.approx(14)
    assert remaining_passes(points([1.0] * 20), 1e-3) == math.inf
    assert math.isnan(remaining_passes(halved[:JUDGED_BY], 1e-9))
    assert math.isnan(remaining_passes(points([math.inf, *(one.gap for one in halved[:JUDGED_BY])]), 1e-9))


def test_the_probe_ends_at_the_same_minimum_after_fewer_passes(
    data: Data, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as context:
        context.setattr(midway_curvature, "AFTER", math.inf)
        without = data.fit((0, 1), tolerance=1e-7)
    assert not measured
    fits = data.fit((0, 1), tolerance=1e-7)
    assert sorted(measured) == [0, 1]
    for fit, slow in zip(fits, without, strict=True):
        assert fit.converged
        x, y = scaled_features(data.train, fit.layer)
        best = objective(optimum(x, y, len(data.classes), 0, 1e-3), x, y, 0, 1e-3)[0]
        scaled = fit.weight.double().numpy() * fit.moments.sd.numpy()
        assert -1e-6 <= objective(scaled, x, y, 0, 1e-3)[0] - best <= 1e-6
        assert fit.n_passes < slow.n_passes


def test_with_l1_none_is_measured(data: Data, measured: list[int]) -> None:
    assert data.fit((0, 1), l1=5e-3)[0].converged
    assert not measured


def test_a_layer_gets_the_same_curvature_alone_and_among_others(data: Data, measured: list[int]) -> None:
    both, (alone,) = data.fit((0, 1)), data.fit((1,))
    assert alone.n_passes == both[1].n_passes
    torch.testing.assert_close(alone.weight, both[1].weight, rtol=1e-3, atol=1e-4 * float(alone.weight.abs().max()))


@pytest.mark.parametrize(
    ("n_tokens", "gaps", "is_asked"),
    [
        (10**6, [0.02 * 0.9**i for i in range(9)], True),  # slow
        (10**6, [0.02 * 0.1**i for i in range(9)], False),  # fast
        (10**6, [2 * 0.9**i for i in range(9)], False),  # still far
        (4000, [0.02 * 0.9**i for i in range(9)], False),  # passes take no time
        (10**6, [2e-5 * 0.9**i for i in range(9)], False),  # nearly there
    ],
)
def test_it_is_measured_where_many_passes_are_left(n_tokens: int, gaps: list[float], is_asked: bool) -> None:
    found = MidwayCurvature(1, 1e-6)
    assert [found.asks(0, point, SHAPE, n_tokens) for point in points(gaps)][-1] is is_asked


def test_where_a_probe_guesses_it_is_measured_sooner() -> None:
    far = [Visited(1.5 * 0.95**i, i, 0.9) for i in range(9)]
    assert MidwayCurvature(1, 1e-6).asks(0, far[-1], SHAPE, 10**6) is False  # by one point, nothing is known

    def is_asked(points: list[Visited]) -> bool:
        found = MidwayCurvature(1, 1e-6)
        return [found.asks(0, point, SHAPE, 10**6) for point in points][-1]

    assert is_asked(far)
    assert not is_asked([one._replace(impurity=0.5) for one in far])  # between few classes
    assert not is_asked([one._replace(impurity=0.9 + 0.01 * i) for i, one in enumerate(far)])  # still changing
    assert not is_asked([one._replace(gap=10 * one.gap) for one in far])  # still far


def test_of_a_wide_layer_on_few_tokens_it_would_take_longer_than_the_passes() -> None:
    for width, is_asked in ((64, True), (4096, False)):
        found, gaps = MidwayCurvature(1, 1e-6), (0.02 * 0.8**i for i in range(9))
        asked = [found.asks(0, point, torch.Size((2, width)), 10_000) for point in points(gaps)]
        assert asked[-1] is is_asked


def test_no_more_is_held_than_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(midway_curvature, "MOST_BYTES_OF_SUMS", 2 * 4 * 3 * 4**2)
    found, asked = MidwayCurvature(3, 1e-6), []
    for point in points(0.02 * 0.9**i for i in range(9)):
        for problem in range(3):
            if problem not in asked and found.asks(problem, point, SHAPE, 10**6):
                asked.append(problem)
                found.begin(problem, torch.zeros(SHAPE), torch.eye(3), 10**6)
    assert asked == [0, 1]
    found.solved(1)
    assert found.asks(2, Visited(0.005, 10, 0.1), SHAPE, 10**6)


def two_loops(
    steps: list[Tensor], changes: list[Tensor], gradient: Tensor, initial: Callable[[Tensor], Tensor]
) -> Tensor:
    """Nocedal & Wright 2006, algorithm 7.4, in the arithmetic of its arguments."""
    result, weights = gradient.clone(), []
    for step, change in zip(reversed(steps), reversed(changes), strict=True):
        weights.append((step * result).sum() / (step * change).sum())
        result -= weights[-1] * change
    last = (steps[-1] * changes[-1]).sum() / (changes[-1] * initial(changes[-1])).sum()
    result = initial(result) * last
    for step, change, weight in zip(steps, changes, reversed(weights), strict=True):
        result += (weight - (change * result).sum() / (step * change).sum()) * step
    return result


def walk(n: int, made: bool, seed: int = 0) -> tuple[History, list[Tensor], list[Tensor], Tensor]:
    """Visit points on a quadratic; return the history, what was visited and the diagonal that preconditions."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(12, 12, generator=generator)
    hessian, diagonal = root @ root.T + torch.eye(12), torch.rand(3, 4, generator=generator) + 0.5
    points = [torch.randn(3, 4, generator=generator) for _ in range(n)]
    gradients = [(hessian @ point.flatten()).view(3, 4) for point in points]
    history = History()
    for point, gradient in zip(points, gradients, strict=True):
        history.visit(point, gradient, diagonal * gradient if made else None)
    return history, points, gradients, diagonal


def differences(visited: list[Tensor]) -> list[Tensor]:
    return [(after - before).double() for before, after in itertools.pairwise(visited)]


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("n", [1, 2, 3, LONGEST + 1, LONGEST + 2, 2 * LONGEST + 7])
def test_the_result_is_that_of_two_loops_over_the_last_pairs(n: int, made: bool) -> None:
    history, points, gradients, diagonal = walk(n, made)
    found = history.inverse_hessian(gradients[-1], lambda vector: diagonal * vector)
    expected = diagonal * gradients[-1]
    if n > 1:
        steps, changes = differences(points)[-LONGEST:], differences(gradients)[-LONGEST:]
        expected = two_loops(steps, changes, gradients[-1].double(), lambda vector: diagonal * vector).float()
    assert_close(found, expected, rtol=2e-3, atol=2e-3 * float(expected.abs().max()))


def test_in_a_subspace_pairs_without_curvature_there_are_left_out() -> None:
    # With this seed it is the last pair, by which the preconditioner is scaled.
    history, points, gradients, diagonal = walk(9, made=False, seed=23)
    free = torch.zeros(3, 4)
    free[2] = 1.0

    def within(vector: Tensor) -> Tensor:
        return free * diagonal * vector

    found = history.inverse_hessian(free * gradients[-1], within, free)
    cut = [(free * s, free * c) for s, c in zip(differences(points), differences(gradients), strict=True)]
    curved = [(step, change) for step, change in cut if (step * change).sum() > 0]
    assert 0 < len(curved) < len(cut)
    steps, changes = [step for step, _ in curved], [change for _, change in curved]
    expected = two_loops(steps, changes, (free * gradients[-1]).double(), within).float()
    assert_close(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))
    assert not found[free == 0].any()


def test_a_step_along_which_rounding_left_no_curvature_is_passed_over() -> None:
    history, points, gradients, diagonal = walk(4, made=True)
    before = history.inverse_hessian(gradients[-1], lambda vector: diagonal * vector)
    history.visit(points[-1], gradients[-1], diagonal * gradients[-1])
    assert torch.equal(history.inverse_hessian(gradients[-1], lambda vector: diagonal * vector), before)


def test_changes_whose_products_are_zero_in_float32_still_scale_the_preconditioner() -> None:
    points, history = [torch.zeros(3, 4), torch.ones(3, 4)], History()
    gradients = [torch.zeros(3, 4), torch.full((3, 4), 1e-24)]
    for point, gradient in zip(points, gradients, strict=True):
        history.visit(point, gradient, None)
    found = history.inverse_hessian(gradients[-1], lambda vector: 2 * vector)
    assert_close(found, points[1])  # the Hessian is 1e-24 times the identity


def test_a_constant_preconditioner_is_applied_to_each_gradient_only_once() -> None:
    """The direction is that of the two-loop recursion with the map applied wherever that says."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(12, 12, generator=generator)
    inverse, hessian = root @ root.T + torch.eye(12), torch.diag(torch.rand(12, generator=generator) + 0.5)
    once, anew, applied = History(), History(), []

    def initial(vector: Tensor) -> Tensor:
        applied.append(vector)
        return (inverse @ vector.flatten()).view_as(vector)

    for _ in range(6):
        point = torch.randn(3, 4, generator=generator)
        gradient = (hessian @ point.flatten()).view_as(point)
        once.visit(point, gradient, initial(gradient))
        anew.visit(point, gradient, None)
        expected = anew.inverse_hessian(gradient, initial)
        n_applied = len(applied)
        assert_close(once.inverse_hessian(gradient, initial), expected, rtol=1e-4, atol=1e-4)
        assert len(applied) == n_applied


def test_a_preconditioner_that_is_exchanged_on_the_way_acts_as_if_it_had_been_there_from_the_start() -> None:
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(12, 12, generator=generator)
    hessian = factor @ factor.T + torch.eye(12)
    inverse = torch.linalg.inv(hessian + 0.1 * torch.eye(12))

    def later(vector: Tensor) -> Tensor:
        return (inverse @ vector.flatten()).view_as(vector)

    exchanged, throughout = History(), History()
    for i in range(6):
        point = torch.randn(3, 4, generator=generator)
        gradient = (hessian @ point.flatten()).view_as(point)
        exchanged.visit(point, gradient, None if i < 4 else later(gradient))
        throughout.visit(point, gradient, later(gradient))
        if i == 3:
            exchanged.precondition(lambda vectors: [later(vector) for vector in vectors])
    expected = throughout.inverse_hessian(gradient, later)
    assert_close(exchanged.inverse_hessian(gradient, later), expected, rtol=1e-4, atol=1e-4)
