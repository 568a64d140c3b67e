"""Runs from a block on, on tiny models of all families: equal to the whole model, with and without a change."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from families import FAMILIES
from probing.disabling.probed_task import replacing, uniform_outputs
from probing.errors import UserError
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import hidden_states
from probing.models.examination import with_the_same_weights
from probing.readouts.later_blocks import LaterBlocks

pytestmark = pytest.mark.numeric

# Blocks or heads cannot be told: ConvBERT's and XLNet's values or hidden states take another way.
REFUSED = {
    "xlnet": "no head or layer of it can be disabled, because its",
    "lfm2": "2 attentions were seen in a forward pass",
    "longformer": "0 attentions were seen in a forward pass",
}
TEXTS = ["the probe reads one layer", "a small model often forgets every position of a large sentence, quietly"]


def loaded(folder: Path) -> tuple[LaterBlocks, dict[str, Tensor]]:
    source = resolve_model(str(folder))
    tokenizer = load_tokenizer(source)
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    pad, longest = tokenizer.pad_token_id or 0, max(map(len, ids))
    inputs = {
        "input_ids": torch.tensor([one + [pad] * (longest - len(one)) for one in ids]),
        "attention_mask": torch.tensor([[1] * len(one) + [0] * (longest - len(one)) for one in ids]),
    }
    return LaterBlocks.of(load_encoder(source), pad, folder.name), inputs


def all_layers(model: LaterBlocks, inputs: dict[str, Tensor]) -> dict[int, Tensor]:
    return hidden_states(model.encoder, model.anatomy, range(model.anatomy.n_layers + 1), **inputs)


def one_by_one(inputs: dict[str, Tensor], neutral: bool) -> list[dict[str, Tensor]]:
    """Return both sentences together, or each without padding where a family's hidden states depend on it."""
    if neutral:
        return [inputs]
    lengths = inputs["attention_mask"].sum(1).tolist()
    return [{name: values[i : i + 1, :n] for name, values in inputs.items()} for i, n in enumerate(lengths)]


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_the_later_layers_are_those_of_the_whole_model_to_the_bit(family: str, checkpoints: dict[str, Path]) -> None:
    if family in REFUSED:
        with pytest.raises(UserError, match=REFUSED[family]):
            loaded(checkpoints[family])
        return
    model, both = loaded(checkpoints[family])
    last = model.anatomy.n_layers
    for inputs in one_by_one(both, model.anatomy.padding_is_neutral):
        states, beside = all_layers(model, inputs), model.beside_states(inputs)
        for block in range(1, last + 1):
            later = list(range(block, last + 1))
            found = model.run(inputs, block, states[block - 1], beside, later)
            assert all(torch.equal(found[layer], states[layer]) for layer in later)
            # A change that changes nothing is a change nowhere; one that does is one in all later layers.
            same = model.run(inputs, block, states[block - 1], beside, later, lambda given: given)
            assert all(torch.equal(same[layer], states[layer]) for layer in later)
            other = model.run(inputs, block, states[block - 1], beside, later, replacing(model.columns(1), Tensor([0])))
            assert not any(torch.equal(other[layer], states[layer]) for layer in later)
        outside = model.run(inputs, last + 1, states[last - 1], beside, [last])
        assert outside[last].shape == states[last].shape
        assert not torch.equal(outside[last], states[last])


