"""Folders of sparse autoencoders: what their configurations say, read without torch, and refused where unknown.

A dictionary is a folder in the layout of SAELens (`cfg.json` and `sae_weights.safetensors`) or of sparsify (`cfg.json`
and `sae.safetensors`), or a folder of such folders, one for each hookpoint. Whatever would change the features and is
not understood is refused: an architecture, a normalisation, a hook that is no hidden state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from probing.errors import UserError
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
    """What the configuration of a dictionary says.

    Args:
        folder: Its folder.
        weights: The file of its weights.
        architecture: One of `ARCHITECTURES`.
        d_in: Width of the hidden states that it reads.
        n_features: Number of its features; None where the weights alone say it.
        k: Number of features that `topk` leaves.
        subtracts_decoder_bias: Whether the decoder's bias is subtracted from what it reads.
        normalisation: One of `NORMALISATIONS`: what is done to a hidden state before.
        by_decoder_norm: Whether activations are multiplied by the norm of the feature's decoder vector.
        hook: Name of the place that it was trained on; None if it is not said.
        layer: The layer of hidden states that this is; None if it is not said.
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
        """Whether the weights have the names of sparsify rather than those of SAELens."""
        return self.weights.name == SPARSIFY_WEIGHTS

    @property
    def is_of_outputs(self) -> bool:
        """Whether it was trained on what a block returns, which a final norm may change into another hidden state."""
        return bool(self.hook and _LEAVES.fullmatch(self.hook))


def is_dictionary(site: str) -> bool:
    """Whether a site names the folder of a dictionary."""
    return site.startswith(PREFIX)


def folder_of(site: str) -> Path:
    """Return the folder that a site of the form `sae:FOLDER` names."""
    return Path(site[len(PREFIX) :])


def folder_in(config: Mapping[str, Any]) -> str | None:
    """Return the folder of the dictionary that a configuration names as its site, as typed; None without one."""
    site = str(config.get("site", ""))
    return site[len(PREFIX) :] if is_dictionary(site) else None


def layout_at(site: str, layers: Sequence[int] | None, model: str, n_layers: int) -> Layout:
    """Return the dictionary that a site names, of the layer that is asked for.

    Args:
        site: The site, `sae:FOLDER`.
        layers: The layers that the user asked for; None for the dictionary's own.
        model: The model's name as the user typed it.
        n_layers: Number of its blocks.

    Returns:
        The dictionary, whose layer is known.

    Raises:
        UserError: If there is none in the folder, if what it is is not known, or if it is of another layer.
    """
    there = _layouts(folder_of(site))
    typed = f"`--layer {','.join(map(str, layers))}`" if layers is not None else "`--layer`"
    if layers is not None and len(layers) != 1:
        raise UserError(f"{typed} with `--site {site}`: a dictionary is of one layer; name that one.")
    known = {layout.layer: layout for layout in there}
    if len(known) < len(there) and len(there) > 1:
        raise UserError(f"`--site {site}`: two dictionaries in the folder are of one layer; name the folder of one.")
    if layers is None:
        if len(there) > 1:
            listed = ", ".join(str(layer) for layer in sorted(layer for layer in known if layer is not None))
            raise UserError(f"`--site {site}` has dictionaries of layers {listed}; name one of them with `--layer`.")
        if there[0].layer is None:
            raise UserError(f"`--site {site}` does not say which layer it is of; name it with `--layer`.")
        layer = there[0].layer
    else:
        layer = layers[0]
    found = known.get(layer) or (known.get(None) if len(there) == 1 else None)
    if found is None:
        own = "; ".join(f"layer {one.layer}, by its hook {one.hook}" for one in there)
        raise UserError(f"{typed} with `--site {site}`: the dictionary is of {own}; give that layer or another folder.")
    if not 0 <= layer <= n_layers:
        raise UserError(
            f"`--site {site}` is of layer {layer} (hook {found.hook}), and {model} has layers 0 (embeddings) to "
            f"{n_layers}; give the model that it was trained on."
        )
    return Layout(**{**vars(found), "layer": layer})


def _layouts(folder: Path) -> list[Layout]:
    """Return the dictionaries of a folder: its own, or those of the folders in it, by name."""
    if (folder / CONFIG).is_file():
        return [_layout(folder)]
    inside = sorted(path.parent for path in folder.glob(f"*/{CONFIG}")) if folder.is_dir() else []
    if not inside:
        raise UserError(
            f"`--site {PREFIX}{folder}`: expected a folder with {CONFIG} and {SAELENS_WEIGHTS} (SAELens) or "
            f"{SPARSIFY_WEIGHTS} (sparsify), or a folder of these, and found no {CONFIG}; give the folder of a "
            "dictionary."
        )
    return [_layout(one) for one in inside]


def _layout(folder: Path) -> Layout:
    """Read the configuration of one dictionary."""
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
    """Read a configuration of SAELens, of any version; earlier ones keep hook and activation function in one level."""
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
    for name, usual in (("reshape_activations", "none"), ("hook_head_index", None), ("hook_point_head_index", None)):
        if flat.get(name) not in (None, usual):
            _refuse(folder, f"its {name} is {flat[name]}, and features of hidden states alone are read")
    if by_decoder_norm and architecture != "topk":
        _refuse(folder, f"it rescales by decoder norms, which is known of topk alone, and it is {architecture}")
    _check_dtype(folder, flat.get("dtype", "float32"))
    hook = flat.get("hook_name") or flat.get("hook_point")
    _check_centring(folder, hook, (flat.get("model_from_pretrained_kwargs") or {}).get("center_writing_weights"))
    layer = _layer_of(folder, hook)
    said = flat.get("hook_layer", flat.get("hook_point_layer"))
    if hook and said is not None and int(said) not in (layer, _block_of(hook)):
        _refuse(folder, f"its hook is {hook}, and its hook_layer {said} is another one")
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
    """Return the number in a hook's name, of the block that it belongs to, from 0."""
    found = _ENTERS.fullmatch(hook) or _LEAVES.fullmatch(hook)
    return next(int(number) for number in found.groups() if number and number.isdecimal()) if found else None


def _layer_of(folder: Path, hook: str | None) -> int | None:
    """Return the layer of hidden states that a hook is; None without a hook."""
    if not hook:
        return None
    if (block := _block_of(hook)) is None:
        _refuse(
            folder, f"its hook {hook} is no hidden state; known are blocks.N.hook_resid_pre, blocks.N.hook_resid_post "
            "and the name of a block such as layers.N or encoder.layer.N",
        )  # fmt: skip
    return block if _ENTERS.fullmatch(hook) else block + 1


def _check_centring(folder: Path, hook: str | None, is_centred: bool | None) -> None:
    """Refuse a dictionary of centred hidden states, or of those of TransformerLens, if it does not say they are not."""
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
