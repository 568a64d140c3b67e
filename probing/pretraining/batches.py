"""The LightningDataModule of packed rows with masked tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from probing.pretraining.draws import generator_of
from probing.pretraining.packing import PackedText, order_of_rows

# Rows of held-out text that are read at once.
_HELD_OUT_BATCH = 64


@dataclass
class Batch:
    """Rows in which some tokens are to be predicted.

    Args:
        input_ids: What the model reads, shape (n_rows, row_length).
        labels: The tokens that are to be predicted, -100 elsewhere, in the same shape.
        n_masked: Number of tokens to predict in all rows of a step: of all processes, and of all parts whose gradients
            are accumulated.
    """

    input_ids: Tensor
    labels: Tensor
    n_masked: int

    def to(self, device: Any, **options: Any) -> Batch:
        """Return the batch on a device; Lightning calls this."""
        return Batch(self.input_ids.to(device, **options), self.labels.to(device, **options), self.n_masked)


class Masking:
    """Chooses the tokens to predict, by transformers' data collator: 80% are masked, 10% replaced by random tokens.

    Args:
        tokenizer: The tokenizer; its special tokens are never predicted.
        share: Share of the tokens that are predicted.
    """

    def __init__(self, tokenizer: Any, share: float) -> None:
        from transformers import DataCollatorForLanguageModeling

        self._collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=share, seed=0)
        self._special = torch.tensor(tokenizer.all_special_ids)

    def __call__(self, rows: Tensor, *seed: int | str) -> tuple[Tensor, Tensor]:
        """Return what the model reads and the labels; the draws depend on the seed alone."""
        self._collator.generator = generator_of(*seed)
        rows = rows.long()
        inputs, labels = self._collator.torch_mask_tokens(rows.clone(), torch.isin(rows, self._special))
        return inputs, labels


class PackedRows(pl.LightningDataModule):
    """Packed rows in a shuffled order, with masked tokens; both depend on the seed and the number of the batch alone.

    The processes share the rows of each batch, so that their number changes neither order nor masks. If gradients are
    accumulated over n batches, these are the parts of one batch that is n times as large. The state is the number of
    steps that were trained, from which a killed run is continued.

    Args:
        text: The packed text.
        batch_size: Number of rows in a batch, over all processes.
        masked: Share of the tokens that are predicted.
        seed: Seed of order and masks of the training part; the masks of the held-out part are the same for all seeds.
    """

    def __init__(self, text: PackedText, batch_size: int, masked: float, seed: int) -> None:
        super().__init__()
        self.text, self.batch_size, self.seed = text, batch_size, seed
        self.masking = Masking(text.tokenizer, masked)
        self.first = 0

    def batches(self, first: int, rank: int = 0, n_ranks: int = 1, n_accumulated: int = 1) -> Iterator[Batch]:
        """Yield the batches of a process, without end.

        Args:
            first: Step of the optimiser to begin with, from 0.
            rank: Number of the process.
            n_ranks: Number of processes.
            n_accumulated: Number of batches in a step.
        """
        order = order_of_rows(len(self.text.train), self.batch_size * n_accumulated, first, self.seed)
        n_parts = n_ranks * n_accumulated
        for step, chosen in enumerate(order, start=first):
            inputs, labels = self.masking(self.text.train[chosen], self.seed, "masks", step)
            n_masked = int((labels >= 0).sum())
            for part in range(rank, n_parts, n_ranks):
                yield Batch(inputs[part::n_parts], labels[part::n_parts], n_masked)

    def held_out(self) -> Iterator[Batch]:
        """Yield the held-out rows, with the same masks for every model."""
        inputs, labels = self.masking(self.text.held_out, "held out")
        for some in zip(inputs.split(_HELD_OUT_BATCH), labels.split(_HELD_OUT_BATCH), strict=True):
            yield Batch(*some, int((some[1] >= 0).sum()))

    def unigram_loss(self) -> float:
        """Return the loss of a model that knows the frequencies of tokens alone, on the held-out tokens, in nats."""
        _, labels = self.masking(self.text.held_out, "held out")
        return self.text.unigram_loss(labels[labels >= 0])

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the batches of this process, without end."""
        trainer = cast(pl.Trainer, self.trainer)
        share = (trainer.global_rank, trainer.world_size, trainer.accumulate_grad_batches)
        return DataLoader(_Endless(self, self.first, share), batch_size=None)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the held-out rows."""
        return DataLoader(cast(Any, list(self.held_out())), batch_size=None)

    def state_dict(self) -> dict[str, int]:
        """Return the number of steps that were trained."""
        return {"first": cast(pl.Trainer, self.trainer).global_step}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Begin with the first step that was not trained."""
        self.first = state_dict["first"]


class _Endless(IterableDataset[Batch]):
    def __init__(self, rows: PackedRows, first: int, share: tuple[int, int, int]) -> None:
        self.rows, self.first, self.share = rows, first, share

    def __iter__(self) -> Iterator[Batch]:
        return self.rows.batches(self.first, *self.share)
