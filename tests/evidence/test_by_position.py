"""Accuracy by position: counts against a loop, what a run writes, and what is said of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from probing import ProbeOptions, Run, WandbOptions, fit
from probing.evidence.by_position import accuracy_by_position, position_line
from probing.statistics.intervals import accuracy_interval
from probing.tables.schema import POSITIONS
from synthetic import LIGHTNING_WARNINGS, Data, make_store, make_tokens, positional, sides
from written import read_csv

pytestmark = [pytest.mark.numeric, *(pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS)]
LENGTHS = np.random.default_rng(0).integers(4, 12, 300).tolist()


@pytest.fixture
def data(tmp_path: Path) -> Data:
    tokens = make_tokens(LENGTHS)
    return sides(make_store(tmp_path / "store", [positional(tokens, 8, 0.5)] * 2, tokens, shard_tokens=300))


def test_counts_and_accuracies_are_those_of_a_loop(data: Data) -> None:
    weight = torch.randn(len(data.classes), 8, generator=torch.Generator().manual_seed(0))
    rows = accuracy_by_position(data, [1], [weight])
    test = data.test
    states = np.concatenate([test.store.read(1, shard.index).numpy() for shard in test.store.plan.shards])
    assert [row["position"] for row in rows] == data.classes.tolist()
    for i, row in enumerate(rows):
        here = np.flatnonzero(test.labels == i)
        right = [int(np.argmax(weight.numpy() @ states[token]) == i) for token in here]
        assert row["n_test_tokens"] == len(here)
        assert row["n_train_tokens"] == (data.train.labels == i).sum()
        assert row["accuracy"] == pytest.approx(np.mean(right))
        low, high = accuracy_interval(np.array(right), np.ones(len(right), dtype=np.int64))
        np.testing.assert_allclose([row["accuracy_low"], row["accuracy_high"]], [low, high])
    total = sum(row["accuracy"] * row["n_test_tokens"] for row in rows) / test.n_tokens
    (fitted,) = data.fit([1])
    found = accuracy_by_position(data, [1], [fitted.weight])
    assert total < sum(row["accuracy"] * row["n_test_tokens"] for row in found) / test.n_tokens
    assert sum(row["accuracy"] * row["n_test_tokens"] for row in found) / test.n_tokens == pytest.approx(
        fitted.metrics["accuracy"]
    )


def test_thirds_of_the_positions_are_told_by_their_tokens() -> None:
    rows = [
        {"layer": 6, "position": i, "accuracy": accuracy, "n_test_tokens": n}
        for i, (accuracy, n) in enumerate(
            [(1, 30), (0.5, 10), (0.4, 10), (0.2, 10), (0.1, 5), (0, 5), (float("nan"), 0)]
        )
    ]
    assert position_line(rows) == (
        "Layer 6: accuracy 0.875 at positions 0 to 1, 0.300 at positions 2 to 3 and 0.050 at positions 4 to 5; "
        "positions.csv has every position."
    )
    assert position_line(rows[:2]) == ""


@pytest.fixture(scope="module")
def made(checkpoints: dict[str, Path], corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = fit(
        model=str(checkpoints["bert"]), corpus=str(corpus_file), runs=str(tmp_path_factory.mktemp("runs")), name="made",
        layer="0,2", replicates=0, controls="none", evidence="none", task_args={"min_count": 5}, quiet=True,
        wandb=WandbOptions(mode="disabled"), probe=ProbeOptions(tolerance=1e-3, l2=1e-4),
    )  # fmt: skip
    assert run is not None
    return run


@pytest.mark.slow
def test_a_run_of_positions_has_the_table_and_the_figure(made: Run) -> None:
    rows = read_csv(made.folder / "positions.csv")
    assert tuple(rows[0]) == tuple(POSITIONS.types)
    assert made.positions == rows or len(made.positions) == len(rows)
    classes = made.results["classes"]
    assert [(row["layer"], row["position"]) for row in rows] == [(layer, i) for layer in (0, 2) for i in classes]
    for row in made.accuracy:
        own = [one for one in rows if one["layer"] == row["layer"] and one["n_test_tokens"]]
        assert sum(one["n_test_tokens"] for one in own) == row["n_test_tokens"]
        right = sum(one["accuracy"] * one["n_test_tokens"] for one in own)
        assert right / row["n_test_tokens"] == pytest.approx(row["accuracy"])
    assert {path.name for path in (made.folder / "figures").glob("positions.*")} == {"positions.png", "positions.pdf"}
