"""From sums by sentence to rows: means, intervals and classes that are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probing.heads.rows import CLASSES, Sentences, class_rows, measure_rows, type_rows
from probing.statistics.chance import percentile_interval, resampled_means

LENGTHS = np.arange(5, 45)


def test_means_and_intervals_are_those_of_a_bootstrap_of_one_column_at_a_time() -> None:
    generator = np.random.default_rng(1)
    sums = generator.normal(size=(40, 2, 3)) * LENGTHS[:, None, None]
    found = Sentences(40, seed=3).means(sums, LENGTHS)
    for i in range(2):
        for j in range(3):
            draws = resampled_means(sums[:, i, j : j + 1], LENGTHS, 3)[:, 0]
            assert found.row(i, j) == pytest.approx({
                "value": sums[:, i, j].sum() / LENGTHS.sum(), "low": percentile_interval(draws, 40)[0],
                "high": percentile_interval(draws, 40)[1], "n": 40,
            })  # fmt: skip


def test_few_sentences_have_no_interval_and_draws_without_the_type_do_not_count() -> None:
    counts = np.where(np.arange(40) < 19, 2, 0)
    few = Sentences(40, 0).means(np.ones((40, 1)), counts)
    assert np.isnan([few.low[0], few.high[0]]).all()
    assert (few.values[0], few.n) == (40 / 38, 19)
    seldom = Sentences(20, 0).means(np.ones((20, 1)) * 3, np.ones(20))
    assert (seldom.low[0], seldom.high[0]) == (3, 3)
    none = Sentences(40, 0).means(np.zeros((40, 1)), np.zeros(40))
    assert np.isnan(none.values).all()
    assert none.n == 0


def test_the_class_of_a_head_is_that_of_most_of_its_maps() -> None:
    v, d = torch.zeros(40, 2, 2), torch.zeros(40, 2, 2)
    v[:, 1, 0] = 0.9
    d[:, 1, 1] = 0.9
    d[:10, 1, 1], v[:10, 1, 1] = 0.45, 0.45
    v[0] = 9.0  # of a sentence without tokens, which is no map
    lengths = np.where(np.arange(40) > 0, LENGTHS, 0)
    rows = class_rows({"v": v, "d": d}, lengths, [2], Sentences(40, 0))
    first, second = (row for row in rows if row["factor"] == 1 and row["layer"] == 2)
    assert (first["head"], first["class"], first["share"], first["n"], first["class_entropy"]) == (
        1, "vertical", 1.0, 39, 0.0
    )  # fmt: skip
    assert (second["head"], second["class"]) == (2, "diagonal")
    assert second["share"] == pytest.approx(30 / 39)
    assert second["low"] < second["share"] < second["high"]
    assert second["class_entropy"] == pytest.approx(-(30 / 39 * np.log(30 / 39) + 9 / 39 * np.log(9 / 39)))
    assert second["v"] == pytest.approx(9 * 0.45 / 39)
    for factor in (1.0, 0.75, 1.25):
        of_all = {row["class"]: row["share"] for row in rows if (row["layer"], row["factor"]) == ("all", factor)}
        assert set(of_all) == set(CLASSES) - {"block"}
        assert sum(of_all.values()) == pytest.approx(1)
    # At 1.25 times the thresholds, a share of half v and half d is still both; v + d of .9 is above .625.
    assert of_all["vertical and diagonal"] == pytest.approx(9 / 78)


def test_mass_lift_and_column_maximum_of_a_type() -> None:
    of_type = np.array([0, 2] * 20)
    mass = torch.zeros(40, 1, 2, 1, dtype=torch.float64)
    mass[:, 0, 0, 0] = torch.from_numpy(of_type * 1.0)  # uniform: as many queries' worth as there are tokens
    mass[:, 0, 1, 0] = torch.from_numpy(of_type * 3.0)
    largest = torch.where(torch.from_numpy(of_type)[:, None, None, None] > 0, 0.25, 0.0).expand(40, 1, 2, 1).double()
    rows, layers = type_rows({"mass": mass, "column_max": largest}, {"noun": of_type}, LENGTHS, [1], Sentences(40, 0))
    found = {(row["measure"], row["head"]): row for row in rows}
    assert set(found) == {(measure, head) for measure in ("mass", "lift", "column_max") for head in (1, 2)}
    assert found["lift", 1]["value"] == 1
    assert found["lift", 2]["value"] == 3
    assert found["lift", 2]["n"] == found["column_max", 2]["n"] == 20
    assert found["mass", 2]["value"] == pytest.approx(3 * 40 / LENGTHS.sum())
    assert found["mass", 2]["n"] == 40
    assert found["column_max", 1]["value"] == 0.25
    assert [row["value"] for row in layers if row["measure"] == "lift"] == [2]
    assert type_rows({"mass": mass}, {"noun": of_type}, LENGTHS, [1], Sentences(40, 0), ["noun"]) == ([], [])


def test_only_the_layers_that_are_asked_for_are_reported_under_their_numbers() -> None:
    sums = np.arange(3.0)[None, :, None] * LENGTHS[:, None, None] * np.ones((1, 1, 2))
    heads, layers = measure_rows(sums, LENGTHS, [1, 3], Sentences(40, 0), measure="m")
    assert [(row["layer"], row["head"], row["value"]) for row in heads] == [(1, 1, 0), (1, 2, 0), (3, 1, 2), (3, 2, 2)]
    assert [(row["layer"], row["value"]) for row in layers] == [(1, 0), (3, 2)]
