"""Where a token stands in its sentence."""

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
    """Index of a token in its tokenised sentence, counted from 0 with special tokens counted too.

    So BERT's first word piece is at 1. It is never the model's own `position_ids`, which in
    RoBERTa start behind the padding index.

    Args:
        min_count: Training examples a position needs to be a class; by default 50, fewer on a
            small corpus (a twentieth of its training sentences), never under 5.
        max_position: Highest position that can be a class.
        special_tokens: Whether [CLS], </s> and their kin are examples. The first marks position 0
            and the last the sentence's length, so both are left out by default.
    """

    special_tokens: Literal["exclude", "include"] = "exclude"

    def labels(self, tokens: Tokens, corpus: Corpus) -> NDArray[np.int64]:
        """Return the position of each token, -1 where it is no example; shape (n_tokens,)."""
        positions = tokens.positions.astype(np.int64)
        return positions if self.special_tokens == "include" else np.where(tokens.special, -1, positions)
