"""Models and their layers: names, files, `--layer`, configuration, tokenizer and weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, get_args

from probing.cli.options import layer_flag, layer_numbers
from probing.errors import UserError, flag
from probing.models.examination import max_length_of  # noqa: F401  # as below
from probing.models.loading import (  # noqa: F401  # other rooms import these names from here
    check_ids,
    find_model,
    length_limits,
    load_causal_lm,
    load_config,
    load_encoder,
    load_masked_lm,
    load_tokenizer,
    word_folding,
)
from probing.models.source import ALIASES, BUILTIN_PACKAGE, ModelSource, check_revision, resolve_model  # noqa: F401
from probing.runtime.files import parse_json, read_text

PREFIX = "sae:"

CONFIG, SAELENS_WEIGHTS, SPARSIFY_WEIGHTS = "cfg.json", "sae_weights.safetensors", "sae.safetensors"

ARCHITECTURES = ("standard", "topk", "jumprelu", "gated")

NORMALISATIONS = ("none", "constant_norm_rescale", "layer_norm")

# Those that float32 holds without rounding.
DTYPES = ("float32", "float16", "bfloat16")

# Hooks whose values are hidden states: what block N (counted from 0) reads is layer N, what it returns is layer N + 1.
_ENTERS = re.compile(r"blocks\.(\d+)\.hook_resid_pre")

_LEAVES = re.compile(r"blocks\.(\d+)\.hook_(resid_post|normalized_resid_post)|(?:\w+\.)*(?:layers?|h|blocks?)\.(\d+)")

_OF_TRANSFORMERLENS = re.compile(r"blocks\.\d+\.hook_")


@dataclass(frozen=True)
class Layout:
    """Configuration of a dictionary.

    Args:
        d_in: Width of the hidden states that it reads.
        n_features: Number of features; None where only the weights give it.
        k: Number of active features of `topk`.
        normalisation: Normalisation of the hidden state before, an element of `NORMALISATIONS`.
        by_decoder_norm: Whether activations are multiplied by the norm of the feature's decoder vector.
        hook: Name of the place that it was trained on; None if not stated.
        layer: The layer of hidden states of the hook; None if not stated.
    """

    folder: Path
    weights: Path
    architecture: str
    d_in: int
    n_features: int | None
    k: int | None
    subtracts_decoder_bias: bool
    normalisation: str
    by_decoder_norm: bool
    hook: str | None
    layer: int | None

    @property
    def is_of_sparsify(self) -> bool:
        """Whether the weights have the names of sparsify rather than SAELens."""
        return self.weights.name == SPARSIFY_WEIGHTS

    @property
    def is_of_outputs(self) -> bool:
        """Whether it was trained on a block's output, which a final norm may change into another hidden state."""
        return bool(self.hook and _LEAVES.fullmatch(self.hook))


def is_dictionary(site: str) -> bool:
    """Return whether a site names the folder of a dictionary."""
    return site.startswith(PREFIX)


def folder_of(site: str) -> Path:
    """Return the folder of a site of the form `sae:FOLDER`."""
    return Path(site[len(PREFIX) :])


def folder_in(config: Mapping[str, Any]) -> str | None:
    """Return the folder of the dictionary in a configuration's site, as typed; None without dictionary."""
    site = str(config.get("site", ""))
    return site[len(PREFIX) :] if is_dictionary(site) else None


def layout_at(site: str, layers: Sequence[int] | None, model: str, n_layers: int) -> Layout:
    """Return the dictionary, with known layer, that a site names for the requested layers (None: its layer)."""
    layouts = _layouts(folder_of(site))
    flag_text = f"`--layer {','.join(map(str, layers))}`" if layers is not None else "`--layer`"
    if layers is not None and len(layers) != 1:
        raise UserError(f"{flag_text} with `--site {site}`: a dictionary is of one layer; name that one.")
    known = {layout.layer: layout for layout in layouts}
    if len(known) < len(layouts) and len(layouts) > 1:
        raise UserError(f"`--site {site}`: two dictionaries in the folder are of one layer; name the folder of one.")
    if layers is None:
        if len(layouts) > 1:
            listed = ", ".join(str(layer) for layer in sorted(layer for layer in known if layer is not None))
            raise UserError(f"`--site {site}` has dictionaries of layers {listed}; name one of them with `--layer`.")
        if layouts[0].layer is None:
            raise UserError(f"`--site {site}` does not say which layer it is of; name it with `--layer`.")
        layer = layouts[0].layer
    else:
        layer = layers[0]
    chosen = known.get(layer) or (known.get(None) if len(layouts) == 1 else None)
    if chosen is None:
        available = "; ".join(f"layer {candidate.layer}, by its hook {candidate.hook}" for candidate in layouts)
        raise UserError(
            f"{flag_text} with `--site {site}`: the dictionary is of {available}; give that layer or another folder."
        )
    if not 0 <= layer <= n_layers:
        raise UserError(
            f"`--site {site}` is of layer {layer} (hook {chosen.hook}), and {model} has layers 0 (embeddings) to "
            f"{n_layers}; give the model that it was trained on."
        )
    return Layout(**{**vars(chosen), "layer": layer})


