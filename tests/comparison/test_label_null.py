"""P-values against few draws: exact where a ranking is one of its draws, and of use for many pairs of layers."""

from __future__ import annotations

import numpy as np
import pytest

from probing.comparison.agreement import agreement, holm, label_chance, max_p_values

pytestmark = pytest.mark.numeric

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
    assert holm(alone).min() > 0.9


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
