"""Shuffled mini-batches: every example once, in one order for any number of processes."""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from probing.cache.store import ActivationStore
from probing.data.examples import Activations, Batch, Examples
from probing.data.module import WINDOW, MiniBatches
from synthetic import make_store, make_tokens, sides

pytestmark = pytest.mark.numeric

SIZE = 16
LENGTHS = np.random.default_rng(0).integers(6, 12, 60).tolist()


def numbered_store(folder: Path, lengths: list[int], shard_tokens: int, dtype: str = "float32") -> ActivationStore:
    """Activations that say which token they are: layer k holds k and the token's index."""
    tokens = make_tokens(lengths)
    index = np.arange(tokens.n_tokens)
    layers = [np.stack([np.full_like(index, k), index], 1) for k in range(2)]
    return make_store(folder, layers, tokens, shard_tokens, dtype)


@pytest.fixture
def examples(tmp_path: Path) -> Examples:
    """Training examples in more shards than three windows have."""
    train = sides(numbered_store(tmp_path / "store", LENGTHS, 32)).train
    assert len(train.store.plan.shards) > 3 * WINDOW
    return train


def tokens_of(batches: Iterable[Batch]) -> list[int]:
    """Return the tokens of some batches in order, having seen that all that a batch says of them is in step."""
    found = []
    for batch in batches:
        index = batch.hidden_states[0][:, 1].long()
        assert torch.equal(batch.rows, index)
        found += index.tolist()
    return found


def in_step(examples: Examples, batches: list[Batch]) -> list[Batch]:
    for batch in batches:
        rows = batch.rows.numpy()
        for layer, states in enumerate(batch.hidden_states):
            assert states.dtype == torch.float32
            assert (states[:, 0] == layer).all()
            assert torch.equal(states[:, 1].long(), batch.rows)
        assert batch.labels.tolist() == examples.labels[rows].tolist()
        assert batch.sentences.tolist() == examples.store.tokens.sentences[rows].tolist()
    return batches


def test_an_epoch_has_every_example_once_in_batches_of_equal_size(examples: Examples) -> None:
    batches = in_step(examples, list(MiniBatches(examples, [0, 1], SIZE, 0)))
    assert sorted(tokens_of(batches)) == np.flatnonzero(examples.labels >= 0).tolist()
    sizes = Counter(len(batch.labels) for batch in batches)
    assert max(sizes) == SIZE
    assert min(sizes) > SIZE / 2  # none is so small that it is mostly noise


def test_the_seed_decides_the_order_which_is_another_each_epoch(examples: Examples) -> None:
    def epochs(seed: int) -> list[list[int]]:
        mini_batches = MiniBatches(examples, [0], SIZE, seed)
        return [tokens_of(mini_batches) for _ in range(2)]

    first, second = epochs(0)
    assert first != second
    assert [first, second] == epochs(0)
    assert first not in epochs(1)


@pytest.mark.parametrize("n_ranks", [2, 3])
def test_ranks_share_each_batch_of_one_process_equally(examples: Examples, n_ranks: int) -> None:
    epochs = [MiniBatches(examples, [0, 1], SIZE, 0)]
    epochs += [MiniBatches(examples, [0, 1], SIZE, 0, rank, n_ranks) for rank in range(n_ranks)]
    for _ in range(2):
        for batch, *shares in zip(*epochs, strict=True):
            in_step(examples, shares)
            together = torch.cat([share.rows for share in shares])
            assert len({len(share.rows) for share in shares}) == 1
            assert torch.equal(together, batch.rows[: len(together)])
            assert len(batch.rows) - len(together) < n_ranks


def test_a_batch_too_small_to_be_shared_is_passed_over_by_all(tmp_path: Path) -> None:
    train = sides(numbered_store(tmp_path / "store", LENGTHS, 10_000)).train
    one = Examples(train.store, np.where(np.cumsum(train.labels >= 0) == 1, train.labels, -1))
    assert one.n_tokens == 1
    assert [list(MiniBatches(one, [0], SIZE, 0, rank, 2)) for rank in range(2)] == [[], []]
    none = Examples(train.store, np.full_like(train.labels, -1))
    assert list(MiniBatches(none, [0], SIZE, 0)) == []


def test_examples_are_mixed_within_a_window_and_not_beyond(examples: Examples) -> None:
    shards = examples.store.plan.shards
    shard_of = np.repeat([shard.index for shard in shards], [shard.n_tokens for shard in shards])
    order = shard_of[tokens_of(MiniBatches(examples, [0], SIZE, 0))].tolist()
    # Shards whose examples come in turns are of one window.
    mixed: list[set[int]] = []
    end = -1
    for shard in dict.fromkeys(order):
        if order.index(shard) > end:
            mixed.append(set())
        mixed[-1].add(shard)
        end = max(end, len(order) - 1 - order[::-1].index(shard))
    assert max(map(len, mixed)) == WINDOW
    assert len(mixed) <= -(-len(shards) // WINDOW) + 1
    assert len(set(order[:SIZE])) > 1  # from the first batch on
    assert list(dict.fromkeys(order)) != sorted(set(order))  # shards come in random order too


def test_every_order_of_a_window_is_equally_likely(tmp_path: Path) -> None:
    # Four examples in two shards, one window: 24 orders, each in one of 24 epochs.
    train = sides(numbered_store(tmp_path / "store", [6] * 40, 12)).train
    kept = np.flatnonzero(train.labels >= 0)[[0, 1, 9, 10]]
    shards = {int(np.searchsorted(np.cumsum([s.n_tokens for s in train.store.plan.shards]), k, "right")) for k in kept}
    assert len(shards) == 2
    labels = np.full_like(train.labels, -1)
    labels[kept] = train.labels[kept]
    four = Examples(_of_shards(train.store, shards), labels)
    mini_batches, n_epochs = MiniBatches(four, [0], SIZE, 0), 24 * 40
    orders = Counter(tuple(tokens_of(mini_batches)) for _ in range(n_epochs))
    assert len(orders) == 24
    # One seed in a thousand fails this; the seed is fixed.
    assert chisquare(list(orders.values())).pvalue > 1e-3


def _of_shards(store: Activations, kept: Collection[int]) -> Any:
    """A store of which only some shards, the first ones, are there."""
    assert sorted(kept) == list(range(len(kept)))

    class Some:
        plan, tokens = replace(store.plan, shards=store.plan.shards[: len(kept)]), store.tokens
        shard_tokens, read = store.shard_tokens, store.read

    return Some()


def test_half_precision_is_widened_in_the_batch(tmp_path: Path) -> None:
    train = sides(numbered_store(tmp_path / "store", [6] * 40, 32, "float16")).train
    in_step(train, list(MiniBatches(train, [0, 1], SIZE, 0)))
