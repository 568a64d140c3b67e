"""Extraction: a pass of the encoder over the corpus, by a LightningModule whose unit of work is the shard."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from probing.activations.store import ActivationStore, CacheEntry, StorePlan, batches, not_written
from probing.errors import RunError
from probing.models.anatomy import Anatomy, examine, of_copy
from probing.models.examination import n_token_types, with_the_same_weights
from probing.models.sites import activations
from probing.runtime import give_back_memory
from probing.runtime.processes import interrupts_pass, launched
from probing.runtime.trainer import CountedShards
from probing.statistics.chance import permute_within_sentences


@dataclass(frozen=True)
class ForwardSpec:
    """Specification of an encoder's reading: anatomy with the store's site, padding id, number of token types or 0."""

    anatomy: Anatomy
    pad_token_id: int
    n_token_types: int

    @classmethod
    def of(cls, encoder: nn.Module, tokenizer: Any, store: ActivationStore) -> ForwardSpec:
        """Examine an encoder for the sentences of a store; see `examine` for the models refused."""
        pad_token_id = tokenizer.pad_token_id or 0
        anatomy = examine(encoder, pad_token_id, str(store.header["model"]), store.tokens.lengths.tolist())
        n_types = n_token_types(encoder, tokenizer, store.tokens.segments is not None)
        modules = tuple((store.header.get("site") or {}).get("modules", ()))
        return cls(replace(anatomy, site_modules=modules), pad_token_id, n_types)

    def of_shard(self, store: ActivationStore, shard: int) -> ShardReading:
        """Return the encoder's inputs of a shard."""
        shard_plan, tokens = store.plan.shards[shard], store.tokens
        rows, types = shard_plan.rows(store.tokens), tokens.types_for(self.n_token_types)
        token_inputs: dict[str, NDArray[Any]] = {"input_ids": tokens.input_ids}
        if types is not None:
            token_inputs["token_type_ids"] = types
        return ShardReading(
            tokens.lengths[shard_plan.first_sentence : shard_plan.first_sentence + shard_plan.n_sentences],
            reading_order(store, rows),
            {name: torch.from_numpy(values[rows].astype(np.int64)) for name, values in token_inputs.items()},
            self,
            store.plan.batch_tokens,
        )


@dataclass(frozen=True)
class ShardReading:
    """The encoder's inputs of a shard.

    `lengths` is the number of tokens of each sentence, shape (n_sentences,); `order`, of `reading_order`, and the
    `token_inputs` of the encoder have shape (n_tokens,); `batch_tokens` includes padding.
    """

    lengths: NDArray[np.int32]
    order: Tensor
    token_inputs: dict[str, Tensor]
    reading: ForwardSpec
    batch_tokens: int

    def batches(self) -> Iterator[NDArray[np.int64]]:
        """Yield the sentences of each batch, counted from the shard's first."""
        return batches(self.lengths, self.batch_tokens, with_padding=self.reading.anatomy.padding_is_neutral)

    def inputs(self, sentences: NDArray[np.int64], device: Any = "cpu") -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return a batch's encoder inputs, token indices in the shard and token mask, shape (batch, sequence).

        `sentences` are counted from the shard's first.
        """
        index, mask = padded_index(self.lengths, sentences)
        index = self.order[index]
        padding = {"input_ids": self.reading.pad_token_id}
        inputs = {
            name: torch.where(mask, values_of_token[index], padding.get(name, 0))
            for name, values_of_token in self.token_inputs.items()
        }
        inputs["attention_mask"] = mask.long()
        return {name: values.to(device) for name, values in inputs.items()}, index, mask


def reading_order(store: CacheEntry, rows: slice) -> Tensor:
    """Return the index of the token that the model reads at each index of a shard, shape (n,).

    Permutation stays within sentences and moves no special tokens; without it, the order is the identity.
    """
    tokens, indices = store.tokens, np.arange(rows.stop - rows.start)
    seed = store.plan.key.get("permuted_tokens_seed")
    if seed is None:
        return torch.from_numpy(indices)
    special = tokens.special[rows]
    (drawn,) = permute_within_sentences(
        np.where(special, -1, indices), tokens.sentences[rows], tokens.input_ids[rows], 1, seed
    )
    # The draw gives the new index of each token; its inverse permutation gives the token at each index.
    return torch.from_numpy(np.argsort(np.where(special, indices, drawn)))


def padded_index(lengths: NDArray[np.int32], sentences: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return for a batch each token's row in the shard, and the mask of tokens; both of shape (batch, sequence)."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])[sentences]
    columns = np.arange(lengths[sentences].max())
    mask = columns < lengths[sentences][:, None]
    index = np.where(mask, offsets[:, None] + columns, 0)
    return torch.from_numpy(index), torch.from_numpy(mask)


class ShardPass(pl.LightningModule):
    """Pass over shards of a corpus under `Trainer.predict`, divided among its ranks.

    `work` is the missing part of each incomplete shard, None except in the rank-zero process; `writer` is an executor
    with a single thread, which writes a shard while the next is processed.
    """

    def __init__(self, work: Mapping[int, Any] | None, writer: Executor) -> None:
        super().__init__()
        self.writer, self.writing = writer, Future[None]()
        self.writing.set_result(None)
        # If few shards are missing and there are many ranks, some ranks have no work.
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self.work = work

    def prepare(self) -> None:
        """Load the requirements of `process`; called if there is any work."""
        raise NotImplementedError

    def process(self, shard: int, missing: Any) -> Any:
        """Return the data to be written for a shard."""
        raise NotImplementedError

    def write(self, shard: int, processed: Any) -> None:
        """Write the return value of `process`; called in the writer's thread."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Receive the work from the rank-zero process, and prepare if there is any work."""
        self.work = self.trainer.strategy.broadcast(self.work)
        if self.work:
            self.prepare()

    def predict_dataloader(self) -> DataLoader[int]:
        """Return this rank's share of the shards; Lightning's sampler does not allow a rank without work."""
        share = list(self.work or ())[self.trainer.global_rank :: self.trainer.world_size]
        # With a generator of its own: a loader draws a seed for workers that it does not have.
        return DataLoader(share, batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]

    def predict_step(self, shard: int) -> int:
        """Process one shard. Return its index, because Lightning warns about None."""
        processed = self.process(shard, (self.work or {})[shard])
        self.writing.result()  # at most one shard waits in memory
        give_back_memory()
        self.writing = self.writer.submit(self.write, shard, processed)
        return shard

    def on_predict_end(self) -> None:
        """Wait until the last shard is written."""
        self.writing.result()


