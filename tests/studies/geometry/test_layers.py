"""Layers in two passes, anisotropy, words in their sentences, first tokens, and what neurons go with."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from torch import Tensor

from probing.activations.store import ActivationStore
from probing.probes import transforms
from probing.probes.outliers import LayerMoments, collect_layer_moments
from probing.statistics import chance as redraws
from probing.statistics import moments
from probing.statistics.chance import normalise
from probing.studies.geometry import layers
from probing.studies.geometry.layers import (
    FARTHEST,
    NORM,
    ClippedCosines,
    MeanCosine,
    MeanCosineAccumulator,
    Occurrences,
    Sampled,
    SelfSimilarityAccumulator,
    choose_words,
    first_token_rows,
    measure,
    sum_by_sentence,
)
from probing.studies.geometry.survey import SOURCES, ExplainedAccumulator, Regressors, explained_rows, is_punctuation
from probing.tables.heads import first_token_conclusions
from probing.text.tokens import Tokens
from synthetic import make_store, make_tokens

pytestmark = pytest.mark.numeric

D = 30
LENGTHS = [5, 3, 8, 2, 6, 4, 12, 3] * 3  # sentences of two tokens are special ones alone


@pytest.fixture(scope="module")
def states() -> np.ndarray[Any, Any]:
    """Two layers, in each neuron 4 large and all vectors around a mean; special tokens elsewhere."""
    generator = np.random.default_rng(0)
    tokens = make_tokens(LENGTHS)
    x = generator.standard_normal((2, tokens.n_tokens, D)) + 0.3
    x[:, :, 4] -= 8
    x[:, tokens.special, 9] += 20
    return x


@pytest.fixture(scope="module")
def store(states: np.ndarray[Any, Any], tmp_path_factory: pytest.TempPathFactory) -> ActivationStore:
    return make_store(tmp_path_factory.mktemp("layers") / "store", list(states), make_tokens(LENGTHS), shard_tokens=40)


def values(result: layers.LayerMeasures) -> dict[tuple[str, str], float]:
    return {(row["transform"], row["measure"]): row["value"] for row in result.rows}


def mean_cosine(x: np.ndarray[Any, Any]) -> float:
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = len(x)
    return float((units @ units.T).sum() - n) / (n * (n - 1))


def measured(store: ActivationStore, which: Any = "exclude", **how: Any) -> layers.LayerMeasures:
    sampled = Sampled(store.tokens, which, 0)
    seen = collect_layer_moments(store, 1, sampled.special_tokens)
    clip = transforms.fit_transform("clip", seen.moments, [4])
    fitted = {"none": transforms.identity(D), "clip": clip, "whiten": transforms.whiten(seen.moments)}
    return measure(store, 1, sampled, seen.moments, fitted, **how)


def test_the_store_has_several_shards(store: ActivationStore) -> None:
    assert len(store.plan.shards) > 2


@pytest.mark.parametrize("which", ["exclude", "include"])
def test_measures_are_those_of_all_tokens_at_once(
    store: ActivationStore, states: np.ndarray[Any, Any], which: Any
) -> None:
    tokens = store.tokens
    kept = np.ones(tokens.n_tokens, dtype=bool) if which == "include" else ~tokens.special
    x = states[1].astype(np.float32).astype(np.float64)
    found = values(measured(store, which))
    covariance = np.cov(x[kept].T, bias=True)
    eigenvalues, u = np.linalg.eigh(covariance)
    images = {"none": x, "clip": x * (np.arange(D) != 4), "whiten": (x - x[kept].mean(0)) @ (u / eigenvalues**0.5)}
    for name, y in images.items():
        assert found[name, "mean_cosine"] == pytest.approx(mean_cosine(y[kept]), abs=2e-6)
        assert found[name, "mean_cosine_centred"] == pytest.approx(mean_cosine(y[kept] - y[kept].mean(0)), abs=2e-6)
        spectrum = np.linalg.eigvalsh(np.cov(y[kept].T))
        ratio = spectrum.sum() ** 2 / (spectrum**2).sum()
        assert found[name, "isoscore"] == pytest.approx((ratio - 1) / (D - 1), abs=1e-5)
        energy = np.square(y[kept].mean(0)).sum() / np.square(y[kept]).sum(1).mean()
        assert found[name, "mean_energy_share"] == pytest.approx(energy, abs=1e-6)
        sentences = [y[kept & (tokens.sentences == s)] for s in range(tokens.n_sentences)]
        similar = [mean_cosine(rows) for rows in sentences if len(rows) > 1]
        assert found[name, "token_similarity"] == pytest.approx(np.mean(similar), abs=1e-5)
        distances = [np.linalg.norm(rows - rows.mean(0)) for rows in sentences if len(rows)]
        assert found[name, "distance_to_equal_rows"] == pytest.approx(np.mean(distances), rel=1e-5)


def test_one_token_is_drawn_of_each_sentence_that_has_some_the_same_for_every_layer(store: ActivationStore) -> None:
    sampled = Sampled(store.tokens, "exclude", 0)
    rows = np.flatnonzero(sampled.is_sentence_token)
    assert not store.tokens.special[rows].any()
    lengths = np.array(LENGTHS)
    assert store.tokens.sentences[rows].tolist() == np.flatnonzero(lengths > 2).tolist()
    # Over seeds every token of a sentence comes up.
    drawn = [np.flatnonzero(Sampled(store.tokens, "exclude", seed).is_sentence_token)[0] for seed in range(60)]
    assert set(drawn) == {1, 2, 3}


def test_the_mean_cosine_of_one_token_a_sentence_is_that_of_these_tokens(
    store: ActivationStore, states: np.ndarray[Any, Any]
) -> None:
    drawn = Sampled(store.tokens, "exclude", 0).is_sentence_token
    (row,) = [
        row for row in measured(store).rows
        if (row["transform"], row["measure"]) == ("none", "mean_cosine_one_per_sentence")
    ]  # fmt: skip
    assert row["value"] == pytest.approx(mean_cosine(states[1][drawn]), abs=1e-6)
    assert row["n_tokens"] == drawn.sum()
    assert row["low"] < row["value"] < row["high"]


def test_clipping_others_is_the_mean_and_range_of_the_draws(
    store: ActivationStore, states: np.ndarray[Any, Any]
) -> None:
    choices = [[1], [2], [3]]
    x = states[1][~store.tokens.special]
    expected = [mean_cosine(x * (np.arange(D) != k)) for (k,) in choices]
    (row,) = [row for row in measured(store, random_choices=choices).rows if row["transform"] == "clip_random"]
    assert row["value"] == pytest.approx(np.mean(expected), abs=1e-6)
    assert (row["low"], row["high"]) == pytest.approx((min(expected), max(expected)), abs=1e-6)


def test_the_ratio_of_distances_is_taken_sentence_by_sentence(
    store: ActivationStore, states: np.ndarray[Any, Any]
) -> None:
    sampled = Sampled(store.tokens, "exclude", 0)
    before = measure(
        store,
        0,
        sampled,
        collect_layer_moments(store, 0, sampled.special_tokens).moments,
        {"none": transforms.identity(D)},
    )
    found = values(measured(store, distances_before=before.distances))["none", "distance_ratio"]
    tokens = store.tokens
    ratios: list[float] = []
    for s in range(tokens.n_sentences):
        rows = np.flatnonzero((tokens.sentences == s) & ~tokens.special)
        away = [np.linalg.norm(x[rows] - x[rows].mean(0)) for x in states] if len(rows) > 1 else [0, 0]
        if away[0] > 0:
            ratios.append(float(away[1] / away[0]))
    assert found == pytest.approx(np.mean(ratios), rel=1e-5)
    assert ("none", "distance_ratio") not in values(measured(store))


def test_shares_of_neurons_are_those_of_pairs(store: ActivationStore, states: np.ndarray[Any, Any]) -> None:
    x = states[1][~store.tokens.special]
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    pairs = np.mean([units[i] * units[j] for i, j in itertools.permutations(range(len(x)), 2)], axis=0)
    result = measured(store)
    np.testing.assert_allclose(result.cosine_shares, pairs / pairs.sum(), atol=1e-5)
    assert values(result)["none", "top_cosine_share"] == pytest.approx(pairs[4] / pairs.sum(), abs=1e-5)


def test_published_estimators_are_near_the_exact_ones_and_come_only_when_asked_for(store: ActivationStore) -> None:
    exact = values(measured(store))
    assert not [name for _, name in exact if name.endswith(("e19", "lkm", "tvs"))]
    found = values(measured(store, estimators=layers.ESTIMATORS))
    for transform in ("none", "clip"):
        # A vector may be its own partner in two of the three: a tenth of 24 sentences, 1% of the tokens.
        assert found[transform, "mean_cosine_tvs"] == pytest.approx(exact[transform, "mean_cosine"], abs=0.03)
        assert found[transform, "mean_cosine_lkm"] == pytest.approx(
            exact[transform, "mean_cosine_one_per_sentence"], abs=0.15
        )
        assert found[transform, "mean_cosine_e19"] > exact[transform, "mean_cosine_one_per_sentence"]


def test_a_look_sees_profiles_without_special_tokens_and_with_them(
    store: ActivationStore, states: np.ndarray[Any, Any]
) -> None:
    seen, special = collect_layer_moments(store, 1, "exclude"), store.tokens.special
    x = states[1].astype(np.float32)
    for which, rows in (("exclude", ~special), ("include", np.ones_like(special))):
        profile: Any = seen.profiles[which]  # type: ignore[index]
        np.testing.assert_allclose(profile.mean, x[rows].mean(0), rtol=1e-4)
        assert profile.n_tokens == rows.sum()
    np.testing.assert_allclose(seen.moments.mean, x[~special].mean(0), rtol=1e-4)
    assert [o.neuron for o in moments.by_mean_profile(seen.profiles["exclude"].mean)] == [4]


def test_half_precision_is_measured_in_float32(states: np.ndarray[Any, Any], tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    half = make_store(tmp_path / "half", list(states), tokens, dtype="bfloat16")
    x = torch.from_numpy(states[1]).to(torch.bfloat16).double().numpy()
    assert values(measured(half))["none", "mean_cosine"] == pytest.approx(mean_cosine(x[~tokens.special]), abs=2e-6)


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


def anisotropy_mean_cosine(x: Tensor, lengths: list[int], cuts: tuple[int, ...] = (), n_draws: int = 50) -> MeanCosine:
    """Feed whole sentences in batches that end at these sentences."""
    found = MeanCosineAccumulator(x.shape[1], n_draws)
    units, ends = normalise(x), np.cumsum([0, *lengths])
    for a, b in itertools.pairwise([0, *cuts, len(lengths)]):
        here, n = units[ends[a] : ends[b]], torch.tensor(lengths[a:b], dtype=torch.int64)
        weights = torch.cat([redraws.weights(s, 1, 0, n_draws) for s in range(a, b)], 1)
        found.update(here, sum_by_sentence(here, n), n, weights)
    return found.result()


ANISOTROPY_LENGTHS = [3, 1, 5, 2, 4] * 4


def test_the_mean_cosine_is_that_of_all_pairs_and_its_parts_are_those_of_the_neurons() -> None:
    x = gaussian(60, 6, mean=0.7)
    pairs = [products for _, _, products in cosines(x)]
    found = anisotropy_mean_cosine(x, ANISOTROPY_LENGTHS)
    assert found.estimate.value == pytest.approx(np.sum(pairs) / len(pairs), abs=1e-12)
    assert found.estimate.n == 60
    np.testing.assert_allclose(found.by_neuron, np.mean(pairs, axis=0), atol=1e-12)
    np.testing.assert_allclose(found.shares, np.mean(pairs, axis=0) / (np.sum(pairs) / len(pairs)), atol=1e-12)


def test_batches_do_not_matter() -> None:
    x = gaussian(60, 6, mean=0.7)
    whole, parts = (
        anisotropy_mean_cosine(x, ANISOTROPY_LENGTHS),
        anisotropy_mean_cosine(x, ANISOTROPY_LENGTHS, (1, 2, 14)),
    )
    assert parts.estimate.value == pytest.approx(whole.estimate.value, abs=1e-12)
    # Draws are summed in float32 before batches are put together in float64.
    assert (parts.estimate.low, parts.estimate.high) == pytest.approx(
        (whole.estimate.low, whole.estimate.high), abs=1e-6
    )


def test_a_draw_counts_every_pair_that_is_not_a_sentence_with_its_own_copy() -> None:
    x, n_draws = gaussian(60, 6, mean=0.7), 7
    weights = torch.cat([redraws.weights(s, 1, 0, n_draws) for s in range(20)], 1)
    sentence = np.repeat(np.arange(20), ANISOTROPY_LENGTHS)
    expected = []
    for draw in weights.numpy():
        # Within one copy of a sentence all pairs count; between copies of different sentences too.
        pairs = [
            (draw[sentence[i]] * (draw[sentence[j]] if sentence[i] != sentence[j] else 1), products.sum())
            for i, j, products in cosines(x)
        ]
        expected.append(sum(w * c for w, c in pairs) / sum(w for w, _ in pairs))
    low, high = np.quantile(expected, [0.025, 0.975])
    found = anisotropy_mean_cosine(x, ANISOTROPY_LENGTHS, n_draws=n_draws).estimate
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-6)


@pytest.mark.slow
def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    truth = anisotropy_mean_cosine(gaussian(50_000, 8, mean=0.5, seed=99), [1] * 50_000, n_draws=1).estimate.value
    held = 0
    for seed in range(100):
        found = anisotropy_mean_cosine(gaussian(60, 8, mean=0.5, seed=seed), [1] * 60, n_draws=200).estimate
        held += found.low <= truth <= found.high
    assert 86 <= held <= 100  # 95 expected, less a little for a percentile interval of 60


def test_fewer_than_two_vectors_have_no_mean_cosine() -> None:
    assert np.isnan(anisotropy_mean_cosine(gaussian(1, 4), [1]).estimate.value)
    assert torch.isnan(anisotropy_mean_cosine(gaussian(1, 4), [1]).shares).all()


def test_few_sentences_have_no_interval_however_many_tokens_they_have() -> None:
    assert np.isfinite(anisotropy_mean_cosine(gaussian(60, 6), [3] * 20).estimate.low)
    found = anisotropy_mean_cosine(gaussian(60, 6), [3] * 19 + [0, 0, 3]).estimate
    assert np.isfinite([found.low, found.high]).all()  # 20 with tokens
    found = anisotropy_mean_cosine(gaussian(60, 6), [3] * 18 + [0, 0, 6]).estimate
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
        assert float(value) == pytest.approx(anisotropy_mean_cosine(clipped, [1] * 300).estimate.value, abs=1e-6)


def test_what_is_left_of_vectors_that_are_nearly_all_in_the_clipped_neurons_keeps_its_digits() -> None:
    x = gaussian(300, 10, mean=0.3).float()
    found, choice = ClippedCosines(torch.tensor([[4]]), 10), x.clone()
    choice[:, 4] = 0
    x[:, 4] = 1e4 * x[:, 4]
    found.update(x)
    assert float(found.result()) == pytest.approx(anisotropy_mean_cosine(choice, [1] * 300).estimate.value, abs=1e-6)


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


@pytest.mark.slow
def test_planted_cases() -> None:
    # F3 of the specification: a sphere, one direction, and a sphere far from 0.
    def measured(x: Tensor) -> tuple[float, float, float]:
        covariance = torch.from_numpy(np.cov(x.T.numpy(), bias=True))
        a = anisotropy_mean_cosine(x, [1] * len(x), n_draws=1).estimate.value
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
    exact = anisotropy_mean_cosine(x, [1] * 4000, n_draws=1).estimate.value
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


def tokens_of(*sentences: str) -> Tokens:
    """Letters are pieces, blanks end words; each sentence in special tokens 0."""
    ids, words, lengths = [], [], []
    for text in sentences:
        pieces = [(ord(letter), number) for number, word in enumerate(text.split()) for letter in word]
        ids += [0, *(piece for piece, _ in pieces), 0]
        words += [-1, *(number for _, number in pieces), -1]
        lengths.append(len(pieces) + 2)
    return Tokens(np.array(lengths, np.int32), np.array(ids, np.int32), np.array(words, np.int16))


def test_words_are_followed_by_their_pieces_once_a_sentence() -> None:
    # ab is in three sentences, twice in the first; a in two; b and cab in one.
    found = choose_words(tokens_of("ab a ab", "ab cab", "", "a b ab"), 0, min_sentences=2)
    assert found.n_types == 2
    ab, a = found.types[0], found.types[1]
    assert {int(ab), int(a)} == {0, 1}
    assert found.types.tolist() == [ab, a, -1, ab, -1, a, -1, ab]
    assert found.first_words.tolist() == [0, 3, 5, 5, 8]


def test_of_more_words_than_are_followed_some_are_drawn() -> None:
    text = tokens_of(*["a b c d e f g h"] * 3)
    draws = {tuple(choose_words(text, seed, 3, max_words=4).types[:8].clip(max=0)) for seed in range(20)}
    assert len(draws) > 5
    assert {sum(kept == 0 for kept in draw) for draw in draws} == {4}
    assert choose_words(text, 0, min_sentences=4).n_types == 0


def test_self_similarity_is_the_mean_over_ordered_pairs_and_twice_the_misprint() -> None:
    x = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    types = torch.tensor([0, 1, 0, 0, 1, 2, 2, 0, 2])
    found = SelfSimilarityAccumulator(3, 4)
    for rows in (slice(0, 4), slice(4, 4), slice(4, 9)):
        found.update(x[rows], types[rows])
    unit = (x / x.norm(dim=1, keepdim=True)).numpy()
    for word in range(3):
        rows = unit[(types == word).numpy()]
        n, halves = len(rows), sum(a @ b for a, b in itertools.combinations(rows, 2))
        assert float(found.by_word()[word]) == pytest.approx(2 * halves / (n * (n - 1)), abs=1e-12)
    estimate = found.result(0)
    assert estimate.value == pytest.approx(float(found.by_word().mean()))
    assert np.isnan([estimate.low, estimate.high]).all()  # three words are too few
    assert estimate.n == 3


def test_the_interval_of_self_similarity_is_over_words() -> None:
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    found = SelfSimilarityAccumulator(20, 4)
    found.update(x, torch.arange(100) % 20)
    values, estimate = found.by_word().numpy(), found.result(0)
    assert estimate.low < estimate.value < estimate.high
    # A percentile interval of 20 lacks the factor of Student's t; 400 draws know a quantile to 5%.
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * values.std() / 20**0.5, rel=0.2)


def test_without_words_there_is_no_number() -> None:
    assert np.isnan(SelfSimilarityAccumulator(0, 4).result(0).value)
    assert isinstance(choose_words(tokens_of("a", "b"), 0), Occurrences)


FIRST_D, SINK, EVERYWHERE = 100, 7, 31
FIRST_LENGTHS = [5, 3, 8, 1, 6, 4, 12, 3] * 3


def first_states(sink: float = 0.0, everywhere: float = 0.0) -> np.ndarray[Any, Any]:
    """Return noise, plus a constant in one neuron of first tokens, and in another of all tokens."""
    tokens = make_tokens(FIRST_LENGTHS, special=False)
    x = np.random.default_rng(0).standard_normal((tokens.n_tokens, FIRST_D))
    x[tokens.positions == 0, SINK] += sink
    x[:, EVERYWHERE] += everywhere
    return x


def looked(folder: Path, x: np.ndarray[Any, Any], without_first: bool = True, special: bool = False) -> LayerMoments:
    store = make_store(folder / "store", [x], make_tokens(FIRST_LENGTHS, special=special), shard_tokens=40)
    return collect_layer_moments(store.without_first() if without_first else store, 0, "exclude")


def far(found: LayerMoments) -> dict[str, set[int]]:
    rows = [row for row in first_token_rows(0, found.of_first) if row["measure"] == "mean_profile"]
    return {which: {row["neuron"] for row in rows if row["first_token"] == which} for which in found.of_first}


@pytest.mark.parametrize(
    ("planted", "without", "with_it", "alone"),
    [
        ({}, set(), set(), set()),
        ({"sink": 50.0}, set(), {SINK}, {SINK}),
        ({"everywhere": 9.0}, {EVERYWHERE}, {EVERYWHERE}, {EVERYWHERE}),
        ({"sink": 50.0, "everywhere": 9.0}, {EVERYWHERE}, {SINK, EVERYWHERE}, {SINK}),
    ],
)
def test_a_sinks_outlier_is_found_with_the_first_token_alone_and_one_of_all_tokens_either_way(
    tmp_path: Path, planted: dict[str, float], without: set[int], with_it: set[int], alone: set[int]
) -> None:
    found = looked(tmp_path, first_states(**planted))
    assert far(found) == {"exclude": without, "include": with_it, "only": alone}
    # What is measured, transforms included, is without the first token.
    assert {one.neuron for one in moments.by_mean_profile(found.profiles["exclude"].mean)} == without
    assert {one.neuron for one in moments.by_mean_profile(found.moments.mean.numpy())} == without


def test_profiles_are_those_of_the_rows(tmp_path: Path) -> None:
    x, tokens = first_states(50.0), make_tokens(FIRST_LENGTHS, special=False)
    first = tokens.positions == 0
    found = looked(tmp_path, x)
    for which, rows in {"exclude": x[~first], "include": x, "only": x[first]}.items():
        profile = found.of_first[which].profile
        assert profile.n_tokens == len(rows)
        np.testing.assert_allclose(profile.mean, rows.mean(0), atol=1e-6)  # activations are kept in float32
        np.testing.assert_allclose(profile.variance, rows.var(0), rtol=1e-5)
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        cosines = (units @ units.T)[~np.eye(len(rows), dtype=bool)]
        assert found.of_first[which].mean_cosine == pytest.approx(cosines.mean(), abs=1e-6)
    (norm,) = [r for r in first_token_rows(0, found.of_first) if (r["measure"], r["first_token"]) == (NORM, "only")]
    assert norm["value"] == pytest.approx(np.sqrt((x[first] ** 2).sum(1).mean()), rel=1e-6)
    (farthest,) = [
        r for r in first_token_rows(0, found.of_first) if (r["measure"], r["first_token"]) == (FARTHEST, "include")
    ]
    mean = x.mean(0)
    assert farthest["neuron"] == SINK
    assert farthest["value"] == pytest.approx((mean[SINK] - mean.mean()) / mean.std(), rel=1e-5)


def test_with_the_first_token_the_profile_is_that_of_a_run_without_the_option(tmp_path: Path) -> None:
    usual = looked(tmp_path / "usual", first_states(50.0), without_first=False)
    found = looked(tmp_path / "own", first_states(50.0))
    assert not usual.of_first
    np.testing.assert_allclose(found.of_first["include"].profile.mean, usual.profiles["exclude"].mean, atol=1e-12)


def test_a_first_token_that_is_special_and_does_not_count_anyway_changes_nothing(tmp_path: Path) -> None:
    usual = looked(tmp_path / "usual", first_states(50.0), without_first=False, special=True)
    found = looked(tmp_path / "own", first_states(50.0), special=True)
    for which in ("exclude", "include"):
        np.testing.assert_array_equal(found.of_first[which].profile.mean, usual.profiles["exclude"].mean)
    assert found.of_first["only"].profile.n_tokens == len(FIRST_LENGTHS)
    assert far(found)["only"] == {SINK}


def test_a_huge_sink_hides_an_outlier_of_all_tokens_and_the_sentences_say_so(tmp_path: Path) -> None:
    found = looked(tmp_path, first_states(sink=500.0, everywhere=9.0))
    assert far(found) == {"exclude": {EVERYWHERE}, "include": {SINK}, "only": {SINK}}
    assert first_token_conclusions(first_token_rows(3, found.of_first)) == [
        f"Neurons with a far mean with the first token and not without it: layer 3: {SINK}.",
        f"Neurons with a far mean without the first token, which it hides: layer 3: {EVERYWHERE}.",
        f"Neurons with a far mean on the first token alone, and not on the others: layer 3: {SINK}.",
    ]


def test_without_a_sink_the_sentence_says_so(tmp_path: Path) -> None:
    found = looked(tmp_path, first_states(everywhere=9.0))
    lines = first_token_conclusions(first_token_rows(3, found.of_first))
    assert lines == ["The first token adds no outlier and hides none."]
    assert first_token_conclusions([]) == []


SPECIAL, DOT, N_WORDS, N_MARKS = (900, 901), 600, 300, 40


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    """Words of Zipf's frequencies, one of many full stops before the last special token, none of them common."""
    generator = np.random.default_rng(0)
    lengths = generator.integers(6, 30, 400)
    frequency = 1 / np.arange(1, N_WORDS + 1)
    ids, words = [], []
    for n in lengths:
        inner = generator.choice(N_WORDS, n - 3, p=frequency / frequency.sum())
        ids += [SPECIAL[0], *inner, DOT + generator.integers(N_MARKS), SPECIAL[1]]
        words += [-1, *range(n - 2), -1]
    return Tokens(lengths.astype(np.int32), np.array(ids, np.int32), np.array(words, np.int16))


