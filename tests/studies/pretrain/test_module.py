"""The LightningModule: its loss, its learning rate, and the first loss of every arm."""

from __future__ import annotations

import math

import pytest
import pytorch_lightning as pl
import torch

from conftest import make_sentences
from probing.corpus import from_sentences
from probing.runtime.trainer import share_of_rate
from probing.studies.pretrain.arms import build
from probing.studies.pretrain.batches import Batch, PackedRows, PackedText, prepare
from probing.studies.pretrain.tables import PRETRAINING_ARMS as ARMS
from probing.studies.pretrain.tables import Encoder, Recipe
from probing.studies.pretrain.training import LanguageModel

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning", "ignore:.*does not have many workers"
)

# The size tiny.
SHAPE = Encoder()


@pytest.fixture(scope="module")
def text() -> PackedText:
    return prepare(from_sentences("text", make_sentences(300)), SHAPE.vocabulary, True, SHAPE.row_length, 50, 0)


@pytest.mark.parametrize("arm", ARMS)
def test_the_first_loss_is_that_of_a_uniform_guess(text: PackedText, arm: str) -> None:
    module = LanguageModel(build(arm, SHAPE, text.tokenizer, 0), arm, Recipe(), 0)
    rows = PackedRows(text, 8, None if arm == "causal_lm" else 0.15, 0)
    assert module.held_out_loss(rows.held_out()) == pytest.approx(math.log(len(text.tokenizer)), abs=0.3)


def test_the_loss_is_that_of_transformers(text: PackedText) -> None:
    model = build("learned", SHAPE, text.tokenizer, 0).eval()
    module = LanguageModel(model, "learned", Recipe(), 0)
    batches = list(PackedRows(text, 8, 0.15, 0).held_out())
    whole = Batch(torch.cat([b.input_ids for b in batches]), torch.cat([b.labels for b in batches]), 0)
    with torch.no_grad():
        expected = float(model(input_ids=whole.input_ids, labels=whole.labels).loss)
    assert module.held_out_loss(batches) == pytest.approx(expected, rel=1e-5)


def test_it_is_measured_under_any_trainer(text: PackedText) -> None:
    module = LanguageModel(build("none", SHAPE, text.tokenizer, 0), "none", Recipe(), 0)
    rows = PackedRows(text, 8, 0.15, 0)
    trainer = pl.Trainer(
        accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    (found,) = trainer.validate(module, datamodule=rows, verbose=False)
    assert found["loss"] == pytest.approx(module.held_out_loss(rows.held_out()), rel=1e-5)


def test_the_learning_rate_rises_and_falls_linearly() -> None:
    share = share_of_rate(10, 4)
    assert [share(step) for step in range(11)] == pytest.approx(
        [0.2, 0.4, 0.6, 0.8, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]
    )
    assert share_of_rate(3, 3)(3) == 1
    assert share_of_rate(3, 0)(0) == 1
