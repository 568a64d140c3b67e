"""Tables of tokens and their words, and how they are divided into shards and batches."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from conftest import FAMILIES
from families import MAX_LENGTH
from probing.activations import store
from probing.activations.store import StorePlan, batches, divide, fingerprint, shard_tokens
from probing.models import load_tokenizer, resolve_model
from probing.text import from_pairs, from_sentences, from_words
from probing.text import tokens as tokens_module
from probing.text.tokens import (
    ADDED_SET_ASIDE,
    LONGEST,
    SET_ASIDE,
    Tokens,
    assign,
    count_words,
    tokenize,
    tokenize_pairs,
)

pytestmark = pytest.mark.numeric


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


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_pairs_are_what_the_tokenizer_makes_of_them(
    checkpoints: dict[str, Path], sentences: list[str], family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "CHUNK", 16)
    tokenizer = tokenizer_of(checkpoints[family])
    pairs = list(zip(sentences[:40], sentences[40:80], strict=True))
    corpus = from_pairs("made up", pairs)
    assert corpus.seconds is not None
    whole = tokenize_pairs(tokenizer, corpus.sentences, corpus.seconds, LONGEST)
    whole.save(tmp_path / "tokens.safetensors")
    table = Tokens.load(tmp_path / "tokens.safetensors")
    assert table.segments is not None
    assert table.token_types is not None
    assert (table.n_sentences, table.n_truncated) == (40, 0)
    pieces, words = table.piece_texts(corpus), table.word_texts(corpus)
    for i, (first, second) in enumerate(pairs):
        alone, rows = tokenizer(first, second), table.of_sentences(i, 1)
        assert table.input_ids[rows].tolist() == alone["input_ids"]
        assert table.token_types[rows].tolist() == alone.encodings[0].type_ids
        assert table.segments[rows].tolist() == [-1 if s is None else s for s in alone.sequence_ids()]
        assert (table.special[rows] == (table.segments[rows] < 0)).all()
        for segment, text in enumerate((first, second)):
            own = np.flatnonzero(table.segments[rows] == segment) + rows.start
            assert "".join(pieces[own]) == text.replace(" ", "") or family != "bert"
            # The words of the second sentence are counted on.
            n_before = 0 if segment == 0 else int(table.words[rows][table.segments[rows] == 0].max()) + 1
            by_itself = tokenize(tokenizer, [text], LONGEST)
            assert (table.words[own] - n_before).tolist() == by_itself.words[~by_itself.special].tolist()
            assert words[own].tolist() == by_itself.word_texts(from_sentences("x", [text]))[~by_itself.special].tolist()
    if family == "bert":
        assert set(table.token_types) == {0, 1}
    if family == "roberta":  # </s></s> between them, and a single type
        assert set(table.token_types) == {0}
        assert (table.segments[table.of_sentences(0, 1)] < 0).sum() == 4
    cut = tokenize_pairs(tokenizer, corpus.sentences, corpus.seconds, 30)
    assert cut.lengths.tolist() == np.minimum(whole.lengths, 30).tolist()
    assert 0 < cut.n_truncated == (whole.lengths > 30).sum() < 40
    assert cut.segments is not None
    longest = int(whole.lengths.argmax())  # both sentences are left
    assert {0, 1} <= set(cut.segments[cut.of_sentences(longest, 1)].tolist())


def test_a_special_token_spelled_in_the_text_is_told_from_those_added(checkpoints: dict[str, Path]) -> None:
    tokenizer = tokenizer_of(checkpoints["bert"])
    table = tokenize(tokenizer, ["the [SEP] token"], MAX_LENGTH)
    spelled = np.flatnonzero(table.input_ids[:-1] == tokenizer.sep_token_id)
    assert len(spelled) == 1
    assert not table.special[spelled[0]]
    assert table.special[-1]
    corpus = from_sentences("x", ["the [SEP] token"])
    assert table.word_texts(corpus)[[0, spelled[0], -1]].tolist() == ["[CLS]", "[SEP]", "[SEP]"]
    assert (replace(table, added_texts={}).word_texts(corpus)[[0, -1]] == "").all()


def test_the_texts_of_added_tokens_are_stored(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    tokenize(tokenizer_of(checkpoints["roberta"]), ["a cat"], MAX_LENGTH).save(tmp_path / "tokens.safetensors")
    table = Tokens.load(tmp_path / "tokens.safetensors").without_first()
    for texts in (table.piece_texts, table.word_texts):
        assert texts(from_sentences("x", ["a cat"]))[[0, -1]].tolist() == ["<s>", "</s>"]


def test_a_table_of_an_earlier_version_is_read_without_them(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "tokens.safetensors"
    tokenize(tokenizer_of(checkpoints["bert"]), ["a cat"], 3).save(path)
    save_file(load_file(path), path, {"n_truncated": "1"})
    table = Tokens.load(path)
    assert (table.n_truncated, table.added_texts) == (1, {})


# Words with blanks inside, of several pieces, of several scripts, spelled like special tokens, removed by normalisers.
HARD = [
    "New York", "10 000 000", "don't", "a-b", "''", "(", "...", "naïve", "e\u0301", "北京", "😀", "½", "ﬁ", "[SEP]",
    "<s>", "\u200b", "\u200b\u200b", "\x00", "\ufeff", "",
]  # fmt: skip


def word_lists(sentences: list[str], n: int = 400) -> list[list[str]]:
    """Make lists of 2 to 13 words, every other one hard."""
    generator = random.Random(0)
    plain = sorted({word for sentence in sentences for word in sentence.split()})
    lists = [
        [generator.choice(generator.choice((HARD, plain))) for _ in range(generator.randint(1, 12))] for _ in range(n)
    ]
    return [["the", *words] for words in lists]


def unigram_tokenizer(sentences: list[str]) -> Any:
    """Train a tokenizer as T5 and XLM-R have it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    trainer = trainers.UnigramTrainer(
        vocab_size=150, special_tokens=list(names.values()), unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([*sentences, *HARD * 3], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


@pytest.mark.parametrize("family", [*FAMILIES, "unigram"])
def test_pieces_belong_to_the_words_that_the_tokenizer_itself_would_give_them(
    checkpoints: dict[str, Path], sentences: list[str], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens_module, "CHUNK", 64)
    tokenizer = unigram_tokenizer(sentences) if family == "unigram" else tokenizer_of(checkpoints[family])
    corpus = from_words("lists", word_lists(sentences))
    assert corpus.words is not None
    table = tokenize(tokenizer, corpus.sentences, MAX_LENGTH, corpus.words)
    as_text = tokenize(tokenizer, corpus.sentences, MAX_LENGTH)
    assert table.input_ids.tolist() == as_text.input_ids.tolist()
    assert table.special.tolist() == as_text.special.tolist()
    for sentence, words in enumerate(corpus.words):
        given = list(words)
        if family == "roberta":  # byte-level: only with its space is a word inside a sentence what it is in text
            given = [words[0], *(f" {word}" if word else "" for word in words[1:])]
        expected = tokenizer(given, is_split_into_words=True)
        rows = slice(table.offsets[sentence], table.offsets[sentence + 1])
        assert table.input_ids[rows].tolist() == expected["input_ids"]
        assert table.words[rows].tolist() == [-1 if word is None else word for word in expected.word_ids()], words


@pytest.mark.parametrize("odd", ["\u200b", "\x00", "", "New York", "..." * 20])
@pytest.mark.parametrize("family", [*FAMILIES, "unigram"])
def test_an_odd_word_does_not_shift_those_behind_it(
    checkpoints: dict[str, Path], sentences: list[str], family: str, odd: str
) -> None:
    tokenizer = unigram_tokenizer(sentences) if family == "unigram" else tokenizer_of(checkpoints[family])
    corpus = from_words("lists", [["the", odd, "layer", odd, odd, "untranslatable"]])
    table = tokenize(tokenizer, corpus.sentences, 500, corpus.words)
    for word, text in ((0, "the"), (2, "layer"), (5, "untranslatable")):
        assert tokenizer.decode(table.input_ids[table.words == word]).replace(" ", "") == text


def test_a_piece_that_ends_with_the_space_behind_its_word_belongs_to_it() -> None:
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"a ": 0, "b ": 1, "c": 2, " ": 3}, unk_token="c"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\S+ ?"), "isolated")
    words = [["a", "b", "c"]]
    table = tokenize(PreTrainedTokenizerFast(tokenizer_object=tokenizer), ["a b c"], 8, words)
    assert table.input_ids.tolist() == [0, 1, 2]
    assert table.words.tolist() == [0, 1, 2]


def test_the_number_of_a_word_never_overflows(checkpoints: dict[str, Path]) -> None:
    tokenizer = tokenizer_of(checkpoints["bert"])
    lists = [["the"] * 40_000, ["\u200b"] * 40_000 + ["the"], ["the"] * (LONGEST - 2)]
    corpus = from_words("long", lists)
    for words in (corpus.words, None):
        table = tokenize(tokenizer, corpus.sentences, 10**30, words)
        assert table.words.min() == -1
        assert table.words.max() == LONGEST - 3  # all but [CLS] and [SEP]
        assert table.lengths.tolist() == [LONGEST, 2 if words else 3, LONGEST]
        assert table.n_truncated == (2 if words else 1)


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


def test_first_tokens_that_are_set_aside_belong_to_no_word_and_are_not_measured() -> None:
    # A word of two pieces, a special token and a word, a sentence without tokens, and a special token alone.
    ids = np.arange(6, dtype=np.int32)
    words = np.array([0, 0, 1, -1, 0, -1], dtype=np.int16)
    table = Tokens(np.array([3, 2, 0, 1], dtype=np.int32), ids, words)
    view = table.without_first()
    assert view.words.tolist() == [SET_ASIDE, 0, 1, ADDED_SET_ASIDE, 0, ADDED_SET_ASIDE]
    assert view.included.tolist() == [False, True, True, False, True, False]
    assert view.special.tolist() == [True, False, False, True, False, True]
    assert view.added.tolist() == table.added.tolist() == table.special.tolist()
    assert view.first_pieces.tolist() == [False, True, True, False, True, False]
    assert view.positions.tolist() == table.positions.tolist()
    assert table.words.tolist() == [0, 0, 1, -1, 0, -1]
    assert table.included.all()


TEXT = ["the cat sat on the mat", "in the hat of the big cat", "on the mat"]


@cache
def words_tokenizer_of(kind: str) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    if kind == "between blanks":  # pieces do not cross a blank, as in the vocabulary of Gemma
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    elif kind == "across blanks":
        tokenizer.normalizer = normalizers.Replace("\ufe0f", "")
    trainer = trainers.BpeTrainer(vocab_size=45, special_tokens=["<unk>"], show_progress=False)
    tokenizer.train_from_iterator(TEXT * 5, trainer)
    if kind == "between blanks":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def test_a_tokenizer_that_says_no_words_has_those_between_blanks() -> None:
    tokenizer, corpus = words_tokenizer_of("between blanks"), from_sentences("x", TEXT)
    assert {word for text in TEXT for word in tokenizer(text).word_ids()} == {0}
    table = tokenize(tokenizer, corpus.sentences, 99)
    listed = tokenize(tokenizer, corpus.sentences, 99, [text.split() for text in TEXT])
    assert table.words.tolist() == listed.words.tolist()
    assert list(dict.fromkeys(table.word_texts(corpus))) == list(dict.fromkeys(" ".join(TEXT).split()))
    pairs = from_pairs("x", [(TEXT[0], TEXT[1])])
    assert pairs.seconds is not None
    words = tokenize_pairs(tokenizer, pairs.sentences, pairs.seconds, 99).words
    assert sorted(set(words.tolist())) == list(range(13))


@pytest.mark.parametrize("kind", ["between blanks", "across blanks"])
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["the", "cat", "on", "a", "\ufe0f", "big", ""]), min_size=1), min_size=1),
    st.integers(3, 20),
)
def test_every_word_has_a_token_or_a_reason_why_not(kind: str, lists: list[list[str]], max_length: int) -> None:
    corpus = from_words("x", [["the", *words] for words in lists])
    table = tokenize(words_tokenizer_of(kind), corpus.sentences, max_length, corpus.words)
    counts = count_words(table, corpus)
    assert counts is not None
    assert counts.n_words == sum(map(len, corpus.words or ()))
    assert counts.n_words == counts.n_with_token + counts.n_unassigned + counts.n_cut
    assert counts.n_with_token == len(set(zip(table.sentences.tolist(), table.words.tolist(), strict=True)))
    assert counts.n_cut == 0 or table.n_truncated
    assert table.in_words(corpus.sentences, corpus.words).words.tolist() == table.words.tolist()


