"""One pass over the attention of a corpus, and storage of the sums of each measure by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache as cache_once
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from probing.activations import Request, batch_tokens_of, description, job_lock, load, tokens_of
from probing.activations.extraction import (
    ShardPass,
    copies_for_readers,
    forward_trainer,
    padded_index,
    reading_order,
    run_pass,
    share_out,
)
from probing.activations.store import (
    CacheEntry,
    WorkPlan,
    WorkStore,
    batches,
    divide,
    fingerprint,
    remove,
)
from probing.errors import RunError, UserError
from probing.models import load_tokenizer
from probing.models.anatomy import Anatomy, examine
from probing.models.attention_heads import Heads, OutputProjection, find_heads, read_heads
from probing.models.examination import n_token_types
from probing.runtime.processes import end_together, is_main_process
from probing.runtime.trainer import float64_device, on_float64_device
from probing.text import Corpus
from probing.text.tokens import Tokens

# --------------------------------------------------------------------------------------------------------------------
# What a measure of heads receives, the attention of one block over one batch, and what it wants to keep.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SentenceBatch:
    """Sentences of one forward pass, padded at the end; all tensors but `sentences` have shape (batch, sequence).

    Args:
        sentences: Index of each sentence in the corpus, shape (batch,).
        rows: Index of each token in the corpus's table of tokens; 0 for padding.
        special: Whether the tokenizer added the token. The first token of a causal model counts as special too, because
            the first query sees no other token.
        words: Index of each token's word in its sentence; -1 for special tokens and for padding.
        is_causal: Whether no token attends to a later token.
        segments: Sentence of a pair (0 or 1) of each token; -1 for special tokens and padding; None for single
            sentences.
        token_types: Token type ids of the input; None if the model takes none.
    """

    sentences: Tensor
    rows: Tensor
    input_ids: Tensor
    mask: Tensor
    special: Tensor
    words: Tensor
    is_causal: bool = False
    segments: Tensor | None = None
    token_types: Tensor | None = None

    @cached_property
    def inputs(self) -> dict[str, Tensor]:
        """Inputs of the model, each of shape (batch, sequence)."""
        model_inputs = {"input_ids": self.input_ids, "attention_mask": self.mask.long()}
        return model_inputs if self.token_types is None else {**model_inputs, "token_type_ids": self.token_types}

    @cached_property
    def lengths(self) -> Tensor:
        """Number of tokens of each sentence, shape (batch,)."""
        return self.mask.sum(1)

    @cached_property
    def ordinary(self) -> Tensor:
        """Mask of the tokens that are not special, shape (batch, sequence)."""
        return self.mask & ~self.special

    @cached_property
    def seen(self) -> Tensor:
        """Mask of the keys that a query may see if only the order of tokens limits it, shape (batch, from, to)."""
        seen = self.mask[:, :, None] & self.mask[:, None, :]
        return seen.tril() if self.is_causal else seen

    @cached_property
    def uniform(self) -> Tensor:
        """Uniform attention over the keys that are `seen`, shape (batch, from, to), float64."""
        return _uniform(self.seen)

    @cached_property
    def first(self) -> Tensor:
        """Index of the first token of each sentence, shape (batch,); 0 for sentences without tokens."""
        return self.mask.to(torch.uint8).argmax(1)

    @cached_property
    def without_first(self) -> SentenceBatch:
        """The same sentences, with the first token treated as padding."""
        mask = self.mask.clone()
        mask[:, 0] = False
        return replace(self, mask=mask, special=self.special & mask, words=torch.where(mask, self.words, -1))

    @cached_property
    def is_padded(self) -> bool:
        """True if some sentence is shorter than the longest sentence."""
        return not bool(self.mask.all())


@dataclass(frozen=True)
class BlockAttention:
    """The attention of one block over one batch.

    Args:
        layer: Number of the block, from 1.
        probabilities: Shape (batch, heads, from, to), float32; rows and columns of padding are 0, others sum to 1.
        values: Value vectors of each head, shape (batch, heads, to, d_head); undefined for padding.
        projection: Output projection of the block; None if it is unknown.
        visible: Whether a query may see a key, shape (batch, from, to), if the block shows less than
            `SentenceBatch.seen`, such as a window; None otherwise.
    """

    layer: int
    probabilities: Tensor
    values: Tensor
    projection: OutputProjection | None
    visible: Tensor | None = None

    def uniform(self, batch: SentenceBatch) -> Tensor:
        """Return uniform attention over the keys that a query may see, shape (batch, from, to), float64."""
        return batch.uniform if self.visible is None else _uniform(self.visible)

    @cached_property
    def without_first(self) -> BlockAttention:
        """The attention without the first token; rows sum to 1, or are 0 if no key remains."""
        probabilities = self.probabilities.clone()
        probabilities[:, :, 0], probabilities[..., 0] = 0, 0
        probabilities /= (
            probabilities.sum(3, keepdim=True, dtype=torch.float64)
            .to(probabilities.dtype)
            .clamp_min(torch.finfo(probabilities.dtype).tiny)
        )
        visible = None if self.visible is None else self.visible.clone()
        if visible is not None:
            visible[:, 0], visible[..., 0] = False, False
        return replace(self, probabilities=probabilities, visible=visible)

    def value_norms(self) -> Tensor:
        """Return the norm of each token's contribution to the residual stream at weight 1, shape (batch, heads, to).

        It is |f(x)| with f(x) = (x W_V + b_V) W_O, for the head's part of W_O and without b_O (Kobayashi et al. 2020,
        section 2). It is computed from the inner products of the rows of W_O, because f(x) is d_model / d_head times as
        large as the values.

        Raises:
            ValueError: If the output projection is not known.
        """
        if self.projection is None:
            raise ValueError("this model's output projection is not known")
        values = self.values.double()
        return ((values @ self.projection.gram * values).sum(-1)).clamp_min(0).sqrt()


def attention_of(
    layer: int,
    probabilities: Tensor,
    values: Tensor,
    projection: OutputProjection | None,
    batch: SentenceBatch,
    mask: Tensor | None = None,
) -> BlockAttention:
    """Return a block's attention without padding; shapes as in `BlockAttention`, the mask's (batch or 1, from, to)."""
    visible = None if mask is None else mask & batch.seen
    if visible is not None and torch.equal(visible, batch.seen):
        visible = None
    if batch.is_padded:
        pairs = (batch.mask[:, :, None] & batch.mask[:, None, :])[:, None]
        probabilities = torch.where(pairs, probabilities, 0.0)
    return BlockAttention(layer, probabilities, values, projection, visible)


def _uniform(seen: Tensor) -> Tensor:
    return seen.double() / seen.sum(2, keepdim=True).clamp_min(1)


@dataclass(frozen=True)
class BatchValues:
    """The values of a measure for one batch, by name.

    Args:
        by_sentence: Shape (batch, ...).
        by_token: Shape (batch, sequence, ...); entries at padding are dropped.
        total: Any shape; summed over all batches, so without confidence intervals over sentences.
        listed: Any number of rows for each sentence, shape (n, ...), such as a row for each pair of words.
    """

    by_sentence: Mapping[str, Tensor] = field(default_factory=dict)
    by_token: Mapping[str, Tensor] = field(default_factory=dict)
    total: Mapping[str, Tensor] = field(default_factory=dict)
    listed: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)


class Accumulator(Protocol):
    """A consumer of the blocks of one batch, in order."""

    def add(self, attention: BlockAttention) -> None:
        """Add the next block; the attention may be overwritten after this call, so copy what is needed later."""

    def batch_values(self) -> BatchValues:
        """Return the values of the batch, after its last block."""


Begin = Callable[[SentenceBatch], Accumulator]
OfBlock = Callable[[BlockAttention], Mapping[str, Tensor]]


@dataclass(frozen=True)
class Measure:
    """A measure that is summed over a corpus.

    Args:
        of_corpus: Prepares labels by token, and returns a function, shared by threads, that creates the accumulator of
            a batch.
        settings: All that changes the values apart from model and corpus, such as a version of the definition and a
            fingerprint of labels from outside the corpus. Stored sums with other settings are not used.
    """

    name: str
    of_corpus: Callable[[Tokens, Corpus], Begin]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_blocks(
        cls, name: str, function: Callable[[BlockAttention, SentenceBatch], Mapping[str, Tensor]],
        settings: Mapping[str, Any] | None = None,
    ) -> Measure:  # fmt: skip
        """Return a measure of single blocks, from a function that returns sums of shape (batch, heads, ...) by name."""

        def of_corpus(tokens: Tokens, corpus: Corpus) -> Begin:
            return lambda batch: StackedBlocks(lambda attention: function(attention, batch))

        return cls(name, of_corpus, settings or {})


class StackedBlocks:
    """Accumulator that stacks the values of each block, by default as values by sentence, (batch, n_layers, ...).

    Args:
        of_block: Returns the values of a block by name, which no later block overwrites.
        axis: Axis of the layers in the stacked values.
        as_values: Returns the values of the batch from the stacked values.
    """

    def __init__(
        self, of_block: OfBlock, axis: int = 1, as_values: Callable[[dict[str, Tensor]], BatchValues] = BatchValues
    ) -> None:
        self.of_block, self.axis, self.as_values = of_block, axis, as_values
        self.by_block: dict[str, list[Tensor]] = {}

    def add(self, attention: BlockAttention) -> None:
        """Add the next block."""
        for name, values in self.of_block(attention).items():
            self.by_block.setdefault(name, []).append(values)

    def batch_values(self) -> BatchValues:
        """Return the values of the batch, after its last block."""
        return self.as_values({name: torch.stack(values, self.axis) for name, values in self.by_block.items()})


# --------------------------------------------------------------------------------------------------------------------
# The sums of one measure on disk: an entry of the cache, with a file for each shard of the corpus.
# --------------------------------------------------------------------------------------------------------------------

# Number of tokens in a shard. A pass that was killed has to read its unfinished shard again, which takes some seconds.
SHARD_TOKENS = 8192


class SumsStore(WorkStore):
    """A cache entry with the sums of one measure over one corpus, all layers in one file."""

    def by_sentence(self, name: str) -> Tensor:
        """Return the stored values by sentence, shape (n_sentences, ...)."""
        return torch.cat(self._shards(f"by_sentence/{name}"))

    def all_by_sentence(self) -> dict[str, Tensor]:
        """Return all stored values by sentence, by name."""
        names = [name.removeprefix("by_sentence/") for name in self.names() if name.startswith("by_sentence/")]
        return {name: self.by_sentence(name) for name in names}

    def by_token(self, name: str) -> Tensor:
        """Return the stored values by token, shape (n_tokens, ...), in the order of the table of tokens."""
        return torch.cat(self._shards(f"by_token/{name}"))

    def total(self, name: str) -> Tensor:
        """Return the sum over the corpus."""
        return torch.stack(self._shards(f"total/{name}")).sum(0)

    def listed(self, name: str, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the listed rows, shape (n, ...), of the sentences in the mask `chosen`, shape (n_sentences,).

        Also return the number of rows of each sentence, 0 for other sentences, shape (n_sentences,).
        """
        counts = torch.cat(self._shards(f"n_listed/{name}"))
        numbers = torch.where(chosen, counts, 0)
        rows: Tensor | None = None
        filled = 0
        # Filled shard by shard: to hold the rows both in pieces and joined would need twice the memory.
        for shard in self.plan.shards:
            tensors = self.get(0, shard.index)
            if not tensors:
                continue
            shard_sentences = slice(shard.first_sentence, shard.first_sentence + shard.n_sentences)
            shard_rows = tensors[f"listed/{name}"][chosen[shard_sentences].repeat_interleave(counts[shard_sentences])]
            if rows is None:
                rows = torch.empty(int(numbers.sum()), *shard_rows.shape[1:], dtype=shard_rows.dtype)
            rows[filled : filled + len(shard_rows)] = shard_rows
            filled += len(shard_rows)
        return (torch.empty(0) if rows is None else rows), numbers

    def names(self) -> list[str]:
        """Return the names of the stored values, each with its kind, such as `by_sentence/entropy`."""
        return sorted(self.get(0))

    def _shards(self, name: str) -> list[Tensor]:
        shard_files = (self.get(0, shard.index) for shard in self.plan.shards)
        return [tensors[name] for tensors in shard_files if tensors]


