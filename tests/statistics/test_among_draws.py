"""Ranks among random draws, and what has none."""

from __future__ import annotations

import math

import numpy as np
import pytest

from probing.statistics.chance import percentile_of, rank_p
from probing.statistics.moments import deviations_of
from probing.statistics.rank_similarity import kendall, neuron_ranks, spearman

pytestmark = pytest.mark.numeric


def test_a_value_is_ranked_among_draws_with_ties_against_it() -> None:
    assert rank_p(3.0, [1.0, 2.0, 3.0, 4.0]) == 3 / 5
    assert percentile_of(3.0, [1.0, 2.0, 3.0, 4.0]) == 50
    # Without a relation, p-values are uniform.
    drawn = np.random.default_rng(0).random((2000, 20))
    p_values = [rank_p(one[0], one[1:]) for one in drawn]
    assert np.mean(np.array(p_values) <= 0.1) == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize(("value", "drawn"), [(math.nan, [1.0, 2.0]), (1.0, [1.0, math.nan]), (math.nan, [math.nan])])
def test_what_is_undefined_is_not_beyond_all_draws(value: float, drawn: list[float]) -> None:
    assert math.isnan(rank_p(value, drawn))
    assert math.isnan(percentile_of(value, drawn))


@pytest.mark.parametrize("at", [0, 2, 4])
def test_a_score_that_is_undefined_has_no_rank(at: int) -> None:
    scores = np.array([5.0, 4.0, 3.0, 2.0, 0.0])
    ranks = neuron_ranks(scores)
    scores[at] = np.nan
    assert neuron_ranks(scores)[at] == 6
    assert sorted(neuron_ranks(scores)[scores > 0]) == [*range(1, 1 + int((scores > 0).sum()))]
    undefined = np.where(np.isnan(scores), np.nan, ranks)
    for measure in (spearman, kendall):
        assert math.isnan(measure(undefined, ranks.astype(float)))
        found = measure(ranks.astype(float), np.stack([ranks.astype(float), undefined]))
        assert np.isnan(found).tolist() == [False, True]
    assert np.isnan(deviations_of(scores)).all()
