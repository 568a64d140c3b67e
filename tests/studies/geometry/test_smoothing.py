"""Over-smoothing: closed forms against loops over pairs and against numerical minimisation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from probing.statistics.chance import MeanOverSentences, normalise, weights
from probing.studies.geometry.layers import Smoothness, smoothness, sum_by_sentence

pytestmark = pytest.mark.numeric

LENGTHS = [4, 1, 7, 2]


def measured(x: torch.Tensor, lengths: list[int]) -> Smoothness:
    n, units = torch.tensor(lengths), normalise(x)
    return smoothness(x, units, sum_by_sentence(units, n), n)


def sentences(seed: int = 0) -> tuple[torch.Tensor, list[np.ndarray]]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(sum(LENGTHS), 5, generator=generator, dtype=torch.float64) + 0.5
    return x, np.split(x.numpy(), np.cumsum(LENGTHS)[:-1])


def test_similarities_are_those_of_loops_over_pairs() -> None:
    x, parts = sentences()
    found = measured(x, LENGTHS)
    for i, rows in enumerate(parts):
        unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        pairs = [unit[a] @ unit[b] for a, b in itertools.permutations(range(len(rows)), 2)]
        mean = rows.mean(0) / np.linalg.norm(rows.mean(0))
        if pairs:
            assert float(found.token_similarity[i]) == pytest.approx(np.mean(pairs), abs=1e-12)
        else:
            assert torch.isnan(found.token_similarity[i])
        assert float(found.intra_sentence_similarity[i]) == pytest.approx(np.mean(unit @ mean), abs=1e-12)


def test_the_distance_is_the_minimum_over_matrices_with_equal_rows_and_half_the_mean_squared_difference() -> None:
    x, parts = sentences()
    found = measured(x, LENGTHS)
    for i, rows in enumerate(parts):
        least = minimize(lambda row, rows=rows: ((rows - row) ** 2).sum(), np.zeros(5), tol=1e-12).fun
        assert float(found.distance[i]) == pytest.approx(np.sqrt(least), abs=1e-6)
        pairs = sum(((a - b) ** 2).sum() for a in rows for b in rows) / (2 * len(rows))
        assert float(found.distance[i]) == pytest.approx(np.sqrt(pairs), abs=1e-10)
        assert float(found.relative_distance[i]) == pytest.approx(np.sqrt(least) / np.linalg.norm(rows), abs=1e-6)


def test_equal_tokens_are_at_distance_0_and_a_common_offset_moves_cosines_and_no_distance() -> None:
    x, _ = sentences()
    alike = measured(x[:1].repeat(4, 1), [4])
    assert float(alike.token_similarity[0]) == pytest.approx(1, abs=1e-12)
    assert float(alike.distance[0]) == pytest.approx(0, abs=1e-12)
    before, after = measured(x, LENGTHS), measured(x + 1000, LENGTHS)
    torch.testing.assert_close(after.distance, before.distance, atol=1e-9, rtol=0)
    assert float(after.token_similarity[0]) > 0.99999
    assert float(after.relative_distance[0]) < 0.002


def test_equal_tokens_are_at_distance_0_exactly_in_float32_too() -> None:
    # 50 sentences of 3 to 12 equal tokens: their means would be rounded.
    x = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)) * 100
    lengths = [3 + i % 10 for i in range(50)]
    found = measured(x.repeat_interleave(torch.tensor(lengths), 0), lengths)
    assert not found.distance.any()
    assert not found.relative_distance.any()
    torch.testing.assert_close(found.intra_sentence_similarity, torch.ones(50).double())


def test_a_small_spread_around_a_large_vector_keeps_its_digits_in_float32() -> None:
    x, _ = sentences()
    far = (x + 300).float()
    exact = measured(far.double(), LENGTHS).distance
    torch.testing.assert_close(measured(far, LENGTHS).distance, exact, atol=2e-4, rtol=0)


def test_means_over_sentences_leave_out_those_without_a_number_and_batches_do_not_matter() -> None:
    values = torch.tensor([1.0, float("nan"), 3.0, 8.0]).repeat(8)
    whole, parts = MeanOverSentences(100), MeanOverSentences(100)
    drawn = torch.cat([weights(i, 1, 5, 100) for i in range(32)], 1)
    whole.update(values, drawn)
    for i in range(32):
        parts.update(values[i : i + 1], drawn[:, i : i + 1])
    assert whole.result().value == 4
    assert whole.result().n == 24
    assert parts.result() == whole.result()
    assert 1 <= whole.result().low < 4 < whole.result().high <= 8


def test_the_mean_of_few_sentences_has_no_interval() -> None:
    found = MeanOverSentences(100)
    found.update(torch.arange(19.0), weights(0, 19, 5, 100))
    assert found.result().value == 9
    assert np.isnan([found.result().low, found.result().high]).all()


def test_the_interval_of_a_mean_is_the_usual_one() -> None:
    values = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    found = MeanOverSentences(2000)
    found.update(values, weights(0, 2000, 0, 2000))
    error = 1.96 * float(values.std()) / np.sqrt(2000)
    assert found.result().low == pytest.approx(float(values.mean()) - error, abs=0.006)
    assert found.result().high == pytest.approx(float(values.mean()) + error, abs=0.006)
