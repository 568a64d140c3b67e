"""Runs the encoder over the corpus once, by a LightningModule whose unit of work is the shard."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from probing.cache.plan import Plan
from probing.cache.reading import Reading
from probing.cache.store import ActivationStore, not_written
from probing.errors import RunError
from probing.models.anatomy import Anatomy, of_copy
from probing.models.examination import with_the_same_weights
from probing.models.sites import activations
from probing.runtime.machine import give_back_memory
from probing.runtime.processes import interrupts_pass, launched
from probing.runtime.progress import shards_counted


class ShardPass(pl.LightningModule):
    """Processes shards of a corpus under `Trainer.predict`, divided among its ranks.

    Args:
        work: What is missing of each incomplete shard; None on ranks other than the first.
        writer: Executor with a single thread, which writes a shard while the next one is processed.
    """

    def __init__(self, work: Mapping[int, Any] | None, writer: Executor) -> None:
        super().__init__()
        self.writer, self.writing = writer, Future[None]()
        self.writing.set_result(None)
        # If few shards are missing and there are many ranks, some ranks have no work.
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self.work = work

    def prepare(self) -> None:
        """Load what `process` needs; called if there is any work."""
        raise NotImplementedError

    def process(self, shard: int, missing: Any) -> Any:
        """Return what is to be written of a shard."""
        raise NotImplementedError

    def write(self, shard: int, made: Any) -> None:
        """Write what `process` returned; called in the writer's thread."""
        raise NotImplementedError

    def setup(self, stage: str) -> None:
        """Receive the work from the first rank, and prepare if there is any work."""
        self.work = self.trainer.strategy.broadcast(self.work)
        if self.work:
            self.prepare()

    def predict_dataloader(self) -> DataLoader[int]:
        """Return this rank's share of the incomplete shards' indices.

        Lightning's own sampler for prediction does not allow a rank without work.
        """
        share = list(self.work or ())[self.trainer.global_rank :: self.trainer.world_size]
        # With a generator of its own: a loader draws a seed for workers that it does not have.
        return DataLoader(share, batch_size=None, generator=torch.Generator())  # type: ignore[arg-type]

    def predict_step(self, shard: int) -> int:
        """Process one shard. Return its index, because Lightning warns about None."""
        made = self.process(shard, (self.work or {})[shard])
        self.writing.result()  # at most one shard waits in memory
        give_back_memory()
        self.writing = self.writer.submit(self.write, shard, made)
        return shard

    def on_predict_end(self) -> None:
        """Wait until the last shard is written."""
        self.writing.result()


