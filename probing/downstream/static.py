"""Static word vectors from a file in GloVe's format: a baseline for similarity without context."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probing.cli.options import LARGEST
from probing.errors import UserError
from probing.runtime.files import open_file

_WORD = re.compile(r"\w+|[^\w\s]")
# Most characters of a line: those of a word and fifty thousand numbers.
_LONGEST_LINE = 1_000_000


@dataclass(frozen=True)
class StaticVectors:
    """Vectors of the words that occur.

    Args:
        rows: Row of each word in `vectors`.
        vectors: Word vectors, shape (n_words, d), float32.
    """

    rows: dict[str, int]
    vectors: Tensor

    def sentences(self, sentences: Sequence[str]) -> Tensor:
        """Return the mean vector of each sentence's words, zeros where no word is known, shape (n, d)."""
        sums = torch.zeros(len(sentences), self.vectors.shape[1])
        for i, sentence in enumerate(sentences):
            if known := [row for word in _words(sentence) if (row := self._row(word)) is not None]:
                sums[i] = self.vectors[known].mean(0)
        return sums

    def known(self, sentences: Sequence[str]) -> NDArray[np.bool_]:
        """Return which sentences have a vector that is not 0, shape (n,)."""
        found: NDArray[np.bool_] = self.sentences(sentences).any(dim=1).numpy()
        return found

    def coverage(self, sentences: Iterable[str]) -> float:
        """Return the share of word occurrences that have a vector."""
        words = [word for sentence in sentences for word in _words(sentence)]
        return sum(self._row(word) is not None for word in words) / max(1, len(words))

    def _row(self, word: str) -> int | None:
        row = self.rows.get(word)
        return self.rows.get(word.lower()) if row is None else row


def _words(sentence: str) -> list[str]:
    """Split at blanks and around each punctuation mark."""
    return _WORD.findall(sentence)


def read_static(path: str, sentences: Iterable[str]) -> StaticVectors:
    """Read the vectors of the words of some sentences, as spelled and in lower case.

    A line holds a word and its numbers, separated by blanks. A first line of two whole numbers, as in word2vec files,
    is skipped. Only the words needed are kept, so that a file of gigabytes takes little memory.

    Args:
        path: Path of the text file.
        sentences: Sentences whose words are needed.

    Raises:
        UserError: If the file cannot be read, a line is not a word with as many numbers as the others, a number is not
            finite or above 1e30, or the file has no word of the sentences.
    """
    needed = {form for sentence in sentences for word in _words(sentence) for form in (word, word.lower())}
    rows: dict[str, int] = {}
    vectors: list[list[float]] = []
    width = None
    try:
        with open_file(path, "r", encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), 1):
                cells = line.rstrip().split(" ")
                if number == 1 and len(cells) == 2 and all(map(str.isdigit, cells)):
                    continue
                width = width or len(cells) - 1
                word = " ".join(cells[:-width])
                # Some of GloVe's words have blanks in them; a number behind one is one too many.
                if not word or width < 1 or (" " in word and _is_number(word.split(" ")[-1])):
                    raise _malformed(path, number, width)
                if word in needed and word not in rows:
                    rows[word] = len(vectors)
                    vectors.append(_numbers(cells[-width:], path, number, width))
    except (OSError, ValueError) as error:  # ValueError: the file is not UTF-8, or the path has a NUL character
        reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", str(error))
        raise UserError(f"`--static {path}` cannot be read ({reason}); give a text file of word vectors.") from None
    if not vectors:
        raise UserError(f"`--static {path}` has none of the words of the data; give vectors of its language.")
    return StaticVectors(rows, torch.tensor(vectors))


def _numbers(cells: Sequence[str], path: str, number: int, width: int) -> list[float]:
    try:
        values = [float(cell) for cell in cells]
    except ValueError:
        raise _malformed(path, number, width) from None
    if not all(abs(value) <= LARGEST for value in values):  # NaN is not, either
        raise _malformed(path, number, width)
    return values


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _malformed(path: str, number: int, width: int) -> UserError:
    return UserError(
        f"`--static {path}`: line {number} is not a word followed by {width} numbers that are finite and at most "
        f"{LARGEST:g}; give vectors in GloVe's format, as text."
    )
