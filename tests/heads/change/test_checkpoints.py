"""Which checkpoints can be compared, and how they are read."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import make_sentences
from families import FAMILIES, make_checkpoint, make_tokenizer, untouched
from probing.errors import UserError
from probing.heads.subject import Checkpoint, check_comparable
from tiny_models import asked, tuned

pytestmark = pytest.mark.numeric


def check(one: Path, other: Path) -> None:
    check_comparable(asked(one), Checkpoint(asked(one)).heads, Checkpoint(asked(other)))


def resized(folder: Path, family: str, **sizes: Any) -> Path:
    """Save a model of other sizes with the tokenizer of a folder, in that folder."""
    from transformers import AutoModel, AutoTokenizer

    config = FAMILIES[family].config(len(AutoTokenizer.from_pretrained(folder)))
    for name, size in sizes.items():
        setattr(config, name, size)
    AutoModel.from_config(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_hidden_layers": 2}, "has 2 blocks, and .* has 3 blocks; give two checkpoints of one model"),
        ({"num_attention_heads": 4}, "has 4 heads in a block, and .* has 2 heads in a block; give two"),
        ({"hidden_size": 32}, "has hidden states of 32 neurons, and .* has hidden states of 16 neurons; give two"),
    ],
)
def test_models_of_other_sizes_are_refused(
    tiny_model: Callable[..., Path], sizes: dict[str, int], message: str
) -> None:
    one, other = tiny_model("bert"), resized(tiny_model("bert", 1), "bert", **sizes)
    check(one, one)
    with pytest.raises(UserError, match=rf"^`--against .*` {message}"):
        check(one, other)


def test_another_tokenizer_is_refused(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    one, other = tiny_model("bert"), tuned(tiny_model("bert", 1), lambda model: None)
    check(one, other)
    make_tokenizer("wordpiece", make_sentences(20, seed=5, longest=6)[:3]).save_pretrained(other)
    with pytest.raises(UserError, match=r"^`--against .*` divides the corpus into other tokens than .*one tokenizer"):
        check(one, other)


def test_a_model_that_cuts_sentences_earlier_is_refused_with_a_way_out(tiny_model: Callable[..., Path]) -> None:
    one, other = tiny_model("bert"), resized(tiny_model("bert", 1), "bert", max_position_embeddings=12)
    with pytest.raises(UserError, match=r"takes 12 tokens, and .* 128, so that .* add `--max_length 12`"):
        check(one, other)


def test_weights_that_are_not_there_are_told_by_the_option(tiny_model: Callable[..., Path]) -> None:
    one, other = tiny_model("bert"), tiny_model("bert", 1)
    (other / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"^`--against .*` has no model.safetensors in .*; save the weights there\.$"):
        check(one, other)


@torch.no_grad()
def test_threads_read_the_same_as_the_model_alone(checkpoints: dict[str, Path]) -> None:
    made = Checkpoint(asked(checkpoints["bert"])).prepared()
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randint(5, 40, (2, n), generator=generator) for n in (5, 9, 6, 8)]
    model = untouched(checkpoints["bert"])

    def read(ids: torch.Tensor) -> dict[int, torch.Tensor]:
        with torch.no_grad():
            return made.states({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    with ThreadPoolExecutor(4) as pool:
        for ids, found in zip(batches, pool.map(read, batches), strict=True):
            expected = model(ids, output_hidden_states=True).hidden_states
            assert sorted(found) == [0, 1, 2, 3]
            assert all(torch.allclose(found[k], expected[k], atol=1e-6) for k in found)


def test_a_block_that_is_used_again_has_no_layer(sentences: list[str], tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "albert", "albert", sentences)
    assert {layer for layer, _ in Checkpoint(asked(folder)).matrices().values()} == {None}
