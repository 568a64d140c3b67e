"""Orders in which heads are disabled together, the curves, and their areas beside random orders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.studies.disable.weights import (
    N_RANDOM,
    Curve,
    Together,
    Unit,
    all_orders,
    area_rows,
    by_importance,
    counts,
    curve_rows,
    scores,
    units_of,
)

pytestmark = pytest.mark.numeric

N = np.full(60, 10)
NAMED: dict[str, Any] = {"units": "heads", "kind": "zero", "readout": "position", "layer": 3}


def test_a_share_is_added_at_each_step_until_all_are_disabled() -> None:
    assert counts(72, 0.1) == [0, 7, 14, 21, 28, 35, 42, 49, 56, 63, 70, 72]
    assert counts(3, 0.1) == counts(3, 0) == [0, 1, 2, 3]
    assert counts(5, 1) == [0, 5]


def test_importance_is_normalised_by_layer_for_heads_and_summed_for_layers() -> None:
    gradients = np.random.default_rng(0).normal(size=(30, 2, 3)).astype(np.float32)
    gradients[:, 1, 2] = 0
    n = np.full(30, 4)
    n[:5] = 0
    gradients[:5] = 100
    mean = np.abs(gradients[5:].astype(np.float64)).mean(0)
    expected = (mean / np.linalg.norm(mean, axis=1, keepdims=True)).ravel()
    assert scores(gradients, n, units_of("heads", [1, 2], 3)) == pytest.approx(expected)
    together = np.abs(gradients[5:].astype(np.float64).sum(2)).mean(0)
    assert scores(gradients, n, units_of("layers", [1, 2], 3)) == pytest.approx(together)
    assert scores(np.zeros_like(gradients), n, units_of("heads", [2], 3)).tolist() == [0, 0, 0]


def test_importance_is_estimated_again_without_what_is_disabled() -> None:
    units = units_of("heads", [1, 2], 2)
    seen: list[tuple[int, list[str]]] = []

    def estimate(step: int, gone: Any) -> NDArray[np.float64]:
        seen.append((step, [unit.name for unit in gone]))
        # Once 2-1 is gone, 1-1 matters least; a tie goes to the first.
        return np.array([3.0, 2.0, 1.0, 2.0]) if step == 0 else np.array([0.0, 2.0, 0.0, 2.0])

    order = by_importance(units, [0, 1, 2, 3, 4], estimate)
    assert [unit.name for unit in order] == ["2-1", "1-1", "1-2", "2-2"]
    assert seen == [(0, []), (1, ["2-1"]), (2, ["2-1", "1-1"]), (3, ["2-1", "1-1", "1-2"])]
    orders = all_orders(order, units, seed=3)
    assert orders[1][2] == order[::-1]
    assert len({tuple(unit.name for unit in random) for name, _, random in orders if name == "random"}) > 10
    assert all(sorted(unit.name for unit in one) == ["1-1", "1-2", "2-1", "2-2"] for _, _, one in orders)


def test_what_stands_in_the_place_of_heads_is_theirs_alone() -> None:
    stands = torch.arange(2 * 6, dtype=torch.float32).reshape(2, 6)
    changes = Together(frozenset({(2, 1), (2, 3)}), stands, 2).of_blocks()
    assert list(changes) == [2]
    given = -torch.ones(1, 2, 7)  # a projection may receive more than the heads' outputs
    assert changes[2](given)[0, 0].tolist() == [6, 7, -1, -1, 10, 11, -1]
    assert (given == -1).all()


def curves(matter: list[int], order: list[int], seed: int) -> list[Curve]:
    """Curves of eight heads, each of which that matters costs a tenth of the right answers wherever it is disabled."""
    generator = np.random.default_rng(seed)
    units = [Unit(f"1-{head}", ((1, head),)) for head in range(1, 9)]
    at = list(range(9))
    noise = generator.normal(0, 0.3, (9, 60))
    found = []
    for name, draw, chosen in all_orders([units[i] for i in order], units, seed):
        cost = np.cumsum([0, *(1.0 if units.index(unit) in matter else 0.0 for unit in chosen)])
        found.append(Curve(name, draw, chosen, at, 8 - cost[:, None] + noise + generator.normal(0, 0.05, (9, 60))))
    return found


def test_an_area_is_that_under_the_curve_and_the_order_by_importance_is_found_better_than_random_ones() -> None:
    made = curves([4, 5, 6, 7], list(range(8)), 0)
    rows = curve_rows(made, N, NAMED)
    assert len(rows) == 9 * (2 + N_RANDOM)
    first = rows[:9]
    assert [row["value"] for row in first] == pytest.approx([0.8] * 5 + [0.7, 0.6, 0.5, 0.4], abs=0.02)
    assert [row["disabled"] for row in first] == ["", *(f"1-{head}" for head in range(1, 9))]
    assert first[0]["effect"] == 0
    for row in first[1:]:
        assert row["low"] < row["value"] - first[0]["value"] < row["high"]
    best, worst = area_rows(made, N, NAMED)
    expected = np.trapezoid([row["value"] for row in first], [row["share"] for row in first])
    assert best["area"] == pytest.approx(expected)
    assert best["effect"] == pytest.approx(best["area"] - best["random_area"])
    assert best["low"] > 0 > worst["high"]
    assert (best["p_value"], worst["p_value"]) == (pytest.approx(1 / 21), pytest.approx(1 / 21))
    assert best["percentile"] == 100


def test_where_no_head_matters_the_order_by_importance_is_as_good_as_any() -> None:
    p_values = [area_rows(curves([], list(range(8)), seed), N, NAMED)[0]["p_value"] for seed in range(60)]
    assert sum(p < 0.05 for p in p_values) <= 8
    assert 0.3 < np.mean(p_values) < 0.7


def test_of_a_loss_a_smaller_area_is_better() -> None:
    made = [
        Curve(one.order, one.draw, one.units, one.at, 10 - one.sums) for one in curves([4, 5, 6, 7], list(range(8)), 0)
    ]
    best, worst = area_rows(made, N, NAMED | {"readout": "mlm"})
    assert best["percentile"] == 100
    assert best["area"] < best["random_area"] < worst["area"]
    assert best["p_value"] == pytest.approx(1 / 21)
