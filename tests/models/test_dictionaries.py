"""Features of dictionaries against loops in float64 that are written from the published formulas."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from probing.errors import UserError
from probing.models import parse_layers
from probing.models.dictionaries import Dictionary, highest, load_dictionary
from probing.models.layers import layout_at

pytestmark = pytest.mark.numeric

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


def load(site: str) -> Dictionary:
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
    found = load(site).encode(x)
    # float32: some 1e-7 of the largest product, of at most 20
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)
    assert 0 < int((expected > 0).sum()) < expected.numel()


def test_a_topk_dictionary_may_rank_by_the_length_of_decoder_vectors(tmp_path: Path) -> None:
    tensors, x = tensors_of("topk"), states()
    site = write(tmp_path / "d", tensors, architecture="topk", k=K, rescale_acts_by_decoder_norm=True)
    expected = torch.tensor(by_hand(tensors, x, "topk", rescaled=True), dtype=torch.float64)
    torch.testing.assert_close(load(site).encode(x).double(), expected, rtol=1e-5, atol=1e-5)
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
        torch.testing.assert_close(load(site).encode(x).double(), expected, rtol=1e-5, atol=1e-5)
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
    assert load(site).encode(torch.tensor([[1.0, 1.5, 0.5, -2.0, 0.0, 0.0]]))[0, :4].tolist() == [0.0, 1.5, 0.0, 0.0]


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
    torch.testing.assert_close(load(site).encode(x).double(), expected, rtol=1e-5, atol=1e-5)
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


REFUSED: list[tuple[dict[str, Any], str]] = [
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
    assert load(site).n_features == N_FEATURES


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
                load(site)
        else:
            assert load(site).n_features == N_FEATURES


@pytest.mark.parametrize(("config", "message"), REFUSED)
def test_what_is_not_known_is_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    site = write(tmp_path / "d", tensors_of("standard"), **config)
    with pytest.raises(UserError, match=message):
        load(site)


def test_weights_with_an_unknown_part_or_without_numbers_are_refused(tmp_path: Path) -> None:
    tensors = tensors_of("standard")
    for name, more, message in (
        ("a", {"log_threshold": torch.zeros(N_FEATURES)}, "log_threshold is no part of a standard dictionary"),
        ("b", {"b_enc": torch.full((N_FEATURES,), math.nan)}, "b_enc is in torch.float32, or not finite"),
        ("c", {"b_enc": torch.zeros(N_FEATURES, dtype=torch.float64)}, "b_enc is in torch.float64"),
    ):
        with pytest.raises(UserError, match=message):
            load(write(tmp_path / name, {**tensors, **more}))


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
