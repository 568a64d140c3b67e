"""Heads, queries, keys and norms, found by running the model, against what transformers returns by itself."""

from __future__ import annotations

import os
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor, nn
from torch.nn.functional import layer_norm
from torch.testing import assert_close

from conftest import N_LAYERS
from families import CORE, FAMILIES, N_HEADS, batch_of, untouched
from probing.errors import UserError
from probing.models import load_encoder, resolve_model
from probing.models.anatomy import examine, hidden_states
from probing.models.attention_heads import find_heads, find_query_keys, read_heads
from probing.models.residual_stream import NotPostNorm, find_blocks, is_norm, largest_slope, norm_of
from probing.models.sites import find_site

pytestmark = pytest.mark.numeric

# Half of what ConvBERT's output projection reads is made by a convolution. XLNet's is no module, but an `einsum`.
N_HEADS_OF = {"convbert": 1}
WITHOUT_PROJECTION = {"xlnet"}
CAUSAL = {"openai-gpt", "gpt2", "gpt_neox", "llama", "qwen3", "gemma3_text", "bloom", "olmo2", "mpt"}
# Longformer's attention is a band beside the diagonal, and the first block of LFM2 is a convolution.
REFUSED = {"longformer", "lfm2"}
READ = [family for family in FAMILIES if family not in REFUSED]


def load(folder: Path, dtype: str = "float32") -> nn.Module:
    return load_encoder(resolve_model(str(folder)), None, dtype)


