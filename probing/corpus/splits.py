"""The split into training, validation and test by sentence, and which sentences count as equal."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from typing import Literal

from probing.statistics.intervals import MIN_SENTENCES

Split = Literal["train", "validation", "test"]

# Shares of the split, as thresholds on a uniform hash: 80 / 10 / 10.
TRAIN_BELOW, VALIDATION_BELOW = 0.8, 0.9
# Punctuation by Unicode's categories that is written as part of a word or a number: C#, 5%, -1, @name.
_SIGNS = frozenset("#%‰&*@/\\_+-−§†‡")


def split_key(sentence: str) -> str:
    """Return the words of a sentence, without case, punctuation and signs; equal keys are on the same side.

    A word is a run of letters, digits and the marks on them. Sentences with equal keys need not count as equal:
    `compared` keeps signs.
    """
    text = unicodedata.normalize("NFC", sentence.casefold())
    if not text.isascii():
        # A mark that NFC leaves by itself, such as a vowel sign of Devanagari, is part of a letter; `\w` leaves it out.
        text = "".join(letter if unicodedata.category(letter)[0] != "M" else f"_{ord(letter):x}_" for letter in text)
    return " ".join(re.findall(r"\w+", text)) or sentence


def compared(sentence: str) -> str:
    """Return a sentence in the form in which it is compared with those of other texts.

    Sentences count as equal if they differ only in case, in blanks, in how Unicode composes letters (NFC), or in
    punctuation around words. Marks and signs are kept: `C++` is not `C#`, and कि is not की.
    """
    words = unicodedata.normalize("NFC", sentence.casefold()).split()
    return " ".join(filter(None, map(_without_punctuation, words))) or sentence


def _without_punctuation(word: str) -> str:
    """Return a word without punctuation at its ends; several marks by themselves, such as `:(`, are kept."""
    first, last = 0, len(word)
    while first < last and _is_punctuation(word[first]):
        first += 1
    while last > first and _is_punctuation(word[last - 1]):
        last -= 1
    return word[first:last] or (word if len(word) > 1 else "")


def _is_punctuation(letter: str) -> bool:
    return letter not in _SIGNS and unicodedata.category(letter)[0] == "P"


def assign_splits(sentences: Sequence[str], seed: int, documents: Sequence[int] | None = None) -> list[Split]:
    """Assign each sentence, or each document as a whole, to a side of the split by a hash salted with `seed`.

    Sentences that differ only in case, punctuation or signs are on the same side. A sentence keeps its side when the
    corpus grows or is reordered; so does a document, whose hash is that of its first sentence, unless that is also in
    another document.

    Args:
        sentences: The sentences.
        seed: Seed of the split.
        documents: Document of each sentence; None to assign sentences. A sentence that is also in an earlier document
            is on the side of that one.
    """
    keys = [split_key(sentence) for sentence in sentences]
    if documents is None:
        return [side_of(key, seed) for key in keys]
    first: dict[int, str] = {}
    for key, document in zip(keys, documents, strict=True):
        first.setdefault(document, key)
    side_of_document = dict(zip(first, sides_of_clusters(list(first.values()), seed), strict=True))
    side_of_key: dict[str, Split] = {}
    return [side_of_key.setdefault(key, side_of_document[own]) for key, own in zip(keys, documents, strict=True)]


def sides_of_clusters(keys: Sequence[str], seed: int) -> list[Split]:
    """Return the side of each cluster by a hash of its key; if too few are tested on, those of the largest hashes are.

    Of three times `MIN_SENTENCES` clusters or more, at least `MIN_SENTENCES` are tested on, without which there is no
    interval.
    """
    sides = [side_of(key, seed) for key in keys]
    if sides.count("test") >= MIN_SENTENCES or len(keys) < 3 * MIN_SENTENCES:
        return sides
    last = sorted(range(len(keys)), key=lambda i: hashed(keys[i], seed), reverse=True)
    for rank, i in enumerate(last):
        sides[i] = "test" if rank < MIN_SENTENCES else "validation" if rank < 1.5 * MIN_SENTENCES else "train"
    return sides


def side_of(key: str, seed: int) -> Split:
    """Return the side of the split by a hash of a key and the seed: 80% train, 10% validation, 10% test."""
    if (uniform := hashed(key, seed)) < TRAIN_BELOW:
        return "train"
    return "validation" if uniform < VALIDATION_BELOW else "test"


def hashed(key: str, seed: int) -> float:
    """Return a hash of a key and the seed, uniform on 0 to 1."""
    digest = hashlib.sha256(f"{seed}\0{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
