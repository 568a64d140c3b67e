"""Reads the attention of a corpus once, and stores the sums that measures ask for by shard."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from probing.cache import Request, batch_tokens_of, description, job_lock, load, tokens_of
from probing.cache.extraction import (
    ShardPass,
    copies_for_readers,
    forward_trainer,
    padded_index,
    reading_order,
    run_pass,
    share_out,
)
from probing.cache.store import (
    ActivationStore,
    DamagedCache,
    Plan,
    batches,
    divide,
    fingerprint,
    leftovers,
    not_written,
    remove,
)
from probing.errors import RunError, UserError
from probing.heads.reading import Accumulator, Batch, Kept, Measure, attention_of
from probing.heads.sums import SHARD_TOKENS, SumsStore, not_finite, of_shard
from probing.models import load_config, load_tokenizer
from probing.models.anatomy import Anatomy, examine
from probing.models.attention_heads import Heads, OutputProjection, find_heads, read_heads
from probing.models.behaviour import n_token_types
from probing.runtime.arithmetic import float64_device, on_float64_device
from probing.runtime.processes import end_together, is_main_process

_Begin = Callable[[Batch], Accumulator]


@dataclass(frozen=True)
class AttentionReader:
    """The structure of an encoder, as far as it is needed to read its attention.

    Args:
        anatomy: Its structure.
        heads: Its heads.
        projections: The output projection of each block; None if they cannot be told.
        pad_token_id: Id of the padding token.
        n_token_types: How many token types the encoder is given; 0 if none.
    """

    anatomy: Anatomy
    heads: Heads
    projections: Sequence[OutputProjection] | None
    pad_token_id: int
    n_token_types: int = 0

    @classmethod
    def of(
        cls, encoder: nn.Module, pad_token_id: int, name: str, n_types: int = 0, lengths: Sequence[int] = ()
    ) -> AttentionReader:
        """Examine an encoder.

        Args:
            encoder: A model in evaluation mode.
            pad_token_id: Id of the padding token.
            name: The model's name as the user typed it, for messages.
            n_types: How many token types it is given; see `n_token_types`.
            lengths: Number of tokens of each sentence that it is to read; see `examine`.

        Raises:
            UserError: If it has no attention weights.
        """
        anatomy = examine(encoder, pad_token_id, name, lengths)
        heads = find_heads(encoder, anatomy, pad_token_id, name)
        return cls(anatomy, heads, heads.output_projections(encoder), pad_token_id, n_types)

    def read(self, encoder: nn.Module, batch: Batch, begins: Sequence[_Begin]) -> list[Kept]:
        """Run the encoder over a batch, give each block's attention to the measures, and return what they keep.

        Args:
            encoder: The encoder.
            batch: The sentences, on the device that computes float64 for the encoder's device (`float64_device`).
            begins: For each measure, the function that makes its accumulator for a batch.
        """
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
        return [accumulator.kept() for accumulator in accumulators]


def accumulate(
    request: Request,
    measures: Sequence[Measure],
    cache: Path,
    trainer_options: Mapping[str, Any],
    say: Callable[[str], None] = lambda message: None,
    callbacks: Sequence[Any] = (),
) -> dict[str, SumsStore]:
    """Return the stored sums of each measure, by its name, reading the corpus for those that are missing.

    As with activations, one job computes an entry while other jobs wait for it. The shards are divided among the
    Trainer's ranks, and finished shards are not read again.

    Args:
        request: Model and corpus; its layers do not matter, because all heads are read.
        measures: The measures, with distinct names.
        cache: The cache folder.
        trainer_options: Lightning's `Trainer` arguments; only those that concern a forward pass are used.
        say: Called with one-line messages.
        callbacks: Lightning callbacks.

    Raises:
        UserError: If the model has no attention weights or cannot be loaded, or the cache cannot be written.
        RunError: If the pass failed; finished shards stay in the cache.
    """
    keys = {measure.name: _key(request, measure) for measure in measures}
    folders = {name: cache / f"{request.source.short_name}-{fingerprint(key)[:16]}" for name, key in keys.items()}
    if not is_main_process():
        _run(request, measures, folders, None, trainer_options, callbacks)
        return {name: SumsStore(folder) for name, folder in folders.items()}
    with ExitStack() as locks:
        try:
            for folder in sorted(folders.values()):  # in one order, so that no two jobs wait for each other
                locks.enter_context(job_lock(cache, folder.name, say))
                for path in leftovers(folder):
                    remove(path)
        except OSError as error:
            raise UserError(
                f"`--cache {cache}` cannot be written ({error.strerror or error}); name a writable folder with --cache."
            ) from None
        stores = _open_or_create(request, folders, keys)
        work = _missing(stores)
        try:
            _run(request, measures, folders, work, trainer_options, callbacks)
        except UserError:
            for store in stores.values():
                if not store.records():
                    remove(store.folder)  # for example if the model has no attention weights
            raise
        if left := _missing(stores):
            raise RunError(f"{len(left)} shards of the attention were not read; run the same command again")
        for store in stores.values():
            store.touch()
    return stores


def _key(request: Request, measure: Measure) -> dict[str, Any]:
    return {**request.key(), "attention": measure.name, "settings": dict(measure.settings)}


def _open_or_create(
    request: Request, folders: Mapping[str, Path], keys: Mapping[str, Mapping[str, Any]]
) -> dict[str, SumsStore]:
    """Open each measure's entry, or plan it; all entries of a corpus have the same shards."""
    stores: dict[str, SumsStore] = {}
    tokens = None
    for name, folder in folders.items():
        try:
            stores[name] = SumsStore(folder)
            continue
        except DamagedCache:
            pass
        if tokens is None:
            tokens = tokens_of(request, load_tokenizer(request.source))
        shards = divide(tokens.lengths, SHARD_TOKENS)
        d_model = load_config(request.source).hidden_size
        plan = Plan(keys[name], 0, d_model, request.dtype, batch_tokens_of(request), shards)
        try:
            SumsStore.create(folder, plan, tokens, description(request))
        except OSError as error:
            raise not_written(folder, error) from error
        stores[name] = SumsStore(folder)
    return stores


