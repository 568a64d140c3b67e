"""The length of the longest sequence that a model accepts, also where its configuration does not say it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from probing.errors import UserError, as_clause

if TYPE_CHECKING:
    from torch import Tensor, nn


# Names that configurations have for the length of the longest sequence; of several, the first counts.
_NAMES = (
    "max_encoder_position_embeddings", "max_position_embeddings", "max_source_positions", "n_positions", "n_ctx",
    "max_seq_len", "max_seq_length", "seq_length", "context_length", "model_max_length", "max_sequence_length",
    "max_target_positions",
)  # fmt: skip


def max_length_of(config: Any, tokenizer: Any, make: Callable[[Any], Any] | None = None) -> int:
    """Return the length of the longest sequence that the model accepts, special tokens included.

    Models with only relative positions have no limit; transformers then gives 10^30.

    Args:
        config: The model's configuration.
        tokenizer: Its tokenizer.
        make: Function that builds a model from a configuration; by default, `AutoModel` builds it.
    """
    limits = [tokenizer.model_max_length]
    named = (getattr(config, name, None) for name in _NAMES)
    rows = next((rows for rows in named if isinstance(rows, int) and rows > 0), 0)  # XLNet says -1
    if rows:
        limits.append(rows - _rows_before_the_first_position(config, rows, make))
    return int(min(limits))


def _rows_before_the_first_position(config: Any, rows: int, make: Callable[[Any], Any] | None) -> int:
    """Return the number of rows of the position table that are not positions.

    In RoBERTa and similar models, the row of position 0 follows that of the padding token, whose index is the table's
    `padding_idx`.
    """
    # Not only `nn.Embedding` has a padding index: I-BERT's table is quantised.
    tables = (
        module
        for name, module in outline(config, make).named_modules()
        if "position" in name and getattr(getattr(module, "weight", None), "shape", ())[:1] == (rows,)
    )
    behind = (getattr(table, "padding_idx", None) for table in tables)
    return next((index + 1 for index in behind if index is not None), 0)


def outline(config: Any, make: Callable[[Any], Any] | None) -> Any:
    """Return a model of a configuration whose tensors have shapes and no values.

    Args:
        config: The configuration.
        make: Function that builds a model from it; by default, `AutoModel` builds it.
    """
    import torch
    from transformers import AutoModel

    with torch.device("meta"):
        return make(config) if make else AutoModel.from_config(config, trust_remote_code=False)


@contextmanager
def telling_the_longest(encoder: nn.Module, inputs: Mapping[str, Tensor]) -> Iterator[None]:
    """Turn the error of a model that takes no sequences of this length into one that says which it takes.

    It is found by running the model, because not every configuration names it.

    Args:
        encoder: The encoder.
        inputs: What it is given.

    Raises:
        UserError: If it does not run on any tokens of this length.
    """
    import torch

    try:
        yield
    except UserError:
        raise
    except Exception as error:  # each family raises its own types
        n_tokens = inputs["input_ids"].shape[1]
        longest = None
        if not isinstance(error, torch.OutOfMemoryError) and "alloc" not in str(error):
            longest = _longest(encoder, inputs["input_ids"])
        if longest is None:
            raise
        kind = encoder.config.model_type  # type: ignore[union-attr]
        raise UserError(
            f"this model ({kind}) takes at most {longest} tokens, as running it shows (with more: {as_clause(error)}), "
            f"and the text has a sentence of {n_tokens}; give `--max_length {longest}`."
        ) from None


def _longest(encoder: nn.Module, input_ids: Tensor) -> int | None:
    """Return the longest sequence of fewer tokens that an encoder runs on; None if it runs on so many, or on none."""
    import torch

    n_tokens, token = input_ids.shape[1], input_ids[:1, :1]

    def runs(length: int) -> bool:
        repeated = token.expand(1, length)
        try:
            encoder(input_ids=repeated, attention_mask=torch.ones_like(repeated))
        except Exception:  # what else it cannot do was found by `examine`
            return False
        return True

    if n_tokens < 2 or runs(n_tokens) or not runs(1):
        return None
    return bisect_left(range(n_tokens), True, lo=2, key=lambda length: not runs(length)) - 1
