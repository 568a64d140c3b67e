"""Means over queries with intervals by sentence: against a loop over the same draws."""

from __future__ import annotations

import numpy as np
import pytest

from probing.heads import rows as means
from probing.heads.rows import Sentences
from probing.statistics.chance import sentence_counts
from probing.statistics.intervals import ENDS, MIN_SENTENCES

pytestmark = pytest.mark.numeric


def test_means_and_ends_are_those_of_a_loop_over_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    sums, counts = generator.random((30, 2, 3)) * 5, generator.integers(0, 7, size=30)
    monkeypatch.setattr(means, "_COLUMNS", 4)  # more than one piece
    found = Sentences(30, seed=3).means(sums, counts)
    assert found.n == int((counts > 0).sum())
    times = sentence_counts(30, 3)
    for layer in range(2):
        for head in range(3):
            own = sums[:, layer, head]
            row = found.row(layer, head)
            assert row["value"] == pytest.approx(own.sum() / counts.sum())
            drawn = [float((n * own).sum() / (n * counts).sum()) for n in times.astype(float)]
            assert [row["low"], row["high"]] == pytest.approx(np.quantile(drawn, ENDS).tolist())


def test_an_interval_needs_sentences_that_count() -> None:
    counts = np.zeros(60, dtype=int)
    counts[: MIN_SENTENCES - 1] = 1
    few = Sentences(60, seed=0).means(np.ones((60, 1)), counts)
    assert np.isnan([few.low, few.high]).all()
    assert few.n == MIN_SENTENCES - 1
    counts[MIN_SENTENCES - 1] = 1
    enough = Sentences(60, seed=0).means(counts[:, None].astype(float), counts)
    assert enough.row(0) == {"value": 1.0, "low": 1.0, "high": 1.0, "n": MIN_SENTENCES}
    assert np.isnan(Sentences(60, seed=0).means(np.zeros((60, 1)), np.zeros(60)).values).all()
