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
from probing.disabling.passes import replacing, uniform_outputs
from probing.errors import UserError
from probing.models import load_encoder, load_tokenizer, resolve_model
from probing.models.anatomy import hidden_states
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
