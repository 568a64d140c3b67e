"""What a neuron goes with: shares of variance against scikit-learn, and planted neurons whose source is known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from probing.cache.tokens import Tokens
from probing.studies.geometry.survey import SOURCES, ExplainedAccumulator, Regressors, explained_rows, is_punctuation

pytestmark = pytest.mark.numeric

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
