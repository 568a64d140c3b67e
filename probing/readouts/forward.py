"""The interfaces of a readout and of a change of a model, and the later blocks that run with the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.extraction import copies_for_readers, share_out
from probing.cache.tokens import Tokens
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.text import Padded

# Takes the last hidden states, shape (batch, sequence, d_model), and returns a loss of each sentence, shape (batch,).
Loss = Callable[[Tensor], Tensor]


class ReadableText(Protocol):
    """Sentences with the hidden states that the intact model has of them."""

    @property
    def tokens(self) -> Tokens:
        """The table of tokens."""
        ...

    def batches(self, batch_tokens: int, pad_token_id: int, with_padding: bool, device: Any = "cpu") -> list[Padded]:
        """Return the sentences in batches of similar length."""
        ...

    def states(self, layer: int) -> Tensor:
        """Return the hidden states of a layer, shape (n_tokens, d_model), float32."""
        ...


class Change(Protocol):
    """Something that is changed in a model from one layer on."""

    @property
    def layer(self) -> int:
        """The layer from whose hidden states, in the intact model, the change starts."""
        ...

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> Mapping[int, Tensor]:
        """Return the hidden states of later layers while something is changed; called from several threads.

        Args:
            model: The model, or a copy that another thread does not use.
            batch: The sentences.
            beside: What blocks hand on beside hidden states, for `LaterBlocks.run`.
            states: The hidden states of `layer`, shape (batch, sequence, d_model).
            layers: The layers that are needed.
        """
        ...


class Reading(Protocol):
    """What is read of a model in one state; every batch of the text is given to it once."""

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        """Take the hidden states of a batch, by layer; several threads call this, with different batches."""
        ...

    def sums(self) -> Tensor:
        """Return the sum of the measure over the examples of each item, shape (n_layers, n_items), on the CPU."""
        ...


class Readout(Protocol):
    """A measure of what later layers still give, over a text of its own.

    Its items, which are paired between the intact and the changed model, are the sentences of the text, or pairs of
    them. The measure is the sum over items of what a reading gives, over the sum of `n`.
    """

    @property
    def name(self) -> str:
        """Its name in tables; `probing.readouts.names.measure_of` tells what its numbers are."""
        ...

    @property
    def text(self) -> ReadableText:
        """The sentences that are read."""
        ...

    @property
    def n(self) -> NDArray[np.int64]:
        """Number of examples of each item, shape (n_items,)."""
        ...

    @property
    def content(self) -> tuple[NDArray[Any], ...]:
        """Everything except the model that determines the results, for the keys of caches."""
        ...

    def layers(self, block: int) -> list[int]:
        """Return the layers that are read when this block is the first one that is changed, ascending."""
        ...

    def begin(self, layers: Sequence[int]) -> Reading:
        """Begin a reading of some of these layers."""
        ...

    @property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sentences that the loss reads, and the item of each, both of shape (n_occurrences,)."""
        ...

    def loss(self, batch: Padded, occurrences: NDArray[np.int64]) -> Loss:
        """Return a loss; an item's gradient is the sum of those of its occurrences, and 0 for an item without examples.

        Args:
            batch: The sentences of some occurrences, with padding.
            occurrences: The index of each, shape (batch,).
        """
        ...


# Called with a reader's model, the batch, what blocks pass on in addition to hidden states, and the hidden states.
Read = Callable[[LaterBlocks, Padded, Any, Tensor], None]


@dataclass(frozen=True)
class Readers:
    """Copies of a model with the same weights, each for a thread.

    Args:
        each: Each encoder, with the object that runs its later blocks.
        pad_token_id: Id of the padding token.
        device: Where they are.
    """

    each: Sequence[tuple[nn.Module, LaterBlocks]]
    pad_token_id: int
    device: torch.device

    @classmethod
    def of(cls, encoder: nn.Module, pad_token_id: int, name: str) -> Readers:
        """Return the readers of an encoder, in evaluation mode and float32; its weights are not changed.

        Args:
            encoder: The encoder.
            pad_token_id: Id of the padding token.
            name: The model's name as the user typed it, for messages.

        Raises:
            UserError: If the model's blocks or heads cannot be told.
        """
        device = next(encoder.parameters()).device
        model = LaterBlocks.of(encoder, pad_token_id, name)
        copies = copies_for_readers(encoder, device)
        return cls([(one, model.of_copy(one)) for one in copies], pad_token_id, device)

    @property
    def model(self) -> LaterBlocks:
        """The model itself, which the first reader runs."""
        return self.each[0][1]


@dataclass(frozen=True)
class Intact:
    """No change: the intact model, with which changed models are compared.

    Args:
        layer: The layer from whose hidden states the later blocks are run.
    """

    layer: int

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return later hidden states."""
        return model.run(batch.inputs, self.layer + 1, states, beside, layers)


class Forward:
    """Runs the later blocks of a model over a text.

    Args:
        readers: The model.
        text: The sentences.
        batch_tokens: Most tokens in a batch, padding included.
    """

    def __init__(self, readers: Readers, text: ReadableText, batch_tokens: int) -> None:
        self.readers, self.text, model = readers, text, readers.model
        neutral = model.anatomy.padding_is_neutral
        self.batches = text.batches(batch_tokens, readers.pad_token_id, neutral, readers.device)
        with torch.inference_mode():
            self.beside = [model.beside_states(one.inputs) for one in self.batches]
        self._layer, self._states = -1, torch.empty(0)

    def intact(self, layer: int) -> Tensor:
        """Return the intact model's hidden states of a layer, shape (n_tokens, d_model); those of one are kept."""
        if layer != self._layer:
            self._layer, self._states = layer, self.text.states(layer).to(self.readers.device)
        return self._states

    def over(self, layer: int, read: Read) -> None:
        """Give every batch, with the intact model's hidden states of a layer, to one of the readers."""
        states = self.intact(layer)

        @torch.inference_mode()
        def read_one(encoder: nn.Module, model: LaterBlocks, one: tuple[Padded, Any]) -> None:
            batch, beside = one
            read(model, batch, beside, states[batch.rows])

        share_out(read_one, self.readers.each, zip(self.batches, self.beside, strict=True))

    def read(self, change: Change, readout: Readout) -> Tensor:
        """Return what a readout gives while something is changed, shape (n_layers, n_items).

        Args:
            change: What is changed.
            readout: What is read, of this text. The layers are `readout.layers(change.layer + 1)`.
        """
        layers = readout.layers(change.layer + 1)
        reading = readout.begin(layers)

        def take(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            reading.take(change.later(model, batch, beside, states, layers), batch)

        self.over(change.layer, take)
        return reading.sums()

    def states(self, change: Change, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the hidden states of some layers while something is changed, shape (n_tokens, d_model), float32.

        Args:
            change: What is changed.
            layers: The layers, above that from which the change starts.
        """
        shape = self.text.tokens.n_tokens, self.intact(change.layer).shape[1]
        found = {layer: torch.empty(shape) for layer in layers}

        def keep(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            for layer, here in change.later(model, batch, beside, states, layers).items():
                found[layer][batch.rows[batch.mask].cpu()] = here[batch.mask].float().cpu()

        self.over(change.layer, keep)
        return found
