"""The parts of post-LN blocks are found in the families that have them, and in no others."""

from __future__ import annotations

from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm

from families import untouched
from probing.models.anatomy import examine
from probing.models.residual_stream import NotPostNorm, find_blocks, largest_slope

pytestmark = pytest.mark.numeric

# Where the parts are, by the names that the families' own code gives them.
BERT = (
    "encoder.layer", "attention.output.LayerNorm", "output.LayerNorm", "attention.self.value", "attention.output.dense",
    "intermediate.dense", "output.dense",
)  # fmt: skip
PARTS = {
    "bert": BERT,
    "roberta": BERT,
    "electra": BERT,
    "xlm-roberta": BERT,
    "deberta-v2": (*BERT[:3], "attention.self.value_proj", *BERT[4:]),
    "mpnet": (*BERT[:1], "attention.LayerNorm", BERT[2], "attention.attn.v", "attention.attn.o", *BERT[5:]),
    "distilbert": (
        "transformer.layer", "sa_layer_norm", "output_layer_norm", "attention.v_lin", "attention.out_lin", "ffn.lin1",
        "ffn.lin2",
    ),
    "bart": (
        "layers", "self_attn_layer_norm", "final_layer_norm", "self_attn.v_proj", "self_attn.out_proj", "fc1", "fc2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("family", PARTS)
def test_the_parts_of_a_block_are_found_by_what_they_compute(family: str, checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints[family])
    where, *names = PARTS[family]
    found = find_blocks(encoder, examine(encoder))
    layers = attrgetter(where)(encoder)
    assert len(found) == len(layers)
    for block, layer in zip(found, layers, strict=True):
        parts = (block.norm_1, block.norm_2, block.value, block.output, block.first, block.second)
        assert [part is attrgetter(name)(layer) for part, name in zip(parts, names, strict=True)] == [True] * 6
        assert block.n_heads == 2


def test_shared_blocks_are_found_once_for_each_time_they_run(checkpoints: dict[str, Path]) -> None:
    encoder: Any = untouched(checkpoints["albert"])
    found = find_blocks(encoder, examine(encoder))
    (shared,) = encoder.encoder.albert_layer_groups[0].albert_layers
    assert [block.norm_2 for block in found] == [shared.full_layer_layer_norm] * 3


@pytest.mark.parametrize("family", ["gpt2", "modernbert", "t5", "convbert", "deberta", "xlnet"])
def test_other_blocks_are_told_apart(family: str, checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints[family])
    with pytest.raises(NotPostNorm, match="block 1"):
        find_blocks(encoder, examine(encoder))


def test_a_block_that_adds_something_else_is_refused(checkpoints: dict[str, Path]) -> None:
    encoder: Any = untouched(checkpoints["bert"])
    layers = encoder.encoder.layer
    dropout, layers[1].output.dropout = layers[1].output.dropout, torch.nn.Tanh()
    with pytest.raises(NotPostNorm, match="block 2 the term that its feed-forward part adds"):
        find_blocks(encoder, examine(encoder))
    layers[1].output.dropout = dropout
    layers[2].intermediate.intermediate_act_fn = torch.nn.Softplus()
    with pytest.raises(NotPostNorm, match="block 3 the feed-forward part is not two matrices"):
        find_blocks(encoder, examine(encoder))


def test_slopes_of_activation_functions_are_those_of_calculus() -> None:
    root = np.sqrt(2)
    assert largest_slope(torch.nn.functional.gelu) == pytest.approx(norm.cdf(root) + root * norm.pdf(root), abs=1e-6)
    assert largest_slope(torch.nn.functional.relu) == 1
    assert largest_slope(torch.tanh) == pytest.approx(1, abs=1e-6)
