"""The distance of a token from the end of its sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus

from .position import Position


@dataclass(frozen=True)
class PositionFromEnd(Position):
    """Number of tokens, including special ones, that follow in the tokenised sentence: 0 for its last token.

    Args:
        min_count: Training examples a distance needs to be a class; by default 50, fewer on a
            small corpus (a twentieth of its training sentences), never under 5.
        max_position: Highest distance that can be a class.
        special_tokens: Whether special tokens such as [CLS] and </s> are examples. The last one marks 0 and the first
            one the length of the sentence, so they are left out by default.
    """

    def labels(self, tokens: Tokens, corpus: Corpus) -> NDArray[np.int64]:
        """Return the distance of each token, -1 if it is not an example; shape (n_tokens,)."""
        distances: NDArray[np.int64] = np.repeat(tokens.lengths, tokens.lengths).astype(np.int64) - 1 - tokens.positions
        return distances if self.special_tokens == "include" else np.where(tokens.special, -1, distances)
