"""Which word a token belongs to."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


class Assigned(NamedTuple):
    """The words of some tokens, as indices among the words of all their sentences; -1 for tokens of no word.

    Args:
        words: The word that each token belongs to, shape (n_tokens,).
        first: The first word that it has characters of, shape (n_tokens,).
        last: The last one, shape (n_tokens,).
        starts: Index of each sentence's first word, followed by the number of words, shape (n_sentences + 1,).
        is_blank: Whether a token is nothing but a blank, shape (n_tokens,).
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
    several words belongs to the first of them that no token before it belongs to, and to the last if there is none;
    no other rule leaves fewer words without a token. Words without a visible character, which normalisers delete, do
    not count among several.

    Args:
        spans: First character of each token in its sentence, and the first one after it, shape (n_tokens, 2).
        sentences: Index of each token's sentence among `texts`, ascending, shape (n_tokens,).
        ordinary: Whether the tokenizer found the token in the text, and did not add it, shape (n_tokens,).
        texts: The sentences, with single spaces.
        words: The words of each sentence. Joined by single spaces, without empty words, they give the sentence, or its
            beginning. None for the words between blanks.
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
    found = last.copy()
    for token in np.flatnonzero(first < last).tolist():
        before = found[token - 1] if token else -1
        several = range(max(first[token], before + 1), last[token] + 1)
        seen = (word for word in several if is_visible(joined[(ends[word - 1] + 1 if word else 0) : ends[word]]))
        found[token] = next(seen, last[token])
    return Assigned(found, first, last, starts, (stop - start == 1) & behind)


def divided(
    words: NDArray[np.int16], begins: NDArray[np.bool_], sentences: NDArray[np.integer], found: Assigned
) -> NDArray[np.int16]:
    """Divide words of running text that have blanks inside, at the blanks; all other words stay as they are.

    Tokenizers that do not divide text before they look for pieces (Gemma, Llama 2) take a whole text for a word.

    Args:
        words: Index of each token's word in its sentence, by the tokenizer, negative for special tokens, (n_tokens,).
        begins: Whether a token is the first piece of such a word, shape (n_tokens,).
        sentences: Index of each token's sentence, ascending, shape (n_tokens,).
        found: The words between blanks that the tokens belong to.
    """
    ordinary, group = words >= 0, begins.cumsum() - 1
    held = ordinary & ~found.is_blank
    low, high = np.full(begins.sum(), np.iinfo(np.int64).max), np.full(begins.sum(), -1)
    np.minimum.at(low, group[held], found.words[held])
    np.maximum.at(high, group[held], found.words[held])
    is_divided = low < high
    if not is_divided.any():
        return words
    # A blank behind the last word of a group belongs to it: there is no word of nothing but a blank.
    between = np.where(ordinary, np.minimum(found.words, high[group]), -1)
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
    """Return the end of each word in the text; an empty word ends where the previous one does."""
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    return np.cumsum(lengths + (lengths > 0)) - 1
