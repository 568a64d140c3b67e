"""The position of a token in its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus

from .numbered import Numbered


@dataclass(frozen=True)
class Position(Numbered):
    """Index of a token in its tokenised sentence, counted from 0 and including special tokens.

    BERT's first word piece is therefore at 1. The index is not the model's own `position_ids`, which in RoBERTa start
    after the padding index.

    Args:
        min_count: Training examples a position needs to be a class; by default 50, fewer on a
            small corpus (a twentieth of its training sentences), never under 5.
        max_position: Highest position that can be a class.
        special_tokens: Whether special tokens such as [CLS] and </s> are examples. The first one marks position 0 and
            the last one the length of the sentence, so they are left out by default.
    """

    special_tokens: Literal["exclude", "include"] = "exclude"

    def labels(self, tokens: Tokens, corpus: Corpus) -> NDArray[np.int64]:
        """Return the position of each token, -1 if it is not an example; shape (n_tokens,)."""
        positions = tokens.positions.astype(np.int64)
        return positions if self.special_tokens == "include" else np.where(tokens.special, -1, positions)
