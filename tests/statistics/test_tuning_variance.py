"""The variance of tuned models' scores by seed, order and test sample, against draws whose variances are known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from probing.statistics.tuning_variance import spread

pytestmark = pytest.mark.numeric

SDS = {"seed": 0.03, "order": 0.02, "rest": 0.015}
# Of a cluster, and of what it does to seeds, to orders and to trainings.
OF_CLUSTER, WITH_SEED, WITH_ORDER, WITH_BOTH = 0.3, 0.15, 0.1, 0.2


def drawn(generator: np.random.Generator, n_seeds: int, n_orders: int, n: int) -> NDArray[np.float64]:
    """Return the score of each training in each cluster, whose mean is .7 and whose parts are independent."""
    normal = generator.standard_normal
    trainings = (
        SDS["seed"] * normal((n_seeds, 1, 1)) + SDS["order"] * normal((1, n_orders, 1))
        + SDS["rest"] * normal((n_seeds, n_orders, 1))
    )  # fmt: skip
    clusters = (
        OF_CLUSTER * normal((1, 1, n)) + WITH_SEED * normal((n_seeds, 1, n)) + WITH_ORDER * normal((1, n_orders, n))
        + WITH_BOTH * normal((n_seeds, n_orders, n))
    )  # fmt: skip
    return np.asarray(0.7 + trainings + clusters)


def test_each_source_has_the_variance_that_was_drawn() -> None:
    generator, n = np.random.default_rng(0), 4000
    found = [spread(drawn(generator, 8, 8, n), np.ones(n)).variances for _ in range(60)]
    whole = OF_CLUSTER**2 + WITH_SEED**2 + WITH_ORDER**2 + WITH_BOTH**2
    for name, value in {**{name: sd**2 for name, sd in SDS.items()}, "test": whole / n}.items():
        of_draws = np.array([one[name] for one in found])
        assert abs(of_draws.mean() - value) < 4 * of_draws.std(ddof=1) / math.sqrt(len(found)), name


def test_trainings_that_differ_by_the_test_part_alone_vary_by_nothing_else() -> None:
    """Few clusters make scores differ though all trainings are equally good: no variance of seeds is made of it."""
    generator, n = np.random.default_rng(1), 60
    found = [
        spread(0.7 + generator.standard_normal((6, 6, n)), np.ones(n)).variances for _ in range(40)
    ]  # fmt: skip
    assert np.mean([one["test"] for one in found]) == pytest.approx(1 / n, rel=0.1)
    for name in SDS:
        assert np.mean([one[name] for one in found]) < 0.2 / n


@pytest.mark.parametrize(("n_seeds", "n_orders"), [(5, 2), (3, 3), (5, 1), (1, 5)])
def test_the_interval_of_the_mean_holds_for_other_seeds_orders_and_clusters(n_seeds: int, n_orders: int) -> None:
    """With one seed or one order nothing is known of it, and the interval is of the others."""
    generator, n, missed = np.random.default_rng(2), 50, 0
    for _ in range(300):
        found = spread(drawn(generator, n_seeds, n_orders, n), np.ones(n))
        missed += not found.low <= 0.7 <= found.high
    assert missed / 300 < (0.09 if min(n_seeds, n_orders) > 1 else 0.3)


def test_clusters_of_several_tokens_give_the_score_over_tokens() -> None:
    generator = np.random.default_rng(3)
    tokens = generator.integers(1, 9, 200).astype(np.float64)
    right = generator.binomial(tokens.astype(int), 0.6, (3, 2, 200)).astype(np.float64)
    found = spread(right, tokens)
    assert found.mean == pytest.approx(right.sum() / (6 * tokens.sum()))
    assert found.low < found.mean < found.high
    assert sum(found.shares.values()) == pytest.approx(1)
    assert found.sds["test"] == pytest.approx(math.sqrt(found.variances["test"]))


def test_what_was_not_varied_is_not_known() -> None:
    right = np.random.default_rng(4).binomial(1, 0.6, (3, 1, 100)).astype(np.float64)
    one_order = spread(right, np.ones(100)).variances
    assert math.isnan(one_order["order"])
    assert math.isnan(one_order["rest"])
    assert not math.isnan(one_order["seed"])
    alone = spread(right[:1], np.ones(100))
    assert math.isnan(alone.low)
    assert math.isnan(alone.variances["seed"])
    assert math.isnan(spread(right[..., :19], np.ones(19)).low)
    same = spread(np.ones((2, 2, 30)), np.ones(30))
    assert (same.low, same.mean, same.high) == (1, 1, 1)