def _missing(stores: Mapping[str, SumsStore]) -> dict[int, list[str]]:
    """Return for each shard the measures whose sums are missing or damaged."""
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
    """Read the shards that are missing, given as `work` on the first rank and as None on the others."""
    trainer = forward_trainer(trainer_options, callbacks)
    if not work and trainer.world_size == 1:
        return
    end_together(trainer)
    folder = next(iter(folders.values())).parent
    run_pass(lambda writer: AttentionPass(request, measures, folders, work, writer), folder, trainer)


class AttentionPass(ShardPass):
    """Reads the attention over shards of a corpus, and writes the sums of each measure.

    Args:
        request: Model and corpus.
        measures: The measures.
        folders: The entry of each measure, which the first rank has created.
        work: The measures to be written for each incomplete shard; None on ranks other than the first.
        writer: Executor with a single thread, which writes a shard while the next one is read.
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
        """Load the model, give each reader a copy with the same weights, and bind measures to the corpus."""
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
        self.begins = {one.name: one.of_corpus(tokens, self.request.corpus) for one in self.measures}

    def process(self, shard: int, missing: Sequence[str]) -> dict[str, dict[str, Tensor]]:
        """Return the sums of each missing measure over one shard."""
        store = self.stores[missing[0]]
        here = store.plan.shards[shard]
        rows = store.shard_tokens(here)
        begins = [self.begins[name] for name in missing]
        found: dict[int, tuple[Batch, list[Kept]]] = {}

        @torch.inference_mode()
        def read(encoder: nn.Module, reader: AttentionReader, one: tuple[int, Batch]) -> None:
            index, batch = one
            found[index] = batch, reader.read(encoder, batch, begins)

        reader = self.readers[0][1]
        some = shard_batches(store, shard, reader, float64_device(self.device))
        share_out(read, self.readers, enumerate(some))
        made: dict[str, dict[str, Tensor]] = {}
        for i, name in enumerate(missing):
            in_order = ((batch, kept[i]) for batch, kept in (found[index] for index in sorted(found)))
            made[name] = of_shard(in_order, here.first_sentence, here.n_sentences, rows.start, here.n_tokens)
            if bad := not_finite(made[name]):
                raise RunError(
                    f"the attention over sentences {here.first_sentence} to "
                    f"{here.first_sentence + here.n_sentences - 1} of the corpus (counted from 0) gives values of "
                    f"`{bad}` that are not finite with --dtype {store.plan.dtype}; use float32 or bfloat16"
                )
        return made

    def write(self, shard: int, made: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Write the sums of one shard."""
        for name, sums in made.items():
            self.stores[name].write_tensors(0, shard, sums)


def shard_batches(
    store: ActivationStore, shard: int, reader: AttentionReader, device: torch.device | str = "cpu"
) -> Iterator[Batch]:
    """Yield a shard's sentences in batches by token budget, longest first.

    Args:
        store: The store, whose plan is followed.
        shard: Index of the shard.
        reader: What is known of the encoder.
        device: Where the batches are put.
    """
    plan, tokens = store.plan, store.tokens
    here = plan.shards[shard]
    rows = store.shard_tokens(here)
    lengths = tokens.lengths[here.first_sentence : here.first_sentence + here.n_sentences]
    input_ids, words = (torch.from_numpy(values[rows].astype(np.int64)) for values in (tokens.input_ids, tokens.words))
    segments, token_types = (
        None if values is None else torch.from_numpy(values[rows].astype(np.int64))
        for values in (tokens.segments, tokens.types_for(reader.n_token_types))
    )
    input_ids = input_ids[reading_order(store, rows)]
    for sentences in batches(lengths, plan.batch_tokens, with_padding=reader.anatomy.padding_is_neutral):
        index, mask = padded_index(lengths, sentences)
        of_words = torch.where(mask, words[index], -1)
        special = mask & (of_words < 0)
        special[:, 0] |= reader.heads.is_causal
        yield Batch(
            sentences=torch.from_numpy(here.first_sentence + sentences).to(device),
            rows=torch.where(mask, index + rows.start, 0).to(device),
            input_ids=torch.where(mask, input_ids[index], reader.pad_token_id).to(device),
            mask=mask.to(device),
            special=special.to(device),
            words=of_words.to(device),
            is_causal=reader.heads.is_causal,
            segments=None if segments is None else torch.where(mask, segments[index], -1).to(device),
            token_types=None if token_types is None else torch.where(mask, token_types[index], 0).to(device),
        )
