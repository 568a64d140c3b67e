"""The interfaces of a readout and of a change of a model, and the later blocks that run with the change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.cache.extraction import copies_for_readers, padded_index, share_out
from probing.cache.store import batches
from probing.cache.tokens import Tokens
from probing.data.examples import Activations
from probing.readouts.later_blocks import LaterBlocks

# --------------------------------------------------------------------------------------------------------------------
# The sentences that are read, in batches, and the hidden states that the cache has of them.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Padded:
    """Sentences that are read together, the shorter ones padded at the end.

    Args:
        sentences: Index of each sentence in the text, shape (batch,).
        rows: Index of each token in the text, shape (batch, sequence); 0 for padding.
        mask: Whether there is a token, shape (batch, sequence).
        input_ids: Token ids, shape (batch, sequence).
        token_types: Which sentence of a pair each token is of, as the model takes it, shape (batch, sequence); None
            where it is not told.
    """

    sentences: Tensor
    rows: Tensor
    mask: Tensor
    input_ids: Tensor
    token_types: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """What the encoder takes."""
        types = {} if self.token_types is None else {"token_type_ids": self.token_types}
        return {"input_ids": self.input_ids, "attention_mask": self.mask.long(), **types}


def padded(tokens: Tokens, sentences: NDArray[np.int64], pad_token_id: int, device: Any = "cpu") -> Padded:
    """Return some sentences as a batch; one may be there several times.

    Args:
        tokens: The table of tokens.
        sentences: Index of each sentence, shape (batch,).
        pad_token_id: Id of the padding token.
        device: Where the batch is put.
    """
    rows, mask = padded_index(tokens.lengths, sentences)
    ids = torch.where(mask, torch.from_numpy(tokens.input_ids[rows.numpy()].astype(np.int64)), pad_token_id)
    types = None
    if tokens.token_types is not None:
        types = torch.where(mask, torch.from_numpy(tokens.token_types[rows.numpy()].astype(np.int64)), 0).to(device)
    return Padded(torch.from_numpy(sentences).to(device), rows.to(device), mask.to(device), ids.to(device), types)


def padded_batches(
    tokens: Tokens, batch_tokens: int, pad_token_id: int, with_padding: bool, device: Any = "cpu"
) -> list[Padded]:
    """Return all sentences in batches of similar length.

    Args:
        tokens: The table of tokens.
        batch_tokens: Most tokens in a batch, padding included.
        pad_token_id: Id of the padding token.
        with_padding: Whether sentences of different lengths may share a batch.
        device: Where the batches are put.
    """
    order = batches(tokens.lengths, batch_tokens, with_padding)
    return [padded(tokens, sentences, pad_token_id, device) for sentences in order]


@dataclass(frozen=True, eq=False)
class Text:
    """Some sentences of a corpus.

    Args:
        store: The activations of the corpus.
        kept: Index of each sentence in the corpus, ascending.
        n_types: Of pairs, how many token types the model is given; 0 if none.
    """

    store: Activations
    kept: NDArray[np.int64]
    n_types: int = 0

    @cached_property
    def of_corpus(self) -> NDArray[np.int64]:
        """Row of each token of the text in the corpus's table of tokens, shape (n_tokens,)."""
        return np.flatnonzero(np.isin(self.store.tokens.sentences, self.kept))

    @cached_property
    def tokens(self) -> Tokens:
        """The text's own table of tokens."""
        whole, rows = self.store.tokens, self.of_corpus
        types = whole.types_for(self.n_types)
        return Tokens(
            whole.lengths[self.kept], whole.input_ids[rows], whole.words[rows],
            token_types=None if types is None else types[rows],
        )  # fmt: skip

    def batches(self, batch_tokens: int, pad_token_id: int, with_padding: bool, device: Any = "cpu") -> list[Padded]:
        """Return the sentences in batches of similar length.

        Args:
            batch_tokens: Most tokens in a batch, padding included.
            pad_token_id: Id of the padding token.
            with_padding: Whether sentences of different lengths may share a batch.
            device: Where the batches are put.
        """
        return padded_batches(self.tokens, batch_tokens, pad_token_id, with_padding, device)

    def states(self, layer: int) -> Tensor:
        """Return the cached hidden states of a layer, shape (n_tokens, d_model), float32."""
        rows = self.of_corpus
        states = torch.empty(len(rows), self.store.plan.d_model)
        for shard in self.store.plan.shards:
            here = self.store.shard_tokens(shard)
            inside = np.flatnonzero((rows >= here.start) & (rows < here.stop))
            if len(inside):
                picked = torch.from_numpy(rows[inside] - here.start)
                states[torch.from_numpy(inside)] = self.store.read(layer, shard.index).index_select(0, picked).float()
        return states


def draw_text(store: Activations, candidates: NDArray[np.bool_], at_most: int, seed: int, n_types: int = 0) -> Text:
    """Draw sentences, whole ones, until the next would exceed a number of tokens.

    Args:
        store: The activations of the corpus.
        candidates: Which of its sentences may be drawn, shape (n_sentences,); one is drawn even if it is longer.
        at_most: Most tokens that are drawn.
        seed: Seed of the draw.
        n_types: Of pairs, how many token types the model is given; 0 if none.
    """
    lengths = store.tokens.lengths
    there = np.flatnonzero(candidates & (lengths > 0))
    order = np.random.default_rng(seed).permutation(there)
    n = max(1, int((np.cumsum(lengths[order], dtype=np.int64) <= at_most).sum()))
    return Text(store, np.sort(order[:n]), n_types)


def draw_others(sentences: NDArray[Any], others: NDArray[Any], is_same_text: bool, seed: int) -> NDArray[np.int64]:
    """Draw for each token a token of another sentence that replaces it.

    Args:
        sentences: Index of the sentence of each token, shape (n,).
        others: The same of the tokens that are drawn from, shape (n_others,).
        is_same_text: Whether both are the same sentences; tokens of a token's own sentence are then not drawn for it.
        seed: Seed of the draw.

    Returns:
        Index of the token that is drawn for each, shape (n,).
    """
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(others), size=len(sentences))
    if is_same_text and len(np.unique(others)) > 1:
        while (same := sentences == others[drawn]).any():
            drawn[same] = generator.integers(len(others), size=int(same.sum()))
    return drawn


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
