"""Importance of heads by gradients, against finite differences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import hidden_states
from probing.readouts.frozen_probes import probe_loss
from probing.readouts.later_blocks import LaterBlocks
from probing.studies.disable.weights import head_gradients, importance_rows

pytestmark = pytest.mark.numeric

TEXTS = ["the probe reads one layer", "a small model often forgets every position of a large sentence, quietly"]


def loaded(folder: Path) -> tuple[LaterBlocks, dict[str, Tensor]]:
    source = resolve_model(str(folder))
    tokenizer, pad = load_tokenizer(source), load_tokenizer(source).pad_token_id or 0
    model = LaterBlocks.of(load_encoder(source), pad, folder.name)
    model.encoder.double()  # differences of losses need more digits than float32 has
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    longest = max(map(len, ids))
    return model, {
        "input_ids": torch.tensor([one + [pad] * (longest - len(one)) for one in ids]),
        "attention_mask": torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids]),
    }


@pytest.mark.parametrize("family", ["bert", "albert", "gpt2"])  # Llama's norms compute in float32
def test_gradients_are_finite_differences_of_each_sentence_by_itself(family: str, checkpoints: dict[str, Path]) -> None:
    model, inputs = loaded(checkpoints[family])
    mask, n_layers = inputs["attention_mask"].bool(), model.heads.n_layers
    generator = torch.Generator().manual_seed(0)
    labels = torch.where(mask, torch.randint(-1, 5, mask.shape, generator=generator), -1)
    loss = probe_loss(torch.randn(5, 16, generator=generator), labels)
    found = head_gradients(model, inputs, loss)
    assert found.shape == (n_layers, 2, 2)
    with torch.inference_mode():
        states = hidden_states(model.encoder, model.anatomy, range(n_layers), **inputs)
        beside = model.beside_states(inputs)
        for block in range(1, n_layers + 1):
            for head in (1, 2):
                columns = model.columns(head)

                def scaled(factor: float, block: int = block, here: slice = columns) -> Tensor:
                    def change(outputs: Tensor) -> Tensor:
                        outputs = outputs.clone()
                        outputs[..., here] *= factor
                        return outputs

                    last = model.run(inputs, block, states[block - 1], beside, [n_layers], change)[n_layers]
                    return loss(last)

                expected = (scaled(1 + 1e-4) - scaled(1 - 1e-4)) / 2e-4
                assert torch.allclose(found[block - 1, :, head - 1], expected, rtol=1e-3, atol=1e-8)
                assert (expected.abs() > 1e-7).all()


def test_a_head_that_is_not_read_has_no_importance(checkpoints: dict[str, Path]) -> None:
    model, inputs = loaded(checkpoints["bert"])
    assert model.heads.projections is not None
    projection: Any = model.encoder.get_submodule(model.heads.projections[1])
    with torch.no_grad():
        projection.weight[:, 8:] = 0
    labels = torch.where(inputs["attention_mask"].bool(), 1, -1)
    found = head_gradients(model, inputs, probe_loss(torch.randn(5, 16), labels))
    assert not found[1, :, 1].any()
    assert (found[1, :, 0] != 0).all()


def test_rows_are_means_over_sentences_and_shares_of_the_norm_of_a_layer() -> None:
    found = np.random.default_rng(0).random((40, 2, 3)).astype(np.float32)
    n = np.full(40, 7)
    n[:10] = 0  # without examples, they do not count
    found[:10] = 0
    rows = importance_rows(found, n, [2], 2, "position")
    assert [row["unit"] for row in rows] == ["2-1", "2-2", "2-3"]
    assert sum(row["normalised"] ** 2 for row in rows) == pytest.approx(1)
    for head, row in enumerate(rows):
        assert row["importance"] == pytest.approx(found[10:, 1, head].mean())
        assert row["low"] < row["importance"] < row["high"]
        assert row["n"] == 30
