"""The inverse Hessian of L-BFGS is that of the two-loop recursion, read pair by pair."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from probing.probes.solvers import LONGEST, History

pytestmark = pytest.mark.numeric


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
