"""Queries and keys, found by running the model: their products give the attention that the model has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from families import FAMILIES, batch_of
from probing.errors import UserError
from probing.models import load_encoder, resolve_model
from probing.models.anatomy import examine, hidden_states
from probing.models.attention_heads import find_heads, read_heads
from probing.models.query_key import find_query_keys

# Relative or rotary positions, or a convolution among the keys.
WITHOUT = {"deberta", "deberta-v2", "mpnet", "modernbert", "convbert", "xlnet", "t5", "gpt_neox", "llama"}
WITH_NORM = {"gpt2"}


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in WITHOUT])
@torch.inference_mode()
def test_products_of_queries_and_keys_are_the_attention(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    encoder = load_encoder(resolve_model(str(checkpoints[family])))
    anatomy = examine(encoder)
    heads = find_heads(encoder, anatomy)
    blocks = find_query_keys(encoder, anatomy, heads)
    assert all((block.norm is not None) == (family in WITH_NORM) for block in blocks)
    sentence = batch_of(checkpoints[family], sentences[:1])
    seen: list[Tensor] = []
    read_heads(encoder, heads, lambda layer, probabilities, values: seen.append(probabilities.clone()), sentence)
    states = hidden_states(encoder, anatomy, range(heads.n_layers), **sentence)
    assert len(blocks) == len(seen)
    for layer, (block, probabilities) in enumerate(zip(blocks, seen, strict=True)):
        x = block.inputs(states[layer][0].double())
        # A key's bias moves all scores of a query alike.
        scores = (x @ block.query + block.query_bias[:, None]) @ (x @ block.key).transpose(1, 2)
        if heads.is_causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        assert float((scores.softmax(-1) - probabilities[0]).abs().max()) < 1e-5


@pytest.mark.parametrize("family", sorted(WITHOUT - {"convbert"}))
def test_models_whose_scores_have_another_term_are_refused(checkpoints: dict[str, Path], family: str) -> None:
    encoder = load_encoder(resolve_model(str(checkpoints[family])))
    anatomy = examine(encoder)
    why = "block 1 is not that of products" if anatomy.blocks else "do not pass hidden states from one to the next"
    with pytest.raises(UserError, match=why):
        find_query_keys(encoder, anatomy, find_heads(encoder, anatomy))
