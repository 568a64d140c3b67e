"""Tasks whose labels are counted from 0: the position of a token in its sentence, from its end, in its word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probing.errors import out_of_range, refuse
from probing.text import Corpus
from probing.text.tasks import Labels, Task
from probing.text.tokens import Tokens


@dataclass(frozen=True)
class Numbered(Task):
    """Take as classes the numbers with enough examples.

    Args:
        min_count: Training examples a number needs to be a class; by default 50, fewer on a small corpus (a twentieth
            of its training sentences), never under 5.
        max_position: Highest number that can be a class.
    """

    max_position: int | None = None

    def __post_init__(self) -> None:
        """Refuse values that are out of range."""
        refuse(
            out_of_range("task_args.min_count", self.min_count, 1)
            + out_of_range("task_args.max_position", self.max_position, 1)
        )

    # Classes are numbers: an error of one is smaller than an error of ten.
    ordinal = True

    def classes(self, labels: Labels, n_sentences: int) -> Labels:
        """Return the numbers with enough training examples, ascending; `labels` has -1 for tokens without a label."""
        numbers = np.asarray(super().classes(labels, n_sentences))
        return numbers if self.max_position is None else numbers[numbers <= self.max_position]


@dataclass(frozen=True)
class Position(Numbered):
    """Index of a token in its tokenised sentence, from 0, including special tokens; other arguments as in `Numbered`.

    BERT's first word piece is therefore at 1. The index is not the model's `position_ids`, which in RoBERTa start after
    the padding index.

    Args:
        special_tokens: Whether special tokens such as [CLS] and </s> are examples. The first marks position 0 and the
            last the length of the sentence, so they are excluded by default.
    """

    special_tokens: Literal["exclude", "include"] = "exclude"

    def labels(self, tokens: Tokens, corpus: Corpus) -> NDArray[np.int64]:
        """Return the position of each token, -1 if it is not an example; shape (n_tokens,)."""
        positions = tokens.positions.astype(np.int64)
        return positions if self.special_tokens == "include" else np.where(tokens.special, -1, positions)


@dataclass(frozen=True)
class PositionFromEnd(Position):
    """Number of tokens, including special tokens, that follow in the tokenised sentence: 0 for its last token.

    The last special token marks 0 and the first the length of the sentence, so they are excluded by default.
    """

    def labels(self, tokens: Tokens, corpus: Corpus) -> NDArray[np.int64]:
        """Return the distance of each token, -1 if it is not an example; shape (n_tokens,)."""
        distances: NDArray[np.int64] = np.repeat(tokens.lengths, tokens.lengths).astype(np.int64) - 1 - tokens.positions
        return distances if self.special_tokens == "include" else np.where(tokens.special, -1, distances)


@dataclass(frozen=True)
class PositionInWord(Numbered):
    """Index of a word piece in its word, from 0; the tokenizer or the treebank defines words."""

    def labels(self, tokens: Tokens, corpus: Corpus) -> NDArray[np.int64]:
        """Return the index of each piece in its word, -1 for special tokens; shape (n_tokens,)."""
        indices = np.arange(tokens.n_tokens)
        index = indices - np.maximum.accumulate(np.where(tokens.first_pieces, indices, 0))
        return np.where(tokens.special, -1, index)
