"""Trainings that stop and go on: with dropout and with gradients that are accumulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl

from conftest import make_sentences
from probing.cli.pretraining_options import Encoder, Recipe
from probing.corpus import from_sentences
from probing.pretraining.experiment import Asked, packed_text, train_all
from probing.pretraining.training import Job, Places

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


def curve_of(
    folder: Path, shape: Encoder, recipe: Recipe, accumulated: int, stop: int | None = None
) -> list[dict[str, Any]]:
    """Train in a folder, and return the curve."""
    folder.mkdir(exist_ok=True)
    job, places = Job("learned", 0), Places(folder)
    asked = Asked([job], shape, recipe, 100, 0, {"accelerator": "cpu", "accumulate_grad_batches": accumulated})
    text = packed_text(from_sentences("text", make_sentences(200)), asked, places)
    return train_all(text, asked, places, None, lambda message: None, lambda name: [Stop(stop)] if stop else [])


def trained(folder: Path, stop: int | None = None) -> dict[str, bytes]:
    """Train in a folder, and return the content of the last checkpoint and the curve."""
    rows = curve_of(folder, SHAPE, RECIPE, 3, stop)
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
    whole = curve_of(tmp_path / "whole", shape, replace(RECIPE, batch_size=12), 1)
    parts = curve_of(tmp_path / "parts", shape, RECIPE, 3)
    other = curve_of(tmp_path / "other", shape, RECIPE, 1)
    assert [row["step"] for row in parts] == [row["step"] for row in whole] == list(range(7))
    for name in ("train_loss", "loss"):
        expected = [row[name] for row in whole if name in row]
        assert [row[name] for row in parts if name in row] == pytest.approx(expected, abs=1e-5)
        assert [row[name] for row in other if name in row][-1] != pytest.approx(expected[-1], abs=1e-3)
