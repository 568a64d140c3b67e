"""Heads: a planted one is found beside random slices of its width, and none where labels say nothing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing.data.examples import Sides
from probing.probes.solvers import Penalty
from probing.probes.training import Lbfgs, Training
from probing.rankings.evaluation import head_accuracies, head_contributions, head_rows, heads_of
from synthetic import LIGHTNING_WARNINGS, make_store, make_tokens, sides

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]

N_HEADS, WIDTH, PLANTED = 5, 8, 3
TRAINING = Training(Penalty(0.0, 1e-2), Lbfgs(1e-5))


@pytest.fixture
def planted(tmp_path: Path) -> Sides:
    """Tokens whose position every neuron of one of five heads knows a part of."""
    generator = np.random.default_rng(0)
    tokens = make_tokens(generator.integers(7, 11, 300).tolist())
    states = generator.standard_normal((tokens.n_tokens, N_HEADS * WIDTH))
    vectors = 2 * generator.standard_normal((int(tokens.lengths.max()), WIDTH))
    states[:, PLANTED * WIDTH : (PLANTED + 1) * WIDTH] += vectors[tokens.positions]
    return sides(make_store(tmp_path / "store", [states], tokens, shard_tokens=500))


def test_a_planted_head_alone_is_above_chance(planted: Any) -> None:
    (fit,) = planted.fit(l2=1e-2)
    rows = head_accuracies(planted, fit, N_HEADS, TRAINING, seed=0)
    assert [row["above_chance"] for row in rows] == ["yes" if head == PLANTED else "no" for head in range(N_HEADS)]
    planted_row = rows[PLANTED]
    assert planted_row["accuracy_low"] > planted_row["random_highest"] >= planted_row["random_accuracy"]
    assert planted_row["random_lowest"] < planted_row["random_highest"]
    # The head holds all there is to know.
    assert planted_row["accuracy"] == pytest.approx(fit.metrics["accuracy"], abs=0.05)
    assert planted_row["n_random"] == 10


def test_no_head_is_above_chance_where_labels_say_nothing(planted: Any) -> None:
    generator = np.random.default_rng(0)

    def relabelled(examples: Any) -> Any:
        drawn = generator.integers(len(planted.classes), size=len(examples.labels))
        return replace(examples, labels=np.where(examples.labels >= 0, drawn, -1).astype(np.int32))

    random = replace(planted, **{side: relabelled(getattr(planted, side)) for side in ("train", "validation", "test")})
    (fit,) = planted.fit(l2=1e-2)
    assert {row["above_chance"] for row in head_accuracies(random, fit, N_HEADS, TRAINING, seed=0)} == {"no"}


def test_a_probe_of_a_head_is_that_of_a_store_with_its_neurons_alone(planted: Any, tmp_path: Path) -> None:
    (fit,) = planted.fit(l2=1e-2)
    row = head_accuracies(planted, fit, N_HEADS, TRAINING, seed=0)[1]
    store = planted.train.store
    states = torch.cat([store.read(0, shard.index) for shard in store.plan.shards])
    alone = sides(make_store(tmp_path / "alone", [states[:, WIDTH : 2 * WIDTH]], store.tokens, shard_tokens=500))
    (own,) = alone.fit(l2=1e-2)
    # The probe of the slice is trained to within 0.01 nats of the optimum.
    assert row["accuracy"] == pytest.approx(own.metrics["accuracy"], abs=0.01)


def test_contributions_of_heads_are_the_sums_of_their_neurons() -> None:
    contribution = torch.arange(12, dtype=torch.float64)
    rows = head_contributions(4, contribution, 3)
    assert [row["contribution"] for row in rows] == [6, 22, 38]
    assert sum(row["share"] for row in rows) == pytest.approx(1)
    assert [(row["layer"], row["head"], row["first_neuron"], row["n_neurons"]) for row in rows] == [
        (4, 1, 0, 4), (4, 2, 4, 4), (4, 3, 8, 4)
    ]  # fmt: skip
    assert [list(neurons) for neurons in heads_of(6, 3)] == [[0, 1], [2, 3], [4, 5]]


def test_without_training_there_are_shares_alone(planted: Any) -> None:
    (fit,) = planted.fit(l2=1e-2)
    rows = head_rows(planted, [fit], [torch.ones(N_HEADS * WIDTH)], N_HEADS, None, seed=0)
    assert len(rows) == N_HEADS
    assert all("accuracy" not in row and row["share"] == pytest.approx(1 / N_HEADS) for row in rows)
