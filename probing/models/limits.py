"""Limits of what a model reads: the length of a sequence, and the ids of tokens."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from probing.errors import UserError
from probing.models.loading import build, load_config
from probing.models.max_length import max_length_of, outline
from probing.models.objects import encoder_in
from probing.models.source import ModelSource, building

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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


def check_ids(source: ModelSource, tokenizer: Any, input_ids: NDArray[np.integer]) -> None:
    """Check that the model has a vector for each token of a text.

    Args:
        source: The model's files.
        tokenizer: Its tokenizer.
        input_ids: The ids of the tokens, of any shape.

    Raises:
        UserError: If it has none for some token, which is then named.
    """
    rows = None
    with building(source), suppress(AttributeError, NotImplementedError):  # some models name no table of tokens
        model = encoder_in(outline(load_config(source), partial(build, source)))
        rows = int(model.get_input_embeddings().weight.shape[0])
    if rows is not None and input_ids.size and (most := int(input_ids.max())) >= rows:
        raise UserError(
            f"`--model {source.name}`: its tokenizer gives `{tokenizer.convert_ids_to_tokens(most)}` the id {most}, "
            f"and the model has vectors for ids 0 to {rows - 1}; give the model's own tokenizer, or save the model "
            "after `resize_token_embeddings`."
        )
