"""Batches that stay on a device: `meta` stands for an accelerator, whose tensors have a place and no values."""

from pathlib import Path

import numpy as np
import pytest
import torch

from probing.data import examples
from probing.data.examples import Batch, ShardBatches, Together
from probing.data.module import DeviceCache
from synthetic import make_store, make_tokens, sides

pytestmark = pytest.mark.numeric


@pytest.fixture
def batches(tmp_path: Path) -> ShardBatches:
    tokens = make_tokens([8] * 60)
    states = np.arange(tokens.n_tokens * 3, dtype=np.float32).reshape(-1, 3)
    return ShardBatches(sides(make_store(tmp_path / "store", [states], tokens, 64)).train, [0])


def size(batch: Batch) -> int:
    return sum(t.nbytes for t in batch.hidden_states) + sum(t.nbytes for t in batch[1:])


def test_a_cached_batch_is_copied_once_and_the_same(batches: ShardBatches) -> None:
    cache = DeviceCache(batches, torch.device("cpu"), 10**9)
    assert len(cache) == len(batches) > 3
    first = [cache[i] for i in range(len(cache))]
    for i, batch in enumerate(first):
        assert cache[i] is batch
        assert torch.equal(batch.hidden_states[0], batches[i].hidden_states[0])
        assert all(torch.equal(one, other) for one, other in zip(batch[1:], batches[i][1:], strict=True))


def test_what_does_not_fit_is_read_in_every_pass(batches: ShardBatches) -> None:
    cache = DeviceCache(batches, torch.device("meta"), size(batches[0]) + size(batches[1]) + 1)
    for _ in range(2):
        found = [cache[i] for i in range(len(cache))]
        assert [batch.hidden_states[0].device.type for batch in found] == ["meta"] * 2 + ["cpu"] * (len(cache) - 2)
        assert found[0].labels.device == found[0].hidden_states[0].device
        assert torch.equal(found[2].hidden_states[0], batches[2].hidden_states[0])
    assert 0 <= cache.room_bytes <= 1


def test_without_room_nothing_is_cached(batches: ShardBatches) -> None:
    cache = DeviceCache(batches, torch.device("meta"), 0)
    assert {cache[i].labels.device.type for i in range(len(cache))} == {"cpu"}
    with pytest.raises(IndexError):
        cache[len(cache)]


def test_batches_together_are_all_of_them_in_order(batches: ShardBatches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examples, "SHARDS_IN_A_STEP", 3)
    together = Together(batches)
    found = [together[i] for i in range(len(together))]
    assert [len(several) for several in found[:-1]] == [3] * (len(found) - 1)
    assert 1 <= len(found[-1]) <= 3
    rows = torch.cat([batch.rows for several in found for batch in several])
    assert torch.equal(rows, torch.cat([batches[i].rows for i in range(len(batches))]))
    with pytest.raises(IndexError):
        together[len(together)]
