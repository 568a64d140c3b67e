"""The benchmark of intervals, at toy size."""

from __future__ import annotations

import numpy as np

from benchmarks.coverage import Quantity, coverage, halves, report
from probing.statistics.intervals import accuracy_interval, mean_interval


def test_intervals_contain_the_truth_about_as_often_as_they_say() -> None:
    generator = np.random.default_rng(0)
    n_tokens = generator.integers(5, 40, 500)
    # An accuracy that differs between sentences, and nats that are skewed.
    right = generator.binomial(n_tokens, generator.beta(3, 5, 500)).astype(np.float64)
    nats = n_tokens * generator.gamma(2.0, 0.5, 500)
    for name, interval, sums in (("accuracy", accuracy_interval, right), ("nats", mean_interval, nats)):
        quantity = Quantity(name, interval, sums)
        for size in (20, 100):
            now, before = coverage(quantity, n_tokens, size, 500, seed=0)
            # The standard error of a share of .95 in 500 samples is .01; four of them.
            assert 0.91 < now <= 1
            assert before < now + 0.02


def test_the_table_has_both_intervals_for_each_number_of_sentences() -> None:
    shown = report({"accuracy": {20: (0.95, 0.9), 50: (0.99, 0.93)}}, {"accuracy": 0.5})
    assert "| accuracy | 0.5000 | 95.0% (90.0%) | 99.0% (93.0%) |" in shown
    assert "1 of 2 cells are within 92% to 98%" in shown


def test_half_of_the_sentences_are_tested_on() -> None:
    drawn = halves(2000, 0)
    assert abs(drawn.count("test") - 1000) < 100
    assert {*drawn} == {"train", "validation", "test"}
