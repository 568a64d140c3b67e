"""False discovery rates and Holm's p-values: definitions, what is not tested, and how often noise is discovered."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from probing.statistics.chance import discovery_rates, holm

pytestmark = pytest.mark.numeric


def by_definition(p: list[float]) -> list[float]:
    """Return for each p-value the least n p_(k) / k over all k such that it is among the first k (float64 loop)."""
    order = sorted(range(len(p)), key=p.__getitem__)
    rates = [1.0] * len(p)
    least = 1.0
    for k in range(len(p), 0, -1):
        least = min(least, len(p) * p[order[k - 1]] / k)
        rates[order[k - 1]] = least
    return rates


def test_rates_are_those_of_the_definition() -> None:
    p = torch.rand(200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3
    p[:3] = p[3]  # equal ones have one rate
    rates = discovery_rates(p, torch.ones(200, dtype=torch.bool))
    torch.testing.assert_close(rates, torch.tensor(by_definition(p.tolist()), dtype=torch.float64))
    assert len(set(rates[:4].tolist())) == 1


def test_what_is_not_tested_has_rate_1_and_costs_the_others_nothing() -> None:
    p = torch.tensor([1e-4, 1e-9, 0.5, 0.02], dtype=torch.float64)
    tested = torch.tensor([True, False, True, True])
    rates = discovery_rates(p, tested)
    assert rates[1] == 1
    torch.testing.assert_close(rates[tested], torch.tensor(by_definition([1e-4, 0.5, 0.02]), dtype=torch.float64))
    assert discovery_rates(p, torch.zeros(4, dtype=torch.bool)).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("n", [1, 50])
def test_where_nothing_is_to_be_discovered_few_layers_have_any_discovery(n: int) -> None:
    every = torch.ones(n, dtype=torch.bool)
    draws = torch.rand(2000, n, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = sum(bool((discovery_rates(p, every) <= 0.05).any()) for p in draws)
    assert 60 <= found <= 140  # 100 expected; four standard deviations of a binomial are 39


def test_what_is_planted_is_discovered() -> None:
    p = torch.rand(100, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    p[:10] = 1e-5
    rates = discovery_rates(p, torch.ones(100, dtype=torch.bool))
    assert (rates[:10] <= 0.01).all()
    assert (rates[10:] > 0.01).all()


def test_holm_is_its_definition() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    corrected = holm([math.nan, 0.02, 0.01])
    assert math.isnan(corrected[0])
    assert corrected[1:] == [0.02, 0.02]


def test_holm_holds_for_all_together_however_p_values_depend() -> None:
    from scipy.stats import norm

    generator = np.random.default_rng(0)
    for shared in (0.0, 0.9):
        z = shared * generator.standard_normal((2000, 1)) + (1 - shared**2) ** 0.5 * generator.standard_normal(
            (2000, 20)
        )
        found = sum(min(holm(p)) <= 0.05 for p in (2 * norm.sf(abs(z))).tolist())
        assert found <= 140  # 100 of 2,000 at most; four standard deviations of a binomial are 39
