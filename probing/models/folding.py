"""The normalisation of words by a tokenizer; a model cannot distinguish words that it maps to the same text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def word_folding(tokenizer: Any) -> Callable[[str], str]:
    """Return the function by which a tokenizer normalises words; an uncased one lowercases and removes accents.

    Args:
        tokenizer: A fast tokenizer.
    """
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str if normalizer is None else normalizer.normalize_str
