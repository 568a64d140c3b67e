"""Batches of sentences in an order that depends on a seed, the epoch and the text alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import numpy as np
import pytorch_lightning as pl
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset

from probing.cache.store import batches as by_length
from probing.data.labelling import is_target, nothing
from probing.runtime.arithmetic import generator_of
from probing.studies.finetune.examples import Batch, Side

# Sentences of similar length are batched together among this many batches' worth of tokens, drawn at random.
_POOL = 32


def epoch_of(lengths: NDArray[np.int32], batch_tokens: int, order: int, epoch: int) -> list[NDArray[np.int64]]:
    """Return the batches of an epoch: each sentence once, in at most `batch_tokens` padded tokens or by itself.

    Args:
        lengths: Number of tokens of each sentence, shape (n_sentences,).
        batch_tokens: Most tokens of a batch, padding included.
        order: Seed of the order.
        epoch: Number of the epoch, from 0.
    """
    drawn = generator_of(order, "order", epoch)
    shuffled = torch.randperm(len(lengths), generator=drawn).numpy()
    pool = np.cumsum(lengths[shuffled], dtype=np.int64) // (_POOL * batch_tokens)
    found = []
    for number in np.unique(pool):
        inside = shuffled[pool == number]
        found += [inside[chosen] for chosen in by_length(lengths[inside], batch_tokens)]
    return [found[i] for i in torch.randperm(len(found), generator=drawn).tolist()]


class TuningData(pl.LightningDataModule):
    """The training sentences in batches; the order depends on its seed alone, also in a continued training.

    The processes share the sentences of each batch. If gradients are accumulated over n batches, these are the parts of
    one batch of n times as many tokens. The state is the number of steps that were made.

    Args:
        train: The training side.
        batch_tokens: Most tokens of a batch, padding included, over all processes.
        epochs: Number of times that the text is read.
        order: Seed of the order.
        n_accumulated: Number of batches whose gradients are accumulated.
    """

    def __init__(self, train: Side, batch_tokens: int, epochs: int, order: int, n_accumulated: int = 1) -> None:
        super().__init__()
        self.train, self.n_accumulated, self.first = train, n_accumulated, 0
        lengths = train.tokens.lengths[train.sentences]
        per_epoch = [epoch_of(lengths, batch_tokens * n_accumulated, order, epoch) for epoch in range(epochs)]
        self.steps = [train.sentences[chosen] for batches in per_epoch for chosen in batches]
        # Number of steps at the end of each epoch.
        self.ends = np.cumsum([len(batches) for batches in per_epoch], dtype=np.int64).tolist()

    def batches(self, first: int, rank: int = 0, n_ranks: int = 1) -> Iterator[Batch]:
        """Yield the batches of a process.

        Args:
            first: Step of the optimiser to begin with, from 0.
            rank: Number of the process.
            n_ranks: Number of processes.
        """
        n_parts = n_ranks * self.n_accumulated
        for sentences in self.steps[first:]:
            whole = self.train.batch(sentences)
            for part in range(rank, n_parts, n_ranks):
                yield whole if n_parts == 1 else self._part(sentences, part, n_parts, whole.n)

    def _part(self, sentences: NDArray[np.int64], part: int, n_parts: int, n: int) -> Batch:
        """Return every `n_parts`-th sentence; of too few, one without targets, so that all processes take each step."""
        if len(own := sentences[part::n_parts]):
            return self.train.batch(own, n)
        batch = self.train.batch(sentences[:1], n)
        return replace(batch, targets=torch.full_like(batch.targets, nothing(batch.targets)))

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this process."""
        trainer = cast(pl.Trainer, self.trainer)
        return DataLoader(_Steps(self, self.first, trainer.global_rank, trainer.world_size), batch_size=None)

    def state_dict(self) -> dict[str, int]:
        """Return the number of steps that were made."""
        return {"first": cast(pl.Trainer, self.trainer).global_step}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Begin with the first step that was not made."""
        self.first = state_dict["first"]


class _Steps(IterableDataset[Batch]):
    def __init__(self, data: TuningData, first: int, rank: int, n_ranks: int) -> None:
        self.data, self.first, self.rank, self.n_ranks = data, first, rank, n_ranks

    def __iter__(self) -> Iterator[Batch]:
        return self.data.batches(self.first, self.rank, self.n_ranks)


def in_batches(side: Side, batch_tokens: int) -> Iterator[Batch]:
    """Yield the sentences of a side once, longest first."""
    for chosen in by_length(side.tokens.lengths[side.sentences], batch_tokens):
        batch = side.batch(side.sentences[chosen])
        if is_target(batch.targets).any():
            yield batch
