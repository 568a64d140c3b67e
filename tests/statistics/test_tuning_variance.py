"""The variance of tuned models' scores by seed, order and test sample, against draws whose variances are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probing.statistics.intervals import independent_difference, paired_difference, spread
from probing.studies.finetune.tables import _variance

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


def two_recipes(
    generator: np.random.Generator, sizes: tuple[tuple[int, int], tuple[int, int]], better_by: float = 0.0,
    times: float = 1.0, n: int = 50,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # fmt: skip
    """Return trainings of two recipes on the same clusters, of which the second varies other times as much."""
    shared = 0.3 * generator.standard_normal((1, 1, n))
    a, b = (drawn(generator, *size, n) for size in sizes)
    return a + shared + better_by, 0.7 + times * (b - 0.7) + shared


@pytest.mark.parametrize(
    ("sizes", "times"),
    [
        (((3, 2), (3, 2)), 1.0), (((3, 3), (3, 3)), 1.0), (((3, 2), (5, 2)), 1.0), (((5, 5), (3, 3)), 3.0),
        (((2, 2), (5, 5)), 1 / 3),
    ],
)  # fmt: skip
def test_the_interval_of_recipes_with_other_seeds_misses_one_time_in_twenty(sizes: Any, times: float) -> None:
    generator, missed = np.random.default_rng(5), 0
    for _ in range(400):
        found = independent_difference(*two_recipes(generator, sizes, 0.0, times), np.ones(50))
        missed += not found.low <= 0 <= found.high
    assert missed / 400 < 0.08


def test_the_interval_of_recipes_with_the_same_seeds_misses_one_time_in_twenty_and_is_narrower_where_seeds_matter() -> (
    None
):
    generator, missed, widths = np.random.default_rng(6), 0, []
    for _ in range(400):
        a, b = two_recipes(generator, ((3, 3), (3, 3)))
        of_seed = 0.1 * generator.standard_normal((3, 1, 1))  # moves both recipes alike
        paired = paired_difference(a + of_seed, b + of_seed, np.ones(50))
        apart = independent_difference(a + of_seed, b + of_seed, np.ones(50))
        missed += not paired.low <= 0 <= paired.high
        widths.append((paired.high - paired.low, apart.high - apart.low))
    assert missed / 400 < 0.08
    assert np.median([width[0] for width in widths]) < 0.8 * np.median([width[1] for width in widths])


def test_recipes_are_told_apart_where_they_differ_and_seldom_where_they_do_not() -> None:
    """Planted: the same recipe with other seeds, and one that is better by a third."""
    generator = np.random.default_rng(7)

    def resolved(better_by: float) -> int:
        found = [
            independent_difference(*two_recipes(generator, ((3, 2), (3, 2)), better_by), np.ones(50))
            for _ in range(20)
        ]  # fmt: skip
        return sum(one.low > 0 for one in found) + (0 if better_by else sum(one.high < 0 for one in found))

    assert resolved(0.0) <= 1
    assert resolved(1 / 3) == 20


def test_the_same_trainings_differ_by_exactly_nothing() -> None:
    a = drawn(np.random.default_rng(8), 3, 2, 40)
    found = paired_difference(a, a.copy(), np.ones(40))
    assert (found.low, found.mean, found.high) == (0, 0, 0)


def test_of_one_training_no_other_seed_is_known() -> None:
    generator = np.random.default_rng(9)
    a, b = drawn(generator, 3, 2, 40), drawn(generator, 1, 1, 40)
    assert math.isnan(independent_difference(a, b, np.ones(40)).low)
    assert math.isnan(paired_difference(a[:1, :1], b, np.ones(40)).high)
    assert math.isnan(independent_difference(a[..., :19], a[..., :19], np.ones(19)).low)


def test_a_higher_level_has_a_wider_interval() -> None:
    a, b = two_recipes(np.random.default_rng(10), ((3, 2), (4, 3)))
    for compared, one, other in ((independent_difference, a, b), (paired_difference, a, b[:3, :2])):
        usual, wider = compared(one, other, np.ones(50)), compared(one, other, np.ones(50), 0.99)
        assert wider.low < usual.low < usual.mean == wider.mean < usual.high < wider.high


def test_trainings_that_happen_to_score_alike_on_other_clusters_are_not_known_to_the_digit() -> None:
    """Each takes everything for one class, and the classes are equally frequent."""
    right = np.zeros((2, 2, 60))
    right[0, :, :30] = right[1, :, 30:] = 1
    found = spread(right, np.ones(60))
    assert found.low < 0.4 < 0.6 < found.high
    for compared in (paired_difference, independent_difference):
        difference = compared(np.ones((2, 2, 60)), right, np.ones(60))
        assert 0.2 < difference.low < 0.45 < difference.mean < 0.55 < difference.high


@pytest.mark.parametrize(
    ("n_seeds", "n_orders", "of_seed"), [(3, 1, 0.2), (5, 1, 0.2), (3, 2, 0.2), (3, 3, 0.6), (5, 2, 0)]
)
def test_the_share_of_the_seed_lies_in_its_interval_which_few_tunings_leave_wide(
    n_seeds: int, n_orders: int, of_seed: float
) -> None:
    """The interval has the planted share in 95 of 100 draws or more, though the share itself is often told as 0."""
    generator, n, covered, widths = np.random.default_rng(4), 200, [], []
    rest = 0.1 if n_orders > 1 else 0.0
    of_test = (1 - of_seed - rest) * n
    for _ in range(200):
        normal = generator.standard_normal
        scores = math.sqrt(of_seed) * normal((n_seeds, 1, 1)) + math.sqrt(rest) * normal((n_seeds, n_orders, 1))
        found = spread(scores + math.sqrt(of_test) * normal((1, 1, n)), np.ones(n))
        low, high = found.share_ends["seed"]
        assert low <= found.shares["seed"] <= high
        covered.append(low <= of_seed <= high)
        widths.append(high - low)
    assert np.mean(covered) >= 0.93
    assert np.median(widths) > 0.2


def test_many_tunings_tell_the_share_of_the_seed() -> None:
    generator, n = np.random.default_rng(5), 200
    scores = generator.standard_normal((200, 1, 1)) + math.sqrt(n) * generator.standard_normal((1, 1, n))
    low, high = spread(scores, np.ones(n)).share_ends["seed"]
    assert 0.35 < low < 0.5 < high < 0.65
    none = spread(np.full((3, 2, n), 0.5), np.ones(n))
    assert none.share_ends["seed"] == (0.0, 1.0)


@pytest.mark.parametrize(("ends", "is_open"), [((0.0, 0.83), True), ((0.0, 0.12), False), ((0.31, 0.9), False)])
def test_a_sentence_on_the_seed_says_what_so_few_tunings_cannot_tell(ends: tuple[float, float], is_open: bool) -> None:
    row = {
        "answer": "pretrained", "share_seed": ends[0], "share_seed_low": ends[0], "share_seed_high": ends[1],
        "share_test": 1 - ends[0], "share_test_low": 0.9, "share_test_high": 1.0, "sd_seed": 0.0, "sd_test": 0.02,
    }  # fmt: skip
    said = _variance(row, "pairs")
    assert f"{ends[0]:.0%} ({ends[0]:.0%} to {ends[1]:.0%}) is of the seed and " in said
    assert said.endswith("; so few tunings cannot tell whether a fifth of it is of the seed.") is is_open
