"""What a model is given beside token ids and the attention mask."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from probing.models.copies import with_the_same_weights
from probing.models.examination import SAME, examination_inputs, largest_change
from probing.models.outputs import run

if TYPE_CHECKING:
    from torch import nn

# Number of token type ids that is assumed if the configuration gives none. XLNet needs no limit: it only compares
# whether two tokens have the same type.
_ANY_TYPE = 2**7


def n_token_types(encoder: nn.Module, tokenizer: Any, of_pairs: bool = False) -> int:
    """Return how many token type ids an encoder is given, as in `encoder(**tokenizer(text))`; 0 if none.

    For pairs, tokenizers compute types even if they do not return them. An encoder is given these if it tells the two
    sentences apart by them. Its argument `token_type_ids` alone does not show this: RoBERTa has a single type, and
    GPT-2 treats a type as a token id, whose embedding it adds. So a copy is run with all types 0, which must give the
    same hidden states as no types.

    Args:
        encoder: A model in evaluation mode.
        tokenizer: Its tokenizer.
        of_pairs: Whether it reads pairs of sentences.
    """
    import torch

    n_types = int(getattr(encoder.config, "type_vocab_size", _ANY_TYPE))
    if "token_type_ids" not in signature(encoder.forward).parameters:
        return 0
    if "token_type_ids" in tokenizer.model_input_names:
        return n_types
    if not of_pairs or n_types < 2:
        return 0
    inputs = examination_inputs(encoder, tokenizer.pad_token_id or 0)
    alone = {name: values[:1] for name, values in inputs.items()}  # the first sequence has no padding
    with torch.inference_mode():
        copy = with_the_same_weights(encoder)
        plain = run(copy, alone).last
        zeros = run(copy, {**alone, "token_type_ids": torch.zeros_like(alone["input_ids"])}).last
    # Equal but for rounding: with zeros XLNet adds a constant to what a softmax takes, in any dtype.
    return n_types if largest_change(zeros, plain) <= max(SAME, 8 * torch.finfo(plain.dtype).eps) else 0
