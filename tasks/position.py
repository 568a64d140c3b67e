"""Where a token stands in its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.errors import out_of_range, refuse


@dataclass(frozen=True)
class Position:
    """Index of a token in its tokenised sentence, counted from 0 with special tokens counted too.

    So BERT's first word piece is at 1. It is never the model's own `position_ids`, which in
    RoBERTa start behind the padding index.

    Args:
        special_tokens: Whether [CLS], </s> and their kin are examples. The first marks position 0
            and the last the sentence's length, so both are left out by default.
        min_count: Training examples a position needs to be a class; by default 50, fewer on a
            small corpus (a twentieth of its training sentences), never under 5.
        max_position: Highest position that can be a class.
    """

    special_tokens: Literal["exclude", "include"] = "exclude"
    min_count: int | None = None
    max_position: int | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that leave nothing to tell apart."""
        refuse(
            out_of_range("task_args.min_count", self.min_count, 1)
            + out_of_range("task_args.max_position", self.max_position, 1)
        )

    # Classes are numbers: being off by one is better than being off by ten.
    ordinal = True

    def labels(self, tokens: Tokens) -> NDArray[np.int64]:
        """Return the position of each token, -1 where it is no example; shape (n_tokens,)."""
        positions = tokens.positions.astype(np.int64)
        return positions if self.special_tokens == "include" else np.where(tokens.special, -1, positions)

    def classes(self, labels: NDArray[np.int64], n_sentences: int) -> NDArray[np.int64]:
        """Return the positions with enough training examples, ascending.

        Args:
            labels: Of the training tokens, -1 where there is none.
            n_sentences: Training sentences.
        """
        counts = np.bincount(labels[labels >= 0])
        positions = np.flatnonzero(counts >= self.threshold(n_sentences))
        return positions if self.max_position is None else positions[positions <= self.max_position]

    def threshold(self, n_sentences: int) -> int:
        """Return the training examples a position needs."""
        return self.min_count if self.min_count is not None else min(50, max(5, n_sentences // 20))
