"""Sentences in: where they come from, their fingerprint, and which side of the split each is on."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from probing.corpus.builtin import builtin_sentences
from probing.corpus.files import read_lines
from probing.errors import UserError

Split = Literal["train", "validation", "test"]

# Shares of the split, as thresholds on a uniform hash: 80 / 10 / 10.
TRAIN_BELOW, VALIDATION_BELOW = 0.8, 0.9


@dataclass(frozen=True)
class Corpus:
    """Distinct sentences in their order of appearance.

    Args:
        name: What the user typed, for messages and run names.
        sentences: Each with single spaces and no surrounding blanks; no two are equal.
        n_repeated: How many further occurrences were dropped.
    """

    name: str
    sentences: tuple[str, ...]
    n_repeated: int = 0

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the sentences and their order."""
        digest = hashlib.sha256()
        for sentence in self.sentences:
            digest.update(sentence.encode("utf-8"))
            digest.update(b"\n")
        return digest.hexdigest()


def load_corpus(name: str, option: str = "--corpus") -> Corpus:
    """Read the distinct sentences of `builtin`, a text file with a sentence a line, or `-` (standard input).

    Args:
        name: What the user typed.
        option: Where the user typed it, for messages.

    Raises:
        UserError: If the source is unknown, unreadable, a damaged archive, not UTF-8, or holds no sentence.
    """
    lines = builtin_sentences() if name == "builtin" else read_lines(name, option)
    return from_sentences(name, lines, option)


def from_sentences(name: str, lines: Iterable[str], option: str = "--corpus") -> Corpus:
    """Build a corpus from lines: blanks collapsed, empty lines dropped, repeated sentences kept once.

    Raises:
        UserError: If nothing is left.
    """
    distinct: dict[str, None] = {}
    n_seen = 0
    for line in lines:
        if sentence := " ".join(line.split()):
            n_seen += 1
            distinct.setdefault(sentence)
    if not distinct:
        raise UserError(f"`{option} {name}` holds no sentence: it is empty or blank throughout; give one with text.")
    return Corpus(name, tuple(distinct), n_seen - len(distinct))


def split_key(sentence: str) -> str:
    """The words of a sentence without case and punctuation: near-duplicates share it, and so their side."""
    return " ".join(re.findall(r"\w+", sentence.casefold())) or sentence


def assign_splits(sentences: Sequence[str], seed: int) -> list[Split]:
    """Put each sentence on a side by a hash of its words salted with `seed`.

    A sentence keeps its side when the corpus grows or is reordered, and sentences that differ
    only in case or punctuation are never divided.
    """
    return [_side(split_key(sentence), seed) for sentence in sentences]


def hold_out(main: Corpus, test: Corpus) -> Corpus:
    """Return the main corpus without the sentences that are in the test corpus, but for case and punctuation.

    Raises:
        UserError: If nothing is left.
    """
    held_out = {split_key(sentence) for sentence in test.sentences}
    kept = tuple(sentence for sentence in main.sentences if split_key(sentence) not in held_out)
    if not kept:
        raise UserError(
            f"`--test_corpus {test.name}` holds every sentence of `--corpus {main.name}`; nothing is left to train on."
        )
    return Corpus(main.name, kept, main.n_repeated)


def _side(key: str, seed: int) -> Split:
    digest = hashlib.sha256(f"{seed}\0{key}".encode()).digest()
    uniform = int.from_bytes(digest[:8], "big") / 2**64
    if uniform < TRAIN_BELOW:
        return "train"
    return "validation" if uniform < VALIDATION_BELOW else "test"
