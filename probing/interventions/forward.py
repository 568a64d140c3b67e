"""Forward passes of an encoder from one of its blocks on, from given hidden states, with outputs of heads changed.

The blocks below are not computed. The rest of the forward pass is unchanged: masks, what blocks pass on in addition to
the hidden states, and what follows the last block. During the pass, the `forward` of the blocks is replaced; in the
blocks below it only returns the given hidden states. The original `forward` is restored afterwards, also after an
error.

Some families need more of the blocks below than their hidden states, such as shared keys and values (Gemma 4) or what
each router passes to the next (ZAYA). Before a block is first used, the intact model is therefore run from it on a few
tokens; if its last layer differs from the model's, the blocks below are computed, too. In other families the module
that receives the hidden states is a part of the layer (XLM): the outputs of its heads can be replaced, while changes of
whole layers are rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations.extraction import copies_for_readers, padded_index, share_out
from probing.activations.store import batches
from probing.data.examples import HiddenStateSource
from probing.errors import UserError
from probing.models.anatomy import (
    Anatomy,
    StopForward,
    examine,
    hidden_states,
    of_copy,
    replaced_forward,
    stop_at_layer,
)
from probing.models.attention_heads import AttentionWatch, Heads, find_heads
from probing.models.examination import (
    SAME,
    examination_inputs,
    largest_change,
    run,
    vectors_in,
    vectors_received,
    with_the_same_weights,
    with_vectors,
)
from probing.text.tokens import Tokens

OutputChange = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LaterBlocks:
    """An encoder in evaluation mode that can be run from any of its blocks on.

    Args:
        are_layers: Whether each block receives the output of the previous block unchanged, and only a norm follows the
            last block.
        exact: For each block that was used, whether it can be run without the blocks below; shared by copies.
    """

    encoder: nn.Module
    anatomy: Anatomy
    heads: Heads
    pad_token_id: int
    are_layers: bool = True
    exact: dict[int, bool] = field(default_factory=dict)

    @classmethod
    def of(cls, encoder: nn.Module, pad_token_id: int, name: str) -> LaterBlocks:
        """Examine an encoder in evaluation mode.

        Raises:
            UserError: If its blocks or its heads are unknown.
        """
        anatomy = examine(encoder, pad_token_id, name)
        heads = find_heads(encoder, anatomy, pad_token_id, name)
        config: Any = encoder.config
        lacking = None
        if anatomy.blocks is None:
            lacking = "its blocks do not pass the hidden states from one to the next"
        elif heads.projections is None:
            lacking = "its heads' outputs pass through something else than a linear map"
        if lacking:
            raise UserError(
                f"`--model {name}` ({config.model_type}): no head or layer of it can be ablated, because {lacking}; "
                "choose another model."
            )
        later_blocks = cls(encoder, anatomy, heads, pad_token_id)
        return replace(later_blocks, are_layers=later_blocks._copy()._hand_on())

    def of_copy(self, copy: nn.Module) -> LaterBlocks:
        """Return the same for a copy of the encoder, whose blocks need no new examination."""
        return replace(self, encoder=copy, anatomy=of_copy(self.anatomy, self.encoder, copy))

    def runs_from(self, block: int) -> bool:
        """Return True if the intact model, run from a block on, has the same last layer as the whole model."""
        if block not in self.exact:
            self.exact[block] = replace(self._copy(), exact={block: True})._is_exact(block)
        return self.exact[block]

    def check_layers(self, option: str, what: str, name: str) -> None:
        """Reject changes of whole layers if blocks are parts of layers; the arguments are for the message.

        Raises:
            UserError: If a block is a part of a layer.
        """
        if not self.are_layers:
            raise UserError(
                f"`{option}` {what}, and a layer of {name} ({self.encoder.config.model_type}) is spread over several "  # type: ignore[union-attr]
                "modules, so that it is not known where it ends; leave this out, or choose another model."
            )

    @property
    def width(self) -> int:
        """Width of the outputs of all heads of a block."""
        return self.heads.n_heads * self.heads.d_head

    def columns(self, head: int | None) -> slice:
        """Return the columns of a head, from 1, among the outputs of all heads; all columns if None."""
        d_head = self.heads.d_head
        return slice(0, self.width) if head is None else slice((head - 1) * d_head, head * d_head)

    def beside_states(self, inputs: Mapping[str, Tensor]) -> tuple[Any, ...] | None:
        """Return a block's outputs besides hidden states, such as T5's position bias; None if there are none.

        Only the first block is run, because all blocks below the changed block pass on the same.
        """
        extra_outputs: list[tuple[Any, ...] | None] = []

        def note(module: nn.Module, args: Any, output: Any) -> None:
            extra_outputs.append(tuple(output[1:]) if isinstance(output, tuple | list) else None)
            raise StopForward

        with stop_at_layer([self._blocks[0].register_forward_hook(note)]):
            self.encoder(**inputs)
        return extra_outputs[0]

    def run(
        self,
        inputs: Mapping[str, Tensor],
        block: int,
        states: Tensor,
        beside: tuple[Any, ...] | None,
        layers: Sequence[int],
        heads: Mapping[int, OutputChange] = MappingProxyType({}),
        entering: Mapping[int, OutputChange] = MappingProxyType({}),
    ) -> dict[int, Tensor]:
        """Run the blocks from `block` on and return later hidden states by layer, shape (batch, sequence, d_model).

        Args:
            inputs: `input_ids` and `attention_mask`, shape (batch, sequence).
            block: The first block to run, from 1; n_layers + 1 runs only what follows the last block.
            states: Hidden states that the block receives, shape (batch, sequence, d_model).
            beside: What the blocks below pass on in addition to hidden states; see `beside_states`.
            layers: Layers to return, at least `block` - 1.
            heads: Functions by block number that change the input of the block's output projection, shape (batch,
                sequence, width); functions of blocks below `block` have no effect.
            entering: Functions by block number that change the hidden states that enter the block, shape (batch,
                sequence, d_model); the layer below is returned unchanged.
        """
        captured: dict[int, Tensor] = {}

        def enter(number: int, states: Tensor) -> None:
            if number - 1 in layers:
                captured[number - 1] = states

        with self._running_from(block, states, beside, enter, heads, entering):
            last = run(self.encoder, inputs).last
        if self.anatomy.n_layers in layers:
            captured[self.anatomy.n_layers] = last
        return captured

    def run_whole(self, inputs: Mapping[str, Tensor], heads: Mapping[int, OutputChange]) -> Tensor:
        """Run all blocks, with changes of heads as in `run`; return the last hidden states."""
        with self._running_from(0, torch.empty(0), None, lambda number, states: None, heads):
            return run(self.encoder, inputs).last

    def outputs_of_heads(
        self, inputs: Mapping[str, Tensor], block: int, states: Tensor, beside: tuple[Any, ...] | None
    ) -> tuple[Tensor, Tensor]:
        """Return the concatenated outputs of a block's heads, shape (batch, sequence, width), and their values.

        The values have shape (batch, heads, keys, d_head). Nothing behind the heads is run.
        """
        outputs: list[Tensor] = []
        values: list[Tensor] = []

        def note(head_outputs: Tensor) -> Tensor:
            outputs.append(head_outputs[..., : self.width])
            raise StopForward

        def see(probabilities: Tensor, block_values: Tensor) -> None:
            values[:] = [block_values]

        changed = self._running_from(block, states, beside, lambda number, states: None, {block: note})
        with stop_at_layer([]), changed, AttentionWatch(see, inputs["input_ids"].shape):
            self.encoder(**inputs)
        return outputs[0], values[-1]

    @property
    def _blocks(self) -> tuple[nn.Module, ...]:
        assert self.anatomy.blocks is not None  # checked by `of`
        return self.anatomy.blocks

    def _copy(self) -> LaterBlocks:
        """Return a copy to be run on a few tokens, because some models keep state."""
        return self.of_copy(with_the_same_weights(self.encoder))

    @torch.inference_mode()
    def _is_exact(self, block: int) -> bool:
        inputs, last = examination_inputs(self.encoder, self.pad_token_id), self.anatomy.n_layers
        states = hidden_states(self.encoder, self.anatomy, [block - 1, last], **inputs)
        try:
            resumed = self.run(inputs, block, states[block - 1], self.beside_states(inputs), [last])[last]
        except Exception:  # what a block below would have left for this one is not there
            return False
        is_token = inputs["attention_mask"].bool()
        return largest_change(resumed[is_token], states[last][is_token]) <= SAME

    @torch.inference_mode()
    def _hand_on(self) -> bool:
        """Return True if each block receives the previous output, and the rest after the last needs nothing else."""
        inputs, calls = examination_inputs(self.encoder, self.pad_token_id), list[tuple[Any, Any]]()

        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            calls.append((vectors_received(args, kwargs), vectors_in(output)))

        blocks = dict.fromkeys(self._blocks)
        with stop_at_layer([block.register_forward_hook(note, with_kwargs=True) for block in blocks]):
            last = run(self.encoder, inputs).last
        n_layers, output = len(calls), calls[-1][1]
        after = self.run(inputs, n_layers + 1, output, self.beside_states(inputs), [n_layers])[n_layers]
        is_token = inputs["attention_mask"].bool()
        pairs = [(block_output, next_input) for (_, block_output), (next_input, _) in pairwise(calls)]
        return all(
            torch.equal(block_output[is_token], next_input[is_token])
            for block_output, next_input in [*pairs, (after, last)]
        )

    @contextmanager
    def _running_from(
        self,
        block: int,
        states: Tensor,
        beside: tuple[Any, ...] | None,
        enter: Callable[[int, Tensor], None],
        changes: Mapping[int, OutputChange],
        entering: Mapping[int, OutputChange] = MappingProxyType({}),
    ) -> Iterator[None]:
        """Skip the blocks below `block`, set its hidden states, and change the inputs of blocks and projections.

        The blocks below are run if the block needs more of them than hidden states. Block 0 sets no hidden states.
        """
        number = 0  # of the block that is running
        waiting = dict(changes)
        first = block if not 1 < block <= self.anatomy.n_layers or self.runs_from(block) else 1

        def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal number
            number += 1
            if number == block and (first == block or self.are_layers):
                args, kwargs = with_vectors(args, kwargs, states)
            received: Any = vectors_received(args, kwargs)
            enter(number, received)
            if number >= block and number in entering:
                args, kwargs = with_vectors(args, kwargs, entering[number](received))
            return args, kwargs

        def project(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if number not in waiting or module is not projections[number]:
                return None
            received: Any = vectors_received(args, kwargs)
            return with_vectors(args, kwargs, waiting.pop(number)(received))

        assert self.heads.projections is not None  # checked by `of`
        projections = {
            changed: self.encoder.get_submodule(self.heads.projections[changed - 1]) for changed in changes
        }  # fmt: skip
        with ExitStack() as restored:
            for module in dict.fromkeys(self._blocks):
                original_forward = module.forward

                def forward(*args: Any, original: Callable[..., Any] = original_forward, **kwargs: Any) -> Any:
                    if number >= first:
                        return original(*args, **kwargs)
                    return states if beside is None else (states, *beside)

                restored.enter_context(replaced_forward(module, forward))
                restored.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            for projection in dict.fromkeys(projections.values()):
                restored.callback(projection.register_forward_pre_hook(project, with_kwargs=True).remove)
            yield


@dataclass(frozen=True)
class Padded:
    """Sentences that are read together, padded at the end; most attributes have shape (batch, sequence).

    Args:
        sentences: Index of each sentence in the text, shape (batch,).
        rows: Index of each token in the text; 0 for padding.
        mask: Whether there is a token.
        token_types: Token type ids of a pair's sentences; None if they are not given.
    """

    sentences: Tensor
    rows: Tensor
    mask: Tensor
    input_ids: Tensor
    token_types: Tensor | None = None

    @property
    def inputs(self) -> dict[str, Tensor]:
        """Inputs of the encoder."""
        types = {} if self.token_types is None else {"token_type_ids": self.token_types}
        return {"input_ids": self.input_ids, "attention_mask": self.mask.long(), **types}

    def inputs_on(self, device: Any) -> dict[str, Tensor]:
        """Return the inputs of the encoder on a device."""
        return {name: values.to(device) for name, values in self.inputs.items()}


def padded(tokens: Tokens, sentences: NDArray[np.int64], pad_token_id: int, device: Any = "cpu") -> Padded:
    """Return some sentences, given by index, as a batch; a sentence may occur several times."""
    rows, mask = padded_index(tokens.lengths, sentences)
    ids = torch.where(mask, torch.from_numpy(tokens.input_ids[rows.numpy()].astype(np.int64)), pad_token_id)
    types = None
    if tokens.token_types is not None:
        types = torch.where(mask, torch.from_numpy(tokens.token_types[rows.numpy()].astype(np.int64)), 0).to(device)
    return Padded(torch.from_numpy(sentences).to(device), rows.to(device), mask.to(device), ids.to(device), types)


def padded_batches(
    tokens: Tokens, batch_tokens: int, pad_token_id: int, with_padding: bool, device: Any = "cpu"
) -> list[Padded]:
    """Return all sentences in batches of similar length, with at most `batch_tokens` tokens, padding included.

    `with_padding` permits sentences of different lengths in a batch.
    """
    order = batches(tokens.lengths, batch_tokens, with_padding)
    return [padded(tokens, sentences, pad_token_id, device) for sentences in order]


@dataclass(frozen=True, eq=False)
class ReadText:
    """Some sentences of a corpus, by index; `n_types` is the number of token types of pairs, or 0."""

    store: HiddenStateSource
    sentence_indices: NDArray[np.int64]
    n_types: int = 0

    @cached_property
    def of_corpus(self) -> NDArray[np.int64]:
        """Row of each token of the text in the corpus's table of tokens, shape (n_tokens,)."""
        whole, sentences = self.store.tokens, self.sentence_indices
        offsets, lengths = whole.offsets[sentences], whole.lengths[sentences]
        return np.arange(lengths.sum()) + np.repeat(offsets - (lengths.cumsum() - lengths), lengths)

    @cached_property
    def tokens(self) -> Tokens:
        """Table of tokens of the text."""
        whole, rows = self.store.tokens, self.of_corpus
        types = whole.types_for(self.n_types)
        return Tokens(
            whole.lengths[self.sentence_indices], whole.input_ids[rows], whole.words[rows],
            token_types=None if types is None else types[rows],
        )  # fmt: skip

    def drawn(self, at_most: int, seed: int) -> ReadText:
        """Draw some of the sentences; see `draw_up_to`."""
        lengths = self.store.tokens.lengths[self.sentence_indices]
        return replace(self, sentence_indices=self.sentence_indices[draw_up_to(lengths, at_most, seed)])

    def states(self, layer: int) -> Tensor:
        """Return the cached hidden states of a layer, shape (n_tokens, d_model), float32."""
        rows = self.of_corpus
        states = torch.empty(len(rows), self.store.plan.d_model)
        for shard in self.store.plan.shards:
            shard_rows = shard.rows(self.store.tokens)
            inside = np.flatnonzero((rows >= shard_rows.start) & (rows < shard_rows.stop))
            if len(inside):
                picked = torch.from_numpy(rows[inside] - shard_rows.start)
                states[torch.from_numpy(inside)] = self.store.read(layer, shard.index).index_select(0, picked).float()
        return states


