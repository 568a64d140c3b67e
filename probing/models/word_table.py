"""Finds the table of the tokens' vectors."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from probing.errors import UserError
from probing.models.examination import examination_inputs

if TYPE_CHECKING:
    from torch import nn


def word_table(encoder: nn.Module) -> nn.Module:
    """Return the table of the tokens' vectors: the one that the encoder names, or else the one that is given token ids.

    Raises:
        UserError: If there is none.
    """
    import torch

    # Some encoders are plain modules (FSMT's), and some models name no table.
    with suppress(AttributeError, NotImplementedError):
        named: nn.Module = encoder.get_input_embeddings()  # type: ignore[operator]
        return named
    inputs = examination_inputs(encoder, 0)
    given: list[nn.Module] = []
    tables = [module for module in encoder.modules() if getattr(getattr(module, "weight", None), "ndim", 0) == 2]

    def note(module: nn.Module, args: Any) -> None:
        if args and isinstance(args[0], torch.Tensor) and torch.equal(args[0], inputs["input_ids"]):
            given.append(module)

    handles = [table.register_forward_pre_hook(note) for table in tables]
    try:
        with torch.inference_mode():
            encoder(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    if not given:
        kind = encoder.config.model_type  # type: ignore[union-attr]
        raise UserError(f"{kind} models look up no vector of a token; choose a text model.")
    return given[0]