@torch.inference_mode()
def read(encoder: Any, batch: dict[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return the attention and the values of each block."""
    found: list[tuple[Tensor, Tensor]] = []

    def keep(layer: int, probabilities: Tensor, values: Tensor) -> None:
        assert layer == len(found) + 1
        found.append((probabilities.clone(), values.clone()))

    read_heads(encoder, find_heads(encoder, examine(encoder)), keep, batch)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", READ)
def test_heads_are_found_in_every_family(checkpoints: dict[str, Path], family: str) -> None:
    encoder = load(checkpoints[family])
    heads = find_heads(encoder, examine(encoder))
    assert (heads.n_layers, heads.n_heads) == (N_LAYERS[family], N_HEADS_OF.get(family, N_HEADS))
    assert heads.is_causal == (family in CAUSAL)
    if family in WITHOUT_PROJECTION | {"convbert"}:
        assert (heads.projections is None) == (family in WITHOUT_PROJECTION)
    else:  # another way to find it, by gradients
        assert heads.projections == find_site(encoder, examine(encoder), "attention").modules


@pytest.mark.parametrize("family", sorted(REFUSED))
def test_attention_that_is_not_one_matrix_in_each_block_is_refused(checkpoints: dict[str, Path], family: str) -> None:
    encoder = load(checkpoints[family])
    n_seen = {"longformer": 0, "lfm2": 2}[family]
    with pytest.raises(UserError, match=rf"\({family}\) has 3 blocks, and {n_seen} attentions were seen"):
        find_heads(encoder, examine(encoder))


@pytest.mark.slow
@pytest.mark.parametrize("family", READ)
@torch.no_grad()
def test_attention_is_what_eager_attention_returns_and_padding_gets_none(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    batch = batch_of(checkpoints[family], sentences[:4])
    mask = batch["attention_mask"].bool()
    assert not mask.all()
    eager = untouched(checkpoints[family], attn_implementation="eager")
    expected = eager(**batch, output_attentions=True).attentions
    if family == "prophetnet":  # it returns the scores
        expected = [scores.softmax(-1) for scores in expected]
    # By the same implementation the states are the same. The fused one rounds otherwise, from block to block.
    for encoder, tolerance in ((eager, 1e-6), (load(checkpoints[family]), 2e-5)):
        found = read(encoder, batch)
        assert len(found) == len(expected) == N_LAYERS[family]
        for (probabilities, _), own in zip(found, expected, strict=True):
            rows = probabilities.transpose(1, 2)[mask]
            assert_close(rows, own.transpose(1, 2)[mask], rtol=0, atol=tolerance)
            assert_close(rows.sum(-1), torch.ones(rows.shape[:-1]), rtol=0, atol=1e-5)
            to_padding = probabilities.masked_fill(mask[:, None, None, :], 0).transpose(1, 2)[mask]
            assert not to_padding.any()


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in READ if family not in WITHOUT_PROJECTION])
@torch.inference_mode()
def test_what_heads_add_is_the_output_of_the_projection(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    encoder, batch = load(checkpoints[family]), batch_of(checkpoints[family], sentences[:3])
    mask = batch["attention_mask"].bool()
    heads = find_heads(encoder, examine(encoder))
    made: list[Tensor] = []

    def note(module: Any, args: Any, output: Tensor) -> None:
        # Only the columns that read heads; ConvBERT has others.
        given = args[0].clone()
        given[..., heads.n_heads * heads.d_head :] = 0
        made.append(output if torch.equal(given, args[0]) else nn.functional.linear(given, module.weight, module.bias))

    assert heads.projections
    handles = [encoder.get_submodule(name).register_forward_hook(note) for name in dict.fromkeys(heads.projections)]
    encoder(**batch)
    for handle in handles:
        handle.remove()
    parts = heads.output_projections(encoder)
    assert parts
    for (probabilities, values), part, expected in zip(read(encoder, batch), parts, made, strict=True):
        added = torch.einsum("bhij,bhjd,hdm->bim", probabilities, values, part.matrix) + part.bias
        assert_close(added[mask], expected[mask], rtol=1e-4, atol=1e-5)
        norms = torch.einsum("bhjd,hde,bhje->bhj", values.double(), part.gram, values.double()).sqrt()
        assert_close(norms, (values.double() @ part.matrix.double()).norm(dim=-1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("family", ["bert", "albert", "gpt2", "mpnet", "t5"])
@torch.inference_mode()
def test_hidden_states_stay_as_they_are_to_the_bit(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    encoder, batch = load(checkpoints[family]), batch_of(checkpoints[family], sentences[:3])
    heads = find_heads(encoder, examine(encoder))
    before = encoder(**batch, output_hidden_states=True).hidden_states
    during: list[Tensor] = []
    anatomy = examine(encoder)
    assert anatomy.blocks
    handles = [
        block.register_forward_pre_hook(
            lambda module, args, kwargs: during.append((*args, *kwargs.values())[0]), with_kwargs=True
        )
        for block in dict.fromkeys(anatomy.blocks)
    ]
    read_heads(encoder, heads, lambda *_: None, batch)
    assert len(during) == heads.n_layers
    assert all(torch.equal(one, other) for one, other in zip(during, before, strict=False))
    for handle in handles:
        handle.remove()
    assert torch.equal(encoder(**batch).last_hidden_state, before[-1])


@torch.inference_mode()
def test_nothing_runs_after_the_last_attention(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    encoder, batch = load(checkpoints["bert"]), batch_of(checkpoints["bert"], sentences[:2])
    heads, calls = find_heads(encoder, examine(encoder)), []
    for name in heads.projections or ():
        encoder.get_submodule(name).register_forward_hook(lambda *_: calls.append(1))
    read_heads(encoder, heads, lambda *_: None, batch)
    assert len(calls) == heads.n_layers - 1


def test_permuted_heads_are_permuted(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    encoder, batch = load(checkpoints["bert"]), batch_of(checkpoints["bert"], sentences[:3])
    plain = read(encoder, batch)
    matrices = dict(encoder.named_parameters())
    with torch.no_grad():
        for name in ("query", "key", "value"):
            for part in ("weight", "bias"):
                parameter = matrices[f"encoder.layer.0.attention.self.{name}.{part}"]
                parameter.copy_(parameter.unflatten(0, (N_HEADS, -1)).flip(0).flatten(0, 1))
        output = matrices["encoder.layer.0.attention.output.dense.weight"]
        output.copy_(output.unflatten(1, (N_HEADS, -1)).flip(1).flatten(1))
    permuted = read(encoder, batch)
    for found, expected in zip(permuted[0], plain[0], strict=True):
        assert_close(found, expected.flip(1))
        assert not torch.allclose(found, expected)
    for found, expected in zip(permuted[1], plain[1], strict=True):
        assert_close(found, expected)


@torch.inference_mode()
def test_queries_that_share_keys() -> None:
    from transformers import AutoModel, LlamaConfig

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=90, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=32, max_position_embeddings=32,
    )  # fmt: skip
    shared: Any = AutoModel.from_config(config, attn_implementation="sdpa").eval()
    batch = {"input_ids": torch.arange(14).view(2, 7) + 5, "attention_mask": torch.ones(2, 7, dtype=torch.long)}
    found = read(shared, batch)
    shared.set_attn_implementation("eager")
    for (probabilities, values), (own, of_eager) in zip(found, read(shared, batch), strict=True):
        assert probabilities.shape == (2, 4, 7, 7)
        assert_close(probabilities, own, rtol=0, atol=1e-6)
        assert_close(values, of_eager)


# Told to do without AVX-512, torch 2.13 fails on a processor with AMX: "pack_vnni2 is only supported when avx512 is"...
@pytest.mark.skipif("ATEN_CPU_CAPABILITY" in os.environ, reason="not this processor's own attention in bfloat16")
@torch.inference_mode()
def test_half_precision_is_read_in_float32(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    half, batch = load(checkpoints["bert"], "bfloat16"), batch_of(checkpoints["bert"], sentences[:2])
    for (probabilities, _), (whole, _) in zip(read(half, batch), read(load(checkpoints["bert"]), batch), strict=True):
        assert probabilities.dtype == torch.float32
        assert_close(probabilities, whole, rtol=0, atol=0.1)


def test_a_model_without_attention_weights_is_refused() -> None:
    from transformers import AutoModel, FNetConfig

    config = FNetConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, intermediate_size=32, max_position_embeddings=32
    )
    encoder = AutoModel.from_config(config).eval()
    with pytest.raises(
        UserError, match=r"`--model tiny` \(fnet\) has 2 blocks, and 0 attentions .*choose a model with"
    ):
        find_heads(encoder, examine(encoder, name="tiny"), name="tiny")


class OneBlock(nn.Module):
    """A model of one block, after which `n` attentions are computed without an output projection."""

    def __init__(self, n: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.blocks = nn.Embedding(50, 8), nn.ModuleList([nn.Linear(8, 8)])
        self.n = n
        self.config = SimpleNamespace(num_hidden_layers=1, vocab_size=50, model_type="own")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False) -> Any:
        states = self.embedding(input_ids)
        made = self.blocks[0](states)
        for _ in range(self.n):
            heads = made.unflatten(-1, (2, 4)).transpose(1, 2)
            made = ((heads @ heads.transpose(2, 3)).softmax(-1) @ heads).transpose(1, 2).flatten(2)
        return SimpleNamespace(hidden_states=(states, made), last_hidden_state=made)


@pytest.mark.parametrize(("n", "accepted"), [(1, True), (2, False), (0, False)])
def test_more_or_fewer_attentions_than_blocks_are_refused(n: int, accepted: bool) -> None:
    encoder: Any = OneBlock(n).eval()
    anatomy = examine(encoder)
    if accepted:
        assert find_heads(encoder, anatomy).projections is None
        return
    with pytest.raises(UserError, match=f"has 1 blocks, and {n} attentions were seen"):
        find_heads(encoder, anatomy)


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


D = 24


class RootMeanSquare(nn.Module):
    """As in Llama, or with `added` = 1 as in Gemma."""

    def __init__(self, added: float) -> None:
        super().__init__()
        self.weight, self.variance_epsilon, self.added = nn.Parameter(torch.randn(D)), 1e-3, added

    def forward(self, x: Tensor) -> Tensor:
        return (self.added + self.weight) * x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt()


def layer_norm_module() -> nn.LayerNorm:
    norm = nn.LayerNorm(D, eps=0.1)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


def test_a_layer_norm_is_split_into_terms_that_add_up_to_its_output() -> None:
    torch.manual_seed(0)
    module, given = layer_norm_module(), 3 + 2 * torch.randn(5, D)
    norm = norm_of(module, given, module(given))
    assert norm is not None
    assert (norm.centres, norm.epsilon) == (True, 0.1)
    scaled, mean = norm.parts(given.double())
    naive = torch.tensor([
        [(x - row.mean()) / (row.var(unbiased=False) + 0.1).sqrt() for x in row] for row in given.double()
    ])  # fmt: skip
    assert torch.allclose(scaled - mean, naive)
    weight, bias = (parameter.detach().double() for parameter in (module.weight, module.bias))
    assert torch.allclose(norm(given.double()), layer_norm(given.double(), (D,), weight, bias, 0.1))


@pytest.mark.parametrize("added", [0.0, 1.0])
def test_an_rms_norm_subtracts_no_mean_and_may_add_1_to_its_weight(added: float) -> None:
    torch.manual_seed(0)
    module, given = RootMeanSquare(added), 3 + torch.randn(5, D)
    norm = norm_of(module, given, module(given))
    assert norm is not None
    assert not norm.centres
    assert torch.equal(norm.gain, (module.weight.detach().double() + added))
    assert not norm.bias.any()
    scaled, mean = norm.parts(given.double())
    assert not mean.any()
    assert torch.allclose((norm.gain * scaled).float(), module(given), atol=1e-5)


def test_what_computes_something_else_is_none() -> None:
    torch.manual_seed(0)
    module, given = layer_norm_module(), torch.randn(5, D)
    assert norm_of(module, given, module(given) + 0.01) is None
    assert norm_of(module, given, module(given).tanh()) is None


@pytest.mark.parametrize(
    ("module", "expected"),
    [(nn.LayerNorm(D), True), (RootMeanSquare(0), True), (nn.LayerNorm(D - 1), False), (nn.Linear(D, D), False)],
)
def test_a_norm_has_a_gain_and_at_most_a_bias_over_the_neurons(module: Any, expected: bool) -> None:
    assert is_norm(module, D) == expected


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
    found = find_blocks(encoder)
    layers = attrgetter(where)(encoder)
    assert len(found) == len(layers)
    for block, layer in zip(found, layers, strict=True):
        parts = (block.norm_1, block.norm_2, block.value, block.output, block.first, block.second)
        assert [part is attrgetter(name)(layer) for part, name in zip(parts, names, strict=True)] == [True] * 6
        assert block.n_heads == 2


def test_shared_blocks_are_found_once_for_each_time_they_run(checkpoints: dict[str, Path]) -> None:
    encoder: Any = untouched(checkpoints["albert"])
    found = find_blocks(encoder)
    (shared,) = encoder.encoder.albert_layer_groups[0].albert_layers
    assert [block.norm_2 for block in found] == [shared.full_layer_layer_norm] * 3


@pytest.mark.parametrize("family", ["gpt2", "modernbert", "t5", "convbert", "deberta", "xlnet"])
def test_other_blocks_are_told_apart(family: str, checkpoints: dict[str, Path]) -> None:
    encoder = untouched(checkpoints[family])
    with pytest.raises(NotPostNorm, match="block 1"):
        find_blocks(encoder)


def test_a_block_that_adds_something_else_is_refused(checkpoints: dict[str, Path]) -> None:
    encoder: Any = untouched(checkpoints["bert"])
    layers = encoder.encoder.layer
    dropout, layers[1].output.dropout = layers[1].output.dropout, torch.nn.Tanh()
    with pytest.raises(NotPostNorm, match="block 2 the term that its feed-forward part adds"):
        find_blocks(encoder)
    layers[1].output.dropout = dropout
    layers[2].intermediate.intermediate_act_fn = torch.nn.Softplus()
    with pytest.raises(NotPostNorm, match="block 3 the feed-forward part is not two matrices"):
        find_blocks(encoder)


def test_slopes_of_activation_functions_are_those_of_calculus() -> None:
    root = np.sqrt(2)
    assert largest_slope(torch.nn.functional.gelu) == pytest.approx(norm.cdf(root) + root * norm.pdf(root), abs=1e-6)
    assert largest_slope(torch.nn.functional.relu) == 1
    assert largest_slope(torch.tanh) == pytest.approx(1, abs=1e-6)
