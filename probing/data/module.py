"""The LightningDataModule of labelled activations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import pytorch_lightning as pl
from torch.utils.data import DataLoader, Dataset

from probing.cache.location import cache_folder
from probing.cache.source import ActivationSource
from probing.cli.options import ProbeOptions
from probing.corpus.sides import read_corpora
from probing.data.arrays import sides_of_arrays
from probing.data.device_cache import DeviceCache
from probing.data.examples import Batch, Examples, ShardBatches, Sides, open_shard, read_shard
from probing.data.layer_moments import layer_moments
from probing.data.mini_batches import MiniBatches
from probing.data.preparation import read_sides
from probing.errors import UserError
from probing.runtime.terminal import say, silence
from probing.statistics.moments import Moments
from probing.tasks import TokenTask, load_task


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
        return cls(sides, layers, batch_size, seed)

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
        corpora, splits = read_corpora(corpus, None, seed, silence)
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

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return whole shards in order, or shuffled mini-batches."""
        trainer = cast(pl.Trainer, self.trainer)
        if self.batch_size is None:
            shards, device = self._shards(self.sides.train), trainer.strategy.root_device
            # Shards are read in every pass, so as many as fit are copied to an accelerator only once.
            return _loader(DeviceCache(shards, device) if device.type == "cuda" else shards)
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


def _loader(batches: Dataset[Batch]) -> DataLoader[Batch]:
    return DataLoader(batches, batch_size=None)
