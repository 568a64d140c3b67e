"""The LightningDataModule of labelled activations, its mini-batches, and its cache on an accelerator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from probing.cache.source import ActivationSource
from probing.cache.store import cache_folder
from probing.cli.options import ProbeOptions
from probing.corpus.splits import read_corpora
from probing.data.arrays import sides_of_arrays
from probing.data.examples import (
    Activations,
    Batch,
    Examples,
    ShardBatches,
    Sides,
    Together,
    as_batches,
    blocks,
    n_constants,
    open_shard,
    read_shard,
    read_share,
)
from probing.data.labelling import read_sides
from probing.errors import UserError
from probing.runtime.processes import most_over_ranks, sum_over_ranks
from probing.runtime.terminal import say, silence
from probing.statistics.moments import Moments, MomentsAccumulator
from probing.tasks import TokenTask, load_task, reader_of

# --------------------------------------------------------------------------------------------------------------------
# Moments of the neurons over training tokens, in one streamed pass.
# --------------------------------------------------------------------------------------------------------------------


def are_columns(store: Activations) -> bool:
    """Return whether neurons are columns of an array, as they are or changed, which may have units of their own."""
    while (inner := getattr(store, "store", None)) is not None:
        store = inner
    return bool(getattr(store, "are_columns", False))


def layer_moments(train: Examples, layers: Sequence[int]) -> list[Moments]:
    """Return the moments of each layer's training tokens, in one streamed pass divided among ranks.

    Neurons that are constants by design are given sd 1, so that they count as live.
    """
    widths = [train.store.plan.d_model] * len(layers)
    found = _moments(read_share(train, layers), widths, are_columns(train.store))
    if n := n_constants(train.store):
        for moments in found:
            moments.sd[-n:] = 1
            if moments.constant is not None:
                moments.constant[-n:] = False
    return found


def loader_moments(batches: Iterable[Any], n_layers: int) -> list[Moments]:
    """Return the moments of each layer over the batches of this rank's loader and those of the other ranks.

    Args:
        batches: Batches of examples, as `as_batches` takes them.
        n_layers: Number of layers in each batch.

    Raises:
        ValueError: If there are no batches.
    """
    iterator = (block for batch in batches for one in as_batches(batch) for block in blocks(one))
    if (first := next(iterator, None)) is None:
        raise ValueError("the loader of training batches yields none")
    widths = [states.shape[1] for states in first.hidden_states]
    if len(widths) != n_layers:
        raise ValueError(f"the batches have {len(widths)} layers, and the probe has {n_layers}")
    return _moments((block for part in ((first,), iterator) for block in part), widths)


def _moments(batches: Iterable[Batch], widths: Sequence[int], columns: bool = False) -> list[Moments]:
    accumulators = [MomentsAccumulator(width, columns) for width in widths]
    for batch in batches:
        for accumulator, states in zip(accumulators, batch.hidden_states, strict=True):
            accumulator.update(states.cpu())
    for accumulator in accumulators:
        accumulator.all_reduce(sum_over_ranks)
        accumulator.mean.limits = most_over_ranks(accumulator.mean.limits)
    return [accumulator.result() for accumulator in accumulators]


# Number of shards whose examples are shuffled together. A shard has 128 MiB of activations of all layers (12,483 tokens
# of the built-in model), which are memory-mapped and not copied.
WINDOW = 4


class MiniBatches(IterableDataset[Batch]):
    """Shuffled batches of examples, in an order that depends only on the seed and the epoch.

    Shards are put in random order and read `WINDOW` at a time. The examples of a window are shuffled uniformly. The
    sizes of a window's batches differ by at most one example.

    Ranks take equal shares of each batch, so that they train as a single process would and do not wait for one another.
    The remainder of a batch, at most `n_ranks` - 1 examples, is skipped.

    Args:
        examples: The examples to read; every rank reads all shards.
        layers: Layer numbers, in the order of `Batch.hidden_states`.
        size: Most examples in a batch, over all ranks.
        seed: Seed of the order; the epoch number is added to it.
        rank: Rank of this process.
        n_ranks: Number of processes.
    """

    def __init__(
        self, examples: Examples, layers: Sequence[int], size: int, seed: int, rank: int = 0, n_ranks: int = 1
    ) -> None:
        self.examples, self.layers, self.size, self.seed = examples, layers, size, seed
        self.rank, self.n_ranks, self.epoch = rank, n_ranks, 0

    def __iter__(self) -> Iterator[Batch]:
        generator = np.random.default_rng([self.seed, self.epoch])
        self.epoch += 1
        shards = generator.permutation(len(self.examples.store.plan.shards))
        for first in range(0, len(shards), WINDOW):
            window = [open_shard(self.examples, self.layers, int(i)) for i in shards[first : first + WINDOW]]
            # Shard and row of each example.
            pairs = np.concatenate([_examples_of(i, batch) for i, batch in enumerate(window)])
            pairs = generator.permutation(pairs)
            for batch in np.array_split(pairs, -(-len(pairs) // self.size)) if len(pairs) else ():
                if share := len(batch) // self.n_ranks:
                    yield _pick(window, batch[self.rank * share :][:share])


def _examples_of(shard: int, batch: Batch) -> np.ndarray:
    rows = (batch.labels >= 0).nonzero().squeeze(1).numpy()
    return np.stack([np.full_like(rows, shard), rows], 1)


def _pick(window: Sequence[Batch], pairs: np.ndarray) -> Batch:
    """Return the rows given by pairs (shard, row) as one float32 batch, in the order of the pairs."""
    order = np.argsort(pairs[:, 0], kind="stable")
    in_shards = pairs[order]
    back = torch.from_numpy(np.argsort(order))
    parts = [
        window[shard].pick(torch.from_numpy(in_shards[in_shards[:, 0] == shard, 1]))
        for shard in np.unique(in_shards[:, 0])
    ]
    states = (torch.cat(own).float()[back] for own in zip(*(part.hidden_states for part in parts), strict=True))
    labels, sentences, rows = (torch.cat([part[i] for part in parts])[back] for i in (1, 2, 3))
    return Batch(tuple(states), labels, sentences, rows)


# Share of the accelerator's free memory that the cache may use; the rest is for the probes and their computations.
SHARE = 0.5


class DeviceCache(Dataset[Batch]):
    """Keeps copies of as many batches as fit on a device; all other batches must be copied again in every pass.

    Args:
        batches: The batches to read.
        device: The device of the cache; Lightning does not move batches that are already there.
        room_bytes: Most bytes to cache; by default half of the device's free memory.
    """

    def __init__(self, batches: ShardBatches, device: torch.device, room_bytes: int | None = None) -> None:
        self.batches, self.device = batches, device
        self.room_bytes = int(SHARE * torch.cuda.mem_get_info(device)[0]) if room_bytes is None else room_bytes
        self.cached: dict[int, Batch] = {}

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Batch:
        if index in self.cached:
            return self.cached[index]
        batch = self.batches[index]
        size = sum(tensor.nbytes for tensor in (*batch.hidden_states, *batch[1:]))
        if size > self.room_bytes:
            return batch
        self.room_bytes -= size
        states = tuple(states.to(self.device) for states in batch.hidden_states)
        self.cached[index] = Batch(states, *(tensor.to(self.device) for tensor in batch[1:]))
        return self.cached[index]


class ActivationDataModule(pl.LightningDataModule):
    """Labelled activations of the train, validation and test parts, divided among ranks by shard.

    `from_arrays` takes activations from anywhere, `from_text` those of a model and a corpus.

    Args:
        sides: The examples of the three parts.
        layers: Layers to read.
        batch_size: Most examples in a shuffled mini-batch, for adam; None for whole shards in order, for lbfgs.
        seed: Seed of the order of mini-batches.
    """

    def __init__(self, sides: Sides, layers: Sequence[int], batch_size: int | None = None, seed: int = 0) -> None:
        super().__init__()
        if sides.numbers:
            raise UserError(
                "`LinearProbe` predicts classes, and these labels are numbers; `probing.probe` and `fit` predict them."
            )
        self.sides, self.layers, self.batch_size, self.seed = sides, list(layers), batch_size, seed

    @classmethod
    def from_arrays(
        cls,
        X: Any,
        y: Any,
        groups: Any = None,
        split: Any = None,
        ordinal: bool = False,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> ActivationDataModule:
        """Take activations from arrays.

        Args:
            X: Array of shape (n_rows, d_model), or one for each layer number: NumPy arrays, memory maps or tensors.
            y: Label of each row, a whole number or a string.
            groups: Group of each row, such as its sentence or document, which stay on one side; see `probing.probe`.
            split: `train`, `validation` or `test` for each row; if None, a hash of its group and `seed` decides.
            ordinal: Whether labels are numbers, so that distances between labels are meaningful.
            batch_size: Most rows in a shuffled mini-batch, for adam; None for whole shards in order, for lbfgs.
            seed: Seed of the split and of the order of mini-batches.

        Raises:
            UserError: If shapes, labels or sides are not as expected.
        """
        sides, layers = sides_of_arrays(X, y, groups, split, ordinal, seed, say=say)
        return cls(sides, [*map(int, layers)], batch_size, seed)

    @classmethod
    def from_text(
        cls,
        model: str = "minilm",
        corpus: str = "builtin",
        layer: int | Sequence[int] | str = "all",
        task: str | TokenTask = "position",
        cache: str | Path | None = None,
        batch_size: int | None = None,
        seed: int = 0,
    ) -> ActivationDataModule:
        """Take the activations of a model that reads a corpus; activations that are not in the cache are extracted.

        Args:
            model: Alias, hub id or folder of the model.
            corpus: Corpus, as for `fit`.
            layer: Layers to read: one, several or `all`.
            task: Name of the task that labels tokens, or a task.
            cache: Folder of cached activations; $PROBING_CACHE or runs/cache if None.
            batch_size: Most tokens in a shuffled mini-batch, for adam; None for whole shards in order, for lbfgs.
            seed: Seed of the split and of the order of mini-batches.

        Raises:
            UserError: If the model, a layer, the corpus or the task is not there, or a side has no examples.
        """
        labelled = load_task(task, {}) if isinstance(task, str) else task
        corpora, splits = read_corpora(corpus, None, seed, silence, column_of=reader_of(labelled))
        source = ActivationSource.of(model, None, layer, None, cache=cache_folder(cache))
        sides, _ = read_sides(source, corpora, splits, labelled, ProbeOptions(), "sentence")
        return cls(sides, source.layers, batch_size, seed)

    @property
    def classes(self) -> list[Any]:
        """The label of each class."""
        return list(self.sides.classes.tolist())

    @property
    def d_model(self) -> int:
        """Number of neurons of a layer."""
        return self.sides.train.store.plan.d_model

    @property
    def n_test_sentences(self) -> int:
        """Number of sentences of the test corpus, with those of other parts."""
        return self.sides.test.store.tokens.n_sentences

    @cached_property
    def moments(self) -> list[Moments]:
        """Moments of each layer's training tokens, measured when they are first asked for."""
        return layer_moments(self.sides.train, self.layers)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return whole shards in order, several at a time on a processor, or shuffled mini-batches."""
        trainer = cast(pl.Trainer, self.trainer)
        if self.batch_size is None:
            shards, device = self._shards(self.sides.train), trainer.strategy.root_device
            # Shards are read in every pass, so as many as fit are copied to an accelerator only once.
            return _loader(DeviceCache(shards, device) if device.type == "cuda" else Together(shards))
        ranks = trainer.global_rank, trainer.world_size
        return _loader(MiniBatches(self.sides.train, self.layers, self.batch_size, self.seed, *ranks))

    def val_dataloader(self) -> DataLoader[Batch] | list[Any]:
        """Return whole shards; nothing if there are no validation examples."""
        return _loader(self._shards(self.sides.validation)) if self.sides.validation.n_tokens else []

    def test_dataloader(self) -> DataLoader[Batch]:
        """Return whole shards."""
        return _loader(self._shards(self.sides.test))

    def predict_dataloader(self) -> DataLoader[Batch]:
        """Return the examples of the test part, shard by shard."""
        return _loader(self._shards(self.sides.test, only_examples=True))

    def _shards(self, examples: Examples, only_examples: bool = False) -> ShardBatches:
        """Return one batch per shard: its memory-mapped rows on a processor, only its examples for an accelerator."""
        trainer = cast(pl.Trainer, self.trainer)
        copies = only_examples or trainer.strategy.root_device.type == "cuda"
        read = read_shard if copies else open_shard
        return ShardBatches(examples, self.layers, trainer.global_rank, trainer.world_size, read)


def _loader(batches: Dataset[Any]) -> DataLoader[Any]:
    # With a generator of its own: a loader draws a seed for workers that it does not have.
    return DataLoader(batches, batch_size=None, generator=torch.Generator())
