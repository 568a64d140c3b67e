"""Tiny trainings of tiny models, in which a callback is tested."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

from conftest import make_sentences
from probing.runtime.machine import quiet_libraries

SENTENCES = make_sentences(110, seed=5, longest=16)
# What a probe of a model of 16 neurons needs to be trained in few passes.
OPTIONS: dict[str, Any] = {"layer": [1, 3], "probe": {"l2": 0.1}}
WARNINGS = (
    "ignore::DeprecationWarning",
    "ignore:.*(does not have many workers|number of training batches|in eval mode at the start):UserWarning",
    "ignore:.*tensorboardX:UserWarning",
    "ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning",
)


class Lengths(pl.LightningModule):
    """Learns how long a sentence is: an encoder with dropout, frozen embeddings in evaluation mode, a batch norm."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        with quiet_libraries():
            self.encoder = AutoModel.from_pretrained(folder).train()
            self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.norm, self.head = nn.BatchNorm1d(16), nn.Linear(16, 1)
        self.encoder.embeddings.requires_grad_(False)
        self.encoder.embeddings.eval()
        self.modes: list[list[bool]] = []

    def loss(self, batch: Sequence[str]) -> Tensor:
        read = self.tokenizer(list(batch), return_tensors="pt", padding=True)
        states = self.encoder(**read).last_hidden_state.mean(1)
        wanted = torch.tensor([[float(len(one.split()))] for one in batch])
        return nn.functional.mse_loss(self.head(self.norm(states)) * 10, wanted)

    def training_step(self, batch: Sequence[str], index: int) -> Tensor:
        """Note the modes of all modules, and learn."""
        self.modes.append([part.training for part in self.modules()])
        return self.loss(batch)

    def validation_step(self, batch: Sequence[str], index: int) -> None:
        self.log("val_loss", self.loss(batch), batch_size=len(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([one for one in self.parameters() if one.requires_grad], 1e-2)


def loaders() -> tuple[DataLoader[str], DataLoader[str]]:
    """Return shuffled training batches, and validation batches."""
    train: Any = SENTENCES[:48]
    validation: Any = SENTENCES[48:56]
    return DataLoader(train, 8, shuffle=True), DataLoader(validation, 8)


def train(module: pl.LightningModule, callbacks: Sequence[pl.Callback] = (), **options: Any) -> pl.Trainer:
    """Train a module for two epochs, from the same seed in each call."""
    torch.manual_seed(3)
    usual: dict[str, Any] = {"accelerator": "cpu", "devices": 1, "max_epochs": 2, "logger": False}
    quiet = {"enable_progress_bar": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = pl.Trainer(**{**usual, **quiet, **options}, callbacks=list(callbacks))
    trainer.fit(module, *loaders())
    return trainer


def make(folder: Path, place: Path, sets: Any = None, **options: Any) -> Trainer:
    """Return a Trainer of a tiny classifier with dropout, whose batches are shuffled."""
    torch.manual_seed(1)
    with quiet_libraries():
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    read = [{**tokenizer(one), "labels": len(one) % 2} for one in SENTENCES[:48]]
    usual: dict[str, Any] = {
        "num_train_epochs": 2, "per_device_train_batch_size": 8, "eval_strategy": "epoch", "report_to": "none",
        "use_cpu": True, "disable_tqdm": True, "seed": 3, "save_strategy": "no", "learning_rate": 1e-2,
    }  # fmt: skip
    arguments = TrainingArguments(str(place), **{**usual, **options})
    return Trainer(
        model=model, args=arguments, train_dataset=read, processing_class=tokenizer,
        eval_dataset=dict.fromkeys(sets, read[:8]) if sets else read[:8],
    )  # fmt: skip


def trained(trainer: Trainer) -> nn.Module:
    """Return the model of a Trainer."""
    assert isinstance(trainer.model, nn.Module)
    return trainer.model


class Calls(pl.Callback):
    """Calls a function at the end of each validation but that of the sanity check."""

    def __init__(self, function: Callable[[pl.Trainer, Any], None]) -> None:
        self.function = function

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        if not trainer.sanity_checking:
            self.function(trainer, pl_module)


def in_bytes(state: Any) -> Any:
    """Return nested states with the bytes of each tensor in its place."""
    if isinstance(state, Tensor):
        return state.dtype, state.shape, state.detach().contiguous().view(-1).view(torch.uint8).tolist()
    if isinstance(state, dict):
        return {name: in_bytes(value) for name, value in state.items()}
    return [in_bytes(value) for value in state] if isinstance(state, list | tuple) else state
