"""Which piece of its word a token is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probing.cache.tokens import Tokens
from probing.corpus import Corpus

from .numbered import Numbered


@dataclass(frozen=True)
class PositionInWord(Numbered):
    """Index of a word piece in its word, from 0, by the tokenizer's words or those of a treebank.

    Args:
        min_count: Training examples an index needs to be a class; by default 50, fewer on a small
            corpus (a twentieth of its training sentences), never under 5.
        max_position: Highest index that can be a class.
    """

    def labels(self, tokens: Tokens, corpus: Corpus) -> NDArray[np.int64]:
        """Return the index of each piece in its word, -1 for special tokens; shape (n_tokens,)."""
        places = np.arange(tokens.n_tokens)
        index = places - np.maximum.accumulate(np.where(tokens.first_pieces, places, 0))
        return np.where(tokens.special, -1, index)