class Replaced:
    """Attention whose weights of one head are replaced by 1/L in one block; computed naively, a product at a time."""

    def __init__(self, block: int, head: int) -> None:
        self.block, self.head, self.calls = block, head, 0

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, **other: Any,
    ) -> Tensor:  # fmt: skip
        self.calls += 1
        scores = query @ key.transpose(2, 3) * (scale or 1 / math.sqrt(query.shape[-1]))
        seen = torch.ones_like(scores, dtype=torch.bool)
        if is_causal:
            seen = seen.tril()
        if attn_mask is not None:
            seen = seen & (attn_mask if attn_mask.dtype == torch.bool else attn_mask > -1)
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        if self.calls == self.block:
            weights[:, self.head - 1] = (seen / seen.sum(-1, keepdim=True))[
                :, self.head - 1 if seen.shape[1] > 1 else 0
            ]
        return weights @ value


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama", "bart"])
@torch.inference_mode()
def test_uniform_is_the_attention_map_replaced(
    family: str, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = loaded(checkpoints[family])
    states, beside = all_layers(model, inputs), model.beside_states(inputs)
    mask = inputs["attention_mask"].bool()
    for block in range(1, model.anatomy.n_layers + 1):
        later = list(range(block, model.anatomy.n_layers + 1))
        _, values = model.outputs_of_heads(inputs, block, states[block - 1], beside)
        uniform = uniform_outputs(values, mask, model.heads.is_causal)
        assert uniform.shape[1] == (mask.shape[1] if model.heads.is_causal else 1)
        for head in (1, 2):
            here = model.columns(head)
            found = model.run(inputs, block, states[block - 1], beside, later, replacing(here, uniform[..., here]))
            with monkeypatch.context() as patch:
                patch.setattr(functional, "scaled_dot_product_attention", replaced := Replaced(block, head))
                expected = all_layers(model, inputs)
            assert replaced.calls == model.anatomy.n_layers
            for layer in later:
                assert (found[layer] - expected[layer])[mask].abs().max() < 1e-5
                assert (states[layer] - expected[layer])[mask].abs().max() > 1e-4


# --- blocks that do not end in what the next one needs ---

_SIZES: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip
_XLM = {"vocab_size": 64, "emb_dim": 32, "n_layers": 4, "n_heads": 4, "n_words": 64, "pad_index": 0}
# Of XLM and FlauBERT, the residual and the feed-forward part are outside of the module that is given the states; the
# last two blocks of Gemma 4 take keys and values of those below; ZAYA's routers pass on what is no hidden state.
MORE_THAN_STATES: dict[str, dict[str, Any]] = {
    "xlm": _XLM, "flaubert": _XLM,
    "gemma4_text": {
        **_SIZES, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 16, "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8,
        "per_layer_config": {},
    },
    "zaya": {**_SIZES, "num_key_value_heads": 2, "num_experts": 4, "num_experts_per_tok": 1},
}  # fmt: skip


def of_config(family: str) -> tuple[LaterBlocks, dict[str, Tensor]]:
    from transformers import CONFIG_MAPPING, AutoModel

    make: Any = CONFIG_MAPPING[family]
    encoder: Any = AutoModel.from_config(make(**MORE_THAN_STATES[family])).eval()
    encoder.config.use_cache = False
    generator = torch.Generator().manual_seed(0)
    # With weights three times as large, a block of ZAYA makes the rounding of float32 a thousand times as large.
    with torch.no_grad():
        for parameter in (one for one in encoder.parameters() if one.ndim > 1):
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    inputs = {"input_ids": 5 + torch.arange(18).view(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    inputs["attention_mask"][1, 6:] = 0
    return LaterBlocks.of(encoder, 0, family), inputs


@pytest.mark.parametrize("family", MORE_THAN_STATES)
@torch.inference_mode()
def test_where_a_block_needs_more_than_hidden_states_the_later_layers_are_still_those_of_the_whole_model(
    family: str,
) -> None:
    model, inputs = of_config(family)
    last, there = model.anatomy.n_layers, inputs["attention_mask"].bool()
    states, beside = all_layers(model, inputs), model.beside_states(inputs)
    for block in range(1, last + 1):
        later = range(block, last + 1)
        found = model.run(inputs, block, states[block - 1], beside, later)
        # What a hook on the output projection of the whole model changes.
        projection = model.encoder.get_submodule((model.heads.projections or ())[block - 1])
        zeroed: list[Tensor] = []

        def without_head_1(module: Any, args: Any, zeroed: list[Tensor] = zeroed) -> tuple[Tensor, ...]:
            zeroed.append(args[0].clone())
            return (torch.cat([torch.zeros_like(args[0][..., :8]), args[0][..., 8:]], -1), *args[1:])

        handle = projection.register_forward_pre_hook(without_head_1)
        expected = all_layers(model, inputs)
        handle.remove()
        change = replacing(model.columns(1), Tensor([0]))
        changed = model.run(inputs, block, states[block - 1], beside, later, change)
        for layer in later:
            torch.testing.assert_close(found[layer][there], states[layer][there], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(changed[layer][there], expected[layer][there], rtol=1e-5, atol=1e-5)
        assert (expected[last] - states[last])[there].abs().max() > 1e-3
        outputs, values = model.outputs_of_heads(inputs, block, states[block - 1], beside)
        torch.testing.assert_close(outputs[there], zeroed[0][there], rtol=1e-5, atol=1e-5)
        assert values.shape == (2, model.heads.n_heads, 9, 8)
    assert not model.runs_from(last)


@pytest.mark.parametrize("family", MORE_THAN_STATES)
@torch.inference_mode()
def test_states_are_replaced_where_blocks_are_whole_layers_and_refused_elsewhere(family: str) -> None:
    model, inputs = of_config(family)
    if family in ("xlm", "flaubert"):
        with pytest.raises(UserError, match=f"`--neurons 3` changes states, and a layer of {family} .* is spread over"):
            model.check_layers("--neurons 3", "changes states", family)
        return
    model.check_layers("--neurons 3", "changes states", family)
    last, there = model.anatomy.n_layers, inputs["attention_mask"].bool()
    states, beside = all_layers(model, inputs), model.beside_states(inputs)
    for block in range(2, last + 1):
        other = states[block - 1] * 0.5
        assert model.anatomy.blocks is not None
        handle = model.anatomy.blocks[block - 1].register_forward_pre_hook(
            lambda module, args, other=other: (other, *args[1:])
        )
        expected = all_layers(model, inputs)[last]
        handle.remove()
        found = model.run(inputs, block, other, beside, [last])[last]
        torch.testing.assert_close(found[there], expected[there], rtol=1e-5, atol=1e-5)
        assert (found - states[last])[there].abs().max() > 1e-3


def test_a_block_is_checked_once_for_all_copies(checkpoints: dict[str, Path]) -> None:
    model, inputs = loaded(checkpoints["bert"])
    copy = model.of_copy(with_the_same_weights(model.encoder))
    with torch.inference_mode():
        states = all_layers(model, inputs)
        assert model.exact == {}
        model.run(inputs, 3, states[2], model.beside_states(inputs), [3])
    assert copy.exact == {3: True}
    assert copy.are_layers