def _layouts(folder: Path) -> list[Layout]:
    """Return the dictionary of a folder, or the dictionaries of its subfolders, by name."""
    if (folder / CONFIG).is_file():
        return [_layout(folder)]
    inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG}")) if folder.is_dir() else []
    if not inside:
        raise UserError(
            f"`--site {PREFIX}{folder}`: expected a folder with {CONFIG} and {SAELENS_WEIGHTS} (SAELens) or "
            f"{SPARSIFY_WEIGHTS} (sparsify), or a folder of these, and found no {CONFIG}; give the folder of a "
            "dictionary."
        )
    return [_layout(subfolder) for subfolder in inside]


def _layout(folder: Path) -> Layout:
    """Read the configuration of a dictionary."""
    try:
        config = parse_json(read_text(folder / CONFIG, folder))
    except (OSError, ValueError) as error:
        _refuse(folder, f"{CONFIG} cannot be read ({error})")
    if not isinstance(config, dict):
        _refuse(folder, f"{CONFIG} holds no mapping")
    for name, read in ((SAELENS_WEIGHTS, _of_saelens), (SPARSIFY_WEIGHTS, _of_sparsify)):
        if (folder / name).is_file():
            return read(folder, config)
    _refuse(folder, f"there is neither {SAELENS_WEIGHTS} nor {SPARSIFY_WEIGHTS}")
    return None


def _of_saelens(folder: Path, config: Mapping[str, Any]) -> Layout:
    """Read a configuration of SAELens; early versions have hook and activation function at the top level."""
    inner = [config[name] for name in ("metadata", "meta") if isinstance(config.get(name), dict)]
    flat: dict[str, Any] = {**(inner[0] if inner else {}), **config}
    architecture = flat.get("architecture") or "standard"
    activation = flat.get("activation_fn") or flat.get("activation_fn_str") or "relu"
    if architecture == "standard" and activation == "topk":  # as versions before 4 wrote it
        architecture = "topk"
    if architecture not in ARCHITECTURES:
        _refuse(folder, f"its architecture is {architecture}; those that are read are {', '.join(ARCHITECTURES)}")
    if activation != "relu" and not (activation == "topk" and architecture == "topk"):
        _refuse(folder, f"its activation function is {activation}; expected relu, or topk of a topk dictionary")
    k = flat.get("k", (flat.get("activation_fn_kwargs") or {}).get("k")) if architecture == "topk" else None
    normalisation = flat.get("normalize_activations") or "none"
    if normalisation in (True, "expected_average_only_in"):
        _refuse(
            folder, "its activations are divided by an expected norm that the folder does not hold "
            "(normalize_activations: expected_average_only_in); save it with this factor folded into the weights",
        )  # fmt: skip
    if normalisation not in NORMALISATIONS:
        _refuse(folder, f"its normalize_activations is {normalisation}; known are {', '.join(NORMALISATIONS)}")
    by_decoder_norm = bool(flat.get("rescale_acts_by_decoder_norm"))
    for name, default in (("reshape_activations", "none"), ("hook_head_index", None), ("hook_point_head_index", None)):
        if flat.get(name) not in (None, default):
            _refuse(folder, f"its {name} is {flat[name]}, and features of hidden states alone are read")
    if by_decoder_norm and architecture != "topk":
        _refuse(folder, f"it rescales by decoder norms, which is known of topk alone, and it is {architecture}")
    _check_dtype(folder, flat.get("dtype", "float32"))
    hook = flat.get("hook_name") or flat.get("hook_point")
    _check_centring(folder, hook, (flat.get("model_from_pretrained_kwargs") or {}).get("center_writing_weights"))
    layer = _layer_of(folder, hook)
    stated_layer = flat.get("hook_layer", flat.get("hook_point_layer"))
    if hook and stated_layer is not None and int(stated_layer) not in (layer, _block_of(hook)):
        _refuse(folder, f"its hook is {hook}, and its hook_layer {stated_layer} is another one")
    return Layout(
        folder, folder / SAELENS_WEIGHTS, architecture, _whole(folder, flat, "d_in"), _whole(folder, flat, "d_sae"),
        None if architecture != "topk" else _whole(folder, {"k": k}, "k"), bool(flat.get("apply_b_dec_to_input", True)),
        normalisation, by_decoder_norm, hook, layer,
    )  # fmt: skip


