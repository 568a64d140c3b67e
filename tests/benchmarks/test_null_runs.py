"""The benchmark of the evidence, at toy size."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from synthetic import LIGHTNING_WARNINGS, make_store, make_tokens, positional, sides

pytestmark = [pytest.mark.filterwarnings(warning) for warning in LIGHTNING_WARNINGS]


@pytest.fixture(scope="module")
def null_runs() -> ModuleType:
    return importlib.import_module("benchmarks.null_runs")


def test_planted_neurons_are_told_for_what_they_are(null_runs: ModuleType, tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 14, 300).tolist())
    data = sides(make_store(tmp_path / "store", [positional(tokens, 20, 0.3)], tokens, shard_tokens=1000))
    answers = list(null_runs.runs(data, 0, 4, seed=0))
    assert len(answers) == 4
    for answer in answers:
        assert set(answer.yes) == set(null_runs.QUESTIONS)
        assert answer.yes["signal"]
        assert answer.yes["constant"]
        assert answer.yes["strength_0.2"]
        assert answer.rank <= 10
        assert answer.n_live == 20
    # Of 16 a sixth is expected to be missed, at a false discovery rate of 1%.
    assert sum(answer.yes[kind] for answer in answers for kind in ("noise", "sentence", "length", "shuffled")) >= 14
    assert sum(answer.yes["strength_0.0002"] for answer in answers) <= 1  # of 2,000 tokens it takes more
    assert sum(answer.false_alarms for answer in answers) <= 1  # in 99% of runs there are none
    shown = null_runs.report(answers)
    assert "without a flag | 4 | 4 | 1.000 | 0.398 to 1.000 |" in shown  # .025 ** (1 / 4) = .398
    assert f"ranked {min(a.rank for a in answers)} to" in shown
    assert f"{sum(a.false_alarms for a in answers)} of 80 real neurons" in shown


def test_the_same_neurons_are_flagged_no_signal_once_labels_are_permuted(null_runs: ModuleType, tmp_path: Path) -> None:
    tokens = make_tokens(np.random.default_rng(0).integers(6, 14, 300).tolist())
    data = sides(make_store(tmp_path / "store", [positional(tokens, 20, 3.0)], tokens, shard_tokens=1000))
    (answer,) = null_runs.runs(data, 0, 1, seed=0)
    assert answer.false_alarms == 0  # of 20 that position explains to nine tenths
    assert answer.n_live == 20


def test_planted_neurons_are_explained_as_much_as_they_say(null_runs: ModuleType) -> None:
    tokens = make_tokens([12] * 2000)
    columns = null_runs.planted_neurons(tokens, np.random.default_rng(0))
    assert list(columns)[null_runs.N_SEEN - 1] == "constant"
    assert list(columns)[null_runs.N_SEEN] == "strength_0.0002"
    for kind, expected in (("signal", 0.5), ("strength_0.2", 0.2), ("noise", 0.0)):
        values = columns[kind]
        means = np.array([values[tokens.positions == p].mean() for p in range(12)])
        assert means.var() / values.var() == pytest.approx(expected, abs=0.02)
    sentence = columns["sentence"].reshape(2000, 12)
    assert (sentence == sentence[:, :1]).all()
    assert columns["constant"].mean() == pytest.approx(10, abs=0.02)
