"""The table of tokens against the tokenizer called sentence by sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import FAMILIES
from families import MAX_LENGTH
from probing.cache import tokens as tokens_module
from probing.cache.tokens import Tokens, tokenize
from probing.models import load_tokenizer, resolve_model


def tokenizer_of(folder: Path) -> Any:
    return load_tokenizer(resolve_model(str(folder)))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_table_is_what_the_tokenizer_says_of_each_sentence(
    checkpoints: dict[str, Path], sentences: list[str], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "CHUNK", 64)  # 200 sentences are three chunks and a part
    tokenizer = tokenizer_of(checkpoints[family])
    table = tokenize(tokenizer, sentences, MAX_LENGTH)
    assert table.n_sentences == 200
    assert table.n_tokens == table.lengths.sum() == table.offsets[-1]
    assert table.n_truncated == 0
    for sentence, text in enumerate(sentences):
        alone = tokenizer(text)
        rows = slice(table.offsets[sentence], table.offsets[sentence + 1])
        words = alone.word_ids()
        assert table.input_ids[rows].tolist() == alone["input_ids"]
        assert table.words[rows].tolist() == [-1 if word is None else word for word in words]
        assert table.special[rows].tolist() == [word is None for word in words]
        assert table.positions[rows].tolist() == list(range(len(words)))
        assert (table.sentences[rows] == sentence).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_special_tokens_are_the_first_and_the_last_and_long_words_have_pieces(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    tokenizer = tokenizer_of(checkpoints[family])
    table = tokenize(tokenizer, sentences, MAX_LENGTH)
    first, last = table.offsets[:-1], table.offsets[1:] - 1
    assert np.flatnonzero(table.special).tolist() == sorted([*first, *last])
    assert (table.input_ids[first] == tokenizer.cls_token_id).all()
    assert (table.input_ids[last] == tokenizer.sep_token_id).all()
    inside = ~table.special[1:] & ~table.special[:-1]
    assert (np.diff(table.words.astype(int))[inside] == 0).sum() > 100


@pytest.mark.parametrize("family", FAMILIES)
def test_sentences_that_are_too_long_are_cut_and_counted(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    tokenizer = tokenizer_of(checkpoints[family])
    whole = tokenize(tokenizer, sentences, MAX_LENGTH)
    cut = tokenize(tokenizer, sentences, 30)
    n_longer = int((whole.lengths > 30).sum())
    assert 0 < n_longer < 200
    assert (whole.lengths == 30).any()  # just fits, so is not counted
    assert cut.n_truncated == n_longer
    assert cut.lengths.tolist() == np.minimum(whole.lengths, 30).tolist()
    assert (cut.input_ids[cut.offsets[1:] - 1] == tokenizer.sep_token_id).all()


def test_a_special_token_spelled_in_the_text_is_told_from_those_added(checkpoints: dict[str, Path]) -> None:
    tokenizer = tokenizer_of(checkpoints["bert"])
    table = tokenize(tokenizer, ["the [SEP] token"], MAX_LENGTH)
    spelled = np.flatnonzero(table.input_ids[:-1] == tokenizer.sep_token_id)
    assert len(spelled) == 1
    assert not table.special[spelled[0]]
    assert table.special[-1]


def test_a_saved_table_is_read_as_it_was(tmp_path: Path) -> None:
    table = Tokens(
        lengths=np.array([3, 1, 2], dtype=np.int32),
        input_ids=np.array([5, 2**31 - 1, 0, 7, 8, 9], dtype=np.int32),
        words=np.array([-1, 0, 32767, -1, 0, 0], dtype=np.int16),
        n_truncated=2,
    )
    table.save(tmp_path / "tokens")
    read = Tokens.load(tmp_path / "tokens")
    for name in ("lengths", "input_ids", "words"):
        before, after = getattr(table, name), getattr(read, name)
        assert after.dtype == before.dtype
        assert after.tolist() == before.tolist()
    assert read.n_truncated == 2
    assert read.offsets.tolist() == [0, 3, 4, 6]
    assert read.positions.tolist() == [0, 1, 2, 0, 0, 1]
    assert read.sentences.tolist() == [0, 0, 0, 1, 2, 2]


def test_a_table_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    table = Tokens(np.array([1], dtype=np.int32), np.array([5], dtype=np.int32), np.array([0], dtype=np.int16))
    with pytest.raises(OSError, match="No such file"):
        table.save(tmp_path / "nowhere" / "tokens")
