"""The encoder over the corpus, once: a LightningModule whose unit of work is the shard."""

from __future__ import annotations

import ctypes
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from probing.cache.plan import Plan, batches
from probing.cache.store import ActivationStore, not_written
from probing.errors import RunError
from probing.models.anatomy import Anatomy, examine, hidden_states
from probing.runtime.distributed import launched
from probing.runtime.interrupts import interrupts_pass
from probing.statistics.permutation import permute_within_sentences


class Extraction(pl.LightningModule):
    """Fills the missing shards of a store under `Trainer.predict`, divided among its ranks.

    Args:
        load: Returns the model, in evaluation mode and in the store's dtype, and the token that fills a batch; it is
            masked.
        folder: Of the store; the first rank has made it.
        work: For each shard that needs work, the layers to be written; None on the other ranks.
        writer: Writes a shard while the next one is extracted; of one thread.
    """

    def __init__(
        self,
        load: Callable[[], tuple[nn.Module, int]],
        folder: Path,
        work: Mapping[int, Sequence[int]] | None,
        writer: Executor,
    ) -> None:
        super().__init__()
        self.writer, self.writing = writer, Future[None]()
        self.writing.set_result(None)
        # A rank may be left without work: a few shards are missing and there are many ranks.
        self.allow_zero_length_dataloader_with_multiple_devices = True
        self.load, self.folder, self.work = load, folder, work

    def setup(self, stage: str) -> None:
        """Take the first rank's word for what is to be done, and load the model where that is anything."""
        self.work = self.trainer.strategy.broadcast(self.work)
        if self.work:
            self.store = ActivationStore(self.folder)
            self.encoder, self.pad_token_id = self.load()
            n = n_readers(self.trainer.strategy.root_device)
            encoders = [self.encoder, *(with_the_same_weights(self.encoder) for _ in range(n - 1))]
            name = str(self.store.header["model"])
            self.readers = [(encoder, examine(encoder, self.pad_token_id, name)) for encoder in encoders]

    def predict_dataloader(self) -> DataLoader[int]:
        """Return the indices of the shards that need work, this rank's share of them.

        Lightning's own sampler for prediction refuses to leave a rank without work.
        """
        share = list(self.work or ())[self.trainer.global_rank :: self.trainer.world_size]
        return DataLoader(share, batch_size=None)  # type: ignore[arg-type]

    def predict_step(self, shard: int) -> int:
        """Extract one shard, all its missing layers in one pass, and return it: Lightning warns of None."""
        layers = (self.work or {})[shard]
        states = extract_shard(self.readers, self.store, shard, layers, self.pad_token_id)
        self.writing.result()  # so that no more than one shard waits in memory
        give_back_memory()
        self.writing = self.writer.submit(self._write, shard, states)
        return shard

    def on_predict_end(self) -> None:
        """Wait for the last shard."""
        self.writing.result()

    def _write(self, shard: int, states_of: Mapping[int, Tensor]) -> None:
        for layer, states in states_of.items():
            self.store.write(layer, shard, states)


_Batch = TypeVar("_Batch")
Reader = tuple[nn.Module, Anatomy]
# Batches in work at once on a processor. Its threads wait less for one another where each has a batch of its own; more
# batches than this a shard seldom has.
MOST_READERS = 4


def n_readers(device: torch.device) -> int:
    """Return how many batches to work on at once: on an accelerator one, else what divides the threads evenly."""
    n_threads = torch.get_num_threads() if device.type == "cpu" else 1
    return max(n for n in range(1, MOST_READERS + 1) if n_threads % n == 0)


def with_the_same_weights(encoder: nn.Module) -> nn.Module:
    """Return a copy that shares parameters and buffers, so that another thread can run it with hooks of its own."""
    return deepcopy(encoder, {id(tensor): tensor for tensor in (*encoder.parameters(), *encoder.buffers())})


def extract_shard(
    readers: Sequence[Reader], store: ActivationStore, shard: int, layers: Sequence[int], pad_token_id: int
) -> dict[int, Tensor]:
    """Return the hidden states of one shard, for each layer of shape (n_tokens_in_shard, d_model), without padding.

    Args:
        readers: Encoders of the same weights, and their anatomy; as many batches are worked on at once.
        store: Whose plan is followed.
        shard: Index of the shard.
        layers: Layer numbers.
        pad_token_id: What fills a batch.

    Raises:
        RunError: If a hidden state is not finite; the message names the layer and the sentence.
    """
    plan = store.plan
    rows = store.shard_tokens(plan.shards[shard])
    input_ids = torch.from_numpy(store.tokens.input_ids[rows].astype(np.int64))
    here = plan.shards[shard]
    lengths = store.tokens.lengths[here.first_sentence : here.first_sentence + here.n_sentences]
    order = _reading_order(store, rows)
    dtype = getattr(torch, plan.dtype)
    states = {layer: torch.empty(len(input_ids), plan.d_model, dtype=dtype) for layer in layers}

    @torch.inference_mode()
    def extract(encoder: nn.Module, anatomy: Anatomy, sentences: NDArray[np.int64]) -> None:
        index, mask = padded_index(lengths, sentences)
        index = order[index]
        padded = torch.where(mask, input_ids[index], pad_token_id)
        device = next(encoder.parameters()).device
        inputs = {"input_ids": padded.to(device), "attention_mask": mask.long().to(device)}
        output = hidden_states(encoder, anatomy, layers, **inputs)
        tokens, places = mask.flatten().nonzero().squeeze(1).to(device), index[mask]
        for layer, values in output.items():
            flat = values.flatten(0, 1).index_select(0, tokens)
            # T5 keeps some weights, and so some states, in float32.
            states[layer].index_copy_(0, places, flat.to(dtype).cpu())

    share_out(extract, readers, batches(lengths, plan.batch_tokens, with_padding=readers[0][1].padding_is_neutral))
    for layer, values in states.items():
        _refuse_infinite(values, layer, np.repeat(here.first_sentence + np.arange(here.n_sentences), lengths), plan)
    return states