class Extraction(ShardPass):
    """Pass that fills the missing shards of a store in `folder`, which the rank-zero process has created.

    `load` returns the model, in evaluation mode and in the store's dtype, and its tokenizer. `work` has the layers to
    be written for each incomplete shard; None except in the rank-zero process.
    """

    def __init__(
        self,
        load: Callable[[], tuple[nn.Module, Any]],
        folder: Path,
        work: Mapping[int, Sequence[int]] | None,
        writer: Executor,
    ) -> None:
        super().__init__(work, writer)
        self.load, self.folder = load, folder

    def prepare(self) -> None:
        """Load the model, and give each reader a copy with the same weights."""
        self.store = ActivationStore(self.folder)
        self.encoder, tokenizer = self.load()
        device = self.trainer.strategy.root_device
        self.encoder.to(device)  # some families run in a dtype on an accelerator alone
        self.reading = ForwardSpec.of(self.encoder, tokenizer, self.store)
        self.readers = [
            (encoder, of_copy(self.reading.anatomy, self.encoder, encoder))
            for encoder in copies_for_readers(self.encoder, device)
        ]

    def process(self, shard: int, missing: Sequence[int]) -> dict[int, Tensor]:
        """Extract all missing layers of one shard in one pass."""
        return extract_shard(self.readers, self.store, shard, missing, self.reading)

    def write(self, shard: int, states_by_layer: Mapping[int, Tensor]) -> None:
        """Write the layers of one shard."""
        for layer, states in states_by_layer.items():
            self.store.write(layer, shard, states)


_Batch = TypeVar("_Batch")

_Known = TypeVar("_Known")

Reader = tuple[nn.Module, Anatomy]

# Most batches processed at once on a processor. Threads wait less for one another if each has a batch of its own; a
# shard seldom has more batches than this.
MOST_READERS = 4


def n_readers(device: torch.device) -> int:
    """Return the number of batches to process at once: 1 on an accelerator, else a divisor of the number of threads."""
    n_threads = torch.get_num_threads() if device.type == "cpu" else 1
    return max(n for n in range(1, MOST_READERS + 1) if n_threads % n == 0)


def copies_for_readers(encoder: nn.Module, device: torch.device) -> list[nn.Module]:
    """Return the encoder for the first reader, and copies that share its weights for the others."""
    return [encoder, *(with_the_same_weights(encoder) for _ in range(n_readers(device) - 1))]


