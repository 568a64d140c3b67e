"""Rows whose products are the scatter, however vectors are fed, and nothing below 0 or left over."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.statistics.moments import RunningMean

pytestmark = pytest.mark.numeric

CUTS = [(), (1,), (0, 1, 7, 7, 299), (150, 151, 152)]


def scatter(vectors: Tensor, cuts: tuple[int, ...] = ()) -> tuple[RunningMean, Tensor]:
    """Feed vectors, shape (..., n, d), in batches that end at these and sum the products of what comes back."""
    mean = RunningMean(*vectors.shape[:-2], vectors.shape[-1])
    total = torch.zeros(*vectors.shape[:-2], vectors.shape[-1], vectors.shape[-1], dtype=torch.float64)
    for start, end in itertools.pairwise([0, *cuts, vectors.shape[-2]]):
        deviations = mean.update(vectors[..., start:end, :])
        assert deviations.dtype == vectors.dtype
        total += (deviations.mT @ deviations).double()
    return mean, total


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("cuts", CUTS)
def test_products_of_the_rows_are_numpys_scatter(cuts: tuple[int, ...]) -> None:
    vectors = normal(300, 5) @ normal(5, 5, seed=1) + torch.linspace(0, 9, 300)[:, None]
    mean, found = scatter(vectors, cuts)
    np.testing.assert_allclose(mean.mean, vectors.mean(0), rtol=1e-13)
    np.testing.assert_allclose(found, np.cov(vectors.numpy().T, bias=True) * 300, rtol=1e-11)
    assert mean.n == 300


def test_axes_before_the_vectors_are_apart_from_each_other() -> None:
    vectors = normal(3, 40, 4) + torch.arange(3.0)[:, None, None]
    mean, found = scatter(vectors, (9,))
    for i in range(3):
        alone, expected = scatter(vectors[i], (9,))
        torch.testing.assert_close(mean.mean[i], alone.mean)
        torch.testing.assert_close(found[i], expected)


@pytest.mark.parametrize("cuts", CUTS)
def test_what_never_varies_has_nothing_left(cuts: tuple[int, ...]) -> None:
    # 2000 values of all sizes that float32 has, each constant over the vectors.
    values = (normal(2000, seed=2).sign() * torch.exp2(30 * normal(2000))).float()
    mean, found = scatter(values.expand(300, -1), cuts)
    assert torch.equal(mean.mean, values.double())
    assert not found.any()


@pytest.mark.parametrize("cuts", CUTS)
def test_a_small_spread_around_a_large_mean_keeps_its_digits_in_float32(cuts: tuple[int, ...]) -> None:
    vectors = (1e4 + 1e-2 * normal(300, 3)).float()
    expected = np.cov(vectors.double().numpy().T, bias=True) * 300
    np.testing.assert_allclose(scatter(vectors, cuts)[1], expected, rtol=1e-5, atol=1e-5 * expected.max())


def test_a_first_batch_far_from_the_others_takes_no_digits_from_them() -> None:
    vectors = normal(20_000, 2).float()
    vectors[0] = 300
    expected = np.cov(vectors.double().numpy().T, bias=True) * 20_000
    np.testing.assert_allclose(scatter(vectors, (1, 10_000))[1], expected, rtol=1e-5)


def test_no_vectors_are_no_rows_and_change_nothing() -> None:
    mean = RunningMean(4)
    assert mean.update(torch.empty(0, 4)).shape == (0, 4)
    assert mean.n == 0
    mean.update(torch.ones(2, 4))
    assert mean.update(torch.empty(0, 4)).shape == (0, 4)
    assert torch.equal(mean.mean, torch.ones(4).double())


def test_processes_together_have_the_scatter_of_all_vectors_and_one_may_have_none() -> None:
    vectors = normal(300, 4) + torch.linspace(0, 50, 300)[:, None]
    vectors[:, 3] = float(np.float32(0.1))  # with digits to spare, as what float32 has
    parts = [scatter(part) for part in (vectors[:110], vectors[:0], vectors[110:])]
    sums = [sum(mean.n * mean.mean for mean, _ in parts)] * len(parts)
    total = torch.zeros(4, 4, dtype=torch.float64)
    for (mean, own), weighted in zip(parts, sums, strict=True):
        answers = iter([torch.tensor(300), weighted])
        apart = mean.all_reduce(lambda _, answers=answers: next(answers))  # type: ignore[misc]
        assert mean.n == 300
        total += own + apart.T @ apart
    np.testing.assert_allclose(total, np.cov(vectors.numpy().T, bias=True) * 300, rtol=1e-11, atol=0)
    np.testing.assert_allclose(parts[0][0].mean, vectors.mean(0), rtol=1e-13)


def test_the_vectors_stay_as_they_were() -> None:
    vectors = normal(20, 3)
    before = vectors.clone()
    RunningMean(3).update(vectors)
    assert torch.equal(vectors, before)