class Extraction(ShardPass):
    """Fills the missing shards of a store.

    Args:
        load: Returns the model, in evaluation mode and in the store's dtype, and its tokenizer.
        folder: The store's folder, which the first rank has created.
        work: The layers to be written for each incomplete shard; None on ranks other than the first.
        writer: Executor with a single thread, which writes a shard while the next one is extracted.
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
        self.reading = Reading.of(self.encoder, tokenizer, self.store)
        self.readers = [
            (encoder, of_copy(self.reading.anatomy, self.encoder, encoder))
            for encoder in copies_for_readers(self.encoder, device)
        ]

    def process(self, shard: int, missing: Sequence[int]) -> dict[int, Tensor]:
        """Extract all missing layers of one shard in one pass."""
        return extract_shard(self.readers, self.store, shard, missing, self.reading)

    def write(self, shard: int, made: Mapping[int, Tensor]) -> None:
        """Write the layers of one shard."""
        for layer, states in made.items():
            self.store.write(layer, shard, states)


_Batch = TypeVar("_Batch")
_Known = TypeVar("_Known")
Reader = tuple[nn.Module, Anatomy]
# Most batches processed at once on a processor. Threads wait less for one another if each has a batch of its own; a
# shard seldom has more batches than this.
MOST_READERS = 4


def n_readers(device: torch.device) -> int:
    """Return how many batches to process at once: one on an accelerator, else a divisor of the number of threads."""
    n_threads = torch.get_num_threads() if device.type == "cpu" else 1
    return max(n for n in range(1, MOST_READERS + 1) if n_threads % n == 0)


def copies_for_readers(encoder: nn.Module, device: torch.device) -> list[nn.Module]:
    """Return the encoder for the first reader, and a copy that shares its weights for each further one."""
    return [encoder, *(with_the_same_weights(encoder) for _ in range(n_readers(device) - 1))]


def extract_shard(
    readers: Sequence[Reader], store: ActivationStore, shard: int, layers: Sequence[int], reading: Reading
) -> dict[int, Tensor]:
    """Return the hidden states of one shard, for each layer of shape (n_tokens_in_shard, d_model), without padding.

    Args:
        readers: Encoders with the same weights, and their anatomy; each processes one batch at a time.
        store: The store, whose plan is followed.
        shard: Index of the shard.
        layers: Layer numbers.
        reading: How they read the store.

    Raises:
        RunError: If a hidden state is not finite; the message names the layer and the sentence.
    """
    plan, text = store.plan, reading.of_shard(store, shard)
    here = plan.shards[shard]
    dtype = getattr(torch, plan.dtype)
    states = {layer: torch.empty(here.n_tokens, plan.d_model, dtype=dtype) for layer in layers}

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
    sentences = np.repeat(here.first_sentence + np.arange(here.n_sentences), text.lengths)
    for layer, values in states.items():
        _refuse_infinite(values, layer, sentences, plan)
    return states


def share_out(
    extract: Callable[[nn.Module, _Known, _Batch], None],
    readers: Sequence[tuple[nn.Module, _Known]],
    some: Iterable[_Batch],
) -> None:
    """Process batches by several readers, each in its own thread and with an equal share of torch's threads.

    Args:
        extract: Called with an encoder, what is known of it, and a batch.
        readers: Encoders and what is known of each, such as its anatomy; a single reader runs in this thread.
        some: The batches.

    Raises:
        Exception: The first exception of a reader; the others then begin no further batch.
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


def _refuse_infinite(states: Tensor, layer: int, sentences: NDArray[np.int64], plan: Plan) -> None:
    """Raise a RunError that names the first sentence with a non-finite hidden state; shapes (n, d_model), (n,)."""
    # A finite sum proves it at a fraction of the cost. Otherwise, since the sum may have overflowed, check every value.
    if math.isfinite(float(states.sum(dtype=torch.float32))):
        return
    bad = (~torch.isfinite(states).all(1)).nonzero()
    if len(bad):
        raise RunError(
            f"layer {layer} has activations that are not finite in sentence {sentences[int(bad[0])]} "
            f"of the corpus (counted from 0) with --dtype {plan.dtype}; extract in float32 or bfloat16"
        )


def run_extraction(
    load: Callable[[], tuple[nn.Module, Any]],
    folder: Path,
    work: Mapping[int, Sequence[int]] | None,
    trainer: pl.Trainer,
) -> None:
    """Extract the missing shards under a Trainer with any devices and strategy.

    Args:
        load: Returns the model, in evaluation mode and in the store's dtype, and its tokenizer.
        folder: The store's folder.
        work: The layers to be written for each incomplete shard; None on ranks other than the first.
        trainer: A Trainer with `use_distributed_sampler=False`, because the shards are divided here.

    Raises:
        UserError: If the model cannot be loaded or run, or the disk is full.
        RunError: If activations are not finite.
        KeyboardInterrupt: If the user interrupted it.
    """
    run_pass(lambda writer: Extraction(load, folder, work, writer), folder, trainer)


def run_pass(make: Callable[[Executor], ShardPass], folder: Path, trainer: pl.Trainer) -> None:
    """Process shards under a Trainer with any devices and strategy.

    Args:
        make: Returns the pass, which writes with this executor.
        folder: Where it writes, for messages.
        trainer: A Trainer with `use_distributed_sampler=False`, because the shards are divided here.
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
    """Return a Trainer for a forward pass over shards, with the options that concern it."""
    return pl.Trainer(
        logger=False,
        callbacks=[shards_counted(), *callbacks],
        **{"enable_progress_bar": False, **trainer_keywords(options)},
        enable_model_summary=False,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        inference_mode=True,
    )
