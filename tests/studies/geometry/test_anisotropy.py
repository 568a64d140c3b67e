"""Anisotropy: closed forms against loops over all pairs, identities, and planted cases whose answer is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.statistics import chance as redraws
from probing.statistics.chance import normalise
from probing.studies.geometry import layers
from probing.studies.geometry.layers import ClippedCosines, MeanCosine, MeanCosineAccumulator, sum_by_sentence

pytestmark = pytest.mark.numeric


def gaussian(n: int, d: int, mean: float = 0.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64) + mean


def cosines(x: Tensor) -> list[tuple[int, int, np.ndarray]]:
    """All ordered pairs of different rows with their products by neuron, one at a time."""
    rows = x.double().numpy()
    return [
        (i, j, rows[i] * rows[j] / (np.linalg.norm(rows[i]) * np.linalg.norm(rows[j])))
        for i, j in itertools.permutations(range(len(rows)), 2)
    ]


def mean_cosine(x: Tensor, lengths: list[int], cuts: tuple[int, ...] = (), n_draws: int = 50) -> MeanCosine:
    """Feed whole sentences in batches that end at these sentences."""
    found = MeanCosineAccumulator(x.shape[1], n_draws)
    units, ends = normalise(x), np.cumsum([0, *lengths])
    for a, b in itertools.pairwise([0, *cuts, len(lengths)]):
        here, n = units[ends[a] : ends[b]], torch.tensor(lengths[a:b], dtype=torch.int64)
        weights = torch.cat([redraws.weights(s, 1, 0, n_draws) for s in range(a, b)], 1)
        found.update(here, sum_by_sentence(here, n), n, weights)
    return found.result()


LENGTHS = [3, 1, 5, 2, 4] * 4


def test_the_mean_cosine_is_that_of_all_pairs_and_its_parts_are_those_of_the_neurons() -> None:
    x = gaussian(60, 6, mean=0.7)
    pairs = [products for _, _, products in cosines(x)]
    found = mean_cosine(x, LENGTHS)
    assert found.estimate.value == pytest.approx(np.sum(pairs) / len(pairs), abs=1e-12)
    assert found.estimate.n == 60
    np.testing.assert_allclose(found.by_neuron, np.mean(pairs, axis=0), atol=1e-12)
    np.testing.assert_allclose(found.shares, np.mean(pairs, axis=0) / (np.sum(pairs) / len(pairs)), atol=1e-12)


def test_batches_do_not_matter() -> None:
    x = gaussian(60, 6, mean=0.7)
    whole, parts = mean_cosine(x, LENGTHS), mean_cosine(x, LENGTHS, (1, 2, 14))
    assert parts.estimate.value == pytest.approx(whole.estimate.value, abs=1e-12)
    # Draws are summed in float32 before batches are put together in float64.
    assert (parts.estimate.low, parts.estimate.high) == pytest.approx(
        (whole.estimate.low, whole.estimate.high), abs=1e-6
    )


def test_a_draw_counts_every_pair_that_is_not_a_sentence_with_its_own_copy() -> None:
    x, n_draws = gaussian(60, 6, mean=0.7), 7
    weights = torch.cat([redraws.weights(s, 1, 0, n_draws) for s in range(20)], 1)
    sentence = np.repeat(np.arange(20), LENGTHS)
    expected = []
    for draw in weights.numpy():
        # Within one copy of a sentence all pairs count; between copies of different sentences too.
        pairs = [
            (draw[sentence[i]] * (draw[sentence[j]] if sentence[i] != sentence[j] else 1), products.sum())
            for i, j, products in cosines(x)
        ]
        expected.append(sum(w * c for w, c in pairs) / sum(w for w, _ in pairs))
    low, high = np.quantile(expected, [0.025, 0.975])
    found = mean_cosine(x, LENGTHS, n_draws=n_draws).estimate
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.slow
def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    truth = mean_cosine(gaussian(50_000, 8, mean=0.5, seed=99), [1] * 50_000, n_draws=1).estimate.value
    held = 0
    for seed in range(100):
        found = mean_cosine(gaussian(60, 8, mean=0.5, seed=seed), [1] * 60, n_draws=200).estimate
        held += found.low <= truth <= found.high
    assert 86 <= held <= 100  # 95 expected, less a little for a percentile interval of 60


def test_fewer_than_two_vectors_have_no_mean_cosine() -> None:
    assert np.isnan(mean_cosine(gaussian(1, 4), [1]).estimate.value)
    assert torch.isnan(mean_cosine(gaussian(1, 4), [1]).shares).all()


def test_few_sentences_have_no_interval_however_many_tokens_they_have() -> None:
    assert np.isfinite(mean_cosine(gaussian(60, 6), [3] * 20).estimate.low)
    found = mean_cosine(gaussian(60, 6), [3] * 19 + [0, 0, 3]).estimate
    assert np.isfinite([found.low, found.high]).all()  # 20 with tokens
    found = mean_cosine(gaussian(60, 6), [3] * 18 + [0, 0, 6]).estimate
    assert np.isfinite(found.value)
    assert np.isnan([found.low, found.high]).all()


def test_clipping_many_choices_at_once_is_clipping_each() -> None:
    x = gaussian(300, 10, mean=0.4).float()
    choices = torch.tensor([[0, 1], [2, 7], [8, 9]])
    found = ClippedCosines(choices, 10)
    for part in x.split(90):
        found.update(part)
    for choice, value in zip(choices, found.result(), strict=True):
        clipped = x.clone()
        clipped[:, choice] = 0
        assert float(value) == pytest.approx(mean_cosine(clipped, [1] * 300).estimate.value, abs=1e-6)


def test_what_is_left_of_vectors_that_are_nearly_all_in_the_clipped_neurons_keeps_its_digits() -> None:
    x = gaussian(300, 10, mean=0.3).float()
    found, choice = ClippedCosines(torch.tensor([[4]]), 10), x.clone()
    choice[:, 4] = 0
    x[:, 4] = 1e4 * x[:, 4]
    found.update(x)
    assert float(found.result()) == pytest.approx(mean_cosine(choice, [1] * 300).estimate.value, abs=1e-6)


# --- IsoScore and energy ---


def published_isoscore(x: np.ndarray) -> float:
    """Rudman et al. 2022, algorithm 1, step by step."""
    d = x.shape[1]
    _, _, vt = np.linalg.svd(x - x.mean(0), full_matrices=False)
    variances = np.diag(np.cov((x @ vt.T).T))
    scaled = np.sqrt(d) * variances / np.linalg.norm(variances)
    defect = np.linalg.norm(scaled - 1) / np.sqrt(2 * (d - np.sqrt(d)))
    used = (d - defect**2 * (d - np.sqrt(d))) ** 2 / d
    return float((used - 1) / (d - 1))


def test_no_isoscore_is_below_0() -> None:
    for seed in range(100):
        direction = gaussian(1, 7, seed=seed)
        assert 0 <= layers.isoscore(direction.T @ direction) < 1e-15


@pytest.mark.parametrize("scales", [[1.0] * 6, [1, 2, 3, 4, 5, 6.0], [1, 0, 0, 0, 0, 0.0], [1, 1, 1, 0, 0, 0.0]])
def test_isoscore_is_the_published_algorithm_and_the_participation_ratio(scales: list[float]) -> None:
    x = (gaussian(500, 6) * torch.tensor(scales)).numpy()
    covariance = np.cov(x.T)
    found = layers.isoscore(torch.from_numpy(covariance))
    assert found == pytest.approx(published_isoscore(x), abs=1e-9)
    values = np.linalg.eigvalsh(covariance)
    assert found == pytest.approx((values.sum() ** 2 / (values**2).sum() - 1) / 5, abs=1e-12)


def test_planted_cases() -> None:
    # F3 of the specification: a sphere, one direction, and a sphere far from 0.
    def measured(x: Tensor) -> tuple[float, float, float]:
        covariance = torch.from_numpy(np.cov(x.T.numpy(), bias=True))
        a = mean_cosine(x, [1] * len(x), n_draws=1).estimate.value
        return a, layers.isoscore(covariance), layers.mean_energy_share(x.mean(0), covariance)

    sphere = gaussian(20_000, 8)
    a, score, energy = measured(sphere)
    assert abs(a) < 0.001
    assert score > 0.999
    assert energy < 0.001
    _, line, _ = measured(gaussian(2000, 1) @ gaussian(1, 8))
    assert abs(line) < 1e-9
    far_a, far_score, far_energy = measured(sphere + 100)
    assert far_a > 0.999
    assert far_score == pytest.approx(score, abs=1e-9)
    assert far_energy > 0.999


def test_the_share_of_energy_in_the_mean_is_the_mean_of_all_products_over_the_mean_square() -> None:
    x = gaussian(200, 5, mean=1.3).numpy()
    covariance = torch.from_numpy(np.cov(x.T, bias=True))
    expected = (x @ x.T).mean() / (x**2).sum(1).mean()
    assert layers.mean_energy_share(torch.from_numpy(x.mean(0)), covariance) == pytest.approx(expected, abs=1e-12)


# --- partition function ---


def test_partition_isotropy_is_1_on_a_sphere_and_falls_with_a_common_direction() -> None:
    # The vertices of a cross-polytope: every eigenvector is as good as any, and Z is the same along all axes.
    axes = torch.cat([torch.eye(5), -torch.eye(5)])
    assert layers.partition_isotropy(axes) == pytest.approx(1.0, abs=1e-12)
    x = gaussian(3000, 6)
    assert layers.partition_isotropy(x) > 0.9 > 0.3 > layers.partition_isotropy(x + 3)
    assert np.isnan(layers.partition_isotropy(torch.zeros(3, 2)))
    assert layers.partition_isotropy(7 * x) == pytest.approx(layers.partition_isotropy(x), abs=1e-9)


def test_partition_isotropy_looks_along_eigenvectors_by_a_loop() -> None:
    x = gaussian(40, 4, mean=0.6).numpy()
    scaled = x / np.sqrt((x**2).sum(1).mean())
    _, vectors = np.linalg.eigh(scaled.T @ scaled)
    z = [sum(np.exp(sign * c @ row) for row in scaled) for c in vectors.T for sign in (1, -1)]
    assert layers.partition_isotropy(torch.from_numpy(x)) == pytest.approx(min(z) / max(z), abs=1e-12)


# --- published estimators ---


def test_published_estimators_come_near_to_the_closed_form() -> None:
    x = gaussian(4000, 16, mean=0.5)
    exact = mean_cosine(x, [1] * 4000, n_draws=1).estimate.value
    draws = {
        name: np.array([draw(x, np.random.default_rng(seed)) for seed in range(20)])
        for name, draw in (("e19", layers.ethayarajh), ("lkm", layers.luo_kulmizev_mao))
    }
    for name, values in draws.items():
        # Each is of 1,000 pairs: a standard error near .007 here, and a fifth of a root of that for the mean of 20.
        assert 0.002 < values.std() < 0.02, name
        assert abs(values.mean() - exact) < 0.006, name
    assert layers.timkey_van_schijndel(x, np.random.default_rng(0), 100_000) == pytest.approx(exact, abs=0.003)


def test_luo_kulmizev_mao_pairs_are_disjoint_and_ethayarajhs_may_be_one_vector() -> None:
    # Of two sentences at right angles the only disjoint pair has cosine 0; with replacement half the pairs are 1.
    x = torch.eye(2)
    assert layers.luo_kulmizev_mao(x, np.random.default_rng(0)) == 0
    assert layers.ethayarajh(x, np.random.default_rng(0)) == pytest.approx(0.5, abs=0.06)


def test_vectors_of_length_0_stay_0() -> None:
    assert torch.equal(normalise(torch.zeros(2, 3)), torch.zeros(2, 3))
    assert normalise(torch.full((1, 4), 1e-30)).isfinite().all()  # squares are 0 in float32
    assert normalise(torch.full((1, 4), 1e-15))[0, 0] == pytest.approx(0.5)
