"""Units of the MLP, outputs of heads and features of dictionaries, against what they are defined by."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.testing import assert_close

from conftest import N_LAYERS
from families import D_MODEL, N_HEADS, batch_of, few_quickly, untouched
from families import FAMILIES as ALL_FAMILIES
from probing.errors import UserError
from probing.models import SiteName, layout_at, load_encoder, parse_layers, resolve_model
from probing.models.anatomy import Anatomy, examine
from probing.models.sites import Dictionary, activations, find_site, highest, load_dictionary

pytestmark = pytest.mark.numeric

# Families whose neurons of a site cannot be told: the half of what ConvBERT's output projection reads is made by a
# convolution, XLNet's blocks are no list that receives the hidden states, and the first block of LFM2 has no heads.
REFUSED = {("convbert", "attention"), ("xlnet", "mlp"), ("xlnet", "attention"), ("lfm2", "attention")}
# Families whose configuration has no size of their MLP here: four times the width.
FOUR_TIMES = {"gpt2", "openai-gpt", "bloom", "mpt"}
ROUNDING: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-5}
SITES: tuple[SiteName, ...] = ("mlp", "attention")


def load(folder: Path, dtype: str = "float32", seed: int | None = None) -> nn.Module:
    return load_encoder(resolve_model(str(folder)), seed, dtype)


def at_site(encoder: nn.Module, site: SiteName) -> Anatomy:
    anatomy = examine(encoder)
    return replace(anatomy, site_modules=find_site(encoder, anatomy, site).modules)


# --- where the sites are ---


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("family", few_quickly(ALL_FAMILIES))
def test_a_site_is_found_in_every_block_or_refused(checkpoints: dict[str, Path], family: str, site: SiteName) -> None:
    encoder = load(checkpoints[family])
    if (family, site) in REFUSED:
        with pytest.raises(UserError, match=rf"`--site {site}`.* cannot be told in tiny .*use `--site residual`"):
            find_site(encoder, examine(encoder), site, name="tiny")
        return
    found = find_site(encoder, examine(encoder), site)
    assert len(found.modules) == N_LAYERS[family]
    assert len(set(found.modules)) == (1 if family == "albert" else N_LAYERS[family])
    assert found.width == (D_MODEL if site == "attention" else 64 if family in FOUR_TIMES else 32)
    assert found.n_heads == (N_HEADS if site == "attention" else None)


_HYBRID: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "pad_token_id": 0,
}  # fmt: skip
_MAMBA = {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1}
# Which blocks of hybrid models have attention: those of the others are recurrent.
RECURRENT: dict[str, dict[str, Any]] = {
    "recurrent_gemma": {"head_dim": 8, "lru_width": 32, "block_types": ["recurrent", "recurrent", "attention"]},
    "bamba": {**_MAMBA, "attn_layer_indices": []},
}


@pytest.mark.parametrize(("family", "has_attention"), [*((one, False) for one in RECURRENT), ("gpt_oss", True)])
def test_a_recurrent_block_has_no_heads(family: str, has_attention: bool) -> None:
    from transformers import CONFIG_MAPPING, AutoModel

    make: Any = CONFIG_MAPPING[family]
    own = RECURRENT.get(family, {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2})
    encoder: Any = AutoModel.from_config(make(**_HYBRID, **own)).eval()
    encoder.config.use_cache = False
    if has_attention:  # a softmax over tokens and a sink
        assert find_site(encoder, examine(encoder), "attention").n_heads == 4
        return
    with pytest.raises(
        UserError, match=r"`--site attention`.* block 1 first mixes tokens by something else than attention"
    ):
        find_site(encoder, examine(encoder), "attention")


@pytest.mark.parametrize("site", SITES)
def test_finding_a_site_leaves_the_model_as_it_was(
    checkpoints: dict[str, Path], sentences: list[str], site: SiteName
) -> None:
    encoder, batch = load(checkpoints["bert"]), batch_of(checkpoints["bert"], sentences[:3])
    anatomy = examine(encoder)  # transformers keeps hooks of its own from the first request for hidden states

    def n_hooks() -> list[int]:
        return [len(module._forward_pre_hooks) + len(module._forward_hooks) for module in encoder.modules()]

    before, hooks = encoder(**batch).last_hidden_state.detach(), n_hooks()
    find_site(encoder, anatomy, site)
    assert torch.equal(encoder(**batch).last_hidden_state, before)
    assert n_hooks() == hooks
    assert all(parameter.grad is None for parameter in encoder.parameters())


@pytest.mark.parametrize("site", SITES)
def test_a_site_is_found_with_frozen_and_random_weights_and_in_half_precision(
    checkpoints: dict[str, Path], site: SiteName
) -> None:
    encoder = load(checkpoints["bert"])
    expected = find_site(encoder, examine(encoder), site)
    for encoder in (load(checkpoints["bert"], seed=3), load(checkpoints["bert"], "bfloat16")):
        assert find_site(encoder, examine(encoder), site) == expected
    frozen = load(checkpoints["bert"]).requires_grad_(False)
    assert find_site(frozen, examine(frozen), site) == expected


# --- what they hold, against each family's own parts ---


def _heads(attention: Tensor, values: Tensor) -> Tensor:
    """Return attention @ values, head by head, concatenated; shapes (batch, heads, n, n) and (batch, n, width)."""
    parted = values.unflatten(-1, (attention.shape[1], -1)).transpose(1, 2)
    return (attention @ parted).transpose(1, 2).flatten(2)


def _bert(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    heads = _heads(attention, block.attention.self.value(x))
    after = block.attention.output.LayerNorm(block.attention.output.dense(heads) + x)
    return heads, torch.nn.functional.gelu(block.intermediate.dense(after))


def _distilbert(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    heads = _heads(attention, block.attention.v_lin(x))
    after = block.sa_layer_norm(block.attention.out_lin(heads) + x)
    return heads, torch.nn.functional.gelu(block.ffn.lin1(after))


def _mpnet(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    heads = _heads(attention, block.attention.attn.v(x))
    after = block.attention.LayerNorm(block.attention.attn.o(heads) + x)
    return heads, torch.nn.functional.gelu(block.intermediate.dense(after))


def _albert(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    (layer,) = block.albert_layers
    heads = _heads(attention, layer.attention.value(x))
    after = layer.attention.LayerNorm(layer.attention.dense(heads) + x)
    return heads, layer.activation(layer.ffn(after))


def _gpt2(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    heads = _heads(attention, block.attn.c_attn(block.ln_1(x)).chunk(3, dim=-1)[2])
    after = block.ln_2(block.attn.c_proj(heads) + x)
    return heads, torch.nn.functional.gelu(block.mlp.c_fc(after), approximate="tanh")


def _gpt_neox(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    mixed = block.attention.query_key_value(block.input_layernorm(x)).unflatten(-1, (N_HEADS, 3, -1))
    heads = _heads(attention, mixed[..., 2, :].flatten(-2))
    # Attention and MLP are side by side and read the same residual stream.
    return heads, torch.nn.functional.gelu(block.mlp.dense_h_to_4h(block.post_attention_layernorm(x)))


def _llama(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    heads = _heads(attention, block.self_attn.v_proj(block.input_layernorm(x)))
    after = block.post_attention_layernorm(block.self_attn.o_proj(heads) + x)
    return heads, torch.nn.functional.silu(block.mlp.gate_proj(after)) * block.mlp.up_proj(after)


def _olmo2(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    # Both heads share the values, and what is normalised is the output of a part, not its input.
    heads = _heads(attention, block.self_attn.v_proj(x).repeat(1, 1, N_HEADS))
    after = block.post_attention_layernorm(block.self_attn.o_proj(heads)) + x
    return heads, torch.nn.functional.silu(block.mlp.gate_proj(after)) * block.mlp.up_proj(after)


def _longformer(block: Any, x: Tensor, band: Tensor) -> tuple[Tensor, Tensor]:
    # The model returns for each token its attention to the tokens from 4 before it to 4 behind it.
    n = x.shape[1]
    index = torch.arange(n)
    columns = (index - index[:, None] + 4).expand(*band.shape[:2], n, n)
    attention = band[:, :, :n].gather(3, columns.clamp(0, 8)).masked_fill((columns < 0) | (columns > 8), 0)
    return _bert(block, x, attention)


def _t5(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    first, second = block.layer
    heads = _heads(attention, first.SelfAttention.v(first.layer_norm(x)))
    after = second.layer_norm(first.SelfAttention.o(heads) + x)
    return heads, torch.relu(second.DenseReluDense.wi(after))


def _modernbert(block: Any, x: Tensor, attention: Tensor) -> tuple[Tensor, Tensor]:
    values = block.attn.Wqkv(block.attn_norm(x)).chunk(3, dim=-1)[2]
    heads = _heads(attention, values)
    made, gate = block.mlp.Wi(block.mlp_norm(block.attn.Wo(heads) + x)).chunk(2, dim=-1)
    return heads, torch.nn.functional.gelu(made) * gate


_Parts = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]
# The blocks of each family, and what a block computes by its definition, from its input and its attention matrices.
DEFINITIONS: dict[str, tuple[Callable[[Any], Any], _Parts]] = {
    "bert": (lambda model: model.encoder.layer, _bert),
    "roberta": (lambda model: model.encoder.layer, _bert),
    "electra": (lambda model: model.encoder.layer, _bert),
    "distilbert": (lambda model: model.transformer.layer, _distilbert),
    "mpnet": (lambda model: model.encoder.layer, _mpnet),
    "albert": (lambda model: [model.encoder.albert_layer_groups[0]] * 3, _albert),
    "gpt2": (lambda model: model.h, _gpt2),
    "gpt_neox": (lambda model: model.layers, _gpt_neox),
    "llama": (lambda model: model.layers, _llama),
    "olmo2": (lambda model: model.layers, _olmo2),
    "longformer": (lambda model: model.encoder.layer, _longformer),
    "t5": (lambda model: model.block, _t5),
    "modernbert": (lambda model: model.layers, _modernbert),
}


@pytest.mark.parametrize("family", DEFINITIONS)
@torch.no_grad()
def test_values_are_those_that_the_familys_definition_gives(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    batch = batch_of(checkpoints[family], sentences[:4])
    mask = batch["attention_mask"].bool()
    assert not mask.all()
    whole = untouched(checkpoints[family], attn_implementation="eager")
    output = whole(**batch, output_hidden_states=True, output_attentions=True)
    blocks_of, parts = DEFINITIONS[family]
    encoder = load(checkpoints[family])
    layers = list(range(1, N_LAYERS[family] + 1))
    found = {site: activations(encoder, at_site(encoder, site), layers, **batch) for site in SITES}
    for layer, block in zip(layers, blocks_of(whole), strict=True):
        heads, units = parts(block, output.hidden_states[layer - 1], output.attentions[layer - 1])
        assert_close(found["attention"][layer][mask], heads[mask], **ROUNDING)
        assert_close(found["mlp"][layer][mask], units[mask], **ROUNDING)
        assert found["mlp"][layer][mask].std() > 0.01  # values that say something


# --- reading them ---


@pytest.mark.parametrize("site", SITES)
@pytest.mark.parametrize("family", ["bert", "albert", "gpt2"])
@torch.no_grad()
def test_layer_k_runs_no_block_after_the_kth(
    checkpoints: dict[str, Path], sentences: list[str], family: str, site: SiteName
) -> None:
    encoder, batch = load(checkpoints[family]), batch_of(checkpoints[family], sentences[:3])
    anatomy = at_site(encoder, site)
    together = activations(encoder, anatomy, [1, 2, 3], **batch)
    assert list(together) == [1, 2, 3]
    assert not torch.equal(together[1], together[2])
    calls: list[int] = []
    for block in set(anatomy.blocks or ()):
        block.register_forward_hook(lambda *_: calls.append(1))
    for layer, expected in together.items():
        calls.clear()
        assert torch.equal(activations(encoder, anatomy, [layer], **batch)[layer], expected)
        assert len(calls) == layer - 1  # block k itself is left at the site
    assert not any(module._forward_pre_hooks for module in encoder.modules())


def test_a_part_that_the_model_no_longer_has_is_named(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    encoder, batch = load(checkpoints["bert"]), batch_of(checkpoints["bert"], sentences[:2])
    anatomy = replace(examine(encoder), site_modules=("encoder.layer.0.ffn",) * 3)
    with pytest.raises(UserError, match=r"`--cache`.* another version of transformers.* encoder\.layer\.0\.ffn"):
        activations(encoder, anatomy, [1], **batch)


def test_layers_of_a_site_inside_blocks_begin_at_one() -> None:
    assert parse_layers("all", 3, "tiny", "mlp") == [1, 2, 3]
    assert parse_layers("all", 3, "tiny") == [0, 1, 2, 3]
    with pytest.raises(UserError, match=r"`--layer 0,2`: with `--site attention`.* tiny has layers 1 to 3, and not 0"):
        parse_layers("0,2", 3, "tiny", "attention")


# --- models that look alike and have no such site ---


class Blocks(nn.Module):
    """A model of two blocks of one's own making, with hidden states as transformers' models have them."""

    def __init__(self, make: Callable[[], nn.Module], n_heads: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(50, 8)
        self.blocks = nn.ModuleList([make(), make()])
        self.config = SimpleNamespace(num_hidden_layers=2, vocab_size=50, model_type="own", num_attention_heads=n_heads)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False) -> Any:
        states = [self.embedding(input_ids)]
        for block in self.blocks:
            states.append(block(states[-1]))
        return SimpleNamespace(hidden_states=tuple(states), last_hidden_state=states[-1])


class Block(nn.Module):
    """Attention of two heads, then an MLP; `twist` changes what is beside the rule."""

    def __init__(self, twist: str = "") -> None:
        super().__init__()
        self.twist = twist
        self.query, self.key, self.value, self.output = (nn.Linear(8, 8) for _ in range(4))
        self.first, self.second, self.third = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(12, 8)
        self.norm_1, self.norm_2 = nn.LayerNorm(8), nn.LayerNorm(8)

    def forward(self, hidden_states: Tensor) -> Tensor:
        query, key, value = (
            part(hidden_states).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        heads = ((query @ key.transpose(2, 3)).softmax(-1) @ value).transpose(1, 2)
        # Interleaved, neuron i belongs to head i % 2: no slice of neurons is a head.
        heads = heads.transpose(2, 3).flatten(2) if self.twist == "interleaved" else heads.flatten(2)
        if self.twist == "mixed":
            heads = heads.cumsum(-1)
        x = self.norm_1(self.output(heads) + hidden_states)
        units = self.first(x)
        if self.twist == "softmax":
            units = units.softmax(-1)
        elif self.twist == "rolled":
            units = units.roll(1, dims=-1).relu()
        elif self.twist != "linear":
            units = units.relu()
        if self.twist == "constant":
            self.third(units.detach())
        made = self.second(units)
        if self.twist == "two":
            made = made + self.third(self.first(made).relu())
        return self.norm_2(made + x)


def _find(twist: str, site: SiteName, n_heads: int = 2) -> Any:
    encoder: Any = Blocks(lambda: Block(twist), n_heads).eval()
    return find_site(encoder, examine(encoder), site, name="own")


def test_the_plain_block_has_both_sites() -> None:
    assert _find("", "attention").modules == ("blocks.0.output", "blocks.1.output")
    assert _find("", "mlp").modules == ("blocks.0.second", "blocks.1.second")
    # A map that reads what no map computes, such as angles, is no part of the MLP.
    assert _find("constant", "mlp").modules == ("blocks.0.second", "blocks.1.second")


@pytest.mark.parametrize(
    ("twist", "site", "words"),
    [
        ("interleaved", "attention", "in block 1, what the output projection reads is not 2 independent heads"),
        ("mixed", "attention", "is not 2 independent heads"),
        ("linear", "mlp", "block 1 has 0 linear maps that read units after an activation function and add"),
        ("softmax", "mlp", "block 1 has 0 linear maps"),
        ("rolled", "mlp", "block 1 has 0 linear maps"),
        ("two", "mlp", "block 1 has 2 linear maps that read units after an activation function and add"),
    ],
)
def test_a_block_that_only_looks_like_it_is_refused(twist: str, site: SiteName, words: str) -> None:
    with pytest.raises(UserError, match=words):
        _find(twist, site)


@pytest.mark.parametrize("n_heads", [1, 4, 3])
def test_a_wrong_number_of_heads_is_refused(n_heads: int) -> None:
    # One slice of two heads has halves that share nothing; four slices are halves of heads and share all.
    with pytest.raises(UserError, match=f"is not {n_heads} independent heads"):
        _find("", "attention", n_heads)


D_IN, N_FEATURES, K, N = 6, 15, 4, 40
HOOK = "blocks.2.hook_resid_pre"


def tensors_of(architecture: str, seed: int = 0) -> dict[str, torch.Tensor]:
    """Return random weights with the names of SAELens; decoder vectors of different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    found = {"W_enc": draw(D_IN, N_FEATURES), "W_dec": draw(N_FEATURES, D_IN), "b_dec": draw(D_IN)}
    of = {"standard": ("b_enc",), "topk": ("b_enc",), "jumprelu": ("b_enc", "threshold"),
          "gated": ("b_gate", "r_mag", "b_mag")}[architecture]  # fmt: skip
    return found | {name: draw(N_FEATURES) for name in of}


