"""Units with one label each: all relabellings are equally likely, as those of a single long sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.statistics.separation import Separation, SeparationAccumulator
from probing.statistics.separation_of_units import UnitSeparationAccumulator


@pytest.fixture
def units() -> tuple[Tensor, Tensor]:
    """90 units of 4 neurons, of which the last tells the class and one is skewed and has a large mean."""
    generator = np.random.default_rng(0)
    labels = generator.integers(3, size=90)
    states = generator.standard_normal((90, 4))
    states[:, 1] = generator.exponential(size=90) + 50
    states[:, 3] += labels
    return torch.from_numpy(states), torch.from_numpy(labels)


def separate(states: Tensor, labels: Tensor, n: int = 25) -> Separation:
    sums = UnitSeparationAccumulator(states.double().mean(0), labels.bincount())
    for x, y in zip(states.split(n), labels.split(n), strict=True):
        sums.update(x, y)
    return sums.result()


def test_they_are_the_tokens_of_one_sentence(units: tuple[Tensor, Tensor]) -> None:
    states, labels = units
    one = SeparationAccumulator(states.mean(0), states.std(0, correction=0), labels.bincount())
    one.update(states, labels, torch.zeros(90, dtype=torch.int64))
    for name in ("eta_squared", "z", "p"):
        expected = getattr(one.result(), name)
        torch.testing.assert_close(getattr(separate(states, labels), name), expected, rtol=1e-9, atol=1e-12)


def test_their_null_is_that_of_relabellings(units: tuple[Tensor, Tensor]) -> None:
    states, labels = units
    generator, x = np.random.default_rng(1), states.numpy() - states.numpy().mean(0)
    one_hot = np.eye(3)[labels.numpy()]
    draws = np.array([generator.permutation(90) for _ in range(20_000)])
    sums = np.einsum("rnc,nd->rcd", one_hot[draws], x) / np.sqrt(one_hot.sum(0))[:, None]
    shares = np.square(sums).sum(1) / np.square(x).sum(0)
    true = np.square(one_hot.T @ x / np.sqrt(one_hot.sum(0))[:, None]).sum(0) / np.square(x).sum(0)
    found = separate(states, labels)
    np.testing.assert_allclose(found.eta_squared, true - shares.mean(0), atol=4 * shares.std(0).max() / 20_000**0.5)
    np.testing.assert_allclose(found.z, (true - shares.mean(0)) / shares.std(0), rtol=0.04, atol=0.04)
    np.testing.assert_allclose(found.p[:3], (shares >= true)[:, :3].mean(0), atol=0.03)
    assert found.p[3] < 1e-4


def test_among_many_units_that_tell_nothing_few_p_values_are_small() -> None:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(5000, 400, generator=generator)
    labels = torch.randint(4, (5000,), generator=generator)
    p = separate(states, labels, 1000).p
    assert float(p.median()) == pytest.approx(0.5, abs=0.1)
    assert 1 <= int((p < 0.05).sum()) <= 40  # 20 expected


def test_ranks_add_up(units: tuple[Tensor, Tensor]) -> None:
    states, labels = units
    mean, sizes = states.mean(0), labels.bincount()
    parts = [UnitSeparationAccumulator(mean, sizes) for _ in range(2)]
    for part, x, y in zip(parts, states.split(45), labels.split(45), strict=True):
        part.update(x, y)

    # What each tensor of the first rank is on the second, by identity.
    others = iter([parts[1].powers, *(getattr(parts[1].sums, n) for n in SUMS)])
    parts[0].all_reduce(lambda tensor: tensor + next(others))
    torch.testing.assert_close(parts[0].result().p, separate(states, labels).p)


SUMS = ("true", "expected", "third", "covariance", "excess", "log_relabellings")
