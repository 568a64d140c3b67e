"""The interfaces of a readout and of a change of a model, which `probing.readouts.forward` brings together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

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
        """Its name in tables; `probing.tables.readout_names.measure_of` tells what its numbers are."""
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
