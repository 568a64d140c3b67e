"""A layer measured in two passes, against one look at all tokens by numpy."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from probing.cache.store import ActivationStore
from probing.probes import transforms
from probing.statistics import moments
from probing.studies.geometry import layers
from probing.studies.geometry.layers import Sampled, look, measure
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


def values(result: layers.Measured) -> dict[tuple[str, str], float]:
    return {(row["transform"], row["measure"]): row["value"] for row in result.rows}


def mean_cosine(x: np.ndarray[Any, Any]) -> float:
    units = x / np.linalg.norm(x, axis=1, keepdims=True)
    n = len(x)
    return float((units @ units.T).sum() - n) / (n * (n - 1))


def measured(store: ActivationStore, which: Any = "exclude", **how: Any) -> layers.Measured:
    sampled = Sampled(store.tokens, which, 0)
    seen = look(store, 1, sampled)
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
    rows = np.flatnonzero(sampled.one_per_sentence)
    assert not store.tokens.special[rows].any()
    lengths = np.array(LENGTHS)
    assert store.tokens.sentences[rows].tolist() == np.flatnonzero(lengths > 2).tolist()
    # Over seeds every token of a sentence comes up.
    drawn = [np.flatnonzero(Sampled(store.tokens, "exclude", seed).one_per_sentence)[0] for seed in range(60)]
    assert set(drawn) == {1, 2, 3}


def test_the_mean_cosine_of_one_token_a_sentence_is_that_of_these_tokens(
    store: ActivationStore, states: np.ndarray[Any, Any]
) -> None:
    drawn = Sampled(store.tokens, "exclude", 0).one_per_sentence
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
    before = measure(store, 0, sampled, look(store, 0, sampled).moments, {"none": transforms.identity(D)})
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
    seen, special = look(store, 1, Sampled(store.tokens, "exclude", 0)), store.tokens.special
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