def of_shard(
    batches: Iterable[tuple[SentenceBatch, BatchValues]],
    first_sentence: int,
    n_sentences: int,
    first_row: int,
    n_tokens: int,
) -> dict[str, Tensor]:
    """Join the values of the batches of one shard, in the order of the corpus; sentences without tokens get 0.

    The batches must always come in the same order, so that totals are bit-identical.
    """
    shard_values: dict[str, Tensor] = {}
    listed: dict[str, dict[int, Tensor]] = {}

    def put(name: str, index: Tensor, values: Tensor, length: int) -> None:
        if name not in shard_values:
            shard_values[name] = torch.zeros(length, *values.shape[1:], dtype=values.dtype)
        shard_values[name][index] = values.cpu()

    for batch, batch_values in batches:
        for name, values in batch_values.by_sentence.items():
            put(f"by_sentence/{name}", batch.sentences.cpu() - first_sentence, values, n_sentences)
        for name, values in batch_values.by_token.items():
            put(f"by_token/{name}", (batch.rows[batch.mask] - first_row).cpu(), values[batch.mask], n_tokens)
        for name, values in batch_values.total.items():
            before = shard_values.get(f"total/{name}")
            shard_values[f"total/{name}"] = values.cpu().clone() if before is None else before + values.cpu()
        for name, rows in batch_values.listed.items():
            sentence_rows = zip((batch.sentences.cpu() - first_sentence).tolist(), rows, strict=True)
            listed.setdefault(name, {}).update((sentence, values.cpu()) for sentence, values in sentence_rows)
    for name, by_sentence in listed.items():
        numbers = torch.zeros(n_sentences, dtype=torch.int64)
        numbers[list(by_sentence)] = torch.tensor([len(values) for values in by_sentence.values()])
        shard_values[f"n_listed/{name}"] = numbers
        shard_values[f"listed/{name}"] = torch.cat([by_sentence[sentence] for sentence in sorted(by_sentence)])
    return shard_values


