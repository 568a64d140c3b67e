"""Words followed through their sentences."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from probing.cache.tokens import Tokens
from probing.studies.geometry.layers import Occurrences, SelfSimilarityAccumulator, choose_words

pytestmark = pytest.mark.numeric


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