def write(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> str:
    """Write a dictionary in the layout of SAELens and return the site that names it."""
    folder.mkdir(parents=True, exist_ok=True)
    usual: dict[str, Any] = {
        "architecture": "standard", "d_in": D_IN, "d_sae": N_FEATURES, "dtype": "float32",
        "apply_b_dec_to_input": True, "normalize_activations": "none", "metadata": {"hook_name": HOOK},
        "model_from_pretrained_kwargs": {"center_writing_weights": False},
    }  # fmt: skip
    (folder / "cfg.json").write_text(json.dumps({**usual, **config}), encoding="utf-8")
    save_file(tensors, folder / "sae_weights.safetensors")
    return f"sae:{folder}"


def dictionary_load(site: str) -> Dictionary:
    return load_dictionary(layout_at(site, None, "tiny", 4))


def states() -> torch.Tensor:
    return torch.randn(N, D_IN, generator=torch.Generator().manual_seed(9)) + 0.5


def by_hand(tensors: dict[str, torch.Tensor], x: torch.Tensor, architecture: str, **how: Any) -> list[list[float]]:
    """Return the features of each state, computed number by number with Python's floats."""
    t = {name: tensor.double().tolist() for name, tensor in tensors.items()}
    rows = []
    for state in x.double().tolist():
        if how.get("norm") == "constant_norm_rescale":
            length = math.sqrt(sum(v * v for v in state))
            state = [v * math.sqrt(D_IN) / length for v in state]
        if how.get("norm") == "layer_norm":
            mean = sum(state) / D_IN
            sd = math.sqrt(sum((v - mean) ** 2 for v in state) / (D_IN - 1))
            state = [(v - mean) / (sd + 1e-5) for v in state]
        if how.get("subtracts", True):
            state = [v - b for v, b in zip(state, t["b_dec"], strict=True)]
        products = [sum(state[i] * t["W_enc"][i][j] for i in range(D_IN)) for j in range(N_FEATURES)]
        row = []
        for j, product in enumerate(products):
            if architecture == "gated":
                size = product * math.exp(t["r_mag"][j]) + t["b_mag"][j]
                row.append(max(size, 0.0) if product + t["b_gate"][j] > 0 else 0.0)
                continue
            before = product + t["b_enc"][j]
            if how.get("rescaled"):
                before *= math.sqrt(sum(v * v for v in t["W_dec"][j]))
            if architecture == "jumprelu" and before <= t["threshold"][j]:
                before = 0.0
            row.append(max(before, 0.0))
        if architecture == "topk":
            kept = sorted(range(N_FEATURES), key=lambda j: (-row[j], j))[:K]
            row = [value if j in kept else 0.0 for j, value in enumerate(row)]
        rows.append(row)
    return rows


@pytest.mark.parametrize("norm", ["none", "constant_norm_rescale", "layer_norm"])
@pytest.mark.parametrize("subtracts", [True, False])
@pytest.mark.parametrize("architecture", ["standard", "topk", "jumprelu", "gated"])
def test_features_are_those_of_the_published_formula(
    tmp_path: Path, architecture: str, subtracts: bool, norm: str
) -> None:
    tensors, x = tensors_of(architecture), states()
    config: dict[str, Any] = {
        "architecture": architecture,
        "apply_b_dec_to_input": subtracts,
        "normalize_activations": norm,
    }
    site = write(tmp_path / "d", tensors, **config, **({"k": K} if architecture == "topk" else {}))
    expected = torch.tensor(by_hand(tensors, x, architecture, subtracts=subtracts, norm=norm), dtype=torch.float64)
    found = dictionary_load(site).encode(x)
    # float32: some 1e-7 of the largest product, of at most 20
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert 0 < int((expected > 0).sum()) < expected.numel()


def test_a_topk_dictionary_may_rank_by_the_length_of_decoder_vectors(tmp_path: Path) -> None:
    tensors, x = tensors_of("topk"), states()
    site = write(tmp_path / "d", tensors, architecture="topk", k=K, rescale_acts_by_decoder_norm=True)
    expected = torch.tensor(by_hand(tensors, x, "topk", rescaled=True), dtype=torch.float64)
    torch.testing.assert_close(dictionary_load(site).encode(x).double(), expected, rtol=1e-5, atol=1e-5)
    plain = torch.tensor(by_hand(tensors, x, "topk"), dtype=torch.float64)
    assert bool(((plain > 0) != (expected > 0)).any())


def test_sparsify_names_its_weights_otherwise_and_subtracts_the_bias(tmp_path: Path) -> None:
    tensors, x = tensors_of("topk"), states()
    folder = tmp_path / "layers.1"
    folder.mkdir()
    own = {"encoder.weight": tensors["W_enc"].T.contiguous(), "encoder.bias": tensors["b_enc"],
           "W_dec": tensors["W_dec"], "b_dec": tensors["b_dec"]}  # fmt: skip
    save_file(own, folder / "sae.safetensors")
    config = {"d_in": D_IN, "k": K, "num_latents": 0, "expansion_factor": 2}
    (folder / "cfg.json").write_text(json.dumps(config), encoding="utf-8")
    expected = torch.tensor(by_hand(tensors, x, "topk"), dtype=torch.float64)
    for site in (f"sae:{folder}", f"sae:{tmp_path}"):
        torch.testing.assert_close(dictionary_load(site).encode(x).double(), expected, rtol=1e-5, atol=1e-5)
        assert layout_at(site, None, "tiny", 4).layer == 2  # what block 1 of 0, 1, ... returns


def test_of_equal_values_the_lower_numbers_are_taken_and_no_more_than_k() -> None:
    rows = torch.tensor([
        [1.0, 2.0, 2.0, 0.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0, 1.0], [5.0, 5.0, 5.0, 5.0, 5.0, 5.0]
    ])  # fmt: skip
    assert highest(rows, 3).tolist() == [[0, 2, 2, 0, 0, 3], [0, 0, 0, 0, 0, 1], [5, 5, 5, 0, 0, 0]]
    assert highest(rows, 6).tolist() == rows.tolist()


def test_a_threshold_is_not_reached_by_what_is_equal_to_it(tmp_path: Path) -> None:
    tensors = tensors_of("jumprelu") | {
        "W_enc": torch.eye(D_IN, N_FEATURES), "b_enc": torch.zeros(N_FEATURES), "threshold": torch.ones(N_FEATURES),
        "b_dec": torch.zeros(D_IN),
    }  # fmt: skip
    site = write(tmp_path / "d", tensors, architecture="jumprelu")
    assert dictionary_load(site).encode(torch.tensor([[1.0, 1.5, 0.5, -2.0, 0.0, 0.0]]))[0, :4].tolist() == [
        0.0,
        1.5,
        0.0,
        0.0,
    ]


def test_what_is_active_is_what_is_not_0() -> None:
    tensors = tensors_of("topk")
    dictionary, x = Dictionary("topk", tensors["W_enc"], tensors["b_enc"], k=K), states()
    rows, features, values = dictionary.active(x)
    dense = torch.zeros(N, N_FEATURES)
    dense[rows, features] = values
    assert dense.equal(dictionary.encode(x))
    assert len(values) == N * K


def test_earlier_versions_keep_everything_in_one_level(tmp_path: Path) -> None:
    tensors, x = tensors_of("topk"), states()
    old = {"architecture": None, "activation_fn_str": "topk", "activation_fn_kwargs": {"k": K}, "metadata": None,
           "normalize_activations": False, "hook_point": "blocks.2.hook_resid_pre", "hook_point_layer": 2,
           "dtype": "torch.float32"}  # fmt: skip
    site = write(tmp_path / "d", tensors, **old)
    expected = torch.tensor(by_hand(tensors, x, "topk"), dtype=torch.float64)
    torch.testing.assert_close(dictionary_load(site).encode(x).double(), expected, rtol=1e-5, atol=1e-5)
    assert layout_at(site, None, "tiny", 4).layer == 2


@pytest.mark.parametrize(
    ("hook", "layer"),
    [
        ("blocks.0.hook_resid_pre", 0), ("blocks.2.hook_resid_post", 3), ("blocks.2.hook_normalized_resid_post", 3),
        ("layers.3", 4), ("encoder.layer.0", 1), ("transformer.h.1", 2), ("gpt_neox.layers.2", 3),
    ],
)  # fmt: skip
def test_the_layer_is_that_of_the_hook(tmp_path: Path, hook: str, layer: int) -> None:
    site = write(tmp_path / "d", tensors_of("standard"), metadata={"hook_name": hook})
    assert parse_layers("all", 4, "tiny", site) == [layer]
    assert parse_layers(layer, 4, "tiny", site) == [layer]


DICTIONARY_REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"architecture": "transcoder"}, "its architecture is transcoder; those that are read are standard, topk"),
    ({"normalize_activations": "expected_average_only_in"}, "an expected norm that the folder does not hold"),
    ({"normalize_activations": True}, "an expected norm that the folder does not hold"),
    ({"normalize_activations": "rms"}, "its normalize_activations is rms; known are none"),
    ({"activation_fn": "tanh-relu"}, "its activation function is tanh-relu"),
    ({"dtype": "float64"}, "its dtype is float64"),
    ({"reshape_activations": "hook_z"}, "its reshape_activations is hook_z"),
    ({"metadata": {"hook_name": HOOK, "hook_head_index": 1}}, "its hook_head_index is 1"),
    ({"metadata": {"hook_name": "blocks.2.hook_mlp_out"}}, "blocks.2.hook_mlp_out is no hidden state"),
    ({"metadata": {"hook_name": "layers.2.mlp"}}, "layers.2.mlp is no hidden state"),
    ({"metadata": {"hook_name": HOOK, "hook_layer": 1}}, "hook_layer 1 is another one"),
    ({"metadata": {"hook_name": "layers.9"}}, "is of layer 10 .* and tiny has layers 0"),
    ({"metadata": {}}, "does not say which layer it is of; name it with `--layer`"),
    ({"architecture": "topk"}, "its k is None"),
    ({"rescale_acts_by_decoder_norm": True}, "rescales by decoder norms, which is known of topk alone"),
    ({"model_from_pretrained_kwargs": {"center_writing_weights": True}}, "their mean was subtracted"),
    ({"model_from_pretrained_kwargs": None}, "does not say whether it did, as SAELens did not before September 2024"),
    ({"model_from_pretrained_kwargs": {}}, "does not say whether it did"),
    ({"model_from_pretrained_kwargs": {"center_writing_weights": None}}, "does not say whether it did"),
    (
        {"model_from_pretrained_kwargs": None, "metadata": None, "hook_point": "blocks.2.hook_resid_post"},
        "its hook is blocks.2.hook_resid_post of TransformerLens",
    ),
    ({"d_sae": 14}, r"W_enc has the shape \(6, 15\), and cfg.json says \(6, 14\)"),
    ({"architecture": "jumprelu"}, "threshold of a jumprelu dictionary is not there"),
]