def share_out(
    extract: Callable[[nn.Module, Anatomy, _Batch], None], readers: Sequence[Reader], some: Iterable[_Batch]
) -> None:
    """Give every reader a batch whenever it has none, each in a thread with its share of the process's threads.

    Args:
        extract: Takes encoder, anatomy and a batch.
        readers: Encoders and their anatomy; a single one stays in this thread.
        some: The batches.

    Raises:
        Exception: The first that a reader raised; the others then begin no further batch.
    """
    if len(readers) == 1:
        for batch in some:
            extract(*readers[0], batch)
        return
    waiting, n_threads = deque(some), torch.get_num_threads()

    def read(reader: Reader) -> None:
        torch.set_num_threads(n_threads // len(readers))
        try:
            while (batch := _next(waiting)) is not None:
                extract(*reader, batch)
        finally:
            waiting.clear()  # of no use to the others either, if this one failed

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
    """Raise RunError if a hidden state is not finite, naming the first such sentence; shapes (n, d_model), (n,)."""
    # A sum tells at a fraction of the cost, and where it merely overflowed, each value is looked at.
    if math.isfinite(float(states.sum(dtype=torch.float32))):
        return
    bad = (~torch.isfinite(states).all(1)).nonzero()
    if len(bad):
        raise RunError(
            f"layer {layer} has activations that are not finite in sentence {sentences[int(bad[0])]} "
            f"of the corpus (counted from 0) with --dtype {plan.dtype}; extract in float32 or bfloat16"
        )


def _reading_order(store: ActivationStore, rows: slice) -> Tensor:
    """Return which token of a shard the model reads at each place, shape (n,): its own, or one of the same sentence.

    A token that the draw gives place p is read at place p. Special tokens are read at their own.
    """
    tokens, places = store.tokens, np.arange(rows.stop - rows.start)
    seed = store.plan.key.get("permuted_tokens_seed")
    if seed is None:
        return torch.from_numpy(places)
    special = tokens.special[rows]
    (drawn,) = permute_within_sentences(
        np.where(special, -1, places), tokens.sentences[rows], tokens.input_ids[rows], 1, seed
    )
    # The draw says for each token its place; the inverse permutation says for each place its token.
    return torch.from_numpy(np.argsort(np.where(special, places, drawn)))


def padded_index(lengths: NDArray[np.int32], sentences: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return for a batch the row of each token in the shard and where tokens are, both of shape (batch, sequence)."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])[sentences]
    columns = np.arange(lengths[sentences].max())
    mask = columns < lengths[sentences][:, None]
    index = np.where(mask, offsets[:, None] + columns, 0)
    return torch.from_numpy(index), torch.from_numpy(mask)


def run_extraction(
    load: Callable[[], tuple[nn.Module, int]],
    folder: Path,
    work: Mapping[int, Sequence[int]] | None,
    trainer: pl.Trainer,
) -> None:
    """Extract what is missing under a Trainer, whatever its devices and strategy.

    Args:
        load: Returns the model, in evaluation mode and in the store's dtype, and the token that fills a batch.
        folder: Of the store.
        work: For each shard that needs work, the layers to be written; None on all ranks but the first.
        trainer: Made with `use_distributed_sampler=False`; the shards are divided here.

    Raises:
        UserError: If the model cannot be loaded or run, or the disk is full.
        RunError: If activations are not finite.
        KeyboardInterrupt: If the user interrupted it.
    """
    try:
        # Whatever happens, nobody else is let in before the last shard is written.
        with interrupts_pass(), ThreadPoolExecutor(1) as writer:
            trainer.predict(Extraction(load, folder, work, writer), return_predictions=False)
        # Ranks finish at different times; nobody looks before all have written.
        trainer.strategy.barrier()
    except OSError as error:
        raise not_written(folder, error) from error
    finally:
        give_back_memory()


def give_back_memory() -> None:
    """Return to the system what the allocator keeps free, where it is glibc's.

    A thread frees into a heap that others do not draw from. What readers and writer leave so grows from shard to shard,
    by 100 MiB over 18 of them, and 300 MiB would lie idle beside what comes after the extraction.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or none by that name
        ctypes.CDLL(None).malloc_trim(0)


def trainer_keywords(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of the Trainer's options that concerns a forward pass: devices and strategy, not epochs.

    Processes that torchrun or srun started are joined.
    """
    concerned = ("accelerator", "devices", "num_nodes", "strategy", "plugins", "enable_progress_bar")
    return launched() | {name: value for name, value in options.items() if name in concerned}