@dataclass(frozen=True)
class AttentionReader:
    """The structure of an encoder for reading its attention; `projections` is None if they are unknown."""

    anatomy: Anatomy
    heads: Heads
    projections: Sequence[OutputProjection] | None
    pad_token_id: int
    n_token_types: int = 0

    @classmethod
    def of(
        cls, encoder: nn.Module, pad_token_id: int, name: str, n_types: int = 0, lengths: Sequence[int] = ()
    ) -> AttentionReader:
        """Examine an encoder in evaluation mode; for `n_types` see `n_token_types`, for `lengths` see `examine`.

        Raises:
            UserError: If the encoder has no attention weights.
        """
        anatomy = examine(encoder, pad_token_id, name, lengths)
        heads = find_heads(encoder, anatomy, pad_token_id, name)
        return cls(anatomy, heads, heads.output_projections(encoder), pad_token_id, n_types)

    def read(self, encoder: nn.Module, batch: SentenceBatch, begins: Sequence[Begin]) -> list[BatchValues]:
        """Pass each block's attention over a batch, on its `float64_device`, to the measures; return their values."""
        accumulators = [begin(batch) for begin in begins]
        mask: Tensor | None = None

        def give_mask(of_block: Tensor | None) -> None:
            nonlocal mask
            mask = None if of_block is None else on_float64_device(of_block)

        def give(layer: int, probabilities: Tensor, values: Tensor) -> None:
            projection = self.projections[layer - 1] if self.projections else None
            maps, values = on_float64_device(probabilities), on_float64_device(values)
            attention = attention_of(layer, maps, values, projection, batch, mask)
            for accumulator in accumulators:
                accumulator.add(attention)

        device = next(encoder.parameters()).device
        inputs = {name: values.to(device) for name, values in batch.inputs.items()}
        read_heads(encoder, self.heads, give, inputs, give_mask)
        return [accumulator.batch_values() for accumulator in accumulators]


