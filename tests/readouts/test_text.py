"""The sentences that are read, and their hidden states, from a store of several shards."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch

from probing.cache.store import ActivationStore, Plan, divide
from probing.cache.tokens import Tokens
from probing.readouts.forward import draw_text

pytestmark = pytest.mark.numeric

LENGTHS = np.array([3, 0, 5, 2, 4, 6, 1, 3], dtype=np.int32)


@pytest.fixture
def store() -> Any:
    """Return a store of three shards, in which token i has the state (i, layer) and the id 10 + i."""
    n = int(LENGTHS.sum())
    tokens = Tokens(LENGTHS, np.arange(10, 10 + n, dtype=np.int32), np.zeros(n, dtype=np.int16))

    class Held:
        plan = Plan({}, 2, 2, "float32", 8, divide(LENGTHS, 10))

        def shard_tokens(self, shard: Any) -> slice:
            return tokens.of_sentences(shard.first_sentence, shard.n_sentences)

        def read(self, layer: int, shard: int) -> torch.Tensor:
            rows = torch.arange(n)[self.shard_tokens(self.plan.shards[shard])]
            return torch.stack([rows, torch.full_like(rows, layer)], dim=1).to(torch.bfloat16)

    held = Held()
    held.tokens = tokens  # type: ignore[attr-defined]
    assert len(held.plan.shards) == 3
    return held


def test_the_states_of_a_text_are_those_of_its_own_tokens(store: ActivationStore) -> None:
    text = draw_text(store, np.array([1, 1, 0, 1, 0, 1, 0, 1], dtype=bool), 100, 0)
    assert text.kept.tolist() == [0, 3, 5, 7]  # the second sentence has no token
    rows = text.tokens.input_ids - 10
    assert rows.tolist() == [0, 1, 2, 8, 9, 14, 15, 16, 17, 18, 19, 21, 22, 23]
    states = text.states(2)
    assert states.dtype == torch.float32
    assert states.tolist() == [[row, 2] for row in rows.tolist()]


@pytest.mark.parametrize("with_padding", [True, False])
def test_batches_have_every_token_once(store: ActivationStore, with_padding: bool) -> None:
    text = draw_text(store, np.ones(8, dtype=bool), 100, 0)
    batches = text.batches(8, pad_token_id=1, with_padding=with_padding)
    found = sorted(row for batch in batches for row in batch.rows[batch.mask].tolist())
    assert found == list(range(text.tokens.n_tokens))
    for batch in batches:
        assert batch.input_ids[batch.mask].tolist() == text.tokens.input_ids[batch.rows[batch.mask].numpy()].tolist()
        assert bool((batch.input_ids[~batch.mask] == 1).all())
        assert batch.mask.sum(1).tolist() == text.tokens.lengths[batch.sentences.numpy()].tolist()
        assert with_padding or bool(batch.mask.all())
        assert batch.inputs["attention_mask"].tolist() == batch.mask.int().tolist()


def test_as_many_sentences_are_drawn_as_there_is_room_for(store: ActivationStore) -> None:
    drawn = [draw_text(store, np.ones(8, dtype=bool), 12, seed) for seed in range(20)]
    assert all(7 <= text.tokens.n_tokens <= 12 for text in drawn)
    assert {int(i) for text in drawn for i in text.kept} == {0, 2, 3, 4, 5, 6, 7}
    assert draw_text(store, np.ones(8, dtype=bool), 12, 3).kept.tolist() == drawn[3].kept.tolist()
    longest = cast(Any, np.arange(8) == 5)
    assert draw_text(store, longest, 2, 0).tokens.n_tokens == 6  # one is drawn even if it is longer