def _of_sparsify(folder: Path, config: Mapping[str, Any]) -> Layout:
    """Read a configuration of sparsify, whose folder is named by the hookpoint."""
    if (activation := config.get("activation", "topk")) != "topk":
        _refuse(folder, f"its activation is {activation}; of sparsify, topk is read")
    for name in ("transcode", "skip_connection", "embed_skip", "gram_lookup"):
        if config.get(name):
            _refuse(folder, f"its {name} is {config[name]}, and autoencoders of hidden states alone are read")
    named = folder.name if _LEAVES.fullmatch(folder.name) else None
    if named is None and re.search(r"\.\d+", folder.name):  # such as layers.6.mlp
        _layer_of(folder, folder.name)
    n_features = int(config.get("num_latents") or 0) or None
    return Layout(
        folder, folder / SPARSIFY_WEIGHTS, "topk", _whole(folder, config, "d_in"), n_features,
        _whole(folder, config, "k"), True, "none", False, named, _layer_of(folder, named),
    )  # fmt: skip


def _block_of(hook: str) -> int | None:
    """Return the number of the block in a hook's name, from 0."""
    match = _ENTERS.fullmatch(hook) or _LEAVES.fullmatch(hook)
    return next(int(number) for number in match.groups() if number and number.isdecimal()) if match else None


def _layer_of(folder: Path, hook: str | None) -> int | None:
    """Return the layer of hidden states of a hook; None without a hook."""
    if not hook:
        return None
    if (block := _block_of(hook)) is None:
        _refuse(
            folder, f"its hook {hook} is no hidden state; known are blocks.N.hook_resid_pre, blocks.N.hook_resid_post "
            "and the name of a block such as layers.N or encoder.layer.N",
        )  # fmt: skip
    return block if _ENTERS.fullmatch(hook) else block + 1


def _check_centring(folder: Path, hook: str | None, is_centred: bool | None) -> None:
    """Refuse a dictionary of centred hidden states, or of TransformerLens unless it states that they are not."""
    if is_centred:
        _refuse(folder, "it was trained on hidden states from which their mean was subtracted (center_writing_weights)")
    if is_centred is None and hook and _OF_TRANSFORMERLENS.match(hook):
        _refuse(
            folder, f"its hook is {hook} of TransformerLens, which subtracts the mean of hidden states by default, and "
            f"{CONFIG} does not say whether it did, as SAELens did not before September 2024; if you know that it did "
            f'not, write "model_from_pretrained_kwargs": {{"center_writing_weights": false}} into {CONFIG}',
        )  # fmt: skip


def _check_dtype(folder: Path, dtype: Any) -> None:
    if (name := str(dtype).removeprefix("torch.")) not in DTYPES:
        _refuse(folder, f"its dtype is {name}; weights in {', '.join(DTYPES)} are read, and computed with in float32")