def test_a_token_of_several_words_belongs_to_the_first_without_one() -> None:
    corpus = from_words("x", [["the", "cat", "\ufe0f", "sat", "on"]])
    table = tokenize(words_tokenizer_of("across blanks"), corpus.sentences, 99, corpus.words)
    counts = count_words(table, corpus)
    assert counts is not None
    assert "\ufe0f" in counts.examples
    assert (counts.n_without_token, counts.n_cut) == (1, 0)


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(0, 2), (2, 5), (5, 8)], [0, 1, 2]),  # the blank belongs to the second word
        ([(0, 5), (5, 8)], [0, 2]),  # `ab cd` lies in two words: the first has no token yet
        ([(0, 2), (0, 5), (3, 8)], [0, 1, 2]),
        ([(0, 5), (2, 8)], [0, 1]),
        ([(0, 2), (2, 3), (3, 5)], [0, 1, 1]),
    ],
)
def test_a_token_belongs_to_a_word_by_its_characters(spans: list[tuple[int, int]], expected: list[int]) -> None:
    n = len(spans)
    found = assign(np.array(spans), np.zeros(n, int), np.ones(n, bool), ["ab cd ef"], [["ab", "cd", "ef"]])
    assert found.words.tolist() == expected


@pytest.mark.parametrize("listed", [False, True])
def test_a_first_token_that_is_set_aside_has_its_characters_and_the_others_their_whole_word(listed: bool) -> None:
    texts = ["hatmat on the cat", "gib cats"]
    words = [text.split() for text in texts] if listed else None
    corpus = from_sentences("x", texts) if words is None else from_words("x", words)
    table = tokenize(words_tokenizer_of("between blanks"), corpus.sentences, 99, words)
    expected, pieces = table.word_texts(corpus), table.piece_texts(corpus)
    first = table.offsets[:-1]
    assert (table.words[first + 1] == 0).any()  # a first word of several pieces
    found = table.without_first().word_texts(corpus)
    assert found[first].tolist() == pieces[first].tolist()
    assert np.delete(found, first).tolist() == np.delete(expected, first).tolist()


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
    assert StorePlan({}, 2, 4, "float32", 64, shards).n_tokens == 18


def test_the_fingerprint_of_a_key_ignores_order_and_nothing_else() -> None:
    assert fingerprint({"a": 1, "b": None}) == fingerprint({"b": None, "a": 1})
    assert len({fingerprint(key) for key in ({"a": 1}, {"a": 2}, {"a": "1"}, {"b": 1}, {"a": None}, {})}) == 6
