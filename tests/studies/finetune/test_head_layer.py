"""`finetune` with the head on a lower layer, in a model without the blocks above it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from families import FAMILIES
from probing import Result, UserError, finetune
from probing.models import load_config, load_encoder, resolve_model
from probing.models.examination import examination_inputs, run
from probing.models.loading import load_with_head

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

WORDS = [f"{'probe' if i % 2 else 'layer'} {'token ' * (i % 5)}reads {i}" for i in range(120)]
# The block of the tiny model that is left out.
TOP = "encoder.layer.2."
# Families whose lower blocks are other ones in a smaller model, or which have no head of sentences.
OTHERS = ("esm",)


def made(model: Path, runs: Path, **tuning: Any) -> Result:
    text = runs / "text.csv"
    text.parent.mkdir(exist_ok=True)
    rows = "".join(f"{one},{'yes' if one.startswith('probe') else 'no'}\n" for one in WORDS)
    text.write_text(f"text,label\n{rows}", encoding="utf-8")
    found = finetune(
        model=str(model), corpus=str(text), runs=str(runs), name="made", seeds=1, orders=1, starts="pretrained,random",
        tuning={"learning_rate": 3e-3, "epochs": 3, "batch_tokens": 100, **tuning}, quiet=True,
        wandb={"mode": "disabled"},
    )  # fmt: skip
    assert found is not None
    return found


def states(folder: Path, model: Path | None = None) -> dict[int, Any]:
    """Return the hidden states of a model in a folder, of the examination's tokens of another."""
    encoder = load_encoder(resolve_model(str(folder)))
    inputs = examination_inputs(load_encoder(resolve_model(str(model or folder))), 0)
    with torch.inference_mode():
        return dict(enumerate(run(encoder, inputs, output_hidden_states=True).states))


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "modernbert", "gpt2"])
def test_a_checkpoint_has_the_blocks_up_to_the_head(family: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    found = made(checkpoints[family], tmp_path, layer=1, epochs=0)
    folders = sorted((found.folder / "checkpoints").iterdir())
    assert [load_config(resolve_model(str(folder))).num_hidden_layers for folder in folders] == [1, 1]
    pretrained, before = (states(folder, checkpoints[family]) for folder in (folders[0], checkpoints[family]))
    assert len(pretrained) == 2
    assert torch.equal(pretrained[0], before[0])  # layer 1 may have a norm behind it
    if family in ("bert", "roberta", "distilbert"):
        assert torch.equal(pretrained[1], before[1])


def test_the_last_layer_by_its_number_is_the_default_to_the_bit(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    folders = [
        made(checkpoints["bert"], tmp_path / f"of{i}", **own).folder / "checkpoints"
        for i, own in enumerate([{}, {"layer": 3}, {"layer": -1}])
    ]
    for other in folders[1:]:
        for start in ("pretrained-seed0-order0", "random-seed0-order0"):
            files = [{file.name: file.read_bytes() for file in (one / start).iterdir()} for one in (folders[0], other)]
            assert files[0] == files[1]


def test_a_lower_layer_counts_from_the_end_and_the_head_is_tuned_there(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    by_number, from_the_end = (made(checkpoints["bert"], tmp_path / str(k), layer=k) for k in (2, -2))
    assert [dict(row) for row in by_number.tunings] == [dict(row) for row in from_the_end.tunings]
    row = next(row for row in by_number.tunings if row["start"] == "pretrained")
    assert row["score"] == 1
    assert (
        "tiny-bert with its head on layer 2, tuned from the pretrained model: accuracy 1.000" in by_number.answer()[0]
    )
    assert "tiny-bert with its head on layer -2, tuned from the pretrained" in from_the_end.answer()[0]
    start, tuned = (
        load_encoder(resolve_model(str(folder))).state_dict()
        for folder in (checkpoints["bert"], by_number.folder / "checkpoints" / "pretrained-seed0-order0")
    )
    assert {name for name in start if name not in tuned} == {name for name in start if name.startswith(TOP)}
    # The bias of keys changes no attention, so that its gradient is 0 but for rounding.
    assert all(not torch.equal(start[name], tuned[name]) for name in tuned if "key.bias" not in name)


@pytest.mark.parametrize("layer", [0, 4, -4])
def test_a_layer_that_the_model_does_not_have_is_refused(
    layer: int, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=rf"`--tuning.layer {layer}`: .* has 3 blocks; expected .* 1 to 3, or -1"):
        made(checkpoints["bert"], tmp_path, layer=layer)


def test_every_family_with_a_head_does_without_its_upper_blocks_or_is_refused(checkpoints: dict[str, Path]) -> None:
    refused = {}
    for family in FAMILIES:
        source = resolve_model(str(checkpoints[family]))
        try:
            load_with_head(source, "sentences", 2, 0)
        except UserError:
            continue  # it has no head in the whole model either
        try:
            model = load_with_head(source, "sentences", 2, 0, layer=-2)
        except UserError as error:
            refused[family] = str(error)
            continue
        assert model.config.num_hidden_layers == load_config(source).num_hidden_layers - 1
        encoder: Any = load_encoder(source)
        own, whole = (one.get_input_embeddings().weight for one in (model.base_model, encoder))
        assert torch.equal(own, whole)
    assert set(refused) == set(OTHERS)
    assert all("do not do alone what they do in the whole model" in words for words in refused.values())
