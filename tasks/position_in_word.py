"""The index of a token among the pieces of its word."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus

from .numbered import Numbered


@dataclass(frozen=True)
class PositionInWord(Numbered):
    """Index of a word piece in its word, from 0. Words are those of the tokenizer, or of the treebank.

    Args:
        min_count: Training examples an index needs to be a class; by default 50, fewer on a small
            corpus (a twentieth of its training sentences), never under 5.
        max_position: Highest index that can be a class.
    """

    def labels(self, tokens: Tokens, corpus: Corpus) -> NDArray[np.int64]:
        """Return the index of each piece in its word, -1 for special tokens; shape (n_tokens,)."""
        indices = np.arange(tokens.n_tokens)
        index = indices - np.maximum.accumulate(np.where(tokens.first_pieces, indices, 0))
        return np.where(tokens.special, -1, index)
