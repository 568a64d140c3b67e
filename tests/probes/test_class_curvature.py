"""The curvature class by class: against the Hessian, in part and whole, and when tokens are drawn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from probing.probes.objective import MOST_BYTES, ClassCurvature, ClassCurvatureAccumulator, _inverse, fits, steps
from probing.statistics.moments import Moments, Scaling

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
