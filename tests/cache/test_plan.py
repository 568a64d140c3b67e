"""How a corpus is divided into shards and a shard into batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from probing.cache import store
from probing.cache.store import Plan, batches, divide, fingerprint, shard_tokens

pytestmark = pytest.mark.numeric

LENGTHS = st.lists(st.integers(1, 50), min_size=1, max_size=60).map(lambda values: np.array(values, dtype=np.int32))


@given(LENGTHS, st.integers(1, 120))
def test_shards_are_consecutive_and_cover_every_sentence_once(lengths: NDArray[np.int32], size: int) -> None:
    shards = divide(lengths, size)
    assert [shard.index for shard in shards] == list(range(len(shards)))
    covered = [s for shard in shards for s in range(shard.first_sentence, shard.first_sentence + shard.n_sentences)]
    assert covered == list(range(len(lengths)))
    for shard in shards:
        own = lengths[shard.first_sentence : shard.first_sentence + shard.n_sentences]
        assert shard.n_sentences > 0
        assert shard.n_tokens == own.sum()
        assert shard.n_tokens <= size or shard.n_sentences == 1


@given(LENGTHS, st.integers(1, 120))
def test_shards_are_as_full_as_they_can_be(lengths: NDArray[np.int32], size: int) -> None:
    shards = divide(lengths, size)
    for shard, following in pairwise(shards):
        assert shard.n_tokens + lengths[following.first_sentence] > size


@given(LENGTHS, st.integers(1, 200))
def test_batches_hold_every_sentence_once_within_the_budget(lengths: NDArray[np.int32], budget: int) -> None:
    found = list(batches(lengths, budget))
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    for batch in found:
        assert len(batch) > 0
        assert len(batch) * lengths[batch].max() <= budget or len(batch) == 1
    longest = [lengths[batch].max() for batch in found]
    assert longest == sorted(longest, reverse=True)


def test_a_sentence_longer_than_everything_has_its_own_shard_and_batch() -> None:
    lengths = np.array([4, 500, 3, 2], dtype=np.int32)
    assert [(s.first_sentence, s.n_sentences, s.n_tokens) for s in divide(lengths, 10)] == [
        (0, 1, 4), (1, 1, 500), (2, 2, 5),
    ]  # fmt: skip
    assert [batch.tolist() for batch in batches(lengths, 10)] == [[1], [0, 2], [3]]
    assert [s.n_sentences for s in divide(np.array([500], dtype=np.int32), 10)] == [1]


def test_all_layers_of_a_shard_fill_the_bytes_given() -> None:
    tokens = shard_tokens(n_layers=6, d_model=384, itemsize=4)
    assert 0.99 * store.SHARD_BYTES < tokens * 7 * 384 * 4 <= store.SHARD_BYTES
    assert shard_tokens(6, 384, 2) == pytest.approx(2 * tokens, abs=1)
    # A model so wide that few tokens would fit still gets shards worth a file.
    assert shard_tokens(100, 10**6, 4) == store.MIN_SHARD_TOKENS


def test_a_plan_counts_the_tokens_of_its_shards() -> None:
    shards = divide(np.array([5, 6, 7], dtype=np.int32), 11)
    assert Plan({}, 2, 4, "float32", 64, shards).n_tokens == 18


def test_the_fingerprint_of_a_key_ignores_order_and_nothing_else() -> None:
    assert fingerprint({"a": 1, "b": None}) == fingerprint({"b": None, "a": 1})
    assert len({fingerprint(key) for key in ({"a": 1}, {"a": 2}, {"a": "1"}, {"b": 1}, {"a": None}, {})}) == 6
