"""Variance and differences of trainings, and two-way splits, against scipy, least squares and planted draws."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import ttest_1samp, ttest_ind

from probing.statistics import common_share, independent_difference, paired_difference, spread, times, welch
from probing.statistics.chance import holm
from probing.statistics.two_way import Design, TwoWaySums, jackknife_interval
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
    assert f"{ends[0]:.0%} ({ends[0]:.0%} to {ends[1]:.0%}) is due to the seed and " in said
    assert said.endswith("; with so few tunings, it is not resolved whether a fifth is due to the seed.") is is_open


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (3, 7)])
@pytest.mark.parametrize("is_above", [True, False])
def test_two_groups_are_compared_as_scipy_compares_them(sizes: tuple[int, int], is_above: bool) -> None:
    generator = np.random.default_rng(0)
    a, b = generator.normal(0.3, 1, sizes[0]), generator.normal(0, 3, sizes[1])
    found = welch(a.tolist(), b.tolist(), is_above=is_above)
    oracle = ttest_ind(a, b, equal_var=False, alternative="greater" if is_above else "two-sided")
    low, high = ttest_ind(a, b, equal_var=False).confidence_interval(0.95)
    assert found.value == pytest.approx(a.mean() - b.mean())
    assert found.p == pytest.approx(oracle.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


def test_against_a_group_that_is_0_it_is_the_test_of_one_group() -> None:
    a = [0.2, 0.5, 0.1]
    found, oracle = welch(a, [0.0, 0.0], is_above=False), ttest_1samp(a, 0)
    assert found.p == pytest.approx(oracle.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(oracle.confidence_interval(0.95)))


def test_a_ratio_is_that_of_geometric_means() -> None:
    a, b = [0.2, 0.5, 0.3], [0.05, 0.02, 0.03]
    found, oracle = times(a, b), ttest_ind(np.log(a), np.log(b), equal_var=False, alternative="greater")
    assert found.value == pytest.approx((0.2 * 0.5 * 0.3 / (0.05 * 0.02 * 0.03)) ** (1 / 3))
    assert found.p == pytest.approx(oracle.pvalue)
    low, high = ttest_ind(np.log(a), np.log(b), equal_var=False).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))


def test_of_what_is_not_changed_there_is_no_ratio() -> None:
    assert times([0.0, 0.0], [0.0, 0.0]).p == 1.0
    found = times([0.1, 0.2, 0.15], [0.0, 0.0, 0.0])
    assert math.isnan(found.value)
    assert found.p == welch([0.1, 0.2, 0.15], [0.0, 0.0, 0.0], is_above=True).p < 0.05


def test_groups_that_do_not_vary_or_are_single_show_nothing() -> None:
    assert welch([0.5, 0.5], [0.1, 0.1], is_above=True).p == 1.0
    single = welch([0.5], [0.1, 0.2], is_above=True)
    assert single.value == pytest.approx(0.35)
    assert math.isnan(single.p)
    assert math.isnan(single.low)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 1.0])
def test_the_planted_share_in_common_is_found(share: float) -> None:
    generator = np.random.default_rng(1)
    common = generator.normal(size=20_000) * math.sqrt(share)
    moves = [common + generator.normal(size=20_000) * math.sqrt(1 - share) for _ in range(3)]
    from_start = [float((move**2).sum()) for move in moves]
    between = [float(((moves[i] - moves[j]) ** 2).sum()) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert common_share(from_start, between) == pytest.approx(share, abs=0.02)


def test_without_a_change_or_a_pair_nothing_is_known_of_a_share() -> None:
    assert math.isnan(common_share([0.0, 0.0], [0.0]))
    assert math.isnan(common_share([0.5], []))


@pytest.mark.slow
@pytest.mark.parametrize(("n", "scale"), [(2, 1), (3, 1), (3, 3), (5, 1)])
def test_seeds_alone_are_claimed_in_few_families_of_measures(n: int, scale: float) -> None:
    """60 skewed measures that vary together; at most 1 in 20 families is expected, and 27 of 400 is its 95% bound."""
    generator, claimed = np.random.default_rng(2), 0
    for _ in range(400):
        shared, own = generator.normal(size=(2 * n, 1)), generator.normal(size=(2 * n, 60))
        changes = (1 + 0.1 * (0.7 * shared + 0.7 * own)) ** 2
        changes[n:] = 1 + (changes[n:] - 1) / scale
        groups = [(changes[:n, k].tolist(), changes[n:, k].tolist()) for k in range(60)]
        p = [times(*pair).p if k % 2 else welch(*pair, is_above=True).p for k, pair in enumerate(groups)]
        claimed += min(holm(p)) <= 0.05
    assert claimed <= 27


Array = NDArray[np.float64]
D = 5


def positions_of(sizes: Any, first: int = 0) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the sentence and the position of each token, positions in a row."""
    sentences = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    return sentences, np.concatenate([np.arange(first, first + size) for size in sizes]).astype(np.int32)


