"""The batches of `finetune`: each sentence once an epoch, within the limit, in an order that a seed fixes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from probing.cache.tokens import Tokens
from probing.data.labelling import IGNORED, is_target
from probing.studies.finetune.examples import Side
from probing.studies.finetune.training import TuningData, epoch_of

LENGTHS = np.random.default_rng(0).integers(3, 40, 300).astype(np.int32)


@pytest.mark.parametrize("batch_tokens", [1, 64, 500, 10**6])
def test_an_epoch_has_each_sentence_once_within_the_limit(batch_tokens: int) -> None:
    batches = epoch_of(LENGTHS, batch_tokens, 0, 0)
    assert np.array_equal(np.sort(np.concatenate(batches)), np.arange(len(LENGTHS)))
    for chosen in batches:
        assert len(chosen) == 1 or int(LENGTHS[chosen].max()) * len(chosen) <= batch_tokens


def test_the_order_depends_on_its_seed_and_the_epoch_alone() -> None:
    def flat(order: int, epoch: int) -> list[int]:
        return np.concatenate(epoch_of(LENGTHS, 128, order, epoch)).tolist()

    torch.manual_seed(1)
    first = flat(0, 0)
    torch.manual_seed(2)
    assert flat(0, 0) == first
    assert flat(0, 1) != first
    assert flat(1, 0) != first


def side() -> Side:
    n = int(LENGTHS.sum())
    tokens = Tokens(LENGTHS, np.arange(n, dtype=np.int32), np.zeros(n, np.int16))
    targets = torch.arange(n).where(torch.arange(n) % 3 == 0, IGNORED)
    made = Side(tokens, None, targets, "tokens", {"input_ids": torch.arange(n)}, -1)  # type: ignore[arg-type]
    object.__setattr__(made, "sentences", np.arange(len(LENGTHS)))
    return made


@pytest.mark.parametrize(("n_ranks", "n_accumulated"), [(1, 1), (2, 1), (1, 3), (3, 2)])
def test_processes_and_accumulated_parts_share_the_targets_of_each_step(n_ranks: int, n_accumulated: int) -> None:
    own = side()
    data = TuningData(own, 90, 2, 0, n_accumulated)
    assert data.ends == [len(data.steps) // 2, len(data.steps)] or data.ends[-1] == len(data.steps)
    parts = [list(data.batches(0, rank, n_ranks)) for rank in range(n_ranks)]
    assert {len(one) for one in parts} == {len(data.steps) * n_accumulated}
    for step, sentences in enumerate(data.steps):
        here = [batch for one in parts for batch in one[step * n_accumulated : (step + 1) * n_accumulated]]
        found = torch.cat([batch.targets[is_target(batch.targets)] for batch in here]).sort().values
        whole = own.batch(sentences)
        assert torch.equal(found, whole.targets[is_target(whole.targets)].sort().values)
        assert {batch.n for batch in here} == {len(found)}
    # A continued training begins with the step that was not made.
    (later,) = [next(iter(data.batches(5)))] if n_ranks == n_accumulated == 1 else [None]
    if later is not None:
        assert torch.equal(later.sentences, torch.from_numpy(data.steps[5]))
