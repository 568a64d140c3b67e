"""Trainings that stop and go on: with dropout and with gradients that are accumulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from conftest import make_sentences
from probing.corpus import from_sentences
from probing.runtime.trainer import Places
from probing.studies.pretrain.tables import Encoder, Recipe
from probing.studies.pretrain.training import Asked, Job, equivariance, packed_text, train_all

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SHAPE = Encoder(1, 16, 2, 16, 100, True, 16, 0.1, 0.2)
RECIPE = Recipe(6, 4, 1e-3, 2, held_out_rows=10, checkpoint_factor=10.0, save_every=2)


class Stop(pl.Callback):
    """Ends the process, as it seems to Lightning, before a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_start(self, trainer: pl.Trainer, *args: Any) -> None:
        if trainer.global_step == self.step:
            raise ConnectionError


class Permute(pl.Callback):
    """Notes after every step how far the encoder is from commuting with permutations of the tokens."""

    def __init__(self) -> None:
        self.rows = torch.randint(5, 100, (8, 16), generator=torch.Generator().manual_seed(0))
        self.found: list[float] = []

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._note(pl_module, 0)

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *args: Any) -> None:
        self._note(pl_module, trainer.global_step)

    def _note(self, module: Any, step: int) -> None:
        module.model.eval()
        self.found.append(max(equivariance(module.model.base_model, self.rows, step)))
        module.model.train()


def curve_of(
    folder: Path, shape: Encoder, recipe: Recipe, accumulated: int = 1, arm: str = "learned",
    callbacks: Sequence[pl.Callback] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """Train in a folder, and return the curve."""
    folder.mkdir(exist_ok=True)
    job, places = Job(arm, 0), Places(folder)
    asked = Asked([job], shape, recipe, 100, 0, {"accelerator": "cpu", "accumulate_grad_batches": accumulated})
    text = packed_text(from_sentences("text", make_sentences(200)), asked, places)
    return train_all(text, asked, places, None, callbacks)


def trained(folder: Path, stop: int | None = None) -> dict[str, bytes]:
    """Train in a folder, and return the content of the last checkpoint and the curve."""
    rows = curve_of(folder, SHAPE, RECIPE, 3, callbacks=[Stop(stop)] if stop else [])
    return {
        "model": (folder / "checkpoints/learned-seed0/step6/model.safetensors").read_bytes(),
        "curve": str(rows).encode(),
    }


@pytest.mark.parametrize("stop", [3, 4])
def test_a_training_goes_on_to_the_same_bytes_with_dropout_and_accumulated_gradients(tmp_path: Path, stop: int) -> None:
    with pytest.raises(ConnectionError):
        trained(tmp_path / "stopped", stop)
    assert not (tmp_path / "stopped/checkpoints/learned-seed0/step6").exists()
    assert trained(tmp_path / "stopped") == trained(tmp_path / "whole")
    assert trained(tmp_path / "stopped") == trained(tmp_path / "whole")  # what is finished is read


def test_gradients_accumulated_over_batches_are_those_of_one_larger_batch(tmp_path: Path) -> None:
    shape = replace(SHAPE, dropout=0.0)
    whole = curve_of(tmp_path / "whole", shape, replace(RECIPE, batch_size=12))
    parts = curve_of(tmp_path / "parts", shape, RECIPE, 3)
    other = curve_of(tmp_path / "other", shape, RECIPE)
    assert [row["step"] for row in parts] == [row["step"] for row in whole] == list(range(7))
    for name in ("train_loss", "loss"):
        expected = [row[name] for row in whole if name in row]
        assert [row[name] for row in parts if name in row] == pytest.approx(expected, abs=1e-5)
        assert [row[name] for row in other if name in row][-1] != pytest.approx(expected[-1], abs=1e-3)


@pytest.mark.parametrize("arm", ["none", "learned"])
def test_an_encoder_that_is_told_no_positions_commutes_with_permutations_after_every_step(
    tmp_path: Path, arm: str
) -> None:
    noting = Permute()
    curve_of(tmp_path / arm, SHAPE, replace(RECIPE, learning_rate=2e-2), arm=arm, callbacks=[noting])
    assert len(noting.found) == 7
    assert all(difference < 1e-5 if arm == "none" else difference > 0.1 for difference in noting.found)