def draw_up_to(sizes: NDArray[Any], at_most: int, seed: int) -> NDArray[np.int64]:
    """Draw indices until the next would take the sum of their sizes above `at_most`, at least one; ascending."""
    order = np.random.default_rng(seed).permutation(len(sizes))
    n = max(1, int((np.cumsum(sizes[order], dtype=np.int64) <= at_most).sum()))
    return np.sort(order[:n])


def draw_text(
    store: HiddenStateSource, candidates: NDArray[np.bool_], at_most: int, seed: int, n_types: int = 0
) -> ReadText:
    """Draw whole sentences from a mask of candidates until the next would exceed `at_most` tokens, at least one."""
    nonempty = np.flatnonzero(candidates & (store.tokens.lengths > 0))
    return ReadText(store, nonempty, n_types).drawn(at_most, seed)


def draw_others(sentences: NDArray[Any], others: NDArray[Any], is_same_text: bool, seed: int) -> NDArray[np.int64]:
    """Draw, for each token, the index of a token of another sentence that replaces it, shape (n,).

    `sentences` and `others` are the sentences of the tokens and of the tokens to draw from. If both are of the same
    text, no token of the same sentence is drawn; otherwise all can be drawn.
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
    """Sentences with the hidden states of the intact model."""

    @property
    def tokens(self) -> Tokens:
        """The table of tokens."""
        ...

    def states(self, layer: int) -> Tensor:
        """Return the hidden states of a layer, shape (n_tokens, d_model), float32."""
        ...


# Takes the values at a site in a batch, and the batch; returns the values that replace them.
Replace = Callable[[Tensor, Padded], Tensor]


@dataclass(frozen=True)
class Change:
    """A change of a model from one layer on; without any replacement, the intact model from this layer on.

    Args:
        layer: The layer from whose hidden states, in the intact model, the later blocks are run.
        states: Replacements of hidden states, shape (batch, sequence, d_model), by layer.
        heads: Replacements of the outputs of all heads side by side, shape (batch, sequence, width), by block.
        skips: Whether the block above the layer is removed: its output is its input.
        parameters: Changes the model's parameters on entry, and restores them on exit; copies share the parameters.
    """

    layer: int
    states: Mapping[int, Replace] = field(default_factory=dict)
    heads: Mapping[int, Replace] = field(default_factory=dict)
    skips: bool = False
    parameters: Callable[[], AbstractContextManager[Any]] = nullcontext

    def later(
        self, model: LaterBlocks, batch: Padded, beside: Any, states: Tensor, layers: Sequence[int]
    ) -> dict[int, Tensor]:
        """Return the hidden states of later layers under the change; called from several threads.

        The model may be a copy for this thread. For `beside` see `LaterBlocks.run`; `states` are the hidden states of
        `layer`, shape (batch, sequence, d_model), which is returned with its replacement if requested.
        """
        if self.layer in self.states:
            states = self.states[self.layer](states, batch)
        heads = {block: _in_batch(replace, batch) for block, replace in self.heads.items()}
        entering = {
            layer + 1: _in_batch(replace, batch) for layer, replace in self.states.items() if layer > self.layer
        }
        first = self.layer + 1 + self.skips
        return model.run(batch.inputs, first, states, beside, layers, heads, entering)


def _in_batch(replace: Replace, batch: Padded) -> OutputChange:
    return lambda values: replace(values, batch)


class SentenceReader(Protocol):
    """A reading of a model in one state; it takes every batch of the text once."""

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        """Take the hidden states of a batch, by layer; called from several threads, with different batches."""
        ...

    def sums(self) -> Tensor:
        """Return the sum of the measure over the examples of each item, shape (n_layers, n_items), on the CPU."""
        ...


@dataclass(frozen=True)
class ItemReading:
    """A reading that is complete after each batch: `score` returns the rows of its sentences, shape (n_rows, batch)."""

    score: Callable[[Mapping[int, Tensor], Padded], Tensor]
    totals: Tensor

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        """Take the hidden states of a batch, by layer."""
        self.totals[:, batch.sentences.to(self.totals.device)] = self.score(states, batch).to(self.totals)

    def sums(self) -> Tensor:
        """Return the sums, shape (n_rows, n_sentences)."""
        return self.totals.cpu()


@dataclass(frozen=True)
class SelectedReading:
    """A reading of some tokens of a layer, all together at the end, such as by a head of the model.

    `select` returns the rank of each selected token of a batch, and where it is; `finish` converts the states of all of
    them, in this order, to sums of shape (1, n_items).
    """

    layer: int
    select: Callable[[Padded], tuple[Tensor, Any]]
    finish: Callable[[Tensor], Tensor]
    states: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def take(self, states: Mapping[int, Tensor], batch: Padded) -> None:
        """Take the hidden states of a batch, by layer."""
        rank, where = self.select(batch)
        self.states.append((rank.cpu(), states[self.layer][where]))

    def sums(self) -> Tensor:
        """Return the sums, shape (1, n_items)."""
        rank, states = (torch.cat(parts) for parts in zip(*self.states, strict=True))
        return self.finish(states[rank.argsort().to(states.device)])


class LayerReadout(Protocol):
    """A measure of later layers, which may have several rows for a layer."""

    def layers(self, block: int) -> list[int]:
        """Return the layers that are read if this block is the first changed block, ascending."""
        ...

    def begin(self, layers: Sequence[int]) -> SentenceReader:
        """Begin a reading of some of these layers."""
        ...


class Readout(LayerReadout, Protocol):
    """A measure of the output of later layers, over a separate text, with a row for a layer.

    Its items, which are paired between the intact and the changed model, are the sentences of the text, or pairs of
    them. The measure is the sum of a reading over items, over the sum of `n`.
    """

    @property
    def name(self) -> str:
        """Name in tables; see `probing.interventions.measure_of`."""
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
        """All that determines the results apart from the model, for cache keys."""
        ...

    @property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sentences that the loss reads, and the item of each, both of shape (n_occurrences,)."""
        ...

    def loss(self, batch: Padded, occurrences: NDArray[np.int64]) -> Loss:
        """Return a loss for some occurrences, shape (batch,), whose sentences are the padded batch.

        An item's gradient is the sum over its occurrences, and 0 for an item without examples.
        """
        ...


