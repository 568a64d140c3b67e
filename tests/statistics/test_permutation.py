"""Labels permuted within sentences."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from probing.statistics.chance import permute_within_sentences

pytestmark = pytest.mark.numeric


def corpus(
    n_sentences: int, shortest: int = 5, longest: int = 15, seed: int = 0
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return labels (the place in the sentence), sentences and ids of random sentences."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(shortest, longest + 1, n_sentences)
    labels = np.concatenate([np.arange(length) for length in lengths])
    sentences = np.repeat(np.arange(n_sentences, dtype=np.int32), lengths)
    return labels, sentences, generator.integers(1000, size=len(labels)).astype(np.int32)


def test_labels_are_permuted_within_their_sentences() -> None:
    labels, sentences, ids = corpus(40)
    for draw in permute_within_sentences(labels, sentences, ids, 5, 0):
        assert (draw != labels).any()
        for sentence in range(40):
            here = sentences == sentence
            assert sorted(draw[here]) == sorted(labels[here])


def test_tokens_that_do_not_count_stay_apart() -> None:
    labels, sentences, ids = corpus(40)
    masked = np.where(labels % 3 == 0, -1, labels)
    draws = permute_within_sentences(masked, sentences, ids, 5, 0)
    assert ((draws < 0) == (masked < 0)).all()


def test_draws_differ_and_a_seed_repeats_them() -> None:
    labels, sentences, ids = corpus(40)
    draws = permute_within_sentences(labels, sentences, ids, 5, 0)
    assert len({draw.tobytes() for draw in draws}) == 5
    np.testing.assert_array_equal(draws, permute_within_sentences(labels, sentences, ids, 5, 0))
    assert (draws != permute_within_sentences(labels, sentences, ids, 5, 1)).any()


def test_permuting_leaves_the_labels_as_they_were() -> None:
    labels, sentences, ids = corpus(10)
    before = labels.copy()
    permute_within_sentences(labels, sentences, ids, 3, 0)
    np.testing.assert_array_equal(labels, before)


def test_the_permutation_of_a_sentence_does_not_depend_on_its_index_in_the_corpus() -> None:
    labels, sentences, ids = corpus(30)
    draws = permute_within_sentences(labels, sentences, ids, 4, 0)
    # The sentences in reverse order, each sentence's tokens still in order.
    order = np.concatenate([np.flatnonzero(sentences == s) for s in range(29, -1, -1)])
    reordered = permute_within_sentences(labels[order], 29 - sentences[order], ids[order], 4, 0)
    np.testing.assert_array_equal(reordered, draws[:, order])


def test_every_token_gets_every_label_equally_often() -> None:
    labels, sentences, ids = corpus(1000, shortest=4, longest=4)
    draws = permute_within_sentences(labels, sentences, ids, 20, 0)
    for place in range(4):
        shares = np.bincount(draws[:, place::4].ravel(), minlength=4) / (1000 * 20)
        # Standard error sqrt(3/16 / 20000) = .003; four of them.
        np.testing.assert_allclose(shares, 1 / 4, atol=0.012)


def test_sentences_that_differ_in_one_token_are_permuted_differently() -> None:
    labels, sentences, ids = corpus(200, shortest=8, longest=8)
    ids = np.where(labels == 0, sentences, 7).astype(np.int32)
    first = permute_within_sentences(labels, sentences, ids, 1, 0)[0].reshape(200, 8)
    assert len({tuple(draw) for draw in first.tolist()}) > 190
