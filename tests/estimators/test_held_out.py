"""Rows on which the penalty is chosen: whole groups, chosen by a hash, and every class is left to learn from."""

from __future__ import annotations

import numpy as np
import pytest

from probing.data.arrays import groups_of_rows
from probing.errors import UserError
from probing.estimators.base import hold_out

pytestmark = pytest.mark.numeric

LABELS = np.arange(200) % 3


def test_a_tenth_of_the_groups_is_held_out_as_wholes() -> None:
    groups = np.repeat(np.arange(40), 5)
    held_out = hold_out(*groups_of_rows(groups, 200), LABELS, 0.1, seed=0)
    assert held_out.sum() == 20
    assert {held_out[groups == group].mean() for group in range(40)} == {0.0, 1.0}


def test_the_order_of_the_rows_does_not_matter_and_the_seed_does() -> None:
    groups, order = np.array([f"speaker {i // 4}" for i in range(200)]), np.random.default_rng(0).permutation(200)
    held_out, other = (hold_out(*groups_of_rows(groups, 200), LABELS, 0.2, seed) for seed in (0, 1))
    moved = hold_out(*groups_of_rows(groups[order], 200), LABELS[order], 0.2, seed=0)
    np.testing.assert_array_equal(moved, held_out[order])
    assert (held_out != other).any()


@pytest.mark.parametrize("seed", range(10))
def test_every_class_keeps_rows_however_many_are_held_out(seed: int) -> None:
    labels = np.array([0] * 20 + [1] * 3 + [2])
    held_out = hold_out(*groups_of_rows(None, 24), labels, 0.9, seed)
    assert set(labels[~held_out]) == {0, 1, 2}
    assert 0 < held_out.sum() <= 21  # all but one of each class


def test_at_least_one_group_is_held_out_and_at_least_one_is_left() -> None:
    assert hold_out(*groups_of_rows(None, 3), None, 0.01, seed=0).sum() == 1
    assert hold_out(*groups_of_rows(None, 3), None, 0.99, seed=0).sum() == 2


def test_where_no_group_can_be_held_out_a_number_is_asked_for() -> None:
    with pytest.raises(UserError, match=r"each group of rows has all rows of a class; .* such as `l2=1e-3`"):
        hold_out(*groups_of_rows(None, 3), np.arange(3), 0.1, seed=0)