def summed(design: Design, states: Array, with_covariance: bool = False) -> TwoWaySums:
    """Return the sums of states, added in two parts."""
    sums = TwoWaySums(design, states.shape[1], with_covariance)
    half = int(np.cumsum(design.sizes)[design.n_sentences // 2])
    for part in (states[:half], states[half:]):
        sums.update(torch.from_numpy(part))
    return sums


def marks(of: Any) -> Array:
    return (np.asarray(of)[:, None] == np.unique(of)).astype(np.float64)


def left(states: Array, *columns: Array) -> Array:
    """Return each neuron's residual sum of squares after least squares on columns, by numpy."""
    x = np.hstack(columns)
    return np.square(states - x @ np.linalg.lstsq(x, states, rcond=None)[0]).sum(0)


@settings(max_examples=25, deadline=None)
@example([2, 1, 1], 14, True)  # one sentence is left, and without its group there is none
@given(st.lists(st.integers(1, 7), min_size=3, max_size=12), st.integers(0, 10**6), st.booleans())
def test_sums_of_squares_are_those_of_least_squares(sizes: list[int], seed: int, has_gaps: bool) -> None:
    generator = np.random.default_rng(seed)
    sentences, positions = positions_of(sizes)
    if has_gaps:
        # Some tokens are left out, as special ones are: positions are then not in a row.
        kept = generator.random(len(positions)) < 0.7
        kept[:2] = True
        sentences, positions = sentences[kept], positions[kept]
    states = generator.normal(size=(len(sentences), D)) * [1, 5, 1, 1, 100] + [0, 0, 1000, 0, 1e4]
    sums = summed(Design(sentences, positions, seed), states)
    one, p, c = np.ones((len(states), 1)), marks(positions), marks(sentences)
    total, of_p, of_c, both = left(states, one), left(states, p), left(states, c), left(states, p, c)
    found = sums.shares(by_neuron=True)[0].observed
    expected = {
        "position": of_c - both, "context": of_p - both, "rest": both, "position_alone": total - of_p,
        "context_alone": total - of_c, "shared": of_c.clip(0) * -1 + both - of_p + total,
    }  # fmt: skip
    for part, squares in expected.items():
        np.testing.assert_allclose(found[part], squares / total, atol=1e-9, err_msg=part)
    together = sums.shares()[0].observed
    np.testing.assert_allclose(together["position"], (of_c - both).sum() / total.sum(), atol=1e-9)
    np.testing.assert_allclose(sum(together[part] for part in ("position", "context", "shared", "rest")), 1)


def test_a_balanced_design_is_that_of_means() -> None:
    """Song & Zhong (2023), equation 1."""
    generator = np.random.default_rng(0)
    n_sentences, n_positions = 30, 9
    cube = generator.normal(size=(n_sentences, n_positions, D)) + generator.normal(size=(n_positions, D))
    sums = summed(Design(*positions_of([n_positions] * n_sentences)), cube.reshape(-1, D), with_covariance=True)
    mean = cube.mean((0, 1))
    position, context = cube.mean(0) - mean, cube.mean(1) - mean
    rest = cube - mean - position - context[:, None]
    total = np.square(cube - mean).sum()
    found = sums.shares()[0].observed
    np.testing.assert_allclose(sums.position_part(sums.design.whole), position, atol=1e-8)
    np.testing.assert_allclose(found["position"], n_sentences * np.square(position).sum() / total, atol=1e-8)
    np.testing.assert_allclose(found["position_alone"], found["position"], atol=1e-8)
    np.testing.assert_allclose(found["context"], n_positions * np.square(context).sum() / total, atol=1e-8)
    np.testing.assert_allclose(found["shared"], 0, atol=1e-8)
    of_context, of_rest = sums.covariances()
    flat = rest.reshape(-1, D)
    np.testing.assert_allclose(of_rest, flat.T @ flat, atol=1e-8)
    noise = (n_sentences - 1) * of_rest / ((n_sentences - 1) * (n_positions - 1))
    np.testing.assert_allclose(of_context, n_positions * context.T @ context - noise, atol=1e-8)


def test_chance_is_the_mean_over_all_orders_within_sentences() -> None:
    generator = np.random.default_rng(1)
    sizes = [3, 2, 3, 1]
    sentences, positions = positions_of(sizes)
    design = Design(sentences, positions)
    states = generator.normal(size=(len(sentences), 2)) * [1, 3]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    orders = itertools.product(*(itertools.permutations(range(a, b)) for a, b in itertools.pairwise(starts)))
    shares = []
    for order in orders:
        found = summed(design, states[list(itertools.chain(*order))]).shares()[0].observed
        shares.append((found["position"], found["position_alone"]))
    assert len(shares) == 6 * 2 * 6
    chance = summed(design, states).shares()[0].chance
    np.testing.assert_allclose((chance["position"], chance["position_alone"]), np.mean(shares, 0), atol=1e-12)


def test_eta_squared_times_variance_adds_up_to_the_share_of_positions() -> None:
    generator = np.random.default_rng(2)
    sentences, positions = positions_of(generator.integers(2, 9, 40))
    states = generator.normal(size=(len(sentences), D)) + np.sin(positions)[:, None] * np.arange(D)
    sums = summed(Design(sentences, positions), states)
    eta_squared = []
    for neuron in states.T:
        means = {t: neuron[positions == t].mean() for t in np.unique(positions)}
        between = sum((positions == t).sum() * (means[t] - neuron.mean()) ** 2 for t in means)
        eta_squared.append(between / np.square(neuron - neuron.mean()).sum())
    variance = states.var(0)
    share = float(eta_squared @ variance / variance.sum())
    np.testing.assert_allclose(sums.shares()[0].observed["position_alone"], share, atol=1e-12)
    np.testing.assert_allclose(sums.shares(by_neuron=True)[0].observed["position_alone"], eta_squared, atol=1e-12)
    np.testing.assert_allclose(sums.variance, variance)
    standardised = sums.shares(standardised=True)[0].observed["position_alone"]
    np.testing.assert_allclose(standardised, np.mean(eta_squared), atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("largest", [1, 30])
def test_positions_in_random_order_have_no_share(largest: float) -> None:
    """In at least 19 of 20 draws the interval holds 0, also where one neuron has nearly all of the variance."""
    generator = np.random.default_rng(3)
    holds, excess = [], []
    for draw in range(40):
        sentences, positions = positions_of(generator.integers(3, 25, 80))
        scale = np.array([largest, 1, 1, 1, 1.0])
        states = generator.normal(size=(80, D))[sentences] + generator.normal(size=(len(sentences), D)) * scale
        shares = summed(Design(sentences, positions, draw), states).shares()
        values = np.array([float(one.excess["position"]) for one in shares])
        low, high = jackknife_interval(values, 80)
        holds.append(low <= 0 <= high)
        excess.append(values[0])
    assert np.mean(holds) >= 0.95
    assert abs(np.mean(excess)) < 3 * np.std(excess) / np.sqrt(len(excess))


def test_a_planted_share_is_found_without_bias() -> None:
    generator = np.random.default_rng(4)
    holds, found = [], []
    code = np.stack([np.sin(np.arange(25) / 4), np.cos(np.arange(25) / 4), *np.zeros((D - 2, 25))], 1)
    for draw in range(40):
        sentences, positions = positions_of(generator.integers(3, 25, 80))
        part = 0.5 * code[positions]
        sizes = np.bincount(sentences)[:, None]
        of_sentences = np.stack([np.bincount(sentences, column) for column in part.T], 1) / sizes
        squares = np.square(part - of_sentences[sentences]).sum()
        states = part + generator.normal(size=(len(sentences), D))
        # What the total is on average: that of the part about its mean, and of the noise.
        total = np.square(part - part.mean(0)).sum() + (len(part) - 1) * D
        shares = summed(Design(sentences, positions, draw), states).shares()
        values = np.array([float(one.excess["position"]) for one in shares])
        low, high = jackknife_interval(values, 80)
        holds.append(low <= squares / total <= high)
        found.append(values[0] - squares / total)
    assert np.mean(holds) >= 0.9
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(len(found))


def test_what_is_not_whole_sentences_is_refused() -> None:
    design = Design(*positions_of([2, 3]))
    sums = TwoWaySums(design, 1)
    with pytest.raises(ValueError, match="not whole sentences"):
        sums.update(torch.zeros(3, 1))
    with pytest.raises(ValueError, match="not whole sentences"):
        sums.update(torch.zeros(6, 1))
    sums.update(torch.zeros(0, 1))


def test_a_neuron_that_does_not_vary_has_no_share_and_counts_for_nothing() -> None:
    generator = np.random.default_rng(5)
    sentences, positions = positions_of([4] * 25)
    states = np.hstack([generator.normal(size=(100, 2)), np.full((100, 1), 0.1)])
    sums, alone = (summed(Design(sentences, positions), one) for one in (states, states[:, :2]))
    by_neuron = sums.shares(by_neuron=True)[0].excess["position"]
    assert np.isnan(by_neuron[2])
    assert np.isfinite(by_neuron[:2]).all()
    for standardised in (False, True):
        np.testing.assert_allclose(
            sums.shares(standardised)[0].excess["position"], alone.shares(standardised)[0].excess["position"]
        )


def test_eta_squared_of_some_groups_is_that_of_their_tokens() -> None:
    generator = np.random.default_rng(17)
    sizes = generator.integers(2, 9, 60)
    sentences = np.repeat(np.arange(60), sizes).astype(np.int32)
    positions = np.concatenate([np.arange(size) for size in sizes]).astype(np.int32)
    states = 5 + generator.normal(size=(len(positions), 3)) + positions[:, None] * [1.0, 0.1, 0.0]
    states[:, 2] = 0.7
    design = Design(sentences, positions)
    sums = TwoWaySums(design, 3)
    sums.update(torch.from_numpy(states))
    groups = design.parts(2)[1]
    chosen = np.isin(design.groups[sentences], groups)
    x, t = states[chosen], positions[chosen]
    expected = [sum((t == p).sum() * (x[t == p, j].mean() - x[:, j].mean()) ** 2 for p in set(t.tolist()))
                / ((x[:, j] - x[:, j].mean()) ** 2).sum() for j in (0, 1)]  # fmt: skip
    np.testing.assert_allclose(sums.eta_squared(groups, design.solve(groups)), [*expected, 0], rtol=1e-9)