def accumulate(
    request: Request,
    measures: Sequence[Measure],
    cache: Path,
    trainer_options: Mapping[str, Any],
    say: Callable[[str], None] = lambda message: None,
    callbacks: Sequence[Any] = (),
) -> dict[str, SumsStore]:
    """Return the stored sums of each measure by name; read the corpus for missing sums.

    One job computes an entry while other jobs wait for it. The shards are divided among the Trainer's ranks, and
    finished shards are not read again. The measures need distinct names. All heads are read, whatever the request's
    layers.

    Args:
        trainer_options: Lightning's `Trainer` arguments; only those of a forward pass are used.
        say: Called with one-line messages.

    Raises:
        UserError: If the model has no attention weights or cannot be loaded, or the cache is not writable.
        RunError: If the pass failed; finished shards stay in the cache.
    """
    keys = {measure.name: _key(request, measure) for measure in measures}
    folders = {name: cache / f"{request.source.short_name}-{fingerprint(key)[:16]}" for name, key in keys.items()}
    if not is_main_process():
        _run(request, measures, folders, None, trainer_options, callbacks)
        return {name: SumsStore(folder) for name, folder in folders.items()}
    with ExitStack() as locks:
        for folder in sorted(folders.values()):  # in one order, so that no two jobs wait for each other
            locks.enter_context(job_lock(cache, folder.name, say))
        stores = _open_or_create(request, folders, keys)
        work = _missing(stores)
        try:
            _run(request, measures, folders, work, trainer_options, callbacks)
        except UserError:
            for store in stores.values():
                if not store.records():
                    remove(store.folder)  # for example if the model has no attention weights
            raise
        if missing := _missing(stores):
            raise RunError(f"{len(missing)} shards of the attention were not read; run the same command again")
        for store in stores.values():
            store.touch()
    return stores


