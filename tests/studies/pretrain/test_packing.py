"""Text for pretraining: parts, word pieces, rows and their order."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections import Counter

import pytest
import torch

from conftest import ROOT, make_sentences
from probing import UserError
from probing.corpus import from_sentences
from probing.studies.pretrain.batches import is_held_out, order_of_rows, packed, prepare, train_tokenizer

pytestmark = pytest.mark.numeric

SENTENCES = make_sentences(300)


def test_a_tenth_is_held_out_by_sentence_without_regard_to_case_and_punctuation() -> None:
    corpus = from_sentences("text", [*SENTENCES, *(sentence.upper() + "!" for sentence in SENTENCES)])
    held_out = is_held_out(corpus, 0)
    assert 0.05 < sum(held_out) / len(held_out) < 0.15
    assert held_out[:300] == held_out[300:]
    assert held_out != is_held_out(corpus, 1)


def test_documents_are_held_out_as_a_whole_if_there_are_enough() -> None:
    lines = [line for i in range(0, 300, 3) for line in (*SENTENCES[i : i + 3], "")]
    corpus = from_sentences("text", lines)
    assert corpus.documents is not None
    sides = dict(zip(corpus.documents, is_held_out(corpus, 0), strict=True))
    assert is_held_out(corpus, 0) == [sides[document] for document in corpus.documents]
    assert 0 < sum(sides.values()) < 30
    few = from_sentences("text", lines[:40])
    assert is_held_out(few, 0) == is_held_out(from_sentences("text", SENTENCES[:30]), 0)


def test_rows_are_the_text_in_order_with_a_separator_after_every_sentence() -> None:
    tokenizer = train_tokenizer(SENTENCES, 120, True, 16)
    rows = packed(SENTENCES[:20], tokenizer, 16)
    assert rows.dtype == torch.int32
    assert (rows[:, 0] == tokenizer.cls_token_id).all()
    expected = [
        i for sentence in SENTENCES[:20]
        for i in [*tokenizer(sentence, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id]
    ]  # fmt: skip
    assert rows[:, 1:].flatten().tolist() == expected[: 15 * len(rows)]
    assert len(expected) - 15 * len(rows) < 15


@pytest.mark.parametrize("lowercase", [True, False])
def test_the_tokenizer_has_the_size_and_reads_the_text(lowercase: bool) -> None:
    tokenizer = train_tokenizer(SENTENCES, 150, lowercase, 16)
    assert len(tokenizer) == 150
    assert tokenizer.is_fast
    ids = tokenizer(SENTENCES[0])["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)
    assert any(token.isupper() for token in tokenizer.get_vocab() if len(token) == 1) is not lowercase


@pytest.mark.slow
def test_the_same_text_gives_the_same_tokenizer_in_every_process() -> None:
    # The trainer of `tokenizers` alone numbers its pieces in an order that differs between processes.
    code = (
        "from conftest import make_sentences; from probing.studies.pretrain.batches import train_tokenizer; "
        "print(sorted(train_tokenizer(make_sentences(300), 150, True, 16).get_vocab().items()))"
    )
    paths = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'tests')!r}]; "
    other = subprocess.run(
        [sys.executable, "-c", paths + code], capture_output=True, encoding="utf-8", check=True
    ).stdout
    assert other.strip() == str(sorted(train_tokenizer(SENTENCES, 150, True, 16).get_vocab().items()))


def test_rare_characters_are_unknown_and_leave_room_for_words() -> None:
    strange = [f"{chr(0x4E00 + i)} word" for i in range(200)]
    tokenizer = train_tokenizer([*SENTENCES, *strange], 120, True, 16)
    assert len(tokenizer) == 120
    assert tokenizer("word")["input_ids"][1:-1] != [tokenizer.unk_token_id]
    assert tokenizer(chr(0x4E00 + 77))["input_ids"][1:-1] == [tokenizer.unk_token_id]


def test_the_unigram_loss_is_that_of_the_frequencies_of_the_training_part() -> None:
    text = prepare(from_sentences("text", SENTENCES), 120, True, 16, 5, 0)
    assert len(text.held_out) <= 5
    special = set(text.tokenizer.all_special_ids)
    counts = Counter(i for i in text.train.flatten().tolist() if i not in special)
    total = sum(counts.values()) + len(text.tokenizer) - len(special)
    labels = [i for i in text.held_out.flatten().tolist() if i not in special]
    expected = -sum(math.log((counts[i] + 1) / total) for i in labels) / len(labels)
    assert text.unigram_loss(torch.tensor(labels)) == pytest.approx(expected, rel=1e-9)


def test_held_out_sentences_are_not_in_the_training_part() -> None:
    corpus = from_sentences("text", SENTENCES)
    text = prepare(corpus, 120, True, 16, 1000, 0)
    held_out = {sentence for sentence, held in zip(corpus.sentences, is_held_out(corpus, 0), strict=True) if held}
    assert set(text.held_out_corpus.sentences) == held_out
    kept = [sentence for sentence in corpus.sentences if sentence not in held_out]
    assert torch.equal(text.train, packed(kept, text.tokenizer, 16))


@pytest.mark.parametrize("n", [1, 3])
def test_too_little_text_is_refused(n: int) -> None:
    with pytest.raises(UserError, match="at least one row of 512 tokens"):
        prepare(from_sentences("text", SENTENCES[:n]), 120, True, 512, 10, 0)


def test_every_row_is_read_once_before_any_is_read_again_wherever_the_order_begins() -> None:
    whole = list(itertools.islice(order_of_rows(10, 4, 0, 7), 10))
    read = torch.cat(whole).tolist()
    for epoch in range(4):
        assert sorted(read[10 * epoch : 10 * epoch + 10]) == list(range(10))
    assert read[:10] != read[10:20]
    later = list(itertools.islice(order_of_rows(10, 4, 6, 7), 4))
    assert torch.equal(torch.stack(later), torch.stack(whole[6:]))
    assert torch.cat(list(itertools.islice(order_of_rows(10, 4, 0, 8), 5))).tolist() != read[:20]
