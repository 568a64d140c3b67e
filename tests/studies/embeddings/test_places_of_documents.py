from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from conftest import make_sentences
from probing.studies.embeddings.survey import (
    Documents,
    Texts,
    bias,
    bias_rows,
    changes,
    middle,
    texts_of,
    values_of,
    weights,
)
from probing.studies.embeddings.tables import (
    AGAINST,
    AS_WRITTEN,
    BAG,
    DELETE,
    EDITS,
    INSERT,
    MODEL,
    REPLACE,
    SHUFFLED,
    WEIGHT,
)

pytestmark = pytest.mark.numeric
Floats = NDArray[np.float64]


def documents(n: int, n_sentences: int, seed: int = 0) -> Documents:
    """Documents, and as many others, whose sentences are their own words apart."""
    sentences = make_sentences(2 * n * n_sentences, seed)
    n_tokens = np.array([len(one.split()) for one in sentences])
    index = np.arange(2 * n * n_sentences).reshape(2 * n, n_sentences)
    return Documents(sentences, index[:n], index[n:], n_tokens, 0, np.full(n, 100))


def planted(made: Documents, texts: Texts, weight: Floats, noise: float = 0.0, seed: int = 0) -> Floats:
    """Vectors of texts: weighted sums of random vectors of their words, by the place of their sentence; and noise.

    A sentence alone has weight 1. The last place of a text has the last weight, whatever the number of its sentences.
    """
    generator = np.random.default_rng(seed)
    words = sorted({word for text in texts.corpus.sentences for word in text.split()})
    of_word = dict(zip(words, generator.standard_normal((len(words), 24)), strict=True))
    ends = tuple(".?!")
    found = []
    for text in texts.corpus.sentences:
        vector, place, last = np.zeros(24), 0, sum(word.endswith(ends) for word in text.split()) - 1
        for word in text.split():
            own = 1.0 if last == 0 else weight[min(place, len(weight) - 1) if place < last else -1]
            vector += own * of_word[word]
            place += word.endswith(ends)
        found.append(vector / len(text.split()) + noise * generator.standard_normal(24))
    return np.array(found)


@pytest.mark.parametrize("n_orders", [1, 2])
def test_known_weights_of_sentences_are_recovered(n_orders: int) -> None:
    generator = np.random.default_rng(0)
    parts = generator.standard_normal((30, n_orders, 5, 16))
    wanted = np.array([2.0, 1.0, 0.5, 0.25, 0.3])
    found, explained = weights(np.einsum("i,noid->nod", wanted, parts), parts)
    assert found.shape == (30, 5)
    assert np.abs(found - wanted).max() < 1e-6
    assert explained == pytest.approx(1)


def test_weights_are_those_of_a_regression_and_their_errors_those_of_leaving_documents_out() -> None:
    generator = np.random.default_rng(1)
    parts = generator.standard_normal((25, 1, 4, 8))
    vectors = parts.sum(2) + generator.standard_normal((25, 1, 8))
    found, explained = weights(vectors, parts)

    def regression(kept: NDArray[np.int64]) -> Floats:
        design = parts[kept, 0].transpose(0, 2, 1).reshape(-1, 4)
        fit: Floats = np.linalg.lstsq(design, vectors[kept, 0].ravel(), rcond=None)[0]
        return fit

    whole = regression(np.arange(25))
    assert found.mean(0) == pytest.approx(whole, abs=1e-6)
    without = np.array([regression(np.delete(np.arange(25), i)) for i in range(25)])
    spread = np.sqrt(24 / 25 * ((without - without.mean(0)) ** 2).sum(0))
    assert found.std(0, ddof=1) / 5 == pytest.approx(spread, abs=1e-6)
    rest = vectors[:, 0] - np.einsum("i,nid->nd", whole, parts[:, 0])
    assert explained == pytest.approx(1 - (rest**2).sum() / (vectors**2).sum())


def test_an_edit_of_nothing_changes_nothing() -> None:
    vectors = np.random.default_rng(0).standard_normal((6, 10))
    intact = np.arange(6)
    assert (changes(vectors, intact, np.stack([intact, intact], axis=1)) == 0).all()
    row = bias(np.zeros((25, 4)))
    assert (row["start_end"], row["start_end_low"], row["start_end_high"], row["start_end_p"]) == (0, 0, 0, 1)


def test_equal_weights_show_no_bias_and_intervals_hold_0_as_often_as_they_say() -> None:
    holds = []
    for seed in range(200):
        generator = np.random.default_rng(seed)
        parts = generator.standard_normal((30, 2, 5, 8))
        vectors = parts.sum(2) + generator.standard_normal((30, 2, 8))
        row = bias(weights(vectors, parts)[0])
        holds.append(row["start_end_low"] <= 0 <= row["start_end_high"])
        assert (row["start_end_p"] >= 0.05) is holds[-1]
    assert 183 <= sum(holds) <= 199  # 190 are expected, of which three standard deviations are 9


