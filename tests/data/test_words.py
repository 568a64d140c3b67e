from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from probing.data.examples import common_words, pool_words

pytestmark = pytest.mark.numeric

# A sentence of [CLS] one two-piece word, a word of one piece, [SEP]; then one whose second word was cut off.
WORDS = np.array([-1, 0, 0, 1, -1, -1, 0, -1], dtype=np.int16)
SENTENCES = np.array([4, 4, 4, 4, 4, 5, 5, 5], dtype=np.int32)


def test_the_pieces_of_a_word_are_averaged_and_special_tokens_left_out() -> None:
    states = torch.arange(16.0).reshape(8, 2)
    found = pool_words([states, -states], WORDS, SENTENCES)
    assert found.keys.tolist() == [[4, 0], [4, 1], [5, 0]]
    expected = torch.tensor([[3.0, 4.0], [6.0, 7.0], [12.0, 13.0]])
    assert torch.equal(found.hidden_states[0], expected)
    assert torch.equal(found.hidden_states[1], -expected)


def test_pooling_equals_a_loop_over_words() -> None:
    generator = np.random.default_rng(0)
    sentences = np.sort(generator.integers(0, 9, 200))
    words = generator.integers(-1, 6, 200)
    words = words[np.lexsort((words, sentences))]  # pieces of a word stand side by side
    states = torch.from_numpy(generator.normal(size=(200, 3)))
    found = pool_words([states], words, sentences)
    loop: dict[tuple[int, int], list[NDArray[np.float64]]] = {}
    for state, key in zip(states.numpy(), zip(sentences.tolist(), words.tolist(), strict=True), strict=True):
        if key[1] >= 0:
            loop.setdefault(key, []).append(state)
    assert [tuple(key) for key in found.keys.tolist()] == sorted(loop)
    for row, key in zip(found.hidden_states[0], sorted(loop), strict=True):
        np.testing.assert_allclose(row, np.mean(loop[key], axis=0), rtol=1e-12)


def test_half_precision_is_averaged_in_single() -> None:
    states = torch.tensor([[1.0], [1.0 + 2**-7]], dtype=torch.bfloat16)
    found = pool_words([states], np.array([0, 0]), np.array([0, 0])).hidden_states[0]
    assert found.dtype == torch.float32
    assert float(found[0, 0]) == 1 + 2**-8  # no bfloat16


def test_where_all_tokens_are_special_there_are_no_words() -> None:
    found = pool_words([torch.ones(2, 3)], np.array([-1, -1]), np.array([0, 0]))
    assert found.keys.shape == (0, 2)
    assert found.hidden_states[0].shape == (0, 3)


def test_tokens_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"number of tokens: \[7, 8\]"):
        pool_words([torch.ones(7, 2)], WORDS, SENTENCES)


@given(*(2 * [st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)))]))
def test_common_words_are_those_of_both_and_side_by_side(
    one: set[tuple[int, int]], other: set[tuple[int, int]]
) -> None:
    keys_a, keys_b = (np.array(sorted(keys), dtype=np.int64).reshape(-1, 2) for keys in (one, other))
    rows_a, rows_b = common_words(keys_a, keys_b)
    assert [tuple(key) for key in keys_a[rows_a].tolist()] == sorted(one & other)
    assert keys_b[rows_b].tolist() == keys_a[rows_a].tolist()


def test_two_tokenizations_of_the_same_words_meet_where_neither_was_cut() -> None:
    # The other tokenizer makes more pieces and is cut earlier.
    words, sentences = np.array([-1, 0, 0, 0, -1, -1, 0, 1, -1]), np.array([4, 4, 4, 4, 4, 5, 5, 5, 5])
    one = pool_words([torch.ones(8, 2)], WORDS, SENTENCES)
    other = pool_words([torch.ones(9, 2)], words, sentences)
    rows_a, rows_b = common_words(one.keys, other.keys)
    assert one.keys[rows_a].tolist() == other.keys[rows_b].tolist() == [[4, 0], [5, 0]]


def test_inputs_stay_as_they_were() -> None:
    states = torch.ones(8, 2)
    pool_words([states], WORDS, SENTENCES)
    assert torch.equal(states, torch.ones(8, 2))
