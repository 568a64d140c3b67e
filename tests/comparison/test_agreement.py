"""Agreement of rankings: planted, against few draws, and of neurons at the top of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import hypergeom, kstest

from probing.probes.agreement import (
    PERSISTENCE,
    STATISTICS,
    Agreement,
    Settings,
    agreement,
    label_chance,
    max_p_values,
    paired_similarities,
    permutations_for,
    similarities,
)
from probing.probes.pairs import Ranked, RunPair
from probing.statistics import neuron_ranks, rank_biased_overlap
from probing.statistics.chance import holm, resampled_means
from probing.studies.compare.recipes import top_everywhere

pytestmark = pytest.mark.numeric

N = 60


def agree(a: NDArray[Any], b: NDArray[Any], **how: Any) -> dict[str, Agreement]:
    return {found.statistic: found for found in agreement(a, b, **{"k": 10, "permutations": 199, **how})}


def assert_same(found: dict[str, Agreement], expected: dict[str, Agreement]) -> None:
    """Compare field by field, where NaN is equal to NaN; dataclasses that hold NaN are unequal from Python 3.13 on."""
    fields, expected_fields = ({name: asdict(one) for name, one in of.items()} for of in (found, expected))
    np.testing.assert_equal(fields, expected_fields)


def scorings(n_scorings: int, n: int = N, seed: int = 0) -> NDArray[Any]:
    return np.random.default_rng(seed).exponential(size=(n_scorings, n))


def test_a_ranking_agrees_with_itself() -> None:
    (a,) = scorings(1)
    for found in agree(a, a).values():
        assert found.value == pytest.approx(1)
        assert found.p_value <= 1 / 200
        assert found.chance_high < 1


def test_a_reversed_ranking_does_not_agree() -> None:
    (a,) = scorings(1)
    found = agree(a, 1 / a)
    assert [found[name].value for name in ("overlap", "spearman", "kendall")] == pytest.approx([0, -1, -1])
    assert found["rbo"].value < found["rbo"].chance_low
    assert all(one.p_value > 0.8 for one in found.values())


def test_monotone_transforms_change_nothing() -> None:
    a, b = scorings(2)
    assert_same(agree(np.exp(a), 3 * b**3), agree(a, b))


def test_neurons_in_another_order_change_nothing() -> None:
    a, b = scorings(2)
    order = np.random.default_rng(1).permutation(N)
    for one, other in zip(agree(a, b).values(), agree(a[order], b[order]).values(), strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-12)
        assert one.p_value == other.p_value


def test_agreement_goes_both_ways() -> None:
    a, b = scorings(2)
    for one, other in zip(agree(a, b).values(), agree(b, a).values(), strict=True):
        assert one.value == pytest.approx(other.value, abs=1e-12)


def test_the_noisier_the_copy_the_less_it_agrees() -> None:
    a, noise = scorings(2)
    for name in STATISTICS:
        values = [agree(a, a + size * noise)[name].value for size in (0, 0.3, 3)]
        assert values == sorted(values, reverse=True)
        assert values[0] > values[2]


@pytest.mark.slow
def test_p_values_of_unrelated_rankings_are_uniform_and_chance_holds_them() -> None:
    # Each trial has its own permutations, so that the error of a few hundred differs between trials.
    pairs = enumerate(zip(scorings(400), scorings(400, seed=1), strict=True))
    trials = [agree(a, b, permutations=399, seed=seed) for seed, (a, b) in pairs]
    for name in STATISTICS:
        p = np.array([trial[name].p_value for trial in trials])
        within = np.mean([t[name].chance_low <= t[name].value <= t[name].chance_high for t in trials])
        if name == "overlap":  # takes few values, so small p-values are rarer than they say
            assert all((p <= level).mean() <= level + 0.03 for level in (0.01, 0.05, 0.2))
            assert within > 0.93
        else:
            assert kstest(p, "uniform").pvalue > 0.01
            assert 0.91 < within < 0.985  # 95% of 400, standard error 1.1%, and ends known from 399 permutations


def test_chance_reaches_up_to_rankings_that_agree_by_chance_alone_and_never_down() -> None:
    a, b = scorings(2)
    permuted = agree(a, b)
    alike = [(x, x + noise) for x, noise in zip(scorings(20, seed=2), scorings(20, seed=3), strict=True)]
    moved, unmoved = agree(a, b, unrelated=alike), agree(a, b, unrelated=[(x, -y) for x, y in alike])
    assert_same(unmoved, permuted)
    for name in STATISTICS:
        mean = np.mean([agree(x, y)[name].value for x, y in alike])
        assert mean > permuted[name].chance
        assert moved[name].chance == pytest.approx(mean)
        assert moved[name].chance_high - moved[name].chance == pytest.approx(
            permuted[name].chance_high - permuted[name].chance
        )
        assert moved[name].chance_low == permuted[name].chance_low
        assert moved[name].p_value >= permuted[name].p_value
        assert moved[name].value == permuted[name].value
        assert moved[name].low == pytest.approx(permuted[name].low, nan_ok=True)


def test_where_rotated_runs_have_more_in_common_a_larger_overlap_is_due_to_chance() -> None:
    top = np.arange(N, 0, -1.0)
    three_shared = (top, np.roll(top, 7))
    permuted, moved = (agree(*three_shared, unrelated=known)["overlap"] for known in ([], [three_shared]))
    assert permuted.value == moved.value == moved.chance == 0.3
    # Moved by .3 - 1/6, a permutation that shares 2 agrees as much as the true ranking, which shares 3.
    assert permuted.p_value == pytest.approx(hypergeom(N, 10, 10).sf(2))
    assert moved.p_value == pytest.approx(hypergeom(N, 10, 10).sf(1))


def test_the_chance_of_overlap_is_hypergeometric() -> None:
    a, b = scorings(2)
    found, exact = agree(a, b, k=10)["overlap"], hypergeom(N, 10, 10)
    assert found.chance == pytest.approx(10 / N)
    assert (found.chance_low, found.chance_high) == pytest.approx((exact.ppf(0.025) / 10, exact.ppf(0.975) / 10))
    assert found.p_value == pytest.approx(sum(exact.pmf(i) for i in range(round(10 * found.value), 11)))


def test_the_chance_of_the_others_is_known_too() -> None:
    a, b = scorings(2)
    found = agree(a, b, permutations=20_000)
    # At depth d chance gives an overlap of d / n of d.
    p, d = PERSISTENCE, np.arange(1, N + 1)
    assert found["rbo"].chance == pytest.approx(((1 - p) * p ** (d - 1) * d / N).sum() + p**N, abs=1e-3)
    assert found["spearman"].chance == pytest.approx(0, abs=3e-3)
    assert found["spearman"].chance_high == pytest.approx(1.96 / np.sqrt(N - 1), rel=0.03)
    assert found["kendall"].chance_high == pytest.approx(1.96 * np.sqrt(2 * (2 * N + 5) / 9 / N / (N - 1)), rel=0.03)


def test_p_values_of_four_neurons_are_those_of_all_24_orders() -> None:
    found = agree(np.array([4.0, 3, 2, 1]), np.array([3.0, 4, 2, 1]), k=1, permutations=20_000)
    # One order has no inversion, three have one.
    assert found["kendall"].p_value == pytest.approx(4 / 24, abs=0.01)
    assert found["overlap"].p_value == 1


def test_the_least_p_value_is_one_in_all_permutations() -> None:
    (a,) = scorings(1)
    assert agree(a, a, permutations=99)["spearman"].p_value == 1 / 100
    assert agree(a, a, permutations=999)["spearman"].p_value == 1 / 1000


def test_the_seed_decides_the_permutations() -> None:
    a, b = scorings(2)
    assert_same(agree(a, b, seed=1), agree(a, b, seed=1))
    assert agree(a, b, seed=1)["kendall"].chance_low != agree(a, b, seed=2)["kendall"].chance_low


@pytest.mark.slow
@pytest.mark.parametrize("n_dead", [1, 30, 50])
def test_neurons_dead_on_both_sides_do_not_make_rankings_agree(n_dead: int) -> None:
    significant, values = [], []
    for seed, (a, b) in enumerate(zip(scorings(200), scorings(200, seed=1), strict=True)):
        a[:n_dead] = b[:n_dead] = 0
        found = agree(a, b, permutations=99, seed=seed)
        significant.append([one.p_value <= 0.1 for one in found.values()])
        values.append([found[name].value for name in ("spearman", "kendall")])
        assert all(one.n_neurons == N - n_dead for one in found.values())
    # A tenth of 200, with a standard error of 4.2.
    assert (np.sum(significant, axis=0) <= 33).all()
    assert np.abs(np.mean(values, axis=0)).max() < 4 / np.sqrt(200 * (N - n_dead - 1))


def test_a_dead_neuron_is_in_no_top_whatever_its_index() -> None:
    a, b = np.zeros((2, 20))
    a[18], b[19] = 1, 1
    found = agree(a, b, k=5)
    assert found["overlap"].value == found["rbo"].value == 0
    assert np.isnan(found["spearman"].value)
    assert found["spearman"].n_neurons == 0


def test_few_chosen_neurons_are_compared_by_which_they_are() -> None:
    # What an l1 penalty leaves: 8 neurons of 60 on each side, of which 6 are the same.
    a, b = np.zeros((2, N))
    a[:8], b[2:10] = scorings(2, 8)
    found = agree(a, b, k=8)
    assert found["overlap"].value == 6 / 8
    assert found["overlap"].n_neurons == found["rbo"].n_neurons == 10
    assert found["spearman"].n_neurons == 6
    assert found["rbo"].value == pytest.approx(
        float(rank_biased_overlap(neuron_ranks(a), neuron_ranks(b), PERSISTENCE))
    )


def test_a_neuron_dead_on_one_side_counts_against_the_overlap() -> None:
    (a,) = scorings(1)
    b = a.copy()
    b[a.argmax()] = 0
    found = agree(a, b, k=10)
    assert found["overlap"].value == 0.9
    assert found["spearman"].value == pytest.approx(1)


def test_where_a_side_ranks_nothing_nothing_is_claimed() -> None:
    (a,) = scorings(1)
    for constant in (np.zeros(N), np.ones(N)):
        for found in (*agree(a, constant).values(), *agree(constant, constant).values()):
            assert np.isnan([found.value, found.p_value, found.chance, found.low]).all()


def many_to_one(seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Scores of neurons in groups: the first 20 share the other model's neuron 0."""
    generator = np.random.default_rng(seed)
    of_partners, partner = generator.exponential(size=N), np.where(np.arange(N) < 20, 0, np.arange(N))
    # Alike on the same side too, as neurons matched with the same one are.
    a = generator.exponential(size=N) + 3 * generator.exponential(size=N)[partner]
    return a, of_partners[partner], partner


