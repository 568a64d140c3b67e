"""Limits of the sequence length."""

from __future__ import annotations

from functools import partial
from typing import Any

from probing.errors import UserError
from probing.models.loading import build, load_config
from probing.models.max_length import max_length_of
from probing.models.source import ModelSource, building


def length_limits(source: ModelSource, tokenizer: Any) -> tuple[int, int]:
    """Return the lengths of the shortest sequence that holds a word and of the longest that the model accepts.

    Both include special tokens.

    Raises:
        UserError: If the longest sequence does not hold a word.
    """
    with building(source):
        longest = max_length_of(load_config(source), tokenizer, partial(build, source))
    # With a maximum length that leaves no room for a word, tokenizers do not truncate at all.
    least = int(tokenizer.num_special_tokens_to_add()) + 1
    if longest < least:
        raise UserError(
            f"`--model {source.name}` takes {longest} tokens by its config.json and tokenizer_config.json, "
            "which leaves no room for a word; check the folder."
        )
    return least, longest
