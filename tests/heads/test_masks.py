"""Heads that attend alike to all that their mask shows are uniform in every measure, whatever the mask shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from families import FAMILIES, make_tokenizer, save_at_random
from probing.cache import Request, load, tokens_of
from probing.corpus import from_sentences
from probing.heads.accumulation import AttentionReader, Measure, accumulate
from probing.heads.parts import Rollout
from probing.heads.rows import PATTERNS, PROFILE, Sentences, class_rows, measure_rows, profile_sums, type_rows
from probing.heads.subject import SINK, SPECIAL, Attended, WithoutFirst
from probing.models import load_tokenizer, resolve_model
from probing.models.attention_heads import read_heads

# pytorch-lightning 2.6 asks torch's tree specifications a deprecated question.
pytestmark = pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated:FutureWarning")

WINDOW = 6
_DECODER: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "num_key_value_heads": 1,
    "intermediate_size": 32, "max_position_embeddings": 128, "sliding_window": WINDOW,
}  # fmt: skip


def _config(name: str, size: int) -> Any:
    from transformers import CONFIG_MAPPING

    mapping: Any = CONFIG_MAPPING
    if name == "mistral":
        return mapping["mistral"](vocab_size=size, head_dim=8, **_DECODER)
    if name == "gemma3":
        types = ["sliding_attention", "full_attention", "sliding_attention"]
        return mapping["gemma3_text"](vocab_size=size, head_dim=8, layer_types=types, **_DECODER)
    config = FAMILIES[name].config(size)
    if name == "modernbert":
        config.local_attention = WINDOW
    return config


TOKENIZERS = {"mistral": "byte-level <s> first", "gemma3": "byte-level <s> first"}
# Which blocks have a window; attention of mistral and gemma3 is causal too.
LOCAL = {"bert": (), "gpt2": (), "modernbert": (2, 3), "mistral": (1, 2, 3), "gemma3": (1, 3)}


def uniform_model(folder: Path, name: str, sentences: list[str], implementation: str) -> Path:
    """Save a model whose queries are 0, so that its heads attend alike to all that they may see."""
    from transformers import AutoModel

    kind = TOKENIZERS.get(name) or FAMILIES[name].tokenizer
    tokenizer = make_tokenizer(kind, sentences)
    config = _config(name, len(tokenizer))
    save_at_random(folder, AutoModel.from_config(config), tokenizer)
    model = AutoModel.from_pretrained(folder, attn_implementation=implementation)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if "query" in path or "q_proj" in path:
                parameter.zero_()
            elif "Wqkv" in path:
                parameter[:16] = 0
            elif "c_attn" in path:
                parameter[..., :16] = 0
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", LOCAL)
def test_uniform_heads_have_entropy_1_lift_1_and_no_pattern(
    name: str, implementation: str, long_sentences: list[str], tmp_path: Path
) -> None:
    source = resolve_model(str(uniform_model(tmp_path / "m", name, long_sentences, implementation)))
    corpus = from_sentences("made up", long_sentences[:25])
    request = Request(source, corpus, (), batch_tokens=200)
    tokens = tokens_of(request, load_tokenizer(source))
    types = {"third": np.arange(tokens.n_tokens) % 3 == 0}
    measures: list[Measure] = [PROFILE, PATTERNS, SINK, Rollout(), Attended(types, "x")]
    stores = accumulate(request, measures, tmp_path, {"accelerator": "cpu"})
    draws, layers = Sentences(tokens.n_sentences, 0), [1, 2, 3]
    (entropy, seen) = profile_sums(stores["profile"].all_by_sentence(), tokens.lengths)["entropy"]
    rows, of_layers = measure_rows(entropy, seen, layers, draws, measure="entropy")
    counts: dict[str, Any] = {SPECIAL: tokens.lengths, "third": np.bincount(tokens.sentences[types["third"]])}
    rows += [row for row in type_rows(stores["attended"].all_by_sentence(), counts, tokens.lengths, layers, draws)[0]
             if row["measure"] == "lift"]  # fmt: skip
    assert len(rows) == 3 * 2 * 3
    assert [row["value"] for row in rows + of_layers] == pytest.approx([1] * (len(rows) + 3), abs=2e-6)
    classes = class_rows(stores["patterns"].all_by_sentence(), tokens.lengths, layers, draws)
    heads = [row for row in classes if "head" in row]
    assert {row["class"] for row in heads} == {"heterogeneous"}
    assert max(max(row["v"], row["d"]) for row in heads) < 1e-5
    first = stores["sink"].all_by_sentence()
    assert_close(first["mass"], first["uniform"], rtol=1e-5, atol=1e-6)
    later = accumulate(request, [WithoutFirst(PROFILE)], tmp_path, {"accelerator": "cpu"})["profile"]
    (entropy, seen) = profile_sums(later.all_by_sentence(), tokens.lengths - 1)["entropy"]
    rows, _ = measure_rows(entropy, seen, layers, draws, measure="entropy")
    assert [row["value"] for row in rows] == pytest.approx([1] * 6, abs=2e-6)
    rolled = stores["rollout"].by_sentence("sums")
    assert_close(rolled[:, :, 0], rolled[:, :, 1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", LOCAL)
def test_the_mask_is_that_of_the_model_even_where_attention_is_sharp(
    name: str, implementation: str, long_sentences: list[str], tmp_path: Path
) -> None:
    """A head with large scores gives nothing to most of what it sees."""
    from transformers import AutoModel

    folder = uniform_model(tmp_path / "m", name, long_sentences, implementation)
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if any(part in path for part in ("query", "q_proj", "Wqkv", "c_attn")):
                parameter.copy_(8 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    model.save_pretrained(folder)
    request = Request(resolve_model(str(folder)), from_sentences("made up", long_sentences[:1]), ())
    encoder, pad = load(request)
    heads = AttentionReader.of(encoder, pad, name).heads
    ids = torch.arange(20)[None] + 5
    masks: list[Tensor | None] = []
    maps: list[Tensor] = []
    with torch.inference_mode():
        read_heads(
            encoder, heads, lambda layer, of, values: maps.append(of.clone()),
            {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, masks.append,
        )  # fmt: skip
    offsets = torch.arange(20) - torch.arange(20)[:, None]
    for layer, (mask, of) in enumerate(zip(masks, maps, strict=True), 1):
        expected = offsets <= 0 if name in ("gpt2", "mistral", "gemma3") else offsets < 20
        if layer in LOCAL[name]:
            reach = WINDOW // 2 + 1 if name == "modernbert" else WINDOW
            expected = expected & (offsets.abs() < reach)
        assert torch.equal(expected if mask is None else mask[0], expected)
        assert not of[0, :, ~expected].any()
    if name != "gemma3":  # which divides queries by their norm
        assert any(bool((of[0, :, offsets == 0] == 0).any()) for of in maps)