@pytest.mark.slow
def test_neurons_that_share_a_partner_do_not_multiply_the_evidence() -> None:
    p_values: dict[bool, list[list[float]]] = {True: [], False: []}
    for seed in range(200):
        a, b, partner = many_to_one(seed)
        for grouped, groups in ((True, partner), (False, None)):
            found = agree(a, b, groups=groups, permutations=99, seed=seed)
            p_values[grouped].append([one.p_value for one in found.values()])
    rates = {grouped: (np.array(p) <= 0.05).mean(0) for grouped, p in p_values.items()}
    # 5% of 200, with a standard error of 1.5%.
    assert (rates[True] <= 0.10).all()
    # As if they were neurons of their own it comes out too often: the test above can fail.
    assert rates[False][2:].min() > 0.15


def test_groups_of_one_change_nothing() -> None:
    a, b = scorings(2)
    assert_same(agree(a, b, groups=np.arange(N)[::-1]), agree(a, b))


def test_permuting_groups_of_almost_one_gives_almost_what_permuting_neurons_gives() -> None:
    a, b = scorings(2)
    b[1] = b[0]
    groups = np.maximum(np.arange(N), 1)
    one, other = agree(a, b, permutations=5000), agree(a, b, groups=groups, permutations=5000)
    for name in STATISTICS:
        assert one[name].value == other[name].value
        assert one[name].chance == pytest.approx(other[name].chance, abs=0.01)
        # Overlap comes in tenths.
        assert one[name].chance_high == pytest.approx(other[name].chance_high, abs=0.11 if name == "overlap" else 0.03)