def _key(request: Request, measure: Measure) -> dict[str, Any]:
    return {**request.key(), "attention": measure.name, "settings": dict(measure.settings)}


def _open_or_create(
    request: Request, folders: Mapping[str, Path], keys: Mapping[str, Mapping[str, Any]]
) -> dict[str, SumsStore]:
    """Open each measure's entry, or plan it; all entries of a corpus have the same shards."""
    tokens_of_request = cache_once(lambda: tokens_of(request, load_tokenizer(request.source)))

    def planned(name: str) -> tuple[WorkPlan, Tokens]:
        tokens, batch_tokens = tokens_of_request(), batch_tokens_of(request)
        shards = divide(tokens.lengths, SHARD_TOKENS)
        return WorkPlan(keys[name], f"sums of {name}", 1, request.dtype, batch_tokens, shards), tokens

    about = description(request)
    return {name: SumsStore.opened(folder, partial(planned, name), about) for name, folder in folders.items()}


def _missing(stores: Mapping[str, SumsStore]) -> dict[int, list[str]]:
    missing: dict[int, list[str]] = {}
    for name, store in stores.items():
        for shard in store.missing([0], store.damaged([0])):
            missing.setdefault(shard, []).append(name)
    return dict(sorted(missing.items()))


def _run(
    request: Request,
    measures: Sequence[Measure],
    folders: Mapping[str, Path],
    work: Mapping[int, Sequence[str]] | None,
    trainer_options: Mapping[str, Any],
    callbacks: Sequence[Any],
) -> None:
    """Read the missing shards, given as `work` on the rank-zero process and as None on the others."""
    trainer = forward_trainer(trainer_options, callbacks)
    if not work and trainer.world_size == 1:
        return
    end_together(trainer)
    folder = next(iter(folders.values())).parent
    run_pass(lambda writer: AttentionPass(request, measures, folders, work, writer), folder, trainer)


