"""Effects of disabled units, their p-values, and the unit that it is better to be without."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest

from probing.comparison.agreement import holm
from probing.disabling.probed_task import Job
from probing.disabling.subject import Measured, better_without_rows, effect_rows, measured_of, raising_rows
from probing.statistics.intervals import difference_interval, difference_p_value, mean_interval

pytestmark = pytest.mark.numeric

N = np.full(60, 10)


def measured(
    effects: Mapping[tuple[int, int], float] | Mapping[tuple[int, None], float], seed: int = 0, kind: str = "mean"
) -> list[Measured]:
    """Return passes over 60 sentences of 10 tokens, 6 of which are right while nothing is disabled."""
    generator = np.random.default_rng(seed)
    intact = np.full(60, 6.0)
    return [
        Measured(Job(block, head, kind), "position", 3, intact + generator.binomial(2, 0.5, 60) - 1 + 10 * e, intact, N)  # type: ignore[arg-type]
        for (block, head), e in effects.items()
    ]


def test_an_effect_is_the_difference_of_accuracies_paired_by_sentence() -> None:
    made = measured({(1, 1): -0.1, (1, 2): 0.0, (2, 1): 0.05})
    rows = effect_rows(made)
    assert [row["unit"] for row in rows] == ["1-1", "1-2", "2-1"]
    raw = []
    for one, row in zip(made, rows, strict=True):
        assert row["intact"] == pytest.approx(0.6)
        assert row["value"] == pytest.approx(one.right.sum() / 600)
        assert row["effect"] == pytest.approx(row["value"] - row["intact"])
        difference = one.right - one.intact
        assert (row["low"], row["high"]) == difference_interval(difference, N)
        raw.append(difference_p_value(difference, N))
    assert [row["p_value"] for row in rows] == pytest.approx(holm(raw).tolist())
    # The head that costs most is at 100, the one that costs least at 0.
    assert [row["percentile"] for row in rows] == [100, 50, 0]
    # Heads that cost the same do not cost less.
    assert [row["percentile"] for row in effect_rows([made[1], made[0], made[1]])] == [0, 100, 0]


def test_heads_and_layers_and_kinds_are_corrected_and_ranked_by_themselves() -> None:
    heads, others = measured({(1, 1): -0.1, (1, 2): 0.0}), measured({(1, 1): -0.1}, kind="zero")
    layers = measured({(1, None): -0.1, (2, None): 0.02})
    together = effect_rows([*heads, *others, *layers])
    for part, rows in ((heads, together[:2]), (others, together[2:3]), (layers, together[3:])):
        assert [row["p_value"] for row in rows] == [row["p_value"] for row in effect_rows(part)]
    assert all(math.isnan(row["percentile"]) for row in together[2:])
    assert [row["unit"] for row in together[3:]] == ["1", "2"]


def test_the_layers_of_a_pass_are_told_apart() -> None:
    right, intact = np.array([[5.0] * 30, [4.0] * 30]), np.array([[6.0] * 30, [6.0] * 30])
    n = np.full(30, 10)
    found = measured_of({Job(2, None, None): intact, Job(2, 1, "zero"): right}, {2: [2, 3]}, n, "position")
    assert [(row["layer"], row["effect"]) for row in effect_rows(found)] == [
        (2, pytest.approx(-0.1)), (3, pytest.approx(-0.2)),
    ]  # fmt: skip


def test_being_better_without_a_head_is_told_of_sentences_that_it_was_not_chosen_on() -> None:
    heads = {(block, head): 0.0 for block in range(1, 4) for head in range(1, 9)}
    (row,) = better_without_rows(measured(heads | {(2, 5): 0.2}), seed=0)
    assert (row["units"], row["unit"], row["n"]) == ("heads", "2-5", 30)
    assert row["low"] < row["effect"] < row["high"]
    assert row["effect"] == pytest.approx(0.2, abs=0.03)
    assert row["p_value"] < 0.001


def test_where_no_head_helps_the_best_one_seldom_seems_to() -> None:
    heads = {(block, head): 0.0 for block in range(1, 4) for head in range(1, 9)}
    rows = [better_without_rows(measured(heads, seed), seed)[0] for seed in range(100)]
    assert np.mean([row["effect_chosen_on"] for row in rows]) > 0.015  # chosen among 24, it seems to on its own half
    assert abs(np.mean([row["effect"] for row in rows])) < 0.004
    assert sum(row["p_value"] < 0.05 for row in rows) <= 9


def test_of_a_loss_less_is_better_and_its_interval_is_that_of_a_mean() -> None:
    generator = np.random.default_rng(0)
    intact = generator.gamma(3, 8, 60)
    made = [
        Measured(Job(1, head, "zero"), "mlm", 3, intact + 10 * of + generator.normal(0, 0.5, 60), intact, N)
        for head, of in ((1, 0.4), (2, 0.0), (3, -0.3))
    ]
    rows = effect_rows(made)
    assert [row["percentile"] for row in rows] == [100, 50, 0]
    for one, row in zip(made, rows, strict=True):
        assert (row["low"], row["high"]) == mean_interval(one.right - one.intact, N)
    assert rows[0]["p_value"] < 0.001 < 0.05 < rows[1]["p_value"]
    (best,) = better_without_rows(made, seed=0)
    assert best["unit"] == "1-3"
    assert best["effect"] == pytest.approx(-0.3, abs=0.05)


def test_units_without_which_a_measure_rises_are_counted_beside_what_chance_gives() -> None:
    some = measured({(1, head): 0.2 if head <= 9 else -0.2 for head in range(1, 13)})
    (row,) = raising_rows(some, 0)
    assert (row["units"], row["n_units"], row["n_better"]) == ("heads", 12, 9)
    assert row["n_clear"] == 9
    assert row["p_value"] < 0.05
    (all_rise,) = raising_rows(measured({(1, head): 0.2 for head in range(1, 13)}), 0)
    assert all_rise["n_better"] == 12
    assert all_rise["p_value"] < 0.01
    # Of a loss, units without which it falls are counted.
    losses = [Measured(one.job, "mlm", 3, one.right, one.intact, one.n) for one in some]
    assert raising_rows(losses, 0)[0]["n_better"] == 3
    # What changes nothing is not better, however often signs are drawn.
    same = [Measured(Job(1, 1, "zero"), "tuned", 3, some[0].intact, some[0].intact, N)]
    (still,) = raising_rows(same, 0)
    assert (still["n_better"], still["n_chance_high"], still["p_value"]) == (0, 0, 1)
    # Layers and kinds are counted by themselves, in the highest layer that is read, and corrected for their number.
    others = [Measured(Job(1, None, "zero"), "position", 3, some[0].right, some[0].intact, N)]
    below = [Measured(one.job, "position", 2, one.right, one.intact, N) for one in some]
    both = raising_rows([*below, *some, *others], 0)
    assert [(one["units"], one["layer"]) for one in both] == [("heads", 3), ("layers", 3)]
    assert both[0]["p_value"] >= row["p_value"]


def test_units_that_go_together_are_not_more_than_chance_gives() -> None:
    """Thirty heads that share most of what they change by chance: in 5% of texts, most of them rise together."""
    n_claims, intact = 0, np.full(60, 6.0)
    for seed in range(200):
        generator = np.random.default_rng(seed)
        shared = generator.normal(size=60)
        heads = [
            Measured(Job(1, head, "zero"), "tuned", 3, intact + shared + 0.3 * generator.normal(size=60), intact, N)
            for head in range(1, 31)
        ]
        (row,) = raising_rows(heads, seed)
        n_claims += row["p_value"] < 0.05
    assert n_claims <= 18