@pytest.mark.slow
def test_the_interval_covers_the_agreement_that_such_runs_have_on_average() -> None:
    generator = np.random.default_rng(0)
    n, n_sentences, truth = 30, 60, generator.exponential(size=30)

    def run(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
        own = np.random.default_rng(seed)
        sums = truth + 4 * own.exponential(size=(n_sentences, n)) * own.exponential(size=(n_sentences, 1))
        n_tokens = np.ones(n_sentences, dtype=np.int64)
        return sums.mean(0), resampled_means(sums, n_tokens, seed, 60)

    values, ends = [], []
    for seed in range(60):
        (a, draws_a), (b, draws_b) = run(2 * seed), run(2 * seed + 1)
        found = agree(a, b, draws=(draws_a, draws_b), permutations=1)
        values.append([one.value for one in found.values()])
        ends.append([(one.low, one.high) for one in found.values()])
    (low, high), mean = np.moveaxis(np.array(ends), 2, 0), np.mean(values, axis=0)
    covered = ((low <= mean) & (mean <= high)).mean(0)
    # 95% with a standard error of 2.8%, and a little less where noise is most of the agreement.
    assert (covered > 0.83).all()
    # And it does not cover everything.
    assert ((high - low)[:, 2:] < 0.8).all()


@pytest.mark.parametrize("dead", ["none", "the same", "others", "all"])
@pytest.mark.parametrize("constant", [False, True])
def test_scorings_compared_in_pairs_are_those_compared_one_by_one(dead: str, constant: bool) -> None:
    ones, others = np.round(scorings(8), 1) + 0.1, np.round(scorings(8, seed=1), 1) + 0.1  # some are tied
    if constant:
        others[2] = 1.0  # ranks nothing
    ones[:, {"none": [], "the same": [3, 7], "others": [], "all": range(N)}[dead]] = 0
    if dead == "others":
        ones[np.arange(8), np.arange(8)] = 0
    settings = Settings(k=10, persistence=PERSISTENCE, permutations=1, seed=0)
    for name in STATISTICS:
        found = paired_similarities(name, ones, others, settings)
        expected = [similarities(name, one, other[None], settings)[0] for one, other in zip(ones, others, strict=True)]
        np.testing.assert_array_equal(found, expected)
        assert np.isnan(found).any() == (constant or dead == "all")


def test_the_interval_holds_the_value_and_stays_in_range() -> None:
    (a,) = scorings(1)
    draws = a * np.random.default_rng(1).uniform(0.5, 1.5, (50, N))
    for found in agree(a, a, draws=(draws, draws[::-1])).values():
        assert found.low <= found.value <= found.high <= 1 + 1e-12
    for found in agree(a, a, draws=(draws, draws)).values():
        assert found.low == pytest.approx(1)
    assert all(np.isnan([found.low, found.high]).all() for found in agree(a, a).values())


@given(st.integers(0, 2**16), st.integers(3, 40), st.integers(2, 120), st.floats(0, 3))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_a_value_lies_in_its_own_interval(seed: int, n: int, n_draws: int, noise: float) -> None:
    generator = np.random.default_rng(seed)
    a, b = generator.exponential(size=(2, n))
    draws = [side * np.exp(noise * generator.standard_normal((n_draws, n)) * (generator.random((n_draws, 1)) < 0.1))
             for side in (a, b)]  # fmt: skip
    for one in agreement(a, b, k=min(10, n), draws=(draws[0], draws[1]), permutations=1):
        assert one.low <= one.value <= one.high


def test_holm_equals_its_definition() -> None:
    p = [0.01, 0.04, 0.03, 0.005]
    # 4 x .005, 3 x .01, 2 x .03 and, for it may not fall, .06 again.
    assert holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1, 1]
    assert holm([]) == []


