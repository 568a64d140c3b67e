"""Vectors of sentences, pooled over their tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from probing.data import examples as sentences
from probing.data.examples import SentenceVectors, exchanged, one_token_each
from probing.tasks import Pooling
from synthetic import make_store, make_tokens

pytestmark = pytest.mark.numeric

LENGTHS = [5, 3, 9, 2, 4] * 20


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vectors_are_pooled_over_tokens_that_are_not_special(
    pooling: Pooling, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = make_tokens(LENGTHS)
    states = torch.from_numpy(np.random.default_rng(0).standard_normal((tokens.n_tokens, 6))).to(getattr(torch, dtype))
    store = make_store(tmp_path / "store", [states, 2 * states], tokens, shard_tokens=60, dtype=dtype)
    vectors = SentenceVectors(store, pooling)
    assert len(vectors.plan.shards) > 3
    expected = []
    for i in range(tokens.n_sentences):
        own = states[tokens.of_sentences(i, 1)].float()
        inside = own[1:-1]  # none in a sentence of two tokens
        empty = torch.zeros(6)
        pooled = {"mean": inside.mean(0) if len(inside) else empty, "max": inside.amax(0) if len(inside) else empty}
        expected.append({**pooled, "cls": own[0]}[pooling])
    for kept in (2**30, 0):
        monkeypatch.setattr(sentences, "KEPT_BYTES", kept)
        vectors = SentenceVectors(store, pooling)
        for _ in range(2):
            found = torch.cat([vectors.read(1, shard.index) for shard in vectors.plan.shards])
            assert found.dtype == torch.float32
            assert torch.allclose(found, 2 * torch.stack(expected), atol=1e-6)
        assert bool(vectors._kept) == bool(kept)


def test_different_sentences_are_different_types_and_equal_ones_are_not() -> None:
    tokens = make_tokens([4, 4, 4])
    tokens.input_ids[:] = [1, 2, 3, 4, 1, 3, 2, 4, 1, 2, 3, 4]
    table = one_token_each(tokens)
    assert (table.n_tokens, table.n_sentences) == (3, 3)
    assert table.input_ids[0] == table.input_ids[2] != table.input_ids[1]
    assert not table.special.any()


def test_other_activations_are_pooled_as_the_first_ones_are(tmp_path: Path) -> None:
    tokens = make_tokens(LENGTHS)
    states = np.random.default_rng(0).standard_normal((tokens.n_tokens, 6))
    one, two = (make_store(tmp_path / name, [factor * states], tokens) for name, factor in (("one", 1), ("two", 2)))
    vectors = exchanged(SentenceVectors(one, "max"), lambda base: two if base is one else base)
    assert torch.equal(vectors.read(0, 0), SentenceVectors(two, "max").read(0, 0))
    assert exchanged(one, lambda base: two) is two