def test_where_all_words_weigh_the_same_opposite_places_change_alike_in_both_orders() -> None:
    made = documents(24, 5)
    texts = texts_of(made, EDITS, 0)
    found, explained = values_of(planted(made, texts, np.ones(5)), texts)
    assert set(found) == {(name, order) for name in (*EDITS, WEIGHT) for order in (AS_WRITTEN, SHUFFLED)}
    for name in EDITS:
        values = found[name, SHUFFLED]
        assert values.shape == (24, 5 + (name == INSERT))
        assert np.abs(values - values[:, ::-1]).max() < 1e-6
        assert values.min() > 0
    assert np.ptp(found[INSERT, AS_WRITTEN], axis=1).max() < 1e-6  # the same sentence everywhere
    assert np.abs(found[WEIGHT, SHUFFLED] - 1).max() < 1e-6
    assert explained == pytest.approx({AS_WRITTEN: 1, SHUFFLED: 1})


@pytest.mark.parametrize("weight", [[3.0, 1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0, 3.0]])
def test_the_end_that_weighs_more_is_found_whatever_is_measured(weight: list[float]) -> None:
    made = documents(24, 5)
    texts = texts_of(made, EDITS, 0)
    found, _ = values_of(planted(made, texts, np.array(weight), 0.02), texts)
    sign = 1 if weight[0] > 1 else -1
    for name in (REPLACE, INSERT, WEIGHT):
        row = bias(found[name, SHUFFLED])
        assert sign * row["start_end"] > 0
        assert min(sign * row["start_end_low"], sign * row["start_end_high"]) > 0, name
        assert row["start_end_p"] < 0.001
    assert found[WEIGHT, SHUFFLED].mean(0) == pytest.approx(weight, abs=0.2)


def test_the_middle_is_one_place_or_two() -> None:
    assert [middle(n) for n in (3, 4, 5, 8)] == [[1], [1, 2], [2], [3, 4]]
    row = bias(np.array([[4.0, 2.0, 1.0, 0.0]] * 30))
    assert (row["at_start"], row["at_middle"], row["at_end"], row["start_middle"], row["relative"]) == (
        4,
        1.5,
        0,
        2.5,
        4 / 1.75,
    )


def test_vectors_are_compared_by_document_with_those_that_they_come_from() -> None:
    generator = np.random.default_rng(0)
    key = (REPLACE, SHUFFLED)
    own = {MODEL: generator.random((30, 4)) + 1}
    for name in (BAG, *AGAINST):
        own[name] = 3 * own[MODEL]  # another scale is no other bias
    own["position_removed"] = generator.random((30, 4)) + 1
    draws = [{key: generator.random((30, 4)) + 1} for _ in range(4)]
    rows = {row["embedding"]: row for row in bias_rows({name: {key: values} for name, values in own.items()}, draws)}
    assert [rows[name].get("against", "") for name in (MODEL, BAG, *AGAINST)] == ["", "", *AGAINST.values()]
    assert rows["centred"]["relative_difference"] == pytest.approx(0, abs=1e-12)
    other = rows["position_removed"]
    assert other["relative_difference"] == pytest.approx(other["relative"] - rows["centred"]["relative"])
    each = [bias(one[key])["relative"] for one in draws]
    assert (rows["random_held"]["least"], rows["random_held"]["most"]) == (min(each), max(each))


def test_texts_are_edited_at_the_place_that_is_said_and_nowhere_else() -> None:
    made = documents(4, 3)
    texts = texts_of(made, EDITS, 1)
    read = texts.corpus.sentences
    assert sorted(texts.orders[0].tolist()) == [[0, 1, 2]] * 4
    assert (texts.orders[1] == texts.orders[2][:, ::-1]).all()
    assert texts.shares.sum(1) == pytest.approx(1)
    others = {made.sentences[i] for i in made.others.ravel().tolist()}
    for which, order in enumerate(texts.orders):
        for i, own in enumerate(order):
            parts = [made.sentences[j] for j in made.measured[i, own].tolist()]
            assert read[texts.intact[which, i]] == " ".join(parts)
            assert [read[j] for j in texts.alone[i, own]] == parts
            for at in range(4):
                inserted = read[texts.edited[INSERT][which, i, at]]
                assert inserted in {" ".join([*parts[:at], one, *parts[at:]]) for one in others}
            for at in range(3):
                deleted = read[texts.edited[DELETE][which, i, at]]
                assert deleted == " ".join([*parts[:at], *parts[at + 1 :]])
                replaced = read[texts.edited[REPLACE][which, i, at]]
                assert replaced in {" ".join([*parts[:at], one, *parts[at + 1 :]]) for one in others}
    # A sentence is replaced by the same one in every order.
    for i in range(4):
        for j in range(3):
            new = set()
            for which, order in enumerate(texts.orders):
                at = int(np.flatnonzero(order[i] == j)[0])
                parts = [made.sentences[k] for k in made.measured[i, order[i]].tolist()]
                text = read[texts.edited[REPLACE][which, i, at]]
                before, after = " ".join(parts[:at]), " ".join(parts[at + 1 :])
                new.add(text.removeprefix(before).removesuffix(after).strip())
            assert len(new) == 1


def test_a_sentence_gives_way_to_one_of_about_its_length_for_which_there_is_room() -> None:
    made = documents(12, 4)
    texts = texts_of(made, [REPLACE], 0)
    assert texts.donor_distance < 4
    tight = replace(made, room=np.zeros(12, dtype=np.int64))
    texts = texts_of(tight, [REPLACE], 0)
    longest = [len(texts.corpus.sentences[i].split()) for i in texts.edited[REPLACE].ravel()]
    before = [len(texts.corpus.sentences[i].split()) for i in np.repeat(texts.intact.ravel(), 4)]
    assert all(a <= b for a, b in zip(longest, before, strict=True))