def test_what_was_not_tested_counts_for_no_test() -> None:
    first, untested, last = holm([0.02, np.nan, 0.03])
    assert (first, last) == pytest.approx((0.04, 0.04))
    assert np.isnan(untested)


@pytest.mark.parametrize("n_tests", [1, 49, 169, 625])
def test_there_are_enough_permutations_to_pass_the_correction(n_tests: int) -> None:
    least = 1 / (1 + permutations_for(n_tests))
    assert holm([least] + (n_tests - 1) * [1.0])[0] < 0.025


@pytest.mark.parametrize(
    ("a", "b", "how", "message"),
    [
        (np.ones(3), np.ones(4), {}, r"one shape.*\(3,\) and \(4,\)"),
        (np.ones((2, 3)), np.ones((2, 3)), {}, "one shape"),
        (np.ones(1), np.ones(1), {"k": 1}, "two neurons, found 1"),
        (np.array([1, np.nan]), np.ones(2), {}, "finite"),
        (np.ones(2), np.array([1, np.inf]), {}, "finite"),
        (np.arange(3.0), np.arange(3.0), {"k": 4}, "k: expected 1 to 3.*found 4"),
        (np.arange(3.0), np.arange(3.0), {"k": 0}, "k: expected 1 to 3.*found 0"),
        (np.arange(3.0), np.arange(3.0), {"persistence": 1.0}, "persistence"),
        (np.arange(3.0), np.arange(3.0), {"groups": np.zeros(3)}, "same neuron must have its score"),
        (np.arange(3.0), np.arange(3.0), {"groups": np.zeros(2)}, r"expected shape \(3,\)"),
        (np.arange(3.0), np.arange(3.0), {"draws": (np.ones((5, 3)), np.ones((4, 3)))}, "draws"),
        (np.arange(3.0), np.arange(3.0), {"draws": (np.ones((1, 3)), np.ones((1, 3)))}, "two or more"),
        (np.arange(3.0), np.arange(3.0), {"shuffled": (np.ones((5, 3)), np.ones((4, 3)))}, "shuffled"),
        (np.arange(3.0), np.arange(3.0), {"shuffled": (np.ones((5, 2)), np.ones((5, 2)))}, r"\(n_draws, 3\)"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    a: NDArray[Any], b: NDArray[Any], how: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        agreement(a, b, **{"k": 1, **how})


def test_scores_stay_as_they_were() -> None:
    a, b = scorings(2)
    before = a.copy(), b.copy()
    agree(a, b, groups=np.arange(N), draws=(scorings(3), scorings(3)))
    assert (a == before[0]).all()
    assert (b == before[1]).all()


N_DRAWS = 19


def test_of_two_sides_the_one_that_agrees_more_counts() -> None:
    null = np.array([np.linspace(0.1, 0.2, N_DRAWS), np.linspace(0.2, 0.4, N_DRAWS)])
    found = label_chance(0.35, null)
    assert found.mean == pytest.approx(0.3)
    assert found.p_value == pytest.approx((1 + (null[1] >= 0.35).sum()) / 20)
    assert 0.2 <= found.low < 0.21
    assert 0.39 < found.high <= 0.4
    assert label_chance(0.35, null[::-1]) == found
    # Beyond both, the side with the larger mean is what there is to show.
    assert label_chance(0.5, null).mean == pytest.approx(0.3)
    assert label_chance(0.5, null).p_value == 1 / 20


def test_a_draw_that_agrees_as_much_counts_whatever_rounding_does() -> None:
    assert label_chance(0.1 + 0.2, np.full((2, N_DRAWS), 0.3)).p_value == 1


def test_a_ranking_that_is_empty_is_no_evidence() -> None:
    null = np.full((2, N_DRAWS), np.nan)
    assert label_chance(0.1, null) == (0, 0, 0, 1)
    assert max_p_values(np.array([0.1]), null[..., None]) == pytest.approx([1])
    null[:, 3:] = 0.05
    assert label_chance(0.1, null)[3] == 4 / 20
    assert max_p_values(np.array([0.1]), null[..., None]) == pytest.approx([4 / 20])


def related_pairs(n: int, n_pairs: int, seed: int) -> np.ndarray:
    """Return draws of statistics that go together over pairs of layers and differ in size, shape (n, n_pairs)."""
    generator = np.random.default_rng(seed)
    common = generator.standard_normal((n, 1))
    scale = np.geomspace(0.01, 10, n_pairs)
    return scale * (1 + 0.7 * common + 0.7 * generator.standard_normal((n, n_pairs)))


def test_corrected_p_values_are_small_for_any_pair_as_seldom_as_they_say() -> None:
    smallest, of_one = [], []
    for seed in range(400):
        side = related_pairs(1 + N_DRAWS, 20, seed)
        null = np.stack([side[1:], np.full((N_DRAWS, 20), -1e3)])  # the other task's labels do say something
        smallest.append(max_p_values(side[0], null).min())
        of_one.append(label_chance(side[0, 7], null[:, :, 7]).p_value)
    for p_values, share in ((smallest, 0.05), (of_one, 0.05), (of_one, 0.5)):
        # Exactly that share, with a standard error of 1.1% for 5% and 2.5% for half.
        assert np.mean(np.array(p_values) <= share + 1e-9) == pytest.approx(share, abs=0.04 if share < 0.5 else 0.09)


def test_correction_leaves_a_strong_agreement_the_least_p_value_where_holm_leaves_none() -> None:
    null = np.stack([related_pairs(N_DRAWS, 49, seed) for seed in (0, 1)])
    values = null[0].mean(0)
    values[[3, 30]] += 8 * null[0].std(0)[[3, 30]]
    found = max_p_values(values, null)
    assert found[[3, 30]].tolist() == [1 / 20, 1 / 20]
    assert np.delete(found, [3, 30]).min() > 0.2
    alone = [label_chance(value, null[:, :, i]).p_value for i, value in enumerate(values)]
    assert (found >= np.array(alone)).all()
    assert min(holm(alone)) > 0.9


def test_pairs_without_agreement_are_not_tested_and_those_that_never_vary_are_no_evidence() -> None:
    null = np.stack([related_pairs(N_DRAWS, 3, seed) for seed in (0, 1)])
    null[:, :, 2] = 0.3
    found = max_p_values(np.array([np.nan, null[..., 1].max() + 100, 0.3]), null)
    assert np.isnan(found[0])
    assert found[1] == 1 / 20
    assert found[2] == 1
    assert np.isnan(max_p_values(np.array([np.nan] * 3), null)).all()


# --- rankings of one model ---


def rankings(n: int, seed: int) -> np.ndarray:
    """Return scores as labels that say nothing give them: neurons differ in size whatever the labels; shape (n, 60)."""
    return np.geomspace(1, 300, 60) * np.random.default_rng(seed).exponential(size=(n, 60))


def test_neurons_that_are_large_whatever_the_labels_are_no_agreement() -> None:
    by_exchange, by_labels = [], []
    for seed in range(60):
        a, b = rankings(1 + N_DRAWS, 2 * seed), rankings(1 + N_DRAWS, 2 * seed + 1)
        shuffled = (a[1:], b[1:])
        by_exchange.append([one.p_value for one in agreement(a[0], b[0], permutations=39, seed=seed)])
        by_labels.append([one.p_value for one in agreement(a[0], b[0], shuffled=shuffled)])
    small = [(np.array(p) <= 0.05).mean(0) for p in (by_exchange, by_labels)]
    assert small[0].min() > 0.5  # scores exchanged between neurons call it agreement
    assert small[1].max() <= 0.14  # at most 5%, with a standard error of 2.8%


def test_neurons_that_both_tasks_need_are_agreement() -> None:
    needed = np.zeros(60)
    needed[10:20] = 1000
    a, b = rankings(1 + N_DRAWS, 0), rankings(1 + N_DRAWS, 1)
    for one in agreement(a[0] + needed, b[0] + needed, shuffled=(a[1:], b[1:])):
        assert one.p_value == 1 / 20
        assert one.chance <= one.chance_high < one.value
        assert one.null is not None
        assert one.null.shape == (2, N_DRAWS)


def test_a_task_that_says_something_does_not_agree_with_one_that_says_nothing() -> None:
    needed = np.zeros(60)
    needed[50:] = 1000  # large anyway, so that it looks alike
    p_values = []
    for seed in range(60):
        a, b = rankings(1 + N_DRAWS, 2 * seed), rankings(1 + N_DRAWS, 2 * seed + 1)
        found = agreement(a[0] + needed, b[0], shuffled=(a[1:], b[1:]))
        p_values.append([one.p_value for one in found])
    assert (np.array(p_values) <= 0.05).mean(0).max() <= 0.14


def test_draws_in_which_other_neurons_are_dead_are_compared_one_by_one() -> None:
    a, b = rankings(1 + N_DRAWS, 0), rankings(1 + N_DRAWS, 1)
    b[:, :3] = 0
    b[4, 30:] = 0
    together = agreement(a[0], b[0], shuffled=(a[1:], b[1:]))
    for i in range(N_DRAWS):
        alone = agreement(a[0], b[0], shuffled=(a[1:2], b[1 + i : 2 + i]))
        for one, other in zip(together, alone, strict=True):
            assert one.null is not None
            assert other.null is not None
            assert one.null[1, i] == pytest.approx(other.null[1, 0], abs=1e-12)


Array = NDArray[np.float64]


def ranked(
    label: str, tops: Sequence[Sequence[int]], shuffled: Sequence[Sequence[Sequence[int]]] | None = None
) -> Ranked:
    """Return a run of 6 neurons in some layers, of which those named are first, in this order; the others follow."""
    scores = np.stack([scored(top) for top in tops])
    drawn = None if shuffled is None else np.stack([np.stack([scored(top) for top in layer]) for layer in shuffled])
    return Ranked(label, list(range(len(tops))), scores, scores[:, None], shuffled=drawn)


def scored(top: Sequence[int]) -> Array:
    scores = np.linspace(0.6, 0.1, 6)
    scores[list(top)] = np.arange(9.0, 9 - len(top), -1)
    return scores


def rows_of(n_layers: int, other: str = "b") -> list[dict[str, Any]]:
    """Return rows of agreement in which by chance half of the first neurons are in common."""
    alike = {"model_a": "a", "model_b": other, "statistic": "overlap", "same_depth": "yes", "chance": 0.5}
    return [{**alike, "layer_a": i, "layer_b": i} for i in range(n_layers)]


def by_index(n_layers: int, other: str = "b") -> RunPair:
    return RunPair(rows_of(n_layers, other), np.broadcast_to(np.arange(6), (n_layers, n_layers, 6)), True)


def test_neurons_of_every_top_are_listed_with_their_ranks_in_layers_of_one_depth() -> None:
    runs = [ranked("a", [(4, 1), (0, 2)]), ranked("b", [(1, 4), (2, 3)]), ranked("c", [(4, 1), (2, 5)])]
    found = top_everywhere(runs, {1: by_index(2), 2: by_index(2)}, 2)
    assert [(row["layer"], row["neuron"], row["rank"]) for row in found.rows] == [(0, 4, 1), (0, 1, 2), (1, 2, 2)]
    assert found.rows[0] == {
        "layer": 0, "neuron": 4, "rank": 1, "b layer": 0, "b neuron": 4, "b rank": 2, "c layer": 0, "c neuron": 4,
        "c rank": 1, "no_signal": "",
    }  # fmt: skip
    assert found.chance is None
    assert found.summary()["n_neurons"] == 3
    unread = top_everywhere(runs, {1: by_index(2), 2: by_index(2, "c")}, 2, {"c": [0]})
    assert [row["layer"] for row in unread.rows] == [1]
    # Of two neurons of the first, each of the others has a half by chance.
    assert unread.summary() == {"n_neurons": 1, "n_layers": 1, "chance_mean": 2 * 0.5 * 0.5}


def test_matched_neurons_are_followed_and_those_without_a_partner_left_out() -> None:
    partners = np.array([[[5, 4, 3, 2, -1, 0]]])
    found = top_everywhere([ranked("a", [(4, 1)]), ranked("b", [(4, 1)])], {1: RunPair(rows_of(1), partners, None)}, 2)
    assert [(row["neuron"], row["b neuron"]) for row in found.rows] == [(1, 4)]


def test_a_dead_neuron_is_in_no_top_even_where_fewer_are_alive() -> None:
    a, b = ranked("a", [(4, 1)]), ranked("b", [(4, 1)])
    a.scores[0, [0, 1, 2, 3, 5]] = 0
    assert [row["neuron"] for row in top_everywhere([a, b], {1: by_index(1)}, 3).rows] == [4]


def test_neurons_without_signal_are_marked_with_the_runs_where_they_have_none() -> None:
    a, b = ranked("a", [(4, 1)]), ranked("b", [(1, 4)])
    marks = np.zeros((2, 1, 6), dtype=bool)
    marks[:, 0, 4] = True
    marks[1, 0, 1] = True
    runs = [Ranked(r.label, r.layers, r.scores, r.draws, no_signal=own) for r, own in zip((a, b), marks, strict=True)]
    assert [row["no_signal"] for row in top_everywhere(runs, {1: by_index(1)}, 2).rows] == ["a, b", "b"]


def test_shuffled_labels_say_how_many_would_be_there_and_how_often_each() -> None:
    # Of three draws of a, neuron 4 is at the top in two and neuron 1 in none; of b, in one and in none.
    a = ranked("a", [(4, 1)], [[(4, 0), (4, 2), (0, 2)]])
    b = ranked("b", [(1, 4)], [[(3, 4), (0, 5), (0, 5)]])
    found = top_everywhere([a, b], {1: by_index(1)}, 2)
    assert {row["neuron"]: row["p_value"] for row in found.rows} == {4: 3 / 4, 1: 1 / 4}
    assert found.chance is not None
    # Against b's top two, a's draws leave 1, 1 and 0; against a's, b's leave 1, 0 and 0.
    assert found.chance.mean == pytest.approx(2 / 3)
    assert found.chance.p_value == 1 / 4
    assert found.summary()["n_neurons"] == 2
    assert found.summary()["chance_p_value"] == 1 / 4


def test_the_others_of_three_runs_stay_as_they_are() -> None:
    a = ranked("a", [(4, 1)], [[(4, 1), (4, 2)]])
    others = [ranked(name, [(1, 4)], [[(0, 5), (0, 5)]]) for name in "bc"]
    found = top_everywhere([a, *others], {1: by_index(1), 2: by_index(1)}, 2)
    assert found.chance is not None
    assert found.chance.mean == pytest.approx(1.5)  # what a's draws leave of the two; the others' leave nothing
    assert found.chance.p_value == 2 / 3


def test_random_tops_share_neurons_beyond_chance_as_seldom_as_it_says() -> None:
    generator, p_values, n_beyond, n_shared = np.random.default_rng(0), [], 0, 0
    size = np.geomspace(1, 30, 60)
    for _ in range(100):
        runs = []
        for name in "ab":
            scores = size * generator.exponential(size=(3, 20, 60))
            runs.append(Ranked(name, [0, 1, 2], scores[:, 0], scores[:, :1], shuffled=scores[:, 1:]))
        found = top_everywhere(runs, {1: RunPair(rows_of(3), np.broadcast_to(np.arange(60), (3, 3, 60)), True)}, 10)
        assert found.chance is not None
        p_values.append(found.chance.p_value)
        n_shared += len(found.rows)
        n_beyond += sum(row["p_value"] <= 0.05 for row in found.rows)
    assert n_shared > 300  # size alone makes many
    assert n_beyond <= 0.02 * n_shared  # a neuron must be beyond chance in both runs
    assert np.mean(np.array(p_values) <= 0.05) <= 0.1
