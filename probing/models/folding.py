"""Which words are one and the same to a model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def word_folding(tokenizer: Any) -> Callable[[str], str]:
    """Return what makes of a word what the model sees of it: an uncased tokenizer lowers its case and drops accents.

    Args:
        tokenizer: A fast tokenizer, whose own normaliser does that.
    """
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str if normalizer is None else normalizer.normalize_str
