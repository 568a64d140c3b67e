"""The path of the residual stream and its norms, found in many families, against the families' own definitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from families import untouched
from probing.models.anatomy import examine
from probing.models.residual_stream import NotFound, Site, Tap, find_norms, find_path, watching

pytestmark = pytest.mark.numeric

IDS = torch.arange(7, 16)[None]
TERMS = ("word", "position", "type", "attention", "feed_forward")
POST = ("attention", "sum_attention", "norm_1", "feed_forward", "sum_feed_forward", "norm_2")
PRE = ("attention", "sum_attention", "feed_forward", "sum_feed_forward")
# The sites of the embeddings, those of a block, and whether there is a norm at the end.
FOUND = {
    "bert": (("word", "type", "position", "sum", "norm"), POST, False),
    "roberta": (("word", "type", "position", "sum", "norm"), POST, False),
    "distilbert": (("word", "position", "sum", "norm"), POST, False),
    "mpnet": (("word", "position", "sum", "norm"), POST, False),
    "albert": (("embeddings",), POST, False),
    "bart": (("word", "position", "sum", "norm"), POST, False),
    "gpt2": (("word", "position", "sum"), PRE, True),
    "llama": (("word", "sum"), PRE, True),
    "t5": (("word", "sum"), PRE, True),
    "gpt_neox": (("word", "sum"), ("attention", "feed_forward", "sum_feed_forward"), True),
    "mpt": (("word", "sum"), PRE, True),
    "megatron-bert": (("word", "type", "position", "sum"), PRE, True),
    "longformer": (("word", "position", "type", "sum", "norm"), POST, False),
}


def read(encoder: Any, sites: list[Site]) -> tuple[dict[tuple[int, str], Tensor], Any]:
    """Return what is at each site in a plain forward pass, and the pass's hidden states."""
    taken: dict[Tap, Tensor] = {}
    anatomy = examine(encoder)
    modules = [site.tap.module for site in sites]
    with torch.inference_mode(), watching(encoder, anatomy, modules, lambda tap, x: taken.update({tap: x.clone()})):
        states = encoder(IDS, attention_mask=torch.ones_like(IDS), output_hidden_states=True).hidden_states
    return {(site.layer, site.name): taken[site.tap].view(-1, IDS.shape[1], states[0].shape[-1]) for site in sites}, (
        states
    )


@pytest.mark.parametrize("family", FOUND)
def test_terms_add_up_to_the_stream_and_the_stream_to_the_hidden_states(
    family: str, checkpoints: dict[str, Path]
) -> None:
    encoder = untouched(checkpoints[family])
    sites = find_path(encoder, examine(encoder))
    embeddings, block, has_final = FOUND[family]
    n_layers = encoder.config.num_hidden_layers
    names = [(site.layer, site.name) for site in sites]
    assert names == [
        *((0, name) for name in embeddings), *((k, name) for k in range(1, n_layers + 1) for name in block),
        *([(n_layers, "final_norm")] if has_final else []),
    ]  # fmt: skip
    assert {site.name for site in sites if site.is_term} == set(TERMS) & {name for _, name in names}
    values, states = read(encoder, sites)
    stream = values[0, embeddings[-1]]
    assert torch.equal(stream, states[0])
    if "sum" in embeddings:
        total = torch.stack([values[0, name].expand_as(stream) for name in embeddings if name in TERMS]).sum(0)
        assert torch.allclose(total, values[0, "sum"], atol=1e-5)
    for layer in range(1, n_layers + 1):
        here = {name: values[layer, name] for name in block}
        if "sum_attention" in block:
            assert torch.allclose(stream + here["attention"], here["sum_attention"], atol=1e-5)
            stream = here["norm_1" if "norm_1" in block else "sum_attention"]
        else:  # both parts read the same stream
            stream = stream + here["attention"]
        assert torch.allclose(stream + here["feed_forward"], here["sum_feed_forward"], atol=1e-5)
        stream = here[block[-1]]
        if layer < n_layers:
            assert torch.equal(stream, states[layer])
    assert torch.equal(values[n_layers, "final_norm" if has_final else block[-1]], states[-1])


def test_the_sites_of_bert_are_what_its_modules_of_those_names_make(checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints["bert"])
    values, _ = read(encoder, find_path(encoder, examine(encoder)))
    tables = encoder.embeddings
    assert torch.equal(values[0, "word"], tables.word_embeddings.weight[IDS])
    assert torch.equal(values[0, "position"][0], tables.position_embeddings.weight[: IDS.shape[1]])
    assert torch.equal(values[0, "type"][0, 0], tables.token_type_embeddings.weight[0])
    with torch.inference_mode():
        for k, block in enumerate(encoder.encoder.layer, start=1):
            assert torch.equal(block.attention.output.LayerNorm(values[k, "sum_attention"]), values[k, "norm_1"])
            inner = block.intermediate(values[k, "norm_1"])
            assert torch.allclose(block.output.dense(inner), values[k, "feed_forward"], atol=1e-6)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "albert", "gpt2", "llama", "gpt_neox"])
def test_each_block_has_two_norms_that_compute_what_they_say(family: str, checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints[family])
    norms = find_norms(encoder, examine(encoder))
    n_layers = encoder.config.num_hidden_layers
    assert [(one.layer, one.number) for one in norms] == [(k, i) for k in range(1, n_layers + 1) for i in (1, 2)]
    for one in norms:
        assert one.norm.centres == (family != "llama")
        given = torch.randn(4, 16)
        with torch.inference_mode():
            made = encoder.get_submodule(one.name)(given)
        assert torch.allclose(one.norm(given.double()).float(), made, atol=1e-5)


def test_models_whose_parts_cannot_be_told_are_refused_with_the_reason(checkpoints: dict[str, Path]) -> None:
    xlnet, modern = (untouched(checkpoints[name]) for name in ("xlnet", "modernbert"))
    for find in (find_norms, find_path):
        with pytest.raises(NotFound, match="do not pass the hidden states from one to the next"):
            find(xlnet, examine(xlnet))
    # Its first block reads the embeddings without a norm.
    with pytest.raises(NotFound, match="block 1 has 1 norm as wide as its hidden states, where 2 are expected"):
        find_norms(modern, examine(modern))


def test_a_block_that_does_something_to_its_sum_is_refused(checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints["gpt2"])
    anatomy = examine(encoder)
    encoder.h[1].register_forward_hook(lambda module, args, made: 1.01 * made)
    with pytest.raises(NotFound, match="no two parts of block 2 add up to what it adds"):
        find_path(encoder, anatomy)
