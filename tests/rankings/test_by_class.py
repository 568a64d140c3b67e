"""The neurons of each class, against a loop over tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probing.rankings.methods import MOST, MagnitudeAccumulator, class_rows
from probing.tables.schema import CLASSES
from written import columns_of

pytestmark = pytest.mark.numeric


def test_each_class_has_its_own_ranking() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 30, generator=generator)
    states, labels = torch.randn(60, 30, generator=generator), torch.arange(60) % 3  # no token of class 3
    sums = MagnitudeAccumulator(torch.zeros(30), 4)
    sums.update(states, labels)
    rows = class_rows(5, weight, sums.result(), ["a", "b", "c", "never"])
    centred = (weight.double() - weight.double().mean(0)).numpy()
    assert [row["class"] for row in rows] == ["a"] * MOST + ["b"] * MOST + ["c"] * MOST
    for c, label in enumerate("abc"):
        of_tokens = [np.abs(centred[c] * x.double().numpy()) for x, y in zip(states, labels, strict=True) if y == c]
        expected = np.mean(of_tokens, axis=0)
        own = [row for row in rows if row["class"] == label]
        assert [row["neuron"] for row in own] == np.argsort(-expected)[:MOST].tolist()
        for rank, row in enumerate(own, start=1):
            assert tuple(row) == columns_of(CLASSES)
            assert (row["layer"], row["rank"], row["n_test_tokens"]) == (5, rank, 20)
            np.testing.assert_allclose(row["contribution"], expected[row["neuron"]])
            np.testing.assert_allclose(row["share"], expected[row["neuron"]] / expected.sum())
            np.testing.assert_allclose(row["weight"], centred[c, row["neuron"]])


def test_a_neuron_planted_for_one_class_leads_there_alone() -> None:
    weight, states = torch.zeros(3, 8), torch.ones(30, 8)
    weight[:, 0], weight[2, 5] = 0.1, 1.0  # what all classes share does not count
    weight[0, 3] = 0.5
    sums = MagnitudeAccumulator(torch.zeros(8), 3)
    sums.update(states, torch.arange(30) % 3)
    rows = class_rows(0, weight, sums.result(), "abc")
    first = {label: [row["neuron"] for row in rows if (row["class"], row["rank"]) == (label, 1)] for label in "abc"}
    assert first == {"a": [3, 5], "b": [5], "c": [5]}  # of class a, the two are a third away from the mean
