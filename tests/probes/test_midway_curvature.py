"""Curvature that is measured while a probe is trained: when it is, and that the probe ends at the same minimum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch

from probing.probes import objective as midway_curvature
from probing.probes.objective import JUDGED_BY, ClassCurvature, MidwayCurvature, Visited, passes_left
from synthetic import LIGHTNING_WARNINGS, Data, make_store, make_tokens, objective, optimum, positional, scaled_features
from synthetic import sides as sides_of

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]
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
    assert passes_left(halved, halved[-1].gap / 2**7) == pytest.approx(7)
    # Where every other pass was a step that was too long, twice as many are left.
    slower = [one._replace(n_passes=2 * one.n_passes) for one in halved]
    assert passes_left(slower, halved[-1].gap / 2**7) == pytest.approx(14)
    assert passes_left(points([1.0] * 20), 1e-3) == math.inf
    assert math.isnan(passes_left(halved[:JUDGED_BY], 1e-9))
    assert math.isnan(passes_left(points([math.inf, *(one.gap for one in halved[:JUDGED_BY])]), 1e-9))


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
