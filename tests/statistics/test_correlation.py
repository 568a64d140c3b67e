"""Correlation with a number, compared with permuted numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import kstest, pearsonr

from probing.statistics.correlation import CorrelationSums
from probing.statistics.separation import Separation


def separation(states: NDArray[np.float64], numbers: NDArray[np.float64], lengths: list[int]) -> Separation:
    x, y = torch.from_numpy(states), torch.from_numpy(numbers - numbers.mean())
    sums = CorrelationSums.empty(x.shape[1])
    sums.update(x, y, torch.tensor(lengths), x.mean(0))
    total = (x - x.mean(0)).square().sum(0) * y.square().sum()
    return sums.separation(total)


def test_mean_variance_and_skewness_are_those_of_all_permutations_within_sentences() -> None:
    generator = np.random.default_rng(0)
    lengths, states, numbers = [3, 1, 4], generator.exponential(size=(8, 2)), generator.exponential(size=8)
    x, y = torch.from_numpy(states), torch.from_numpy(numbers - numbers.mean())
    sums = CorrelationSums.empty(2)
    sums.update(x, y, torch.tensor(lengths), x.mean(0))
    centred = (x - x.mean(0)).numpy()
    drawn = np.array(
        [
            centred.T @ y.numpy()[[*first, 3, *last]]
            for first in itertools.permutations(range(3))
            for last in itertools.permutations(range(4, 8))
        ]
    )
    np.testing.assert_allclose(sums.expected, drawn.mean(0))
    np.testing.assert_allclose(sums.variance, drawn.var(0))
    np.testing.assert_allclose(sums.third, ((drawn - drawn.mean(0)) ** 3).mean(0))
    np.testing.assert_allclose(sums.product, centred.T @ y.numpy())


def test_in_one_block_the_p_value_is_that_of_pearson_s_correlation() -> None:
    generator = np.random.default_rng(1)
    numbers = generator.standard_normal(200)
    states = generator.standard_normal((200, 3)) + 0.2 * numbers[:, None]
    found = separation(states, numbers, [200])
    expected = [pearsonr(column, numbers) for column in states.T]
    np.testing.assert_allclose(found.p, [one.pvalue for one in expected], rtol=0.1)
    np.testing.assert_allclose(found.eta_squared, [one.statistic**2 for one in expected], atol=0.006)


@pytest.mark.parametrize("draw", ["standard_normal", "lognormal"])
def test_under_the_null_p_values_are_not_too_small(draw: str) -> None:
    """Numbers that follow the sentence alone, and neurons that do: within sentences they have nothing in common."""
    generator = np.random.default_rng(2)
    lengths = generator.integers(2, 9, 80).tolist()
    of_sentence = np.repeat(generator.standard_normal(80), lengths)
    size = len(of_sentence)
    numbers = of_sentence + getattr(generator, draw)(size=size)
    states = of_sentence[:, None] + getattr(generator, draw)(size=(size, 2000))
    p = separation(states, numbers, lengths).p.numpy()
    assert (p < 0.01).mean() < 0.02
    assert (p < 0.001).mean() < 0.004
    if draw == "standard_normal":
        assert kstest(p, "uniform").pvalue > 1e-3


def test_what_cannot_be_told_has_no_signal() -> None:
    constant = separation(np.ones((6, 1)), np.arange(6.0), [6])
    assert (float(constant.p), float(constant.z), float(constant.eta_squared)) == (1, 0, 0)
    alone = separation(np.arange(6.0)[:, None], np.arange(6.0), [1] * 6)
    assert float(alone.p) == 1
