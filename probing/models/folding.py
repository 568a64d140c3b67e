"""Which words a model cannot tell apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def word_folding(tokenizer: Any) -> Callable[[str], str]:
    """Return the tokenizer's normaliser of words; that of an uncased tokenizer lowers case and drops accents.

    Args:
        tokenizer: A fast tokenizer.
    """
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str if normalizer is None else normalizer.normalize_str
