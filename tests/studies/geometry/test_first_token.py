"""The first token's own outliers and norms, on states in which they are planted, against numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probing.statistics import moments
from probing.studies.geometry.layers import FARTHEST, NORM, Look, Sampled, first_token_rows, look
from probing.tables.heads import first_token_conclusions
from synthetic import make_store, make_tokens

pytestmark = pytest.mark.numeric

D, SINK, EVERYWHERE = 100, 7, 31
LENGTHS = [5, 3, 8, 1, 6, 4, 12, 3] * 3


def states(sink: float = 0.0, everywhere: float = 0.0) -> np.ndarray[Any, Any]:
    """Return noise, plus a constant in one neuron of first tokens, and in another of all tokens."""
    tokens = make_tokens(LENGTHS, special=False)
    x = np.random.default_rng(0).standard_normal((tokens.n_tokens, D))
    x[tokens.positions == 0, SINK] += sink
    x[:, EVERYWHERE] += everywhere
    return x


def looked(folder: Path, x: np.ndarray[Any, Any], without_first: bool = True, special: bool = False) -> Look:
    store = make_store(folder / "store", [x], make_tokens(LENGTHS, special=special), shard_tokens=40)
    tokens = store.without_first().tokens if without_first else store.tokens
    return look(store, 0, Sampled(tokens, "exclude", 0))


def far(found: Look) -> dict[str, set[int]]:
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
    found = looked(tmp_path, states(**planted))
    assert far(found) == {"exclude": without, "include": with_it, "only": alone}
    # What is measured, transforms included, is without the first token.
    assert {one.neuron for one in moments.by_mean_profile(found.profiles["exclude"].mean)} == without
    assert {one.neuron for one in moments.by_mean_profile(found.moments.mean.numpy())} == without


def test_profiles_are_those_of_the_rows(tmp_path: Path) -> None:
    x, tokens = states(50.0), make_tokens(LENGTHS, special=False)
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
    usual = looked(tmp_path / "usual", states(50.0), without_first=False)
    found = looked(tmp_path / "own", states(50.0))
    assert not usual.of_first
    np.testing.assert_allclose(found.of_first["include"].profile.mean, usual.profiles["exclude"].mean, atol=1e-12)


def test_a_first_token_that_is_special_and_does_not_count_anyway_changes_nothing(tmp_path: Path) -> None:
    usual = looked(tmp_path / "usual", states(50.0), without_first=False, special=True)
    found = looked(tmp_path / "own", states(50.0), special=True)
    for which in ("exclude", "include"):
        np.testing.assert_array_equal(found.of_first[which].profile.mean, usual.profiles["exclude"].mean)
    assert found.of_first["only"].profile.n_tokens == len(LENGTHS)
    assert far(found)["only"] == {SINK}


def test_a_huge_sink_hides_an_outlier_of_all_tokens_and_the_sentences_say_so(tmp_path: Path) -> None:
    found = looked(tmp_path, states(sink=500.0, everywhere=9.0))
    assert far(found) == {"exclude": {EVERYWHERE}, "include": {SINK}, "only": {SINK}}
    assert first_token_conclusions(first_token_rows(3, found.of_first)) == [
        f"Neurons with a far mean with the first token and not without it: layer 3: {SINK}.",
        f"Neurons with a far mean without the first token, which it hides: layer 3: {EVERYWHERE}.",
        f"Neurons with a far mean on the first token alone, and not on the others: layer 3: {SINK}.",
    ]


def test_without_a_sink_the_sentence_says_so(tmp_path: Path) -> None:
    found = looked(tmp_path, states(everywhere=9.0))
    lines = first_token_conclusions(first_token_rows(3, found.of_first))
    assert lines == ["The first token has no outlier of its own, and hides none."]
    assert first_token_conclusions([]) == []
