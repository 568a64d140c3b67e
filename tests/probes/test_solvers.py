from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from probing.probes import solvers
from probing.probes.solvers import Evaluation, Penalty, Preconditioner, Solution, lbfgs
from synthetic import objective, optimum

pytestmark = pytest.mark.numeric


def problem(
    seed: int, n: int = 150, d: int = 6, n_classes: int = 4, scales: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return features and labels of a softmax model, in float64."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((n, d)) + generator.standard_normal(d)
    if scales is not None:
        x = x * scales
    logits = x / x.std(0) @ generator.standard_normal((d, n_classes))
    return x, (logits + generator.gumbel(size=logits.shape)).argmax(1)


def evaluate(point: torch.Tensor, x: NDArray[Any], y: NDArray[Any]) -> Evaluation:
    """Evaluate the data term in float64 by numpy, independently of `probing.probes.objective`."""
    weight = point.double().numpy()
    value, gradient = objective(weight, x, y, 0, 0)
    logits = x @ weight.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    covariance = np.diag(p.sum(0)) - p.T @ p
    return Evaluation(value, torch.from_numpy(gradient).float(), torch.from_numpy(covariance / len(y)).float())


def preconditioner_of(x: NDArray[Any]) -> Preconditioner:
    return Preconditioner(torch.from_numpy(x.T @ x / len(x)))


def solve(
    x: NDArray[Any],
    y: NDArray[Any],
    n_classes: int,
    penalty: Penalty,
    tolerance: float = 1e-6,
    max_passes: int = 500,
    preconditioner: Preconditioner | None = None,
    start: torch.Tensor | None = None,
) -> tuple[Solution, list[tuple[torch.Tensor, torch.Tensor]]]:
    """Drive `lbfgs` and return its solution and all points it asked for with their gradients."""
    start = torch.zeros(n_classes, x.shape[1]) if start is None else start
    solver = lbfgs(start, penalty, preconditioner or preconditioner_of(x), tolerance)
    point, visited = next(solver), []
    try:
        for _ in range(max_passes):
            here = evaluate(point, x, y)
            visited.append((point, here.gradient))
            point = solver.send(here)
        solver.send(None)
    except StopIteration as stop:
        return stop.value, visited
    raise AssertionError("the solver went on without an evaluation")


def test_curvature_is_wanted_at_points_that_are_kept_and_not_where_a_step_was_too_long() -> None:
    x, y = problem(0)
    offered: list[tuple[Evaluation, int]] = []

    def wants(here: Evaluation, gap: float, n_passes: int) -> bool:
        offered.append((here, n_passes))
        return len(offered) == 2

    # With so small a curvature, the first steps are far too long.
    steep = Preconditioner(torch.from_numpy(x.T @ x / len(x)) * 1e-3)
    penalty = Penalty(0.0, 1e-2)
    solver = lbfgs(torch.zeros(4, x.shape[1]), penalty, steep, 1e-6, wants_curvature=wants)
    point, points, values = next(solver), [], []
    while len(offered) < 2:
        here = evaluate(point, x, y)
        points.append(point)
        values.append(here.value + penalty(point))
        point = solver.send(here)
    assert offered[1][1] == len(points) > 3  # some steps were too long
    assert torch.equal(point, points[-1])
    assert values[-1] == min(values)
    asked = point
    point = solver.send(evaluate(point, x, y))
    assert not torch.equal(point, asked)
    assert solver.send(evaluate(point, x, y)) is not None


@pytest.mark.parametrize("l1", [0.0, 3e-3])
def test_with_many_classes_ever_fewer_points_have_a_preconditioner_of_their_own(
    l1: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = problem(0)
    penalty = Penalty(l1, 1e-3)
    usual, points = solve(x, y, 4, penalty)
    factorised: list[int] = []

    class Counted(Preconditioner):
        def at(self, class_covariance: torch.Tensor, l2: float) -> Callable[[torch.Tensor], torch.Tensor]:
            factorised.append(len(class_covariance))
            return super().at(class_covariance, l2)

    monkeypatch.setattr(solvers, "MANY", 3)
    found, visited = solve(x, y, 4, penalty, preconditioner=Counted(torch.from_numpy(x.T @ x / len(x))))
    assert found.converged
    assert found.objective == pytest.approx(usual.objective, abs=1e-6)
    assert 2 <= len(factorised) <= 1 + math.log2(len(visited))
    assert len(visited) <= 1.5 * len(points)


# --- l2 alone ---


@pytest.mark.parametrize("l2", [1e-4, 1e-2])
def test_the_minimum_is_that_of_scikit_learn(l2: float) -> None:
    x, y = problem(0)
    x /= x.std(0)
    solution, _ = solve(x, y, 4, Penalty(0.0, l2), tolerance=1e-7)
    reference = LogisticRegression(fit_intercept=False, C=1 / (2 * len(y) * l2), tol=1e-10, max_iter=10_000).fit(x, y)
    point = solution.point.double().numpy()
    assert solution.converged
    np.testing.assert_array_equal((x @ point.T).argmax(1), reference.predict(x))
    value, gradient = objective(point, x, y, 0, l2)
    best = objective(reference.coef_, x, y, 0, l2)[0]
    # The tolerance bounds the distance in the objective; scikit-learn's own error is below 1e-9.
    assert -1e-9 <= value - best <= 1e-7 + 1e-9
    # At the tolerance |gradient|^2 = 4 l2 gap.
    assert np.linalg.norm(gradient) <= math.sqrt(4 * l2 * 1e-7) + 1e-6
    # The value that the solver reports differs by the rounding of float32 weights.
    assert solution.objective == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("l1", [0.0, 3e-3])
@pytest.mark.parametrize("seed", range(6))
def test_the_gap_bounds_the_distance_to_the_minimum_at_every_point(seed: int, l1: float) -> None:
    l2 = 10.0 ** np.random.default_rng(seed).uniform(-4, -1)
    x, y = problem(seed, n=60)
    penalty = Penalty(l1, l2)
    best = objective(optimum(x, y, 4, l1, l2), x, y, l1, l2)[0]
    solution, visited = solve(x, y, 4, penalty)
    assert len(visited) > 3
    for point, gradient in visited:
        distance = objective(point.double().numpy(), x, y, l1, l2)[0] - best
        # Gradients in float32 have errors near 1e-7, and the gap's slope in them is at most |U| + |G| / l2.
        assert penalty.optimality_gap(point, gradient) >= distance - 1e-7
    assert solution.converged
    assert solution.objective - best <= solution.optimality_gap + 1e-6 <= 2e-6


def test_every_term_of_the_gap_is_at_least_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    u, g = torch.randn(2, 10_000, generator=generator, dtype=torch.float64)
    u[:2000] = 0
    for l1, l2 in ((0.0, 1e-3), (0.5, 1e-3), (1.0, 10.0)):
        terms = [Penalty(l1, l2).optimality_gap(a, b) for a, b in zip(u[:4000], g[:4000], strict=True)]
        # Terms of up to 1e4 cancel in float64.
        assert min(terms) >= -1e-11


def test_without_l1_the_gap_is_the_bound_of_strong_convexity() -> None:
    u, g = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = float((g + 2 * 0.1 * u).square().sum() / (4 * 0.1))
    assert Penalty(0.0, 0.1).optimality_gap(u, g) == pytest.approx(expected, rel=1e-12)


def test_the_subgradient_is_the_shortest_of_all() -> None:
    generator = torch.Generator().manual_seed(0)
    point, gradient = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    point[:25] = 0
    penalty = Penalty(0.7, 0.1)
    found = penalty.subgradient(point, gradient)
    signs = torch.linspace(-1, 1, 2001, dtype=torch.float64)[:, None]
    choices = (gradient + 0.2 * point) + 0.7 * torch.where(point == 0, signs, point.sign())
    shortest = choices.gather(0, choices.abs().argmin(0, keepdim=True)).squeeze(0)
    torch.testing.assert_close(found, shortest, rtol=0, atol=0.7 / 1000)  # the grid's step


# --- l1 ---


@pytest.mark.parametrize("seed", range(3))
def test_with_l1_the_minimum_is_that_of_proximal_gradients(seed: int) -> None:
    l1, l2 = 0.02, 1e-3
    x, y = problem(seed, d=10)
    x /= x.std(0)
    reference = optimum(x, y, 4, l1, l2)
    solution, _ = solve(x, y, 4, Penalty(l1, l2), tolerance=1e-7)
    point = solution.point.double().numpy()
    assert 0 < (reference != 0).sum() < reference.size
    # A weight that is about to leave 0 may have done so in one and not in the other.
    assert np.abs(np.where((point == 0) != (reference == 0), point - reference, 0)).max() < 1e-3
    assert 0 < (point == 0).sum() < point.size
    # By strong convexity |U - U*|^2 <= gap / l2 = 1e-4; in practice much nearer.
    np.testing.assert_allclose(point, reference, atol=1e-2)
    assert objective(point, x, y, l1, l2)[0] - objective(reference, x, y, l1, l2)[0] <= 1e-7


def test_a_large_l1_leaves_nothing_and_says_so_at_once() -> None:
    x, y = problem(0)
    solution, _ = solve(x, y, 4, Penalty(100.0, 1e-3))
    assert not solution.point.any()
    assert solution.converged
    assert solution.n_passes == 1
    assert solution.optimality_gap == 0


# --- the path ---


def test_problems_solved_side_by_side_equal_each_alone() -> None:
    data = [problem(seed) for seed in range(3)]
    penalties = [Penalty(0.0, 1e-3), Penalty(0.01, 1e-3), Penalty(0.0, 1e-2)]
    alone = [solve(x, y, 4, penalty)[0] for (x, y), penalty in zip(data, penalties, strict=True)]
    solvers = {
        i: lbfgs(torch.zeros(4, 6), penalty, preconditioner_of(data[i][0]), 1e-6) for i, penalty in enumerate(penalties)
    }
    points, together = {i: next(solver) for i, solver in solvers.items()}, {}
    while solvers:
        for i, solver in list(solvers.items()):
            try:
                points[i] = solver.send(evaluate(points[i], *data[i]))
            except StopIteration as stop:
                together[i] = stop.value
                del solvers[i]
    for i, solution in enumerate(alone):
        assert torch.equal(solution.point, together[i].point)
        assert solution.n_passes == together[i].n_passes


def test_solutions_count_their_passes() -> None:
    x, y = problem(0)
    solution, visited = solve(x, y, 4, Penalty(0.0, 1e-3))
    assert solution.n_passes == len(visited)


@pytest.mark.parametrize("passes", [1, 2, 5])
def test_when_passes_run_out_the_solution_says_that_it_is_not_converged(passes: int) -> None:
    x, y = problem(0)
    penalty = Penalty(0.0, 1e-3)
    solution, visited = solve(x, y, 4, penalty, max_passes=passes)
    best = objective(optimum(x, y, 4, 0, 1e-3), x, y, 0, 1e-3)[0]
    assert not solution.converged
    assert solution.n_passes == passes
    assert any(torch.equal(solution.point, point) for point, _ in visited)
    value = objective(solution.point.double().numpy(), x, y, 0, 1e-3)[0]
    assert solution.objective == pytest.approx(value, abs=1e-6)  # float32 weights
    assert solution.optimality_gap > value - best > 1e-6


def test_without_any_pass_nothing_is_known() -> None:
    solver = lbfgs(torch.zeros(2, 3), Penalty(0.0, 1.0), Preconditioner(torch.eye(3)), 1e-6)
    next(solver)
    with pytest.raises(StopIteration) as stop:
        solver.send(None)
    solution: Solution = stop.value.value
    assert (solution.objective, solution.optimality_gap, solution.n_passes) == (math.inf, math.inf, 0)
    assert not solution.converged


@pytest.mark.parametrize("l1", [0.0, 5e-3])
def test_the_preconditioner_changes_the_path_but_not_the_minimum(l1: float) -> None:
    x, y = problem(1)
    penalty = Penalty(l1, 1e-3)
    known, steps = solve(x, y, 4, penalty, tolerance=1e-7)
    plain, plain_steps = solve(x, y, 4, penalty, tolerance=1e-7, preconditioner=Preconditioner(torch.eye(6)))
    assert not torch.equal(steps[1][0], plain_steps[1][0])
    assert known.converged
    assert plain.converged
    assert known.objective == pytest.approx(plain.objective, abs=2e-7)  # the two tolerances
    # Each is within sqrt(gap / l2) = 1e-2 of the minimum.
    torch.testing.assert_close(known.point, plain.point, rtol=0, atol=1e-2)


def test_the_start_changes_the_path_but_not_the_minimum() -> None:
    x, y = problem(1)
    cold, _ = solve(x, y, 4, Penalty(0.0, 1e-3), tolerance=1e-7)
    warm, _ = solve(x, y, 4, Penalty(0.0, 1e-3), tolerance=1e-7, start=cold.point)
    other, _ = solve(x, y, 4, Penalty(0.0, 1e-3), tolerance=1e-7, start=torch.full((4, 6), 3.0))
    assert warm.n_passes == 1
    torch.testing.assert_close(other.point, cold.point, rtol=0, atol=1e-2)  # sqrt(gap / l2)


def test_the_kronecker_model_is_inverted() -> None:
    x, _ = problem(2, d=5)
    moment = torch.from_numpy(x.T @ x / len(x))
    p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    covariance = torch.diag(p) - p[:, None] * p
    gradient = torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    found = Preconditioner(moment).at(covariance.float(), 0.05)(gradient)
    hessian = torch.kron(covariance, moment) + 2 * 0.05 * torch.eye(15)
    expected = torch.linalg.solve(hessian, gradient.double().flatten()).view(3, 5)
    # Eigenvectors are kept in float32; the condition number is about 20.
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("l1", [0.0, 1e-3])
def test_badly_scaled_features_converge(l1: float) -> None:
    scales = 10.0 ** np.linspace(-3, 3, 6)
    x, y = problem(3, scales=scales)
    solution, _ = solve(x, y, 4, Penalty(l1, 1e-3), tolerance=1e-4)
    assert solution.converged
    assert solution.n_passes < 200
    value = objective(solution.point.double().numpy(), x, y, l1, 1e-3)[0]
    # Features of 1e3 times float32 weights: logits have errors of 1e-4.
    assert solution.objective == pytest.approx(value, abs=1e-3)
    if not l1:  # proximal gradients would need millions of steps here
        best = objective(_newton(x, y, 1e-3), x, y, 0, 1e-3)[0]
        assert value - best <= 1e-4


def _newton(x: NDArray[Any], y: NDArray[Any], l2: float) -> NDArray[Any]:
    """Return the minimum by full Newton steps with step halving: the scale of a feature does not matter to them."""
    n_classes, d = 4, x.shape[1]
    weight = np.zeros((n_classes, d))
    for _ in range(100):
        value, gradient = objective(weight, x, y, 0, l2)
        p = np.exp(x @ weight.T - (x @ weight.T).max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        curvature = p[:, :, None] * np.eye(n_classes) - p[:, :, None] * p[:, None, :]
        hessian = np.einsum("ncd,ni,nj->cidj", curvature, x, x).reshape(n_classes * d, -1) / len(y)
        step = np.linalg.solve(hessian + 2 * l2 * np.eye(n_classes * d), gradient.ravel()).reshape(n_classes, d)
        size = 1.0
        while objective(weight - size * step, x, y, 0, l2)[0] > value and size > 1e-12:
            size /= 2
        weight = weight - size * step
    return weight


def test_values_that_are_not_finite_end_in_an_honest_solution() -> None:
    x, y = problem(0)
    solver = lbfgs(torch.zeros(4, 6), Penalty(0.0, 1e-3), preconditioner_of(x), 1e-6)
    point = next(solver)
    point = solver.send(evaluate(point, x, y))
    nothing = Evaluation(math.nan, torch.full((4, 6), math.nan), torch.eye(4))
    solution = None
    for _ in range(100):
        try:
            solver.send(nothing)
        except StopIteration as stop:
            solution = stop.value
            break
    assert solution is not None
    assert not solution.converged
    assert not solution.point.any()  # the last point that was known