class OfSentences:
    """A readout whose items are the sentences of its text."""

    n: Any

    @cached_property
    def occurrences(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Each sentence, which is an item, once."""
        return (every := np.arange(len(self.n))), every


# Called with a reader's model, the batch, what blocks pass on in addition to hidden states, and the hidden states.
ReadBatch = Callable[[LaterBlocks, Padded, Any, Tensor], None]


@dataclass(frozen=True)
class Readers:
    """Copies of a model with the same weights, each for a thread, with the objects that run their later blocks."""

    each: Sequence[tuple[nn.Module, LaterBlocks]]
    pad_token_id: int
    device: torch.device

    @classmethod
    def of(cls, encoder: nn.Module, pad_token_id: int, name: str) -> Readers:
        """Return the readers of an encoder, in evaluation mode and float32; its weights are not changed.

        Raises:
            UserError: If the model's blocks or heads are unknown.
        """
        device = next(encoder.parameters()).device
        model = LaterBlocks.of(encoder, pad_token_id, name)
        copies = copies_for_readers(encoder, device)
        return cls([(copy, model.of_copy(copy)) for copy in copies], pad_token_id, device)

    @property
    def model(self) -> LaterBlocks:
        """The model of the first reader."""
        return self.each[0][1]


class Forward:
    """Passes of the later blocks of a model over a text; `batch_tokens` includes padding.

    A pass is described by a job: a `Change`, or what `change` of a subclass converts to one.
    """

    def __init__(self, readers: Readers, text: ReadableText, batch_tokens: int) -> None:
        self.readers, self.text, self.batch_tokens = readers, text, batch_tokens
        self.tokens = text.tokens
        self._layer, self._states = -1, torch.empty(0)

    @property
    def d_model(self) -> int:
        """Width of the hidden states."""
        return int(self.readers.model.encoder.config.hidden_size)  # type: ignore[union-attr,arg-type]

    def change(self, job: Any) -> Change:
        """Return the change of the model for a job."""
        assert isinstance(job, Change)
        return job

    @cached_property
    def _batches(self) -> list[tuple[Padded, Any]]:
        """The batches, each with what its blocks pass on in addition to hidden states."""
        model, readers = self.readers.model, self.readers
        neutral = model.anatomy.padding_is_neutral
        text_batches = padded_batches(self.tokens, self.batch_tokens, readers.pad_token_id, neutral, readers.device)
        with torch.inference_mode():
            return [(batch, model.beside_states(batch.inputs)) for batch in text_batches]

    def intact(self, layer: int) -> Tensor:
        """Return the intact model's hidden states of a layer, shape (n_tokens, d_model); caches one layer."""
        if layer != self._layer:
            self._layer, self._states = layer, self.text.states(layer).to(self.readers.device)
        return self._states

    def over(
        self, layer: int, read: ReadBatch, parameters: Callable[[], AbstractContextManager[Any]] = nullcontext
    ) -> None:
        """Pass every batch, with the intact model's hidden states of a layer, to one of the readers.

        `parameters` changes the model while batches are read; see `Change`.
        """
        states, text_batches = self.intact(layer), self._batches

        @torch.inference_mode()
        def read_batch(encoder: nn.Module, model: LaterBlocks, batch_and_beside: tuple[Padded, Any]) -> None:
            batch, beside = batch_and_beside
            read(model, batch, beside, states[batch.rows])

        with parameters():
            share_out(read_batch, self.readers.each, text_batches)

    def read(self, job: Any, *readouts: LayerReadout) -> Tensor:
        """Return readouts of this text for a job, stacked, shape (n_rows, n_items).

        The rows of a readout are those of the layers `readout.layers(block)`, for the first changed block.
        """
        change = self.change(job)
        needed = [readout.layers(change.layer + 1) for readout in readouts]
        readings = [readout.begin(layers) for readout, layers in zip(readouts, needed, strict=True)]
        every = sorted({layer for layers in needed for layer in layers})

        def take(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            layer_states = change.later(model, batch, beside, states, every)
            for reading in readings:
                reading.take(layer_states, batch)

        self.over(change.layer, take, change.parameters)
        return torch.cat([reading.sums() for reading in readings])

    def states(self, job: Any, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return hidden states of layers above the changed layer for a job, shape (n_tokens, d_model), float32."""
        change = self.change(job)
        layer_states = {layer: torch.empty(self.tokens.n_tokens, self.d_model) for layer in layers}

        def keep(model: LaterBlocks, batch: Padded, beside: Any, states: Tensor) -> None:
            for layer, changed_states in change.later(model, batch, beside, states, layers).items():
                layer_states[layer][batch.rows[batch.mask].cpu()] = changed_states[batch.mask].float().cpu()

        self.over(change.layer, keep, change.parameters)
        return layer_states
