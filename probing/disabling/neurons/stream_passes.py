"""Forward passes over a text with neurons of a layer changed; all readouts of this text share a pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

from probing.disabling.neurons.neuron_sets import NeuronSet
from probing.disabling.neurons.stream import Moves, NeuronsChanged, Place, Values, changed_tokens
from probing.readouts.forward import Forward, Readers
from probing.readouts.later_blocks import LaterBlocks
from probing.readouts.readout import ReadableText, Reading
from probing.readouts.text import Padded, draw_others


class Read(Protocol):
    """A readout of later layers: a `probing.readouts.readout.Readout`, or one that gives several rows for a layer."""

    def layers(self, block: int) -> list[int]:
        """Return the layers whose hidden states are needed when this block is the first one that is changed."""
        ...

    def begin(self, layers: Sequence[int]) -> Reading:
        """Begin a reading of these layers."""
        ...


class NeuronPasses:
    """Runs the later blocks of a model over a text, once for each set of neurons.

    Args:
        readers: The model.
        text: The sentences that are read.
        values: Returns a layer's values at training tokens, from which replacements are taken.
        is_train: Whether `text` is the training text that these values are from.
        at: At which tokens neurons are changed.
        batch_tokens: Most tokens in a batch, padding included.
        seed: Seed of the draw of the tokens whose values replace others.
        drawn: Index of the token whose values replace those of each token, shape (n_tokens,); drawn at random by
            default.
        moves: The classes between which the tokens of the text are moved, if they are.
    """

    def __init__(
        self, readers: Readers, text: ReadableText, values: Callable[[int], Values], is_train: bool, at: Place,
        batch_tokens: int, seed: int, moves: Moves | None = None, drawn: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.moves = moves
        self.forward, self.values = Forward(readers, text, batch_tokens), values
        self.tokens = text.tokens
        self.d_model = int(readers.model.encoder.config.hidden_size)  # type: ignore[union-attr,arg-type]
        self.where = torch.from_numpy(changed_tokens(text.tokens, at))
        own = text.tokens.sentences
        # For each token of the text, the training token whose values replace its own.
        self.drawn = cache(
            lambda layer: torch.from_numpy(draw_others(own, values(layer).sentences, is_train, seed))
            if drawn is None else drawn
        )  # fmt: skip

    def change(self, one: NeuronSet) -> NeuronsChanged:
        """Return the change of the model that replaces the values of these neurons."""
        replace = self.values(one.layer).replace(one.kind, one.neurons, self.drawn(one.layer), self.moves)
        return NeuronsChanged(one.layer, one.neurons, replace, self.where)

    def run(self, one: NeuronSet, reads: Sequence[Read]) -> Tensor:
        """Return the results of all readouts of this text, stacked, shape (n_rows, n_items)."""
        change = self.change(one)
        needed = [read.layers(one.layer + 1) for read in reads]
        readings = [read.begin(layers) for read, layers in zip(reads, needed, strict=True)]
        every = sorted({layer for layers in needed for layer in layers})

        def take(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            found: Mapping[int, Tensor] = change.later(model, batch, beside, states, every)
            for reading in readings:
                reading.take(found, batch)

        self.forward.over(one.layer, take)
        return torch.cat([reading.sums().double() for reading in readings])

    def states(self, one: NeuronSet, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the hidden states of some layers while neurons are changed, shape (n_tokens, d_model), float32."""
        return self.forward.states(self.change(one), layers)