@pytest.mark.parametrize("hook", ["layers.1", "encoder.layer.1", "transformer.h.1"])
def test_hidden_states_of_transformers_are_never_centred(tmp_path: Path, hook: str) -> None:
    own = {"model_from_pretrained_kwargs": None, "metadata": {"hook_name": hook}}
    site = write(tmp_path / "d", tensors_of("standard"), **own)
    assert layout_at(site, None, "tiny", 4).layer == 2
    assert dictionary_load(site).n_features == N_FEATURES


def test_what_the_metadata_say_of_centring_counts(tmp_path: Path) -> None:
    for is_centred in (True, False):
        told = {"hook_name": HOOK, "model_from_pretrained_kwargs": {"center_writing_weights": is_centred}}
        config = {"metadata": told}
        site = write(tmp_path / str(is_centred), tensors_of("standard"), **config)
        path = tmp_path / str(is_centred) / "cfg.json"
        found = json.loads(path.read_text(encoding="utf-8"))
        del found["model_from_pretrained_kwargs"]  # of the outer level
        path.write_text(json.dumps(found), encoding="utf-8")
        if is_centred:
            with pytest.raises(UserError, match="their mean was subtracted"):
                dictionary_load(site)
        else:
            assert dictionary_load(site).n_features == N_FEATURES


