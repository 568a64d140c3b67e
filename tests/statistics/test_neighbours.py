"""Labels of neighbours: runs are seen, and independent labels in any order are not."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.statistics.chance import correlation_of_neighbours
from probing.statistics.label_scores import LabelCodes

pytestmark = pytest.mark.numeric


def found(labels: NDArray[np.int64], units: NDArray[np.int64] | None = None) -> float | None:
    codes = LabelCodes.of_classes(torch.from_numpy(np.bincount(labels[labels >= 0])))
    units = np.arange(len(labels)) if units is None else units
    return correlation_of_neighbours(labels.astype(np.int32), units.astype(np.int32), codes)


@pytest.mark.parametrize("n_classes", [2, 5, 40])
def test_labels_in_runs_are_seen_and_in_random_order_they_are_not(n_classes: int) -> None:
    generator = np.random.default_rng(n_classes)
    runs = generator.integers(n_classes, size=200).repeat(5)
    # Four of five neighbours are equal, and of the others one of all classes by chance.
    assert found(runs) == pytest.approx(0.8, abs=0.08)
    assert [found(generator.permutation(runs)) for _ in range(100)] == [None] * 100


def test_units_are_told_by_their_first_token_and_places_within_them_do_not_count() -> None:
    generator = np.random.default_rng(0)
    of_sentence = generator.integers(2, size=100).repeat(4)
    sentences = np.arange(400).repeat(3)
    assert found(of_sentence.repeat(3), sentences) == pytest.approx(0.75, abs=0.1)
    assert found(np.tile([0, 1, 2], 400), sentences) is None
    assert found(generator.integers(2, size=400).repeat(3), sentences) is None


def test_rows_without_a_label_are_left_out() -> None:
    labels = np.random.default_rng(1).integers(3, size=200).repeat(5)
    labels[::2] = -1
    assert found(labels) is not None
    assert found(np.zeros(50, dtype=np.int64)) is None


def test_numbers_that_drift_are_seen() -> None:
    numbers = np.linspace(-1, 1, 500) + 0.1 * np.random.default_rng(0).standard_normal(500)
    codes = LabelCodes.of_numbers(torch.from_numpy((numbers - numbers.mean()) / numbers.std()), 500)
    rows = np.arange(500, dtype=np.int32)
    assert (correlation_of_neighbours(rows, rows, codes) or 0) > 0.9
