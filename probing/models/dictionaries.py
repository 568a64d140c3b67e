"""Sparse autoencoders as functions from hidden states to feature activations, in float32.

A hidden state x is normalised as the dictionary asks, the decoder's bias is subtracted where it says so, and
pre = x W_enc + b_enc. Then an activation is

- `standard`: relu(pre);
- `topk` (Gao et al. 2024, arXiv 2406.04093): relu(pre) of the k features that are highest, 0 of all others;
- `jumprelu` (Rajamanoharan et al. 2024, arXiv 2407.14435): relu(pre) where pre is above the feature's threshold;
- `gated` (Rajamanoharan et al. 2024, arXiv 2404.16014): relu(exp(r_mag) x W_enc + b_mag) where x W_enc + b_gate > 0.

Of features that are equally high at the last of the k places, the one with the lower number is taken.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probing.errors import UserError
from probing.models.anatomy import Anatomy
from probing.models.examination import examination_inputs, run, vectors_of_tokens, with_the_same_weights
from probing.models.layers import CONFIG, DTYPES, PREFIX, Layout
from probing.runtime.files import DOCUMENT, file_sha256, open_file, regular

if TYPE_CHECKING:
    from torch import nn

# Number of activations that are computed at a time.
_AT_A_TIME = 2**24
# Added to a standard deviation where hidden states are standardised, as in SAELens.
_EPSILON = 1e-5


@dataclass(frozen=True)
class Dictionary:
    """A dictionary of features.

    Args:
        architecture: `standard`, `topk`, `jumprelu` or `gated`.
        weight: Encoder, shape (d_in, n_features).
        bias: What is added to the products, shape (n_features,); of `gated`, to decide which features are active.
        normalisation: `none`; `constant_norm_rescale`, to the norm sqrt(d_in); or `layer_norm`, without a gain.
        subtracted: Subtracted from the normalised hidden state, shape (d_in,); None subtracts nothing.
        k: Number of features that `topk` leaves.
        threshold: Of `jumprelu`, shape (n_features,).
        magnitude: Of `gated`, the logarithm of each feature's factor, and its bias, shape (2, n_features).
        fingerprint: SHA-256 of its files, in hex.
    """

    architecture: str
    weight: Tensor
    bias: Tensor
    normalisation: str = "none"
    subtracted: Tensor | None = None
    k: int | None = None
    threshold: Tensor | None = None
    magnitude: Tensor | None = None
    fingerprint: str = ""

    @property
    def n_features(self) -> int:
        """Number of features."""
        return self.weight.shape[1]

    def read(self, hidden_states: Tensor) -> Tensor:
        """Return what the encoder multiplies: hidden states, shape (n, d_in), normalised and without the bias."""
        x = hidden_states.float()
        if self.normalisation == "constant_norm_rescale":
            x = x * (x.shape[1] ** 0.5 / x.norm(dim=1, keepdim=True))
        elif self.normalisation == "layer_norm":
            x = x - x.mean(1, keepdim=True)
            x = x / (x.std(1, keepdim=True) + _EPSILON)
        return x if self.subtracted is None else x - self.subtracted

    def encode(self, hidden_states: Tensor) -> Tensor:
        """Return feature activations, shape (n, n_features), float32, of hidden states, shape (n, d_in)."""
        products = self.read(hidden_states) @ self.weight
        if self.magnitude is not None:
            sizes = torch.relu(products * self.magnitude[0].exp() + self.magnitude[1])
            return sizes * (products + self.bias > 0)
        before = products + self.bias
        if self.threshold is not None:
            return torch.relu(before) * (before > self.threshold)
        activations = torch.relu(before)
        return activations if self.k is None else highest(activations, self.k)

    def active(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return row, feature and activation of whatever is not 0, in the order of rows; each of shape (n_active,)."""
        found = []
        for first in range(0, len(hidden_states), max(1, _AT_A_TIME // self.n_features)):
            part = self.encode(hidden_states[first : first + max(1, _AT_A_TIME // self.n_features)])
            rows, features = part.nonzero(as_tuple=True)
            found.append((rows + first, features, part[rows, features]))
        if not found:
            none = torch.zeros(0, dtype=torch.int64)
            return none, none, torch.zeros(0)
        rows, features, values = (torch.cat(parts) for parts in zip(*found, strict=True))
        return rows, features, values


def highest(activations: Tensor, k: int) -> Tensor:
    """Return activations, shape (n, n_features), none below 0, with all but the k highest of each row set to 0."""
    if k >= activations.shape[1]:
        return activations
    last = activations.topk(k, dim=1).values[:, -1:]
    kept = activations >= last
    # Only where several are equal to the last one are there more than k: the lower numbers are then taken.
    if len(tied := ((kept.sum(1) > k) & (last[:, 0] > 0)).nonzero()[:, 0]):
        above, equal = activations[tied] > last[tied], activations[tied] == last[tied]
        kept[tied] = above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True)))
    return activations * kept


def load_dictionary(layout: Layout) -> Dictionary:
    """Read the weights of a dictionary; those that were read last are kept.

    Raises:
        UserError: If they are not what the configuration says.
    """
    with open_file(layout.folder / CONFIG, within=layout.folder, most=DOCUMENT) as file:
        digest = hashlib.sha256(file.read())
    return _load(replace(layout, layer=None), file_sha256(layout.weights, layout.folder, digest))


# Names of the tensors of each architecture in SAELens; the last two change the decoded states alone.
_BIASES = {"standard": ("b_enc",), "topk": ("b_enc",), "jumprelu": ("b_enc", "threshold"),
           "gated": ("b_gate", "r_mag", "b_mag")}  # fmt: skip
_OF_THE_DECODER = {"scaling_factor", "finetuning_scaling_factor"}


@lru_cache(maxsize=1)
def _load(layout: Layout, fingerprint: str) -> Dictionary:
    from safetensors import SafetensorError, safe_open

    biases = ("encoder.bias",) if layout.is_of_sparsify else _BIASES[layout.architecture]
    encoder = "encoder.weight" if layout.is_of_sparsify else "W_enc"
    try:
        with safe_open(regular(layout.weights, layout.folder), framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
            _check_names(layout, shapes, {encoder, "W_dec", "b_dec", *biases})
            needed = [encoder, "b_dec", *biases, *["W_dec"] * layout.by_decoder_norm]
            tensors = {name: file.get_tensor(name) for name in needed}
    except (OSError, SafetensorError) as error:
        raise UserError(f"`--site {PREFIX}{layout.folder}`: {layout.weights.name} cannot be read ({error}).") from None
    for name, tensor in tensors.items():
        if str(tensor.dtype).removeprefix("torch.") not in DTYPES or not bool(torch.isfinite(tensor).all()):
            raise _not_as_said(layout, f"{name} is in {tensor.dtype}, or not finite, where {', '.join(DTYPES)} is read")
    n_features = layout.n_features or shapes[encoder][0 if layout.is_of_sparsify else 1]
    of_encoder = (n_features, layout.d_in) if layout.is_of_sparsify else (layout.d_in, n_features)
    expected = {encoder: of_encoder, "W_dec": (n_features, layout.d_in), "b_dec": (layout.d_in,)}
    for name, shape in (expected | dict.fromkeys(biases, (n_features,))).items():
        if shapes[name] != shape:
            raise _not_as_said(layout, f"{name} has the shape {shapes[name]}, and {CONFIG} says {shape}")
    if layout.k is not None and layout.k > n_features:
        raise _not_as_said(layout, f"k is {layout.k}, more than its {n_features} features")
    own = {name: tensor.float() for name, tensor in tensors.items()}
    weight, bias = (own[encoder].T if layout.is_of_sparsify else own[encoder]).contiguous(), own[biases[0]]
    if layout.by_decoder_norm:
        norms = own["W_dec"].norm(dim=1)
        weight, bias = weight * norms, bias * norms
    return Dictionary(
        layout.architecture, weight, bias, layout.normalisation,
        own["b_dec"] if layout.subtracts_decoder_bias else None, layout.k, own.get("threshold"),
        torch.stack([own["r_mag"], own["b_mag"]]) if layout.architecture == "gated" else None, fingerprint,
    )  # fmt: skip


def _check_names(layout: Layout, found: dict[str, tuple[int, ...]], expected: set[str]) -> None:
    """Refuse weights with other names than the architecture has, since they may change the features."""
    if missing := sorted(expected - set(found)):
        raise _not_as_said(layout, f"{', '.join(missing)} of a {layout.architecture} dictionary is not there")
    if unknown := sorted(set(found) - expected - _OF_THE_DECODER):
        raise _not_as_said(layout, f"{', '.join(unknown)} is no part of a {layout.architecture} dictionary")


def _not_as_said(layout: Layout, why: str) -> UserError:
    return UserError(f"`--site {PREFIX}{layout.folder}`: in {layout.weights.name}, {why}; give another dictionary.")


# --------------------------------------------------------------------------------------------------------------------
# Whether the hidden state that a dictionary was trained on is the one that the cache holds.
# --------------------------------------------------------------------------------------------------------------------


def needs_a_look(layout: Layout, n_layers: int) -> bool:
    """Whether the model has to be run to tell whether its hidden state is what the dictionary reads.

    What a block returns is what the next one receives; only after the last one may there be a norm. And of
    TransformerLens, `hook_resid_post` lies before the norm that ends a block of a post-LN model.
    """
    hook = layout.hook or ""
    return hook.endswith("hook_resid_post") or (layout.is_of_outputs and layout.layer == n_layers)


def check_hook(encoder: nn.Module, anatomy: Anatomy, layout: Layout, pad_token_id: int, name: str) -> None:
    """Refuse a dictionary that was trained on other values than the model's hidden states of its layer.

    Args:
        encoder: The model, in float32, which is not run itself.
        anatomy: Its structure.
        layout: The dictionary; its layer is known.
        pad_token_id: Id of the padding token.
        name: The model's name as the user typed it.

    Raises:
        UserError: If a norm lies between the two, or if that cannot be told.
    """
    import torch

    from probing.models.residual_stream import NotPostNorm, find_blocks

    refused = f"`--site {PREFIX}{layout.folder}`: its hook is {layout.hook}, and "
    if anatomy.blocks is None or layout.layer is None:
        raise UserError(f"{refused}what the blocks of {name} return cannot be told; give another dictionary or model.")
    if (layout.hook or "").endswith("hook_resid_post"):
        try:
            find_blocks(encoder, anatomy, pad_token_id)
        except NotPostNorm:
            pass
        else:
            raise UserError(
                f"{refused}in {name}, whose blocks end with a norm, that lies before the norm and is no hidden state; "
                "give a dictionary of hook_normalized_resid_post or of the next block's hook_resid_pre."
            )
    copy = with_the_same_weights(encoder)
    path = {module: found for found, module in encoder.named_modules()}[anatomy.blocks[layout.layer - 1]]
    returned: list[Any] = []
    handle = copy.get_submodule(path).register_forward_hook(lambda module, args, made: returned.append(made))
    inputs = examination_inputs(copy, pad_token_id)
    try:
        with torch.inference_mode():
            states = run(copy, inputs, output_hidden_states=True).states[layout.layer]
    finally:
        handle.remove()
    own = vectors_of_tokens(returned[-1], inputs["input_ids"].shape[1])
    if own is None or own.shape != states.shape or not torch.equal(own, states):
        raise UserError(
            f"{refused}layer {layout.layer} of {name} comes after a final norm, so that it is not what that block "
            "returns; give a dictionary of a lower layer."
        )