@pytest.mark.parametrize(("config", "message"), DICTIONARY_REFUSED)
def test_what_is_not_known_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    site = write(tmp_path / "d", tensors_of("standard"), **config)
    with pytest.raises(UserError, match=message):
        dictionary_load(site)


def test_weights_with_an_unknown_part_or_without_numbers_are_refused(tmp_path: Path) -> None:
    tensors = tensors_of("standard")
    for name, more, message in (
        ("a", {"log_threshold": torch.zeros(N_FEATURES)}, "log_threshold is no part of a standard dictionary"),
        ("b", {"b_enc": torch.full((N_FEATURES,), math.nan)}, "b_enc is in torch.float32, or not finite"),
        ("c", {"b_enc": torch.zeros(N_FEATURES, dtype=torch.float64)}, "b_enc is in torch.float64"),
    ):
        with pytest.raises(UserError, match=message):
            dictionary_load(write(tmp_path / name, {**tensors, **more}))


def test_layers_and_folders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    site = write(tmp_path / "d", tensors_of("standard"))
    for layer, message in (
        ("3", r"`--layer 3` with `--site sae:.*`: the dictionary is of layer 2, by its hook blocks.2.hook_resid_pre"),
        ("0,2", "a dictionary is of one layer; name that one"),
    ):
        with pytest.raises(UserError, match=message):
            parse_layers(layer, 4, "tiny", site)
    with pytest.raises(UserError, match=r"expected a folder with cfg\.json and sae_weights\.safetensors"):
        parse_layers("all", 4, "tiny", f"sae:{tmp_path / 'nothing'}")
    with pytest.raises(UserError, match="expected residual, mlp, attention, or sae:FOLDER"):
        parse_layers("all", 4, "tiny", "sae:")
    write(tmp_path / "e", tensors_of("standard"), metadata={"hook_name": "layers.0"})
    both = f"sae:{tmp_path}"
    with pytest.raises(UserError, match="has dictionaries of layers 1, 2; name one of them with `--layer`"):
        parse_layers("all", 4, "tiny", both)
    assert parse_layers("1", 4, "tiny", both) == [1]