class AttentionPass(ShardPass):
    """A pass over the attention in shards of a corpus, which writes the sums of each measure.

    `work` lists the measures to write for each incomplete shard; it is None except on the rank-zero process. The writer
    has a single thread and writes a shard while the next shard is read.
    """

    def __init__(
        self,
        request: Request,
        measures: Sequence[Measure],
        folders: Mapping[str, Path],
        work: Mapping[int, Sequence[str]] | None,
        writer: Executor,
    ) -> None:
        super().__init__(work, writer)
        self.request, self.measures, self.folders = request, measures, folders

    def prepare(self) -> None:
        """Load the model, give each reader a copy with the same weights, and bind the measures to the corpus."""
        self.stores = {name: SumsStore(folder) for name, folder in self.folders.items()}
        self.encoder, pad_token_id = load(self.request)
        device = self.trainer.strategy.root_device
        self.encoder.to(device)
        tokens, tokenizer = next(iter(self.stores.values())).tokens, load_tokenizer(self.request.source)
        n_types = n_token_types(self.encoder, tokenizer, self.request.corpus.seconds is not None)
        about = pad_token_id, self.request.source.name, n_types
        first, *copies = copies_for_readers(self.encoder, device)
        self.readers = [(first, AttentionReader.of(first, *about, tokens.lengths.tolist()))]
        self.readers += [(encoder, AttentionReader.of(encoder, *about)) for encoder in copies]
        self.begins = {measure.name: measure.of_corpus(tokens, self.request.corpus) for measure in self.measures}

    def process(self, shard: int, missing: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Return the sums of each missing measure over one shard."""
        store = self.stores[missing[0]]
        planned_shard = store.plan.shards[shard]
        rows = planned_shard.rows(store.tokens)
        begins = [self.begins[name] for name in missing]
        batches: dict[int, tuple[SentenceBatch, list[BatchValues]]] = {}

        @torch.inference_mode()
        def read(encoder: nn.Module, reader: AttentionReader, numbered_batch: tuple[int, SentenceBatch]) -> None:
            index, batch = numbered_batch
            batches[index] = batch, reader.read(encoder, batch, begins)

        reader = self.readers[0][1]
        some = shard_batches(store, shard, reader, float64_device(self.device))
        share_out(read, self.readers, enumerate(some))
        sums_of_measure: dict[str, dict[str, Tensor]] = {}
        for i, name in enumerate(missing):
            in_order = (
                (batch, batch_values[i]) for batch, batch_values in (batches[index] for index in sorted(batches))
            )
            sums_of_measure[name] = of_shard(
                in_order, planned_shard.first_sentence, planned_shard.n_sentences, rows.start, planned_shard.n_tokens
            )
            sums = sums_of_measure[name].items()
            if bad := next((of for of, values in sums if not bool(torch.isfinite(values).all())), None):
                raise RunError(
                    f"the attention over sentences {planned_shard.first_sentence} to "
                    f"{planned_shard.first_sentence + planned_shard.n_sentences - 1} of the corpus (counted from 0) "
                    f"gives values of `{bad}` that are not finite with --dtype {store.plan.dtype}; use float32 or "
                    "bfloat16"
                )
        return sums_of_measure

    def write(self, shard: int, sums_of_measure: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write the sums of one shard."""
        for name, sums in sums_of_measure.items():
            self.stores[name].write_tensors(0, shard, sums)


@dataclass(frozen=True)
class TokenRows:
    """Rows of the table of tokens from which batches are padded, each attribute but `first` of shape (n_tokens,)."""

    first: int
    input_ids: Tensor
    words: Tensor
    segments: Tensor | None
    token_types: Tensor | None

    @classmethod
    def of(cls, tokens: Tokens, rows: slice, reader: AttentionReader, order: Any = slice(None)) -> TokenRows:
        """Return some rows; `order` is the order in which the model reads the tokens, among these rows."""

        def of(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values[rows].astype(np.int64))

        optional = tokens.segments, tokens.types_for(reader.n_token_types)
        segments, token_types = (None if values is None else of(values) for values in optional)
        return cls(rows.start, of(tokens.input_ids)[order], of(tokens.words), segments, token_types)

    def batch(
        self,
        sentences: Tensor,
        index: Tensor,
        mask: Tensor,
        reader: AttentionReader,
        device: torch.device | str,
    ) -> SentenceBatch:
        """Return the sentences whose rows are `index` where `mask` is true, both of shape (batch, sequence)."""

        def padded(values: Tensor | None, padding: int) -> Tensor | None:
            return None if values is None else torch.where(mask, values[index], padding).to(device)

        words = torch.where(mask, self.words[index], -1)
        special = mask & (words < 0)
        special[:, 0] |= reader.heads.is_causal
        return SentenceBatch(
            sentences=sentences.to(device),
            rows=torch.where(mask, index + self.first, 0).to(device),
            input_ids=torch.where(mask, self.input_ids[index], reader.pad_token_id).to(device),
            mask=mask.to(device),
            special=special.to(device),
            words=words.to(device),
            is_causal=reader.heads.is_causal,
            segments=padded(self.segments, -1),
            token_types=padded(self.token_types, 0),
        )


def shard_batches(
    store: CacheEntry, shard: int, reader: AttentionReader, device: torch.device | str = "cpu"
) -> Iterator[SentenceBatch]:
    """Yield a shard's sentences on `device` in batches by token budget, longest first."""
    plan, tokens = store.plan, store.tokens
    planned_shard = plan.shards[shard]
    rows = planned_shard.rows(store.tokens)
    lengths = tokens.lengths[planned_shard.first_sentence : planned_shard.first_sentence + planned_shard.n_sentences]
    of_shard = TokenRows.of(tokens, rows, reader, reading_order(store, rows))
    for sentences in batches(lengths, plan.batch_tokens, with_padding=reader.anatomy.padding_is_neutral):
        numbers = torch.from_numpy(planned_shard.first_sentence + sentences)
        yield of_shard.batch(numbers, *padded_index(lengths, sentences), reader, device)
