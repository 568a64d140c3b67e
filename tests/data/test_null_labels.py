"""Labels of each word type given to another: what stays of them, and that random labels are one of their draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.data.controls import LEAST_TYPES, permute_among_types, token_types

pytestmark = pytest.mark.numeric

Labels = NDArray[np.int64]


def zipf_types(n_types: int, n_tokens: int, seed: int = 0) -> NDArray[np.uint64]:
    """Return word types whose frequencies fall as those of words do."""
    share = 1 / np.arange(1, n_types + 1)
    return np.random.default_rng(seed).choice(n_types, n_tokens, p=share / share.sum()).astype(np.uint64)


TYPES = zipf_types(300, 2000)


# Ten or more types of each count.
EVEN = np.repeat(np.arange(190), np.repeat([1, 3, 10, 40], [100, 60, 20, 10])).astype(np.uint64)


def per_token(seed: int, types: NDArray[np.uint64] = EVEN) -> Labels:
    return np.random.default_rng(seed).integers(4, size=len(types))


def per_type(seed: int, types: NDArray[np.uint64] = EVEN) -> Labels:
    of_type: Labels = np.random.default_rng(seed).integers(4, size=300)
    return of_type[types.astype(int)]


def test_each_type_takes_the_labels_of_one_other_type_of_like_frequency() -> None:
    counts = np.bincount(TYPES.astype(int), minlength=300)
    # A label for each type, so that the draw shows whose labels it took.
    for draw in permute_among_types(TYPES.astype(np.int64), TYPES, 3, seed=0):
        source = {(int(own), int(taken)) for own, taken in zip(TYPES, draw, strict=True)}
        assert len(source) == len({own for own, _ in source}) == (counts > 0).sum()
        assert len({taken for _, taken in source}) == len(source)
        rare = [(own, taken) for own, taken in source if counts[own] <= 3]
        assert len(rare) > 5 * LEAST_TYPES
        assert all(counts[own] == counts[taken] for own, taken in rare)
        assert np.mean([own != taken for own, taken in source]) > 0.8
        frequent = np.argsort(-counts)[:LEAST_TYPES]
        assert {taken for own, taken in source if own in frequent} <= {*np.argsort(-counts)[: 2 * LEAST_TYPES]}


def test_a_type_takes_all_the_labels_of_one_as_frequent_in_random_order() -> None:
    types = np.repeat(np.arange(12, dtype=np.uint64), 50)
    labels = np.arange(600)
    (draw,) = permute_among_types(labels, types, 1, seed=0)
    assert sorted(draw) == labels.tolist()
    blocks = draw.reshape(12, 50)
    assert (blocks // 50 == blocks[:, :1] // 50).all()
    assert (np.diff(blocks, axis=1) > 0).mean() == pytest.approx(0.5, abs=0.06)


def test_the_labels_of_a_rarer_type_are_repeated_equally_often() -> None:
    types = np.repeat(np.arange(2, dtype=np.uint64), [9, 3])
    draws = permute_among_types(np.array([0] * 9 + [1, 2, 3]), types, 20, seed=0)
    swapped = [draw for draw in draws if draw[0] != 0]
    assert 0 < len(swapped) < 20
    for draw in swapped:
        assert np.bincount(draw[:9]).tolist() == [0, 3, 3, 3]
        assert draw[9:].tolist() == [0, 0, 0]


def purity(labels: Labels, types: NDArray[np.uint64] = EVEN) -> float:
    """Return the share of tokens with the label that most tokens of their type have."""
    counts = np.zeros((300, 4))
    np.add.at(counts, (types.astype(int), labels), 1)
    return float(counts.max(1).sum() / len(labels))


def frequency(labels: Labels) -> float:
    """Return the share of the first class."""
    return float((labels == 0).mean())


@pytest.mark.parametrize(("draw_labels", "statistic"), [(per_token, purity), (per_type, frequency)])
def test_random_labels_stand_among_their_draws_as_one_of_them(
    draw_labels: Callable[[int], Labels], statistic: Callable[[Labels], float]
) -> None:
    order = np.random.default_rng(0).random(len(EVEN))  # so that the first class is of other types in each draw
    places = []
    for seed in range(100):
        labels = draw_labels(seed)
        draws = permute_among_types(labels, EVEN, 9, seed)
        if statistic is frequency:  # each type as often as before: the classes of the tokens of one half
            labels, draws = labels[order < 0.5], draws[:, order < 0.5]
        values = [statistic(draw) for draw in draws]
        places.append(np.mean([(value > statistic(labels)) + 0.5 * (value == statistic(labels)) for value in values]))
    # Uniform over ten places: a mean of a half with a standard error of .03, and a tenth at either end.
    assert np.mean(places) == pytest.approx(0.5, abs=0.1)
    assert np.mean(np.array(places) < 0.05) < 0.25
    assert np.mean(np.array(places) > 0.95) < 0.25


def test_types_stay_as_pure_as_they_were_and_hardly_purer_where_frequencies_differ() -> None:
    for seed in range(5):
        for draw in permute_among_types(per_type(seed, TYPES), TYPES, 3, seed):
            assert purity(draw, TYPES) == 1
        labels = per_token(seed, TYPES)
        for draw in permute_among_types(labels, TYPES, 3, seed):
            assert -0.01 < purity(draw, TYPES) - purity(labels, TYPES) < 0.06


def test_labels_that_say_where_a_token_stands_do_not_stand_among_them() -> None:
    labels = np.arange(len(TYPES)) // (len(TYPES) // 4)
    draws = permute_among_types(labels, TYPES, 19, 0)
    alike = [(row[1:] == row[:-1]).mean() for row in (labels, *draws)]  # neighbours of one class
    assert alike[0] > 0.99
    assert max(alike[1:]) < 0.4


def test_the_seed_decides_and_draws_differ() -> None:
    labels = per_token(0)
    draws = permute_among_types(labels, EVEN, 3, seed=1)
    np.testing.assert_array_equal(draws[:2], permute_among_types(labels, EVEN, 2, seed=1))
    assert (draws[0] != draws[1]).any()
    assert (draws != permute_among_types(labels, EVEN, 3, seed=2)).any()
    assert draws.dtype == labels.dtype


def test_no_tokens_and_a_single_type_are_fine() -> None:
    none = np.zeros(0, dtype=np.int32)
    assert permute_among_types(none, none.astype(np.uint64), 2, 0).shape == (2, 0)
    one = np.arange(5, dtype=np.int32)
    (draw,) = permute_among_types(one, np.zeros(5, dtype=np.uint64), 1, 0)
    assert sorted(draw) == one.tolist()


def test_the_type_of_a_token_is_the_pieces_of_its_word_and_which_one_it_is() -> None:
    def table(*sentences: list[tuple[int, int]]) -> Tokens:
        lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int32)
        ids, words = np.array([pair for sentence in sentences for pair in sentence]).T
        return Tokens(lengths, ids.astype(np.int32), words.astype(np.int16))

    # Special, "un" "able", "un", special; then "un" "able" and "able".
    one = token_types(table([(1, -1), (7, 0), (8, 0), (7, 1), (2, -1)], [(7, 0), (8, 0), (8, 1)]))
    start, un_of_unable, able_of_unable, un, end, *again, able = one.tolist()
    assert again == [un_of_unable, able_of_unable]
    assert len({start, un_of_unable, able_of_unable, un, end, able}) == 6
    # The same in another table.
    assert token_types(table([(8, 0), (7, 1), (8, 1), (1, -1)])).tolist() == [able, un_of_unable, able_of_unable, start]
