"""The table of tokens, which describes the rows of the cached activations."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probing.runtime.files import parse_json, regular, write_tensors
from probing.text import Corpus

Integers = NDArray[np.int64]


class Assigned(NamedTuple):
    """The words of some tokens, as indices among the words of all their sentences; -1 for tokens of no word.

    `words` is each token's word, `first` and `last` the first and the last word that it has characters of, `is_blank`
    whether it is only a blank, shape (n_tokens,) each; `starts` is the index of each sentence's first word, followed by
    the number of words, shape (n_sentences + 1,).
    """

    words: Integers
    first: Integers
    last: Integers
    starts: Integers
    is_blank: NDArray[np.bool_]


def assign(
    spans: NDArray[np.integer],
    sentences: NDArray[np.integer],
    ordinary: NDArray[np.bool_],
    texts: Sequence[str],
    words: Sequence[Sequence[str]] | None = None,
) -> Assigned:
    """Assign tokens to words by their characters.

    The space between two words belongs to the second, unless the token begins in the first. A token that lies in
    several words belongs to the first of them that no earlier token belongs to, and to the last if there is none; no
    other rule leaves fewer words without a token. Words without a visible character, which normalisers delete, do not
    count among several.

    Args:
        spans: First character of each token in its sentence, and the end of its characters, shape (n_tokens, 2).
        sentences: Index of each token's sentence among `texts`, ascending, shape (n_tokens,).
        ordinary: Whether the token is from the text, not added by the tokenizer, shape (n_tokens,).
        words: The words of each sentence, which give it, or its beginning, when joined by single spaces without empty
            words. None for the words between blanks.
    """
    joined = "\n".join(texts)
    characters = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    begins = np.cumsum([0, *(len(text) + 1 for text in texts)], dtype=np.int64)
    if words is None:
        is_end = np.append(characters == ord(" "), True)
        is_end[begins[1:] - 1] = True
        ends = np.flatnonzero(is_end)
        starts = np.searchsorted(ends, begins)
    else:
        lists = [_ends(listed) + begin for listed, begin in zip(words, begins.tolist(), strict=False)]
        ends, starts = np.concatenate(lists), np.cumsum([0, *map(len, lists)], dtype=np.int64)
    start, stop = (spans[:, i] + begins[sentences] for i in (0, 1))
    # The text may be empty, and special tokens have no characters.
    behind = np.append(characters, 0)[np.maximum(stop - 1, 0)] == ord(" ")
    last = np.searchsorted(ends, stop - ((stop - start > 1) & behind))
    first = np.minimum(last, np.searchsorted(ends, start + 1))
    first, last = np.where(ordinary, first, -1), np.where(ordinary, last, -1)
    assigned = last.copy()
    for token in np.flatnonzero(first < last).tolist():
        before = assigned[token - 1] if token else -1
        several = range(max(first[token], before + 1), last[token] + 1)
        seen = (word for word in several if is_visible(joined[(ends[word - 1] + 1 if word else 0) : ends[word]]))
        assigned[token] = next(seen, last[token])
    return Assigned(assigned, first, last, starts, (stop - start == 1) & behind)


def divided(
    words: NDArray[np.int16], begins: NDArray[np.bool_], sentences: NDArray[np.integer], assigned: Assigned
) -> NDArray[np.int16]:
    """Divide words of running text that have blanks inside, at the blanks; all other words stay unchanged.

    Tokenizers that do not divide text before they look for pieces (Gemma, Llama 2) take a whole text for a word.
    `words` is the tokenizer's index of each token's word in its sentence, negative for special tokens, `begins` whether
    a token is the first piece of such a word; `sentences` ascends; shape (n_tokens,) each.
    """
    ordinary, group = words >= 0, begins.cumsum() - 1
    assignable = ordinary & ~assigned.is_blank
    low, high = np.full(begins.sum(), np.iinfo(np.int64).max), np.full(begins.sum(), -1)
    np.minimum.at(low, group[assignable], assigned.words[assignable])
    np.maximum.at(high, group[assignable], assigned.words[assignable])
    is_divided = low < high
    if not is_divided.any():
        return words
    # A blank behind the last word of a group belongs to it: there is no word of nothing but a blank.
    between = np.where(ordinary, np.minimum(assigned.words, high[group]), -1)
    breaks = begins.copy()
    breaks[1:] |= (ordinary & is_divided[group])[1:] & (between[1:] > between[:-1])
    numbers, first = breaks.cumsum(), np.searchsorted(sentences, sentences)
    numbers -= (numbers - breaks)[first] + 1
    changed = np.unique(sentences[ordinary & is_divided[group]])
    return np.where(ordinary & np.isin(sentences, changed), numbers, words).astype(np.int16)


def is_visible(word: str) -> bool:
    """Return whether a word has a character that is not a mark, a blank or a control or format character."""
    return any(unicodedata.category(character)[0] not in "MZC" for character in word)


def _ends(words: Sequence[str]) -> Integers:
    """Return the end of each word in the text; an empty word ends where the previous word does."""
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    return np.cumsum(lengths + (lengths > 0)) - 1


# Sentences tokenised at a time; this bounds the memory of the tokenizer's objects.
CHUNK = 1024

# Most tokens, and most words, of a sentence: the table stores the index of a word as int16.
LONGEST = 2**15 - 1

# Word index of tokens that belong to no word: the tokenizer added the token, it is set aside (not measured), or both.
ADDED, SET_ASIDE, ADDED_SET_ASIDE = -1, -2, -3

# Columns that not every table has.
_OPTIONAL = ("spans", "segments", "token_types")


@dataclass(frozen=True)
class Tokens:
    """All tokens of a corpus in order, special tokens included, without padding.

    Args:
        lengths: Number of tokens of each sentence, shape (n_sentences,), int32.
        input_ids: Token ids, shape (n_tokens,), int32.
        words: Index of each token's word in its sentence, -1 for special tokens, shape (n_tokens,), int16. Words come
            from the word list, or for running text from `word_ids()`, where a word with blanks inside is divided at
            them. Tokens that are set aside belong to no word: `SET_ASIDE`, or `ADDED_SET_ASIDE` for special tokens.
        n_truncated: Number of sentences that were longer than the maximum length and were cut.
        spans: First character of each token in its sentence, and the end of its characters, shape (n_tokens, 2), int32;
            equal for special tokens. None for ids without text.
        segments: The sentence of a pair, 0 or 1, of each token, -1 for special tokens, shape (n_tokens,), int8. None
            for single sentences.
        token_types: The tokenizer's token type ids, shape (n_tokens,), int8; None for single sentences whose types are
            all 0, as with most tokenizers (XLNet's gives 2 to `<cls>`).
        added_texts: The text of each token that the tokenizer adds, such as [CLS], by its id.
    """

    lengths: NDArray[np.int32]
    input_ids: NDArray[np.int32]
    words: NDArray[np.int16]
    n_truncated: int = 0
    spans: NDArray[np.int32] | None = None
    segments: NDArray[np.int8] | None = None
    token_types: NDArray[np.int8] | None = None
    added_texts: Mapping[int, str] = field(default_factory=dict)

    @property
    def n_sentences(self) -> int:
        """Number of sentences."""
        return len(self.lengths)

    @property
    def n_tokens(self) -> int:
        """Number of tokens."""
        return len(self.input_ids)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Index of each sentence's first token, followed by the number of tokens; shape (n_sentences + 1,)."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    @cached_property
    def sentences(self) -> NDArray[np.int32]:
        """Index of each token's sentence, shape (n_tokens,)."""
        return np.repeat(np.arange(self.n_sentences, dtype=np.int32), self.lengths)

    @property
    def positions(self) -> NDArray[np.int32]:
        """Index of each token in its tokenised sentence, from 0, shape (n_tokens,)."""
        return (np.arange(self.n_tokens) - np.repeat(self.offsets[:-1], self.lengths)).astype(np.int32)

    @property
    def special(self) -> NDArray[np.bool_]:
        """Whether the tokenizer added the token ([CLS], </s>, ...), or it is set aside; shape (n_tokens,)."""
        return self.words < 0

    @property
    def added(self) -> NDArray[np.bool_]:
        """Whether the tokenizer added the token, set aside or not; shape (n_tokens,)."""
        return (self.words == ADDED) | (self.words == ADDED_SET_ASIDE)

    @property
    def included(self) -> NDArray[np.bool_]:
        """Whether the token may be measured, because it is not set aside; shape (n_tokens,)."""
        return self.words >= ADDED

    def types_for(self, n_types: int) -> NDArray[np.int8] | None:
        """Return the token types for a model with `n_types` types, shape (n_tokens,); None if there are more."""
        types = np.zeros(self.n_tokens, dtype=np.int8) if self.token_types is None else self.token_types
        return types if types.max(initial=0) < n_types else None

    def without_first(self) -> Tokens:
        """Return the table with the first token of each sentence set aside: read by the model, and not measured."""
        words = self.words.copy()
        first = self.offsets[:-1][self.lengths > 0]
        words[first] = np.where(self.added[first], ADDED_SET_ASIDE, SET_ASIDE)
        return replace(self, words=words)

    def in_words(self, sentences: Sequence[str], words: Sequence[Sequence[str]] | None = None) -> Tokens:
        """Return the table with tokens assigned to words (None: of running text) by their characters."""
        parts = []
        for rows, chunk, assigned in self.assigned(sentences, words):
            piece_words, of = self.words[rows], self.sentences[rows] - chunk.start
            if words is not None:
                parts.append(
                    np.where(piece_words < 0, piece_words, assigned.words - assigned.starts[of]).astype(np.int16)
                )
            else:
                parts.append(divided(piece_words, first_pieces(piece_words, of), of, assigned))
        return replace(self, words=np.concatenate(parts)) if parts else self

    def assigned(
        self, sentences: Sequence[str], words: Sequence[Sequence[str]] | None = None
    ) -> Iterator[tuple[slice, slice, Assigned]]:
        """Yield rows of consecutive sentences, the sentences, and their tokens' words (of the first `LONGEST`)."""
        assert self.spans is not None
        if len(sentences) != self.n_sentences:
            raise ValueError(f"tokens of {self.n_sentences} sentences, and {len(sentences)} sentences are given")
        for first in range(0, self.n_sentences, CHUNK):
            chunk = slice(first, min(first + CHUNK, self.n_sentences))
            rows = self.of_sentences(first, chunk.stop - first)
            listed = None if words is None else [listed_words[:LONGEST] for listed_words in words[chunk]]
            of, ordinary = self.sentences[rows] - first, ~self.added[rows]
            yield rows, chunk, assign(self.spans[rows], of, ordinary, sentences[chunk], listed)

    def of_sentences(self, first: int, n_sentences: int) -> slice:
        """Return the rows of consecutive sentences."""
        return slice(int(self.offsets[first]), int(self.offsets[first + n_sentences]))

    @cached_property
    def first_pieces(self) -> NDArray[np.bool_]:
        """Whether a token is the first piece of a word, shape (n_tokens,)."""
        return first_pieces(self.words, self.sentences)

    @cached_property
    def last_pieces(self) -> NDArray[np.bool_]:
        """Whether a token is the last piece of a word, or its last piece before the cut, shape (n_tokens,)."""
        return first_pieces(self.words[::-1], self.sentences[::-1])[::-1]

    def piece_texts(self, corpus: Corpus) -> NDArray[Any]:
        """Return each token as in its sentence, without blanks; shape (n_tokens,), objects.

        A token that the tokenizer added has a special text, such as [CLS]. Pieces of the same character, as of a rare
        character in byte-level BPE, are equal.
        """
        return self._with_added(self._texts(self._spans(corpus), corpus))

    def word_texts(self, corpus: Corpus) -> NDArray[Any]:
        """Return the word that each token belongs to; shape (n_tokens,), objects.

        It is the word of the word list, or for running text the characters from the word's first piece to its last. A
        token that the tokenizer added has a special text, such as [CLS], and a token that is set aside its characters.
        """
        set_aside = self.words == SET_ASIDE
        if corpus.words is not None:
            pairs = zip(self.sentences.tolist(), self.words.tolist(), strict=True)
            texts = np.full(self.n_tokens, "", dtype=object)
            texts[:] = [corpus.words[i][word] if word >= 0 else "" for i, word in pairs]
        else:
            spans = self._spans(corpus).copy()
            # A first token that is set aside still has the beginning of the first word.
            words = np.where(set_aside, 0, self.words)
            begins = first_pieces(words, self.sentences) | (words < 0)
            word, last = begins.cumsum() - 1, np.append(np.flatnonzero(begins)[1:], self.n_tokens) - 1
            spans[:, 0], spans[:, 1] = spans[begins, 0][word], spans[last, 1][word]
            texts = self._texts(spans, corpus)
        if set_aside.any():
            texts = np.where(set_aside, self.piece_texts(corpus), texts)
        return self._with_added(texts)

    def _with_added(self, texts: NDArray[Any]) -> NDArray[Any]:
        for token, text in self.added_texts.items():
            texts[self.added & (self.input_ids == token)] = text
        return texts

    def _spans(self, corpus: Corpus) -> NDArray[np.int32]:
        assert self.spans is not None, f"ids of {corpus.name} without characters"
        return self.spans

    def _texts(self, spans: NDArray[np.int32], corpus: Corpus) -> NDArray[Any]:
        texts = np.full(self.n_tokens, "", dtype=object)
        triples = zip(self.sentences.tolist(), *spans.T.tolist(), strict=True)
        texts[:] = [corpus.sentences[i][start:stop].strip() for i, start, stop in triples]
        return texts

    def save(self, path: Path) -> None:
        """Write the table as safetensors, or raise `OSError` if it cannot be written."""
        arrays: dict[str, NDArray[Any]] = {"lengths": self.lengths, "input_ids": self.input_ids, "words": self.words}
        arrays |= {name: values for name in _OPTIONAL if (values := getattr(self, name)) is not None}
        noted = json.dumps({"n_truncated": self.n_truncated, "added_texts": [*self.added_texts.items()]})
        write_tensors(path, arrays, {"noted": noted})

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Read a table that `save` wrote."""
        from safetensors import safe_open

        with safe_open(regular(path, path.parent), framework="numpy") as file:
            lengths, input_ids, words = (file.get_tensor(name) for name in ("lengths", "input_ids", "words"))
            stored_names = set(file.keys())
            further = {name: file.get_tensor(name) for name in _OPTIONAL if name in stored_names}
            metadata = file.metadata()
            # Earlier versions noted the number alone.
            noted = parse_json(metadata["noted"]) if "noted" in metadata else {"n_truncated": metadata["n_truncated"]}
            added_texts = dict(noted.get("added_texts", ()))
            return cls(lengths, input_ids, words, int(noted["n_truncated"]), **further, added_texts=added_texts)


def first_pieces(words: NDArray[np.integer], sentences: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Return whether each token is the first piece of a word, whose pieces must be adjacent; shape (n_tokens,).

    `words` is the index of each token's word in its sentence, negative for special tokens.
    """
    begins = np.ones(len(words), dtype=bool)
    begins[1:] = (words[1:] != words[:-1]) | (sentences[1:] != sentences[:-1])
    return begins & (words >= 0)


def tokenize(
    tokenizer: Any, sentences: Sequence[str], max_length: int, words: Sequence[Sequence[str]] | None = None
) -> Tokens:
    """Tokenise sentences with the model's special tokens, cut at `max_length` tokens, or at `LONGEST`.

    A sentence with a list of words (which give it when joined by single spaces without empty words) is tokenised as
    running text, and its pieces are assigned to words by their characters. The number of words is limited because the
    normaliser can remove any number of them, so that a limit of tokens does not bound the index of a word. For
    WordPiece and SentencePiece this equals `is_split_into_words=True` with `word_ids()`. Byte-level BPE would join the
    words without spaces there, and give other pieces than for running text.
    """
    columns: list[dict[str, NDArray[Any]]] = []
    n_truncated = 0
    for first in range(0, len(sentences), CHUNK):
        chunk = slice(first, first + CHUNK)
        texts = list(sentences[chunk])
        if words is not None:
            texts = [" ".join(filter(None, listed[:LONGEST])) for listed in words[chunk]]
        encodings = tokenizer(
            texts,
            truncation=True,
            max_length=min(max_length, LONGEST),
            return_attention_mask=False,
            return_token_type_ids=False,
        ).encodings
        for sentence, text, encoding in zip(sentences[chunk], texts, encodings, strict=True):
            columns.append(_columns(encoding))
            n_truncated += bool(encoding.overflowing) or len(text) < len(sentence)
    table = _table(columns, n_truncated, tokenizer)
    if "token_type_ids" not in tokenizer.model_input_names or not np.any(table.token_types):
        table = replace(table, token_types=None)
    return table.in_words(sentences, words)


def tokenize_pairs(tokenizer: Any, texts: Sequence[str], seconds: Sequence[int], max_length: int) -> Tokens:
    """Tokenise pairs of sentences with the model's special tokens, as in [CLS] a [SEP] b [SEP].

    A pair of more than `max_length` tokens (with special tokens; at most `LONGEST`) loses the last tokens of its longer
    sentence until both are equally long, and then of both. The words of the second sentence are counted on from the
    first's. `seconds` has the index of the first character of each second sentence in `texts`, after a space.
    """
    columns: list[dict[str, NDArray[Any]]] = []
    n_truncated = 0
    for chunk in range(0, len(texts), CHUNK):
        starts = list(seconds[chunk : chunk + CHUNK])
        chunk_pairs = list(zip(texts[chunk : chunk + CHUNK], starts, strict=True))
        encodings = tokenizer(
            [text[: start - 1] for text, start in chunk_pairs],
            [text[start:] for text, start in chunk_pairs],
            truncation="longest_first",
            max_length=min(max_length, LONGEST),
        ).encodings
        for start, encoding in zip(starts, encodings, strict=True):
            of_pair = _columns(encoding)
            segments = np.array([-1 if segment is None else segment for segment in encoding.sequence_ids], np.int8)
            words, is_second = of_pair["words"], segments == 1
            n_first = int(words[segments == 0].max(initial=-1)) + 1
            of_pair |= {"segments": segments, "words": np.where(is_second, words + n_first, words).astype(np.int16)}
            of_pair["spans"] += np.where(is_second, start, 0).astype(np.int32)[:, None]
            columns.append(of_pair)
            n_truncated += bool(encoding.overflowing)
    return _table(columns, n_truncated, tokenizer).in_words(texts)


def _columns(encoding: Any) -> dict[str, NDArray[Any]]:
    """Return the columns of a sentence's tokens, from the tokenizer's output."""
    return {
        "input_ids": np.array(encoding.ids, dtype=np.int32),
        "words": _word_ids(encoding).astype(np.int16),
        "spans": np.array(encoding.offsets, dtype=np.int32).reshape(-1, 2),
        "token_types": np.array(encoding.type_ids, dtype=np.int8),
    }


def _table(columns: Sequence[Mapping[str, NDArray[Any]]], n_truncated: int, tokenizer: Any) -> Tokens:
    lengths = np.array([len(of_sentence["input_ids"]) for of_sentence in columns], dtype=np.int32)
    arrays = {name: np.concatenate([of_sentence[name] for of_sentence in columns]) for name in columns[0]}
    ids = np.unique(arrays["input_ids"][arrays["words"] == ADDED]).tolist()
    added_texts = dict(zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True))
    return Tokens(lengths, **arrays, n_truncated=n_truncated, added_texts=added_texts)


