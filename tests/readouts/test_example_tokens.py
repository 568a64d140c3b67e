"""Which tokens examples are read from, against loops over sentences and words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from probing.cache.tokens import Tokens
from probing.readouts.frozen_probes import at_tokens, means, spread, standing_for
from probing.tasks import SentenceTask, Task

pytestmark = pytest.mark.numeric

# Two sentences with special tokens at both ends, an empty one, and one of special tokens alone.
WORDS = [[-1, 0, 0, 1, 2, 2, 2, -1], [-1, 0, 1, 1, -1], [], [-1, -1]]
TOKENS = Tokens(
    np.array([len(of) for of in WORDS], dtype=np.int32), np.arange(15, dtype=np.int32),
    np.concatenate(WORDS).astype(np.int16),
)  # fmt: skip


class OfPieces(Task):
    pass


class OfWords(Task):
    word_means = True


def test_a_token_stands_for_itself_where_examples_are_tokens() -> None:
    labels = np.arange(15, dtype=np.int32)
    assert standing_for(OfPieces(), TOKENS) is None
    assert at_tokens(OfPieces(), TOKENS, labels) is labels
    assert torch.equal(spread(torch.from_numpy(labels), None), torch.from_numpy(labels))


def test_the_first_piece_stands_for_a_word() -> None:
    found: Any = standing_for(OfWords(), TOKENS)
    assert found.tolist() == [-1, 1, 1, 3, 4, 4, 4, -1, -1, 9, 10, 10, -1, -1, -1]


@pytest.mark.parametrize(("pooling", "rows"), [("mean", [1, 9]), ("cls", [0, 8, 13])])
def test_the_label_of_a_sentence_is_at_its_first_word_or_first_token(pooling: Any, rows: list[int]) -> None:
    task = SentenceTask(pooling=pooling)
    found = at_tokens(task, TOKENS, np.array([7, 8, 5, 6], dtype=np.int32))
    assert {int(row): int(found[row]) for row in np.flatnonzero(found >= 0)} == dict(zip(rows, [7, 8, 6], strict=False))
    stands: Any = standing_for(task, TOKENS)
    if pooling == "cls":
        assert stands is None
        return
    assert stands.tolist() == [-1, *[1] * 6, -1, -1, 9, 9, 9, -1, -1, -1]
    assert spread(torch.from_numpy(found), torch.from_numpy(stands)).tolist() == [
        -1, *[7] * 6, -1, -1, 8, 8, 8, -1, -1, -1
    ]  # fmt: skip


def test_means_are_those_of_a_loop() -> None:
    states = torch.randn(15, 3, generator=torch.Generator().manual_seed(0))
    into = torch.tensor([-1, 0, 0, 2, 2, 2, 2, -1, -1, 3, 3, 3, -1, -1, -1])
    found = means(states, into, 4)
    assert torch.equal(found[1], torch.zeros(3))
    for i in (0, 2, 3):
        assert torch.allclose(found[i], states[into == i].mean(0), atol=1e-6)