def extract_shard(
    readers: Sequence[Reader], store: ActivationStore, shard: int, layers: Sequence[int], reading: ForwardSpec
) -> dict[int, Tensor]:
    """Return the hidden states of one shard, shape (n_tokens_in_shard, d_model) for each layer, without padding.

    `readers` are encoders with the same weights, and their anatomy; each processes one batch at a time. A hidden state
    that is not finite raises `RunError` with its layer and sentence.
    """
    plan, text = store.plan, reading.of_shard(store, shard)
    shard_plan = plan.shards[shard]
    dtype = getattr(torch, plan.dtype)
    states = {layer: torch.empty(shard_plan.n_tokens, plan.d_model, dtype=dtype) for layer in layers}

    @torch.inference_mode()
    def extract(encoder: nn.Module, anatomy: Anatomy, sentences: NDArray[np.int64]) -> None:
        device = next(encoder.parameters()).device
        inputs, index, mask = text.inputs(sentences, device)
        output = activations(encoder, anatomy, layers, **inputs)
        tokens, targets = mask.flatten().nonzero().squeeze(1).to(device), index[mask]
        for layer, values in output.items():
            flat = values.flatten(0, 1).index_select(0, tokens)
            # T5 keeps some weights, and therefore some hidden states, in float32.
            states[layer].index_copy_(0, targets, flat.to(dtype).cpu())

    share_out(extract, readers, text.batches())
    sentences = np.repeat(shard_plan.first_sentence + np.arange(shard_plan.n_sentences), text.lengths)
    for layer, values in states.items():
        _refuse_infinite(values, layer, sentences, plan)
    return states


def share_out(
    extract: Callable[[nn.Module, _Known, _Batch], None],
    readers: Sequence[tuple[nn.Module, _Known]],
    some: Iterable[_Batch],
) -> None:
    """Process batches by several readers, each in a separate thread and with an equal share of torch's threads.

    `readers` are encoders with their associated data, such as the anatomy; a single reader runs in this thread. After
    the exception of a reader, which is raised, the others begin no further batch.
    """
    if len(readers) == 1:
        for batch in some:
            extract(*readers[0], batch)
        return
    waiting, n_threads = deque(some), torch.get_num_threads()

    def read(reader: tuple[nn.Module, _Known]) -> None:
        torch.set_num_threads(n_threads // len(readers))
        try:
            while (batch := _next(waiting)) is not None:
                extract(*reader, batch)
        finally:
            waiting.clear()  # if this reader failed, the others stop too

    try:
        with ThreadPoolExecutor(len(readers)) as pool:
            try:
                list(pool.map(read, readers))
            finally:
                waiting.clear()  # if this thread was interrupted
    finally:
        torch.set_num_threads(n_threads)


def _next(waiting: deque[_Batch]) -> _Batch | None:
    try:
        return waiting.popleft()
    except IndexError:
        return None


def _refuse_infinite(states: Tensor, layer: int, sentences: NDArray[np.int64], plan: StorePlan) -> None:
    """Raise a `RunError` that names the first sentence with a non-finite hidden state; shapes (n, d_model), (n,)."""
    # A finite sum proves it at a fraction of the cost. Otherwise, since the sum may have overflowed, check every value.
    if math.isfinite(float(states.sum(dtype=torch.float32))):
        return
    bad = (~torch.isfinite(states).all(1)).nonzero()
    if len(bad):
        raise RunError(
            f"layer {layer} has activations that are not finite in sentence {sentences[int(bad[0])]} "
            f"of the corpus (counted from 0) with --dtype {plan.dtype}; extract in float32 or bfloat16"
        )


def run_pass(make: Callable[[Executor], ShardPass], folder: Path, trainer: pl.Trainer) -> None:
    """Process shards under a Trainer with any devices and strategy.

    `make` returns the pass, which writes with the given executor into `folder`. The Trainer has
    `use_distributed_sampler=False`, because the shards are divided here.
    """
    try:
        # In every case, the last shard is written before the lock is released.
        with interrupts_pass(), ThreadPoolExecutor(1) as writer:
            trainer.predict(make(writer), return_predictions=False)
        # Ranks finish at different times; wait until all have written.
        trainer.strategy.barrier()
    except OSError as error:
        raise not_written(folder, error) from error
    finally:
        give_back_memory()


def trainer_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the Trainer options that concern a forward pass, such as devices and strategy, but not epochs.

    Processes started by torchrun or srun are joined.
    """
    concerned = ("accelerator", "devices", "num_nodes", "strategy", "plugins", "enable_progress_bar")
    return launched() | {name: value for name, value in options.items() if name in concerned}


def forward_trainer(options: Mapping[str, Any], callbacks: Sequence[Any]) -> pl.Trainer:
    """Return a Trainer for a forward pass over shards, with the relevant options."""
    return pl.Trainer(
        logger=False,
        callbacks=[CountedShards(), *callbacks],
        **{"enable_progress_bar": False, **trainer_keywords(options)},
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        inference_mode=True,
    )