def _word_ids(encoding: Any) -> NDArray[np.int64]:
    """Return the tokenizer's index of each token's word; -1 for added tokens, 0 for text tokens without a word."""
    added = np.array(encoding.special_tokens_mask, dtype=bool)
    words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int64)
    return np.where((words < 0) & ~added, 0, words)


@dataclass(frozen=True)
class WordCounts:
    """The words of a corpus. All are `n_with_token`, `n_shared`, `n_without_token` and `n_cut` together.

    Args:
        n_shared: Number of words whose characters are in tokens that belong to other words.
        n_without_token: Number of words whose characters are in no token: the tokenizer removes them.
        n_cut: Number of words that were cut off, because their sentence was too long.
        examples: Distinct words that are shared or without a token, in order of appearance.
    """

    n_words: int
    n_with_token: int
    n_shared: int
    n_without_token: int
    n_cut: int
    examples: tuple[str, ...]

    @property
    def n_unassigned(self) -> int:
        """Number of words that the model reads, and that no token belongs to."""
        return self.n_shared + self.n_without_token

    def as_json(self) -> dict[str, int]:
        """Return the counts for `results.json`."""
        return {
            "n_words": self.n_words, "n_words_shared": self.n_shared,
            "n_words_without_token": self.n_without_token, "n_words_cut": self.n_cut,
        }  # fmt: skip


