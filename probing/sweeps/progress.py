"""Progress of a stack of probes, saved so that a sweep that was killed continues from there."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytorch_lightning as pl
import torch
from torch import Tensor

from probing.cache.tensor_files import tensor_file
from probing.probes.linear import LinearProbe

# Seconds between two savings.
EVERY_S = 5.0


class Progress:
    """A file with the weights of a stack in training.

    Args:
        path: Path of the file, which holds one stack at a time.
        stack: Identifier of the stack and its data: weights of another stack are not used as a start.
        names: Names of the problems in the stack.
    """

    def __init__(self, path: Path, stack: str, names: Sequence[str]) -> None:
        self.path, self.stack, self.names = path, stack, list(names)

    def save(self, weight: Tensor) -> None:
        """Write the weights on raw hidden states, shape (n_problems, n_classes, d_model)."""
        from safetensors.torch import save_file

        temporary = self.path.with_suffix(".new")
        with tensor_file(temporary) as path:
            own = {name: one.clone() for name, one in zip(self.names, weight.cpu(), strict=True)}
            save_file(own, path, {"stack": self.stack})
        temporary.replace(self.path)

    def starts(self) -> dict[str, Tensor]:
        """Return the weights by problem, shape (n_classes, d_model); empty if none were saved."""
        from safetensors import SafetensorError, safe_open

        if not self.path.is_file():
            return {}
        try:
            with safe_open(self.path, "pt") as file:
                saved = file.metadata()["stack"] == self.stack
                return {name: file.get_tensor(name) for name in self.names} if saved else {}
        except SafetensorError:  # torn by a crash of the machine
            return {}


class SavedProgress(pl.Callback):
    """Saves a stack's progress every few seconds.

    Args:
        progress: The file of the stack's progress.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress, self.last = progress, time.monotonic()

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Save the points that the solvers have reached, if the last saving is long enough ago."""
        if time.monotonic() - self.last < EVERY_S:
            return
        weight = cast(LinearProbe, pl_module).weight
        if torch.isfinite(weight).all():
            self.progress.save(weight)
        self.last = time.monotonic()
