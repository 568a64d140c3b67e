"""What is measured of checkpoints, on planted encoders: both ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_sentences
from probing.corpus import from_sentences
from probing.statistics.moments import ProfileAccumulator
from probing.studies.pretrain.arms import build, position_table, save_checkpoint
from probing.studies.pretrain.batches import packed, train_tokenizer
from probing.studies.pretrain.tables import Encoder
from probing.studies.pretrain.training import Subject, equivariance, measure, outlier_row

SENTENCES = make_sentences(300, longest=10)
SHAPE = Encoder(1, 32, 2, 32, 100, True, 16, 0.08, 0.0)
TOKENIZER = train_tokenizer(SENTENCES, SHAPE.vocabulary, True, SHAPE.row_length)

pytestmark = [
    pytest.mark.numeric,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*LeafSpec.*:FutureWarning"),
]


def test_the_farthest_mean_is_named_if_it_is_an_outlier() -> None:
    states = torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
    states[:, 7] -= 0.5
    states[:200, 7] -= 50
    accumulator = ProfileAccumulator(64)
    accumulator.update(states)
    found = outlier_row(accumulator.result())
    mean = states.double().mean(0).numpy()
    assert found["outlier_neuron"] == 7
    assert found["max_mean_sd"] == pytest.approx(abs(mean[7] - mean.mean()) / mean.std())
    assert found["argmin_share"] == pytest.approx(np.mean(states.numpy().argmin(1) == 7))
    assert found["argmax_share"] == pytest.approx(np.mean(states.numpy().argmax(1) == 7))
    plain = ProfileAccumulator(64)
    plain.update(torch.randn(500, 64, generator=torch.Generator().manual_seed(1)))
    assert outlier_row(plain.result())["outlier_neuron"] is None
    assert 1 < outlier_row(plain.result())["max_mean_sd"] < 5


def test_equivariance_is_the_largest_difference_in_root_mean_squares() -> None:
    model = build("learned", SHAPE, TOKENIZER, 0).eval()
    rows = packed(SENTENCES, TOKENIZER, 16)[:5].long()
    found = equivariance(model.base_model, rows, 3)
    assert all(difference > 0.1 for difference in found)
    with torch.no_grad():
        position_table(model).zero_()
    assert all(difference < 1e-5 for difference in equivariance(model.base_model, rows, 3))
    # In layer 0 of an encoder of the first position alone, a token changes if it leaves that place.
    with torch.no_grad():
        position_table(model)[0] = 1.0 * torch.arange(32)
        embed = model.base_model.embeddings
        states, alone = embed(input_ids=rows), embed(input_ids=rows, position_ids=torch.ones_like(rows))
        first = embed(input_ids=rows, position_ids=torch.zeros_like(rows))
    largest = float((first - alone).abs().max() / states.square().mean().sqrt())
    assert 0 < equivariance(model.base_model, rows, 3)[0] <= largest * 1.001


@pytest.mark.slow
def test_positions_are_read_off_where_the_encoder_tells_them(tmp_path: Path) -> None:
    corpus = from_sentences("text", SENTENCES)
    subject = Subject.of(
        corpus, packed(SENTENCES, TOKENIZER, 16), 200, 0, tmp_path / "cache", {"accelerator": "cpu", "precision": 32}
    )
    assert 100 < len(subject.corpus.sentences) <= 200
    assert {*subject.splits} == {"train", "validation", "test"}
    assert subject.trainer == {"accelerator": "cpu"}
    found = {}
    for arm in ("learned", "none"):
        model = build(arm, SHAPE, TOKENIZER, 0)
        with torch.no_grad():
            model.base_model.embeddings.LayerNorm.bias[5] = 40.0  # an outlier, which has nothing to do with positions
        save_checkpoint(tmp_path / arm / "step0", arm, model, TOKENIZER)
        found[arm] = measure(tmp_path / arm / "step0", subject, lambda message: None)
        assert [row["layer"] for row in found[arm]] == [0, 1]
        assert found[arm][0]["outlier_neuron"] == 5
        assert found[arm][0]["argmax_share"] == 1
    assert found["learned"][0]["position_accuracy"] > 0.9
    assert found["none"][0]["position_accuracy"] < 0.5
    assert found["none"][0]["token_accuracy"] == pytest.approx(found["none"][0]["position_accuracy"], abs=0.15)
    assert not (tmp_path / "cache" / "none-step0").exists()