def count_words(tokens: Tokens, corpus: Corpus) -> WordCounts | None:
    """Count the words of a corpus; None for running text, and for tables without the characters of tokens.

    A word counts as cut off if its sentence has as many tokens as any, some were cut, and it lies beyond their
    characters on a side where visible words are left. Tokens that are set aside count like others.
    """
    if corpus.words is None or tokens.spans is None:
        return None
    n_with_token = n_shared = n_cut = 0
    missing: list[str] = []
    is_full = (tokens.lengths == tokens.lengths.max(initial=0)) & (tokens.n_truncated > 0)
    for _, chunk, assigned in tokens.assigned(corpus.sentences, corpus.words):
        starts = assigned.starts
        has, touched = (np.zeros(starts[-1], dtype=bool) for _ in range(2))
        has[assigned.words[assigned.words >= 0]] = True
        for token in np.flatnonzero(assigned.first < assigned.last).tolist():
            touched[assigned.first[token] : assigned.last[token] + 1] = True
        n_with_token += int(has.sum())
        for i in np.flatnonzero(np.add.reduceat(~has, starts[:-1])).tolist():
            words = corpus.words[chunk.start + i]
            in_sentence = slice(starts[i], starts[i + 1])
            cut = _cut_off(words[:LONGEST], has[in_sentence] | touched[in_sentence]) & is_full[chunk.start + i]
            n_cut += int(cut.sum())
            for word in np.flatnonzero(~has[in_sentence] & ~cut).tolist():
                n_shared += bool(touched[in_sentence][word] and is_visible(words[word]))
                missing.append(words[word])
        n_cut += sum(max(0, len(words) - LONGEST) for words in corpus.words[chunk])
    n_words = sum(map(len, corpus.words))
    return WordCounts(n_words, n_with_token, n_shared, len(missing) - n_shared, n_cut, tuple(dict.fromkeys(missing)))


def _cut_off(words: tuple[str, ...], read: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a mask of the words outside the range that was read, on sides with visible words."""
    cut = np.zeros(len(words), dtype=bool)
    at = np.flatnonzero(read)
    first, last = (int(at[0]), int(at[-1])) if len(at) else (0, -1)
    for side in (slice(0, first), slice(last + 1, None)):
        cut[side] = any(map(is_visible, words[side]))
    return cut