def _whole(folder: Path, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        _refuse(folder, f"its {name} is {value}; expected a whole number of at least 1")
    return value


def _refuse(folder: Path, why: str) -> NoReturn:
    raise UserError(f"`--site {PREFIX}{folder}`: {why}; give another dictionary.")


SiteName = Literal["residual", "mlp", "attention"]

# What a neuron of layer k is, in a few words for a table; activations that are given as arrays have columns.
NEURON: Mapping[str, str] = {
    "residual": "coordinate of the residual stream",
    "mlp": "unit of the MLP inside the block, after its activation function",
    "attention": "coordinate of a head's output inside the block, before the output projection",
    "arrays": "column of the given activations",
}


def site_of(config: Mapping[str, Any]) -> str:
    """Return the site of a run's neurons, or `arrays`; hidden states where there is no such option."""
    return "arrays" if "arrays" in config else str(config.get("site", "residual"))


def is_inside_blocks(site: str) -> bool:
    """Return whether the neurons of layer k are inside block k; layer 0, the embeddings, then has none."""
    return site in ("mlp", "attention")


def is_site(site: Any) -> bool:
    """Return whether `fit` accepts a site: a site inside the model, or the folder of a dictionary."""
    return site in get_args(SiteName) or (isinstance(site, str) and is_dictionary(site) and site != PREFIX)


def is_site_of_run(site: Any) -> bool:
    """Return whether a run's configuration may have this site."""
    return site in NEURON or is_site(site)


def _check_site(site: str) -> None:
    """Refuse a site that `fit` does not accept."""
    if not is_site(site):
        raise UserError(
            f"`--site {site}`: expected {', '.join(get_args(SiteName))}, or {PREFIX}FOLDER with the folder of a sparse "
            "autoencoder."
        )


def neuron_of(site: str) -> str:
    """Return a short description of a site's neurons."""
    return f"feature of the sparse autoencoder in {folder_of(site)}" if is_dictionary(site) else NEURON[site]


def what_is_a_neuron(site: str) -> str:
    """Return the line of a table's caption that defines a neuron."""
    return f"neuron: {neuron_of(site)}"


def site_in_names(site: str) -> str:
    """Return the part of a run's name for its site; "" for the residual stream and arrays."""
    if is_dictionary(site):
        return f" sae {folder_of(site).name}"
    return f" {site}" if is_inside_blocks(site) else ""


def parse_layers(layer: int | str | Sequence[int], n_layers: int, model: str, site: str = "residual") -> list[int]:
    """Turn `6`, `"0,3,6"`, `[0, 3]`, `-1` or `"all"` into ascending layer numbers; -1 is the last layer.

    Only the residual stream has a layer 0, and a dictionary has a single layer. `n_layers` is the number of blocks.
    `UserError` is raised if the site does not exist, or does not have such a layer.
    """
    _check_site(site)
    layers = layer_numbers(layer)
    if layers is not None:
        layers = from_the_end(layers, range(n_layers + 1))
    if is_dictionary(site):
        dictionary_layer = layout_at(site, layers, model, n_layers).layer
        assert dictionary_layer is not None
        return [dictionary_layer]
    if layers is None:
        return list(range(int(is_inside_blocks(site)), n_layers + 1))
    if is_inside_blocks(site) and (out := [k for k in layers if not 1 <= k <= n_layers]):
        raise UserError(
            f"{layer_flag(layer)}: with {flag('site', site)}, layer k is inside block k, so {model} has "
            f"layers 1 to {n_layers}, and not {out[0]}."
        )
    if out := [k for k in layers if not 0 <= k <= n_layers]:
        raise UserError(f"{layer_flag(layer)}: {model} has layers 0 (embeddings) to {n_layers}, so not {out[0]}.")
    return layers


def from_the_end(layers: Sequence[int], available: Sequence[int]) -> list[int]:
    """Return ascending layer numbers, with each negative number replaced by `available[number]`."""
    return sorted({available[k] if -len(available) <= k < 0 else k for k in layers})


def layers_at_equal_depth(a: Sequence[int], b: Sequence[int], n_blocks: tuple[int, int]) -> list[tuple[int, int]]:
    """Return pairs of indices of layers of two runs at the same relative depth (layer number / number of blocks).

    Two layers are paired if each is the other's nearest (the lower layer in a tie), and they differ by less than half a
    block of the model with fewer blocks. So layers of models of equal depth are paired if their numbers are equal, and
    no layer has two partners.
    """

    def apart(i: int, j: int) -> int:
        return abs(a[i] * n_blocks[1] - b[j] * n_blocks[0])

    of_a = [min((apart(i, j), b[j], j) for j in range(len(b)))[2] for i in range(len(a))]
    of_b = [min((apart(i, j), a[i], i) for i in range(len(a)))[2] for j in range(len(b))]
    return [(i, j) for i, j in enumerate(of_a) if of_b[j] == i and 2 * apart(i, j) < max(*n_blocks, 1)]