def is_mark(tokens: Tokens) -> np.ndarray:
    return (tokens.input_ids >= DOT) & (tokens.input_ids < SPECIAL[0])


def shares(
    tokens: Tokens, neurons: np.ndarray, rows: np.ndarray | None = None, n_batches: int = 1
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    regressors = Regressors(tokens, is_mark(tokens))
    found = ExplainedAccumulator(regressors.columns, neurons.shape[1])
    edges = np.linspace(0, tokens.n_tokens, n_batches + 1).astype(int)
    for a, b in itertools.pairwise(edges.tolist()):
        kept = slice(None) if rows is None else rows[a:b]
        found.update(regressors.of(slice(a, b))[kept], neurons[a:b][kept])
    return found.result()


def planted(tokens: Tokens) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(1).standard_normal((tokens.n_tokens, 6))
    counts = np.bincount(tokens.input_ids)[tokens.input_ids]
    position = np.random.default_rng(2).standard_normal(30)[tokens.positions]  # any function of the place
    plain = ~tokens.special
    return {
        "position": 3 * position + noise[:, 0],
        # Of special tokens the mean, so that nothing tells them from others.
        "frequency": 2 * np.where(plain, np.log2(counts), np.log2(counts[plain]).mean()) + noise[:, 1],
        "token": 9 * (tokens.input_ids == 3) - 6 * (tokens.input_ids == 11) + noise[:, 5],
        "punctuation": 9 * is_mark(tokens) + noise[:, 2],
        "special": 9 * (tokens.input_ids == SPECIAL[1]) + noise[:, 3],
        "nothing": noise[:, 4],
    }


def test_a_planted_neuron_is_explained_by_what_it_was_made_of(tokens: Tokens) -> None:
    made = planted(tokens)
    found = shares(tokens, np.stack([*made.values()], 1))
    for i, name in enumerate(made):
        partial = {source: float(found[source][1][i]) for source in SOURCES}
        if name == "nothing":
            # About the number of columns over the number of tokens.
            assert found["all"][0][i] < 0.02
            assert max(partial.values()) < 0.01
        else:
            assert max(partial, key=partial.__getitem__) == name
            assert found["all"][0][i] > 0.5
            # Frequency stands for the commonest tokens in part, and the other way round.
            others = {source: value for source, value in partial.items() if source != name}
            assert max(others.values()) < 0.02


def test_shares_are_those_of_least_squares(tokens: Tokens) -> None:
    of_all = np.sum([*planted(tokens).values()], axis=0)
    neurons = np.random.default_rng(3).standard_normal((tokens.n_tokens, 2)) + of_all[:, None] + 99
    regressors = Regressors(tokens, is_mark(tokens))
    x, columns = regressors.of(slice(0, tokens.n_tokens)), regressors.columns

    def r_squared(kept: list[str]) -> np.ndarray:
        design = np.concatenate([x[:, columns[name]] for name in kept], 1)
        fitted = LinearRegression().fit(design, neurons)
        left = ((neurons - fitted.predict(design)) ** 2).sum(0)
        return 1 - left / ((neurons - neurons.mean(0)) ** 2).sum(0)

    found, whole = shares(tokens, neurons, n_batches=7), r_squared([*SOURCES])
    np.testing.assert_allclose(found["all"][0], whole, atol=1e-9)
    for name in SOURCES:
        without = r_squared([other for other in SOURCES if other != name])
        np.testing.assert_allclose(found[name][0], r_squared([name]), atol=1e-9)
        np.testing.assert_allclose(found[name][1], (whole - without) / (1 - without), atol=1e-9)


def test_sources_that_repeat_each_other_add_nothing_to_each_other(tokens: Tokens) -> None:
    # [CLS] is always at place 0, so either explains it and neither adds to the other.
    neuron = (tokens.positions == 0)[:, None] * 5.0 + np.random.default_rng(0).standard_normal((tokens.n_tokens, 1))
    found = shares(tokens, neuron)
    assert found["position"][0] > 0.3
    assert found["special"][0] > 0.3
    assert found["position"][1] < 0.02
    assert found["special"][1] < 0.005


def test_where_others_explain_all_there_is_a_source_adds_nothing(tokens: Tokens) -> None:
    # What is left without it is rounding, of which it would explain some share between minus many and 1.
    neurons = np.random.default_rng(0).standard_normal((40, 30))[tokens.positions] + 99
    found = shares(tokens, neurons)
    np.testing.assert_allclose(found["position"][0], 1, atol=1e-9)
    for name in ("frequency", "token", "punctuation"):
        assert not found[name][1].any()


def test_without_special_tokens_their_columns_are_left_out(tokens: Tokens) -> None:
    plain, neurons = ~tokens.special, np.stack([*planted(tokens).values()], 1)
    regressors = Regressors(tokens, is_mark(tokens))
    columns = {name: here for name, here in regressors.columns.items() if name != "special"}
    found = ExplainedAccumulator(columns, neurons.shape[1])
    found.update(regressors.of(slice(0, tokens.n_tokens))[plain], neurons[plain])
    result = found.result()
    assert set(result) == {"position", "frequency", "token", "punctuation", "all"}
    rows = explained_rows(4, [7, 8, 9, 10, 11, 12], ["outlier"] * 5 + ["random"], "exclude", result, found.n_tokens)
    assert len(rows) == 30
    assert rows[0] == {
        "layer": 4, "neuron": 7, "kind": "outlier", "special_tokens": "exclude", "source": "position",
        "alone": result["position"][0][0], "partial": result["position"][1][0], "n_tokens": plain.sum(),
    }  # fmt: skip


def test_a_neuron_that_does_not_vary_has_no_shares(tokens: Tokens) -> None:
    found = shares(tokens, np.ones((tokens.n_tokens, 1)))
    assert np.isnan(found["all"][0][0])
    assert explained_rows(0, [0], ["random"], "include", found, 3) == []
    with pytest.raises(ValueError, match="no tokens"):
        ExplainedAccumulator({"position": slice(1, 3)}, 1).result()


def test_punctuation_is_told_by_characters_and_not_by_the_tokenizers_marks() -> None:
    texts = [".", "##,", "Ġ.", "▁!", "...", "##", "Ġ", "the", "##s", "'s", "$", "[CLS]", "▁", "e.g."]
    expected = [True, True, True, True, True, True, False, False, False, False, True, False, False, False]
    assert is_punctuation(texts).tolist() == expected


def test_a_value_of_some_common_tokens_is_not_taken_for_frequency(tokens: Tokens) -> None:
    # Three common tokens differ from all others: that looks like frequency, until each has a column of its own.
    neuron = 5.0 * np.isin(tokens.input_ids, [0, 2, 6]) + np.random.default_rng(0).standard_normal(tokens.n_tokens)
    found = shares(tokens, neuron[:, None])
    assert found["frequency"][0] > 0.3
    assert found["frequency"][1] < 0.01
    assert found["token"][1] > 0.1


def test_the_commonest_tokens_are_no_special_ones_and_no_more_than_there_are() -> None:
    few = Tokens(
        np.array([5, 5], np.int32), np.array([9, 1, 1, 2, 9] * 2, np.int32), np.array([-1, 0, 1, 2, -1] * 2, np.int16)
    )
    regressors = Regressors(few, np.zeros(10, dtype=bool))
    here = regressors.columns["token"]
    assert here.stop - here.start == 2
    x = regressors.of(slice(0, 10))[:, here]
    # A special token has what the others have on average.
    expected = np.array([[2 / 3, 1 / 3], [1, 0], [1, 0], [0, 1], [2 / 3, 1 / 3]])
    np.testing.assert_allclose(x[:5], expected)
