"""The length of the longest sequence that a model accepts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def max_length_of(config: Any, tokenizer: Any, make: Callable[[Any], Any] | None = None) -> int:
    """Return the length of the longest sequence that the model accepts, special tokens included.

    Models with only relative positions have no limit; transformers then gives 10^30.

    Args:
        config: The model's configuration.
        tokenizer: Its tokenizer.
        make: Function that builds a model from a configuration; by default, `AutoModel` builds it.
    """
    rows = getattr(config, "max_position_embeddings", None) or 0
    limits = [tokenizer.model_max_length]
    if rows > 0:  # XLNet says -1
        limits.append(rows - _rows_before_the_first_position(config, rows, make))
    return int(min(limits))


def _rows_before_the_first_position(config: Any, rows: int, make: Callable[[Any], Any] | None) -> int:
    """Return the number of rows of the position table that are not positions.

    In RoBERTa and similar models, the row of position 0 follows that of the padding token, whose index is the table's
    `padding_idx`.
    """
    import torch
    from torch import nn
    from transformers import AutoModel

    with torch.device("meta"):  # creates the modules without memory for weights
        model = make(config) if make else AutoModel.from_config(config, trust_remote_code=False)
    tables = (
        module
        for name, module in model.named_modules()
        if "position" in name and isinstance(module, nn.Embedding) and module.num_embeddings == rows
    )
    return next((table.padding_idx + 1 for table in tables if table.padding_idx is not None), 0)
