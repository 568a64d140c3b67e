"""How far a ranking moves when sentences are drawn anew, and when the penalty is another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from probing.evidence.removal import bootstrap, penalty_problems, penalty_stability, replicate_problems, stability_of
from probing.probes.solvers import Penalty
from synthetic import Data, make_store, make_tokens, positional, sides

pytestmark = pytest.mark.numeric


@pytest.fixture
def data(tmp_path: Path) -> Data:
    tokens = make_tokens([8] * 60)
    return sides(make_store(tmp_path / "store", [positional(tokens, 4, 1.0)], tokens))


def test_as_many_training_sentences_are_drawn_as_there_are_and_no_others(data: Data) -> None:
    draws = bootstrap(data.train, 4, seed=1).numpy()
    assert draws.shape == (4, 60)
    assert (draws.sum(1) == len(data.train.sentences())).all()
    assert (draws[:, np.setdiff1d(np.arange(60), data.train.sentences())] == 0).all()
    assert draws.max() > 1  # with replacement
    assert len({tuple(row) for row in draws}) == 4


def test_a_replicate_is_the_same_however_many_there_are(data: Data) -> None:
    np.testing.assert_array_equal(bootstrap(data.train, 2, seed=1), bootstrap(data.train, 5, seed=1)[:2])
    assert not np.array_equal(bootstrap(data.train, 2, seed=1), bootstrap(data.train, 2, seed=2))


def test_problems_of_a_layer_stand_side_by_side(data: Data) -> None:
    draws, penalty = bootstrap(data.train, 3, 0), Penalty(1e-3, 1e-4)
    replicates, penalties = replicate_problems(2, penalty, draws), penalty_problems(2, penalty)
    assert [p.layer_index for p in replicates] == [0, 0, 0, 1, 1, 1]
    assert [(p.layer_index, p.penalty) for p in penalties[2:]] == [(1, Penalty(1e-2, 1e-3)), (1, Penalty(1e-4, 1e-5))]


def test_ranks_range_over_the_probe_and_its_replicates() -> None:
    replicates = np.array([[5.0, 4, 3, 0, 0], [4.0, 5, 3, 0, 0], [5.0, 3, 4, 0, 0]])
    found = stability_of(np.array([3.0, 4, 5, 0, 0]), replicates)
    assert found.rank_low.tolist() == [1, 1, 1, 4, 4]  # the first of the replicates' third; dead ones share theirs
    assert found.rank_high.tolist() == [3, 3, 3, 4, 4]


@pytest.mark.parametrize("seed", range(5))
def test_a_range_contains_the_rank_it_is_about_whatever_replicates_say(seed: int) -> None:
    generator = np.random.default_rng(seed)
    scores = generator.exponential(size=40) * (generator.random(40) > 0.1)
    biased = scores * np.linspace(0.5, 2, 40) * generator.uniform(0.9, 1.1, (5, 40))  # all err alike
    found, rank = stability_of(scores, biased), 1 + (scores > scores[:, None]).sum(1)
    assert ((found.rank_low <= rank) & (rank <= found.rank_high)).all()
    alone = stability_of(biased[0], biased[1:])
    assert not ((alone.rank_low <= rank) & (rank <= alone.rank_high)).all()
    assert found.rank_low.min() == 1
    assert found.rank_high.max() <= 40


def test_overlap_is_the_mean_over_pairs_of_replicates() -> None:
    one = np.arange(40.0, 0, -1)
    other = np.concatenate([one[20:], one[:20]])  # the last twenty come first
    assert stability_of(one, np.stack([one, one, other])).bootstrap_overlap == pytest.approx(1 / 3)
    assert stability_of(other, np.stack([one, one])).bootstrap_overlap == 1  # the probe itself is no replicate


def test_a_ranking_agrees_with_itself_and_not_with_its_reverse() -> None:
    scores = np.arange(1.0, 31)
    found = penalty_stability(scores, np.stack([scores * 2, scores[::-1]]))
    assert found == {
        "more_penalty_overlap": 1, "more_penalty_spearman": pytest.approx(1), "less_penalty_overlap": 0,
        "less_penalty_spearman": pytest.approx(-1),
    }  # fmt: skip
