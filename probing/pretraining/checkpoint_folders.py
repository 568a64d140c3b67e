"""Checkpoints of a training: ordinary model folders at steps whose logarithms are evenly spaced."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from probing.pretraining.arms import make_ordinary


def checkpoint_steps(steps: int, factor: float) -> list[int]:
    """Return the steps after which there is a checkpoint: 0, 1, the powers of the factor, and the last."""
    found, power = {0, steps}, 1.0
    while power < steps:
        found.add(round(power))
        power *= factor
    return sorted(found)


def checkpoint_folder(folder: Path, arm: str, seed: int, step: int, steps: int) -> Path:
    """Return the folder of a checkpoint; names sort as steps do.

    Args:
        folder: The folder of all checkpoints.
        arm: Name of the arm.
        seed: Seed of the training.
        step: Step after which the checkpoint is written.
        steps: The last step.
    """
    return folder / f"{arm}-seed{seed}" / f"step{step:0{len(str(steps))}d}"


def save_checkpoint(folder: Path, arm: str, model: Any, tokenizer: Any) -> None:
    """Write a model and its tokenizer as a folder that `from_pretrained` reads; an older one is replaced."""
    make_ordinary(arm, model)
    partial = folder.with_name(f"{folder.name}.partial")
    for left in (partial, folder):
        shutil.rmtree(left, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(folder)
