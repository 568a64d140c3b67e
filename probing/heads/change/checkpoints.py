"""Another checkpoint of a model: whether the two can be compared, and reading its attention and hidden states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probing.cache import Request, load, tokens_of
from probing.errors import UserError, about_option
from probing.heads.accumulation import AttentionReader
from probing.models import length_limits, load_config, load_tokenizer
from probing.models.anatomy import Anatomy, examine, hidden_states
from probing.models.attention_heads import Heads, read_heads
from probing.models.examination import with_the_same_weights
from probing.runtime.arithmetic import on_float64_device

# Sizes that must be equal in two checkpoints: the name in the configuration, and the words for messages.
_SIZES = {
    "num_hidden_layers": "has {} blocks",
    "num_attention_heads": "has {} heads in a block",
    "hidden_size": "has hidden states of {} neurons",
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint with the sentences that it reads; its weights are loaded when they are first needed.

    Args:
        request: The checkpoint and the corpus.
    """

    request: Request

    @cached_property
    def _loaded(self) -> tuple[nn.Module, int]:
        return load(self.request)

    @cached_property
    def _free(self) -> list[tuple[nn.Module, Anatomy]]:
        return []

    @property
    def encoder(self) -> nn.Module:
        """The model."""
        return self._loaded[0]

    @property
    def pad_token_id(self) -> int:
        """Id of the padding token."""
        return self._loaded[1]

    @cached_property
    def tokenizer(self) -> Any:
        """Its tokenizer."""
        return load_tokenizer(self.request.source)

    @cached_property
    def heads(self) -> Heads:
        """Its heads.

        Raises:
            UserError: If it cannot be loaded or has no attention weights.
        """
        return AttentionReader.of(*self._loaded, self.request.source.name).heads

    def prepared(self) -> Checkpoint:
        """Load the model now, and return this object; otherwise several threads would each load it at the same time."""
        _ = self.heads, self._free
        return self

    @contextmanager
    def _own(self, device: torch.device) -> Iterator[tuple[nn.Module, Anatomy]]:
        """Yield a copy that shares the weights of the model and is not used by another thread at the same time."""
        # Parameters move for all copies, buffers for one: a copy is run, and examined too, only once it has moved.
        try:
            one = self._free.pop()
            one[0].to(device)
        except IndexError:
            encoder = with_the_same_weights(self.encoder).to(device)
            one = encoder, examine(encoder, self.pad_token_id, self.request.source.name)
        yield one
        self._free.append(one)

    def maps(self, inputs: Mapping[str, Tensor], first: int = 1, last: int | None = None) -> dict[int, Tensor]:
        """Return the attention of some blocks, each of shape (batch, heads, from, to), rows of padding included.

        Args:
            inputs: What the model is given, such as `Batch.inputs`.
            first: The first block.
            last: The last block; None for the model's last block.
        """
        held: dict[int, Tensor] = {}

        def give(layer: int, probabilities: Tensor, values: Tensor) -> None:
            if first <= layer <= (last or layer):
                held[layer] = on_float64_device(probabilities).clone()

        with self._own(inputs["input_ids"].device) as (encoder, _):
            read_heads(encoder, self.heads, give, inputs)
        return held

    def states(self, inputs: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Return the hidden states of all layers, each of shape (batch, sequence, d_model); padding is undefined.

        Args:
            inputs: What the model is given, such as `Batch.inputs`.
        """
        with self._own(inputs["input_ids"].device) as (encoder, anatomy):
            found = hidden_states(encoder, anatomy, range(anatomy.n_layers + 1), **inputs)
        return {layer: on_float64_device(values) for layer, values in found.items()}

    def matrices(self) -> dict[str, tuple[int | None, Tensor]]:
        """Return the layer, None outside of blocks, and the values of each matrix of parameters, by its name.

        The pooler is left out: it comes after all hidden states, and if a checkpoint has none, it is initialised at
        random.
        """
        with self._own(next(self.encoder.parameters()).device) as (encoder, anatomy):
            blocks = anatomy.blocks or ()
        names = {module: name for name, module in encoder.named_modules()}
        # A block that is called for several layers belongs to none.
        layers = {f"{names[block]}.": k for k, block in enumerate(blocks, 1) if blocks.count(block) == 1}
        return {
            name: (next((k for begin, k in layers.items() if name.startswith(begin)), None), values.detach())
            for name, values in encoder.named_parameters()
            if values.ndim > 1 and "pooler" not in name
        }


def check_comparable(request: Request, heads: Heads, other: Checkpoint, option: str = "--against") -> None:
    """Raise a UserError unless two checkpoints have the same tokens, blocks and heads.

    Args:
        request: A checkpoint and the corpus.
        heads: Its heads.
        other: The other checkpoint, with the same corpus.
        option: The option that names the other one, for messages.
    """
    typed, name = f"`{option} {other.request.source.name}`", request.source.name
    with about_option(option):
        theirs: Any = load_config(other.request.source)
        mine: Any = load_config(request.source)
        for field, said in _SIZES.items():
            size, own = (getattr(config, field, None) for config in (theirs, mine))
            if size != own:
                raise UserError(
                    f"{typed} {said.format(size)}, and {name} {said.format(own)}; give two checkpoints of one model."
                )
        _check_tokens(request, other.request, typed)
        found = other.heads
    if (found.n_layers, found.n_heads) != (heads.n_layers, heads.n_heads):
        raise UserError(
            f"{typed} has {found.n_layers} blocks of {found.n_heads} heads, and {name} has {heads.n_layers} of "
            f"{heads.n_heads}; give two checkpoints of one model."
        )


def _check_tokens(request: Request, other: Request, typed: str) -> None:
    tokenizers = [load_tokenizer(one.source) for one in (request, other)]
    both = list(zip((request, other), tokenizers, strict=True))
    ours, theirs = (tokens_of(one, tokenizer) for one, tokenizer in both)
    if np.array_equal(ours.input_ids, theirs.input_ids):
        return
    limits = [length_limits(one.source, tokenizer)[1] for one, tokenizer in both]
    if limits[0] != limits[1] and ours.n_truncated != theirs.n_truncated:
        raise UserError(
            f"{typed} takes {limits[1]} tokens, and {request.source.name} {limits[0]}, so that they would read "
            f"different parts of the longest sentences; add `--max_length {min(limits)}`."
        )
    raise UserError(
        f"{typed} divides the corpus into other tokens than {request.source.name}; give two checkpoints with one "
        "tokenizer."
    )
