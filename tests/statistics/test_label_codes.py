"""Labels as vectors, and how much of their variance lies between sentences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from probing.statistics.label_scores import LabelCodes

pytestmark = pytest.mark.numeric

SENTENCES = np.repeat(np.arange(100), 10).astype(np.int32)


def share(labels: NDArray[np.int64], sentences: NDArray[np.int32] = SENTENCES) -> float:
    sizes = torch.from_numpy(np.bincount(labels[labels >= 0]))
    return LabelCodes.of_classes(sizes).excess_between(labels.astype(np.int32), sentences)


def constant(n_classes: int = 2) -> NDArray[np.int64]:
    return np.repeat(np.random.default_rng(0).integers(n_classes, size=100), 10)


def test_the_sum_of_squared_products_is_the_sum_of_squares_between_classes() -> None:
    generator = np.random.default_rng(0)
    labels, x = generator.integers(4, size=200), generator.standard_normal(200)
    codes = LabelCodes.of_classes(torch.from_numpy(np.bincount(labels)))
    vectors = torch.zeros(200, 4, dtype=torch.float64)
    vectors[torch.arange(200), codes.columns[labels]] = codes.values[labels]
    torch.testing.assert_close(vectors.mean(0), codes.mean)
    between = sum((labels == c).sum() * (x[labels == c].mean() - x.mean()) ** 2 for c in range(4))
    assert float((vectors.T @ torch.from_numpy(x - x.mean())).square().sum()) == pytest.approx(between)


def test_labels_that_are_constant_within_sentences_lie_between_them() -> None:
    assert share(constant()) == 1
    assert share(constant(7)) == pytest.approx(1)
    assert share(np.arange(100) % 3, np.arange(100, dtype=np.int32)) == 1  # every token a sentence of its own


def test_positions_and_labels_drawn_for_each_token_do_not() -> None:
    assert share(np.tile(np.arange(10), 100)) == 0
    drawn = [share(np.random.default_rng(seed).integers(5, size=1000)) for seed in range(20)]
    assert max(drawn) < 0.25  # a hundred sentences: a standard error of .07
    assert np.mean(drawn) < 0.08
    assert share(np.tile([0, 1], 5), np.zeros(10, dtype=np.int32)) == 0  # a single sentence


@pytest.mark.parametrize("n_flipped", [1, 10, 100])
def test_each_row_that_is_flipped_takes_a_little(n_flipped: int) -> None:
    labels = constant()
    labels[: 10 * n_flipped : 10] ^= 1
    # Of two equal labels, means of sentences have a variance near 1/4, less .09 for a flipped row. The variance within
    # such a sentence is .1, a tenth of which its mean has by chance.
    assert share(labels) == pytest.approx(1 - 0.01 * n_flipped / 100 / (0.25 - 0.09 * n_flipped / 100), abs=0.01)


def test_it_is_the_excess_that_was_planted() -> None:
    generator, found = np.random.default_rng(3), []
    for _ in range(20):
        numbers = generator.standard_normal(400).repeat(8) + 2 * generator.standard_normal(3200)
        standard = torch.from_numpy((numbers - numbers.mean()) / numbers.std())
        codes = LabelCodes.of_numbers(standard, len(numbers))
        found.append(codes.excess_between(np.arange(3200, dtype=np.int32), np.arange(400, dtype=np.int32).repeat(8)))
    # A mean of eight tokens has the variance 1 of its sentence and 4 / 8 of its tokens.
    assert np.mean(found) == pytest.approx(1 / 1.5, abs=0.01)


def test_tokens_without_a_label_do_not_count() -> None:
    labels = constant()
    labels[::3] = -1
    assert share(labels) == 1
