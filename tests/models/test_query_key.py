"""Queries and keys, found by running the model: their products give the attention that the model has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from families import CORE, batch_of
from probing.errors import UserError
from probing.models import load_encoder, resolve_model
from probing.models.anatomy import examine, hidden_states
from probing.models.attention_heads import find_heads, find_query_keys, read_heads

pytestmark = pytest.mark.numeric

# Relative positions by content, rotary ones, or a convolution among the keys.
WITHOUT = {"deberta", "deberta-v2", "modernbert", "convbert", "xlnet", "gpt_neox", "llama"}
WITH_NORM = {"gpt2", "t5"}
WITH_BIASES = {"mpnet", "t5"}


@pytest.mark.parametrize("family", [family for family in CORE if family not in WITHOUT])
@torch.inference_mode()
def test_products_of_queries_and_keys_are_the_attention(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    encoder = load_encoder(resolve_model(str(checkpoints[family])))
    anatomy = examine(encoder)
    heads = find_heads(encoder, anatomy)
    sentence = batch_of(checkpoints[family], sentences[:1])
    index = torch.arange(sentence["input_ids"].shape[1])
    blocks = find_query_keys(encoder, anatomy, heads, longest=len(index))
    assert all((block.norm is not None) == (family in WITH_NORM) for block in blocks)
    assert all((block.biases is not None) == (family in WITH_BIASES) for block in blocks)
    seen: list[Tensor] = []
    read_heads(encoder, heads, lambda layer, probabilities, values: seen.append(probabilities.clone()), sentence)
    states = hidden_states(encoder, anatomy, range(heads.n_layers), **sentence)
    assert len(blocks) == len(seen)
    for layer, (block, probabilities) in enumerate(zip(blocks, seen, strict=True)):
        x = block.inputs(states[layer][0].double())
        # A key's bias moves all scores of a query alike.
        scores = (x @ block.query + block.query_bias[:, None]) @ (x @ block.key).transpose(1, 2)
        scores = scores + block.biases_at(index - index[:, None])
        if heads.is_causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        assert float((scores.softmax(-1) - probabilities[0]).abs().max()) < 1e-5


def test_biases_are_the_model_s_own_at_offsets_longer_than_those_it_is_found_on(checkpoints: dict[str, Path]) -> None:
    encoder: Any = load_encoder(resolve_model(str(checkpoints["mpnet"])))
    anatomy = examine(encoder)
    longest = 30
    own = encoder.encoder.compute_position_bias(torch.zeros(1, longest, 1))[0].double()
    assert len(own[0].unique()) > 11
    index = torch.arange(longest)
    for block in find_query_keys(encoder, anatomy, find_heads(encoder, anatomy), longest=longest):
        found = block.biases_at(index - index[:, None])
        assert_close(found, own - own[:, :1, :1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", sorted(WITHOUT - {"convbert"}))
def test_models_whose_scores_have_another_term_are_refused(checkpoints: dict[str, Path], family: str) -> None:
    encoder = load_encoder(resolve_model(str(checkpoints[family])))
    anatomy = examine(encoder)
    why = "block 1 is not that of products" if anatomy.blocks else "do not pass hidden states from one to the next"
    with pytest.raises(UserError, match=why):
        find_query_keys(encoder, anatomy, find_heads(encoder, anatomy))
