"""Batches of packed rows: masks and order depend on the seed and the number of the batch alone."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from conftest import make_sentences
from probing.corpus import from_sentences
from probing.studies.pretrain.batches import Masking, NextTokens, PackedRows, PackedText, prepare


@pytest.fixture(scope="module")
def text() -> PackedText:
    return prepare(from_sentences("text", make_sentences(300)), 120, True, 16, 50, 0)


def test_a_share_of_ordinary_tokens_is_predicted_and_most_of_them_are_masked(text: PackedText) -> None:
    rows = text.train.repeat(20, 1)
    inputs, labels = Masking(text.tokenizer, 0.15)(rows, "seed")
    special = torch.isin(rows, torch.tensor(text.tokenizer.all_special_ids))
    chosen = labels >= 0
    assert not (chosen & special).any()
    assert float(chosen.sum() / (~special).sum()) == pytest.approx(0.15, abs=0.01)
    assert torch.equal(labels[chosen], rows.long()[chosen])
    assert torch.equal(inputs[~chosen], rows.long()[~chosen])
    assert float((inputs[chosen] == text.tokenizer.mask_token_id).float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float((inputs[chosen] == labels[chosen]).float().mean()) == pytest.approx(0.1, abs=0.02)


def test_batches_are_the_same_wherever_they_begin_and_whoever_shares_them(text: PackedText) -> None:
    rows = PackedRows(text, 6, 0.15, 1)
    whole = list(islice(rows.batches(0), 8))
    for a, b in zip(whole[5:], rows.batches(5), strict=False):
        assert torch.equal(a.input_ids, b.input_ids)
        assert torch.equal(a.labels, b.labels)
    parts = [next(rows.batches(3, rank, 2)) for rank in (0, 1)]
    assert torch.equal(torch.stack([part.input_ids for part in parts], 1).flatten(0, 1), whole[3].input_ids)
    assert [part.n_predicted for part in parts] == [int((whole[3].labels >= 0).sum())] * 2
    assert sum(int((part.labels >= 0).sum()) for part in parts) == whole[3].n_predicted
    assert not torch.equal(next(PackedRows(text, 6, 0.15, 2).batches(0)).input_ids, whole[0].input_ids)


def test_accumulated_batches_are_the_parts_of_a_larger_one(text: PackedText) -> None:
    larger, rows = PackedRows(text, 12, 0.15, 1), PackedRows(text, 4, 0.15, 1)
    for step, whole in enumerate(islice(larger.batches(5), 2)):
        of_ranks = [list(islice(rows.batches(5, rank, 2, 3), 3 * step, 3 * step + 3)) for rank in (0, 1)]
        assert [len(part.input_ids) for parts in of_ranks for part in parts] == [2] * 6
        in_order = [part for pair in zip(*of_ranks, strict=True) for part in pair]
        for name in ("input_ids", "labels"):
            joined = torch.stack([getattr(part, name) for part in in_order], 1).flatten(0, 1)
            assert torch.equal(joined, getattr(whole, name))
        assert {part.n_predicted for part in in_order} == {whole.n_predicted}


def test_all_seeds_have_the_same_held_out_masks(text: PackedText) -> None:
    first, second = (list(PackedRows(text, 6, 0.15, seed).held_out()) for seed in (1, 2))
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(first, second, strict=True))
    labels = torch.cat([batch.labels for batch in first])
    assert PackedRows(text, 6, 0.15, 3).unigram_loss() == text.unigram_loss(labels[labels >= 0])


def test_next_tokens_are_predicted_from_what_is_before_them(text: PackedText) -> None:
    rows = text.train[:60]
    inputs, labels = NextTokens(text.tokenizer)(rows, "seed")
    assert torch.equal(inputs, rows.long())
    special = text.tokenizer.all_special_ids
    for row, of_row in zip(rows.tolist(), labels.tolist(), strict=True):
        assert of_row == [*(-100 if token in special else token for token in row[1:]), -100]
    assert {text.tokenizer.sep_token_id} <= {*rows.flatten().tolist()}  # there was something to leave out


def test_the_frequencies_that_a_loss_is_compared_with_are_those_of_the_tokens_to_predict(text: PackedText) -> None:
    masked, following = PackedRows(text, 6, 0.15, 1), PackedRows(text, 6, None, 1)
    ordinary = text.held_out[~torch.isin(text.held_out, torch.tensor(text.tokenizer.all_special_ids))]
    assert following.unigram_loss() == text.unigram_loss(ordinary)
    assert following.unigram_loss() != masked.unigram_loss()
    batches = next(masked.batches(3)), next(following.batches(3))
    changed = batches[0].labels >= 0
    assert torch.equal(batches[0].input_ids[~changed], batches[1].input_ids[~changed])  # the same rows
    assert batches[1].n_predicted == int((batches[1].labels >= 0).sum()) > 3 * batches[0].n_predicted
