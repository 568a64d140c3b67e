"""Sites inside the blocks of an encoder: units of the MLP, outputs of the heads, features of a dictionary.

Names play no role; the number of heads is read from the configuration, and checked. Both sites are the input of a
linear map, and the dependences of a map are read from gradients during one forward pass. A gradient is exactly 0 where
there is no path, so the rules are about structure and need no tolerance:

- The attention output projection is the first linear map of a block whose input for a token depends on other tokens,
  after a softmax: recurrent blocks (RecurrentGemma, Mamba 2) have no attention. The inputs of the maps before it
  (queries, keys, values) depend on their token only. The projection is accepted only if its input is a concatenation
  of heads. The query of a head decides which tokens all neurons of this head read, and it affects no other head. So
  both halves of every slice, one slice per head, must be computed from outputs of earlier maps that the two halves
  share and from which no other slice is computed. A norm over the queries of all heads (OLMo 2) makes every head
  depend on all queries; then the input must be attention times values.
- The second matrix of the MLP is the linear map whose input has, as its i-th unit, a nonlinear function of the i-th
  output of an earlier map (of two outputs where there is a gate) at the same token and of nothing else that this map
  computes. Blocks with experts, stacks of matrices of which each token uses some, have none.

Either must write to the residual stream: its output has the width of the hidden state, and for each token its input
changes the block's output for this token alone. Where no map or more than one fits, the model is refused.

A hidden state x is normalised as the dictionary requires, the decoder's bias is subtracted if so configured, and pre =
x W_enc + b_enc. Then an activation is

- `standard`: relu(pre);
- `topk` (Gao et al. 2024, arXiv 2406.04093): relu(pre) of the k highest features, 0 of all others;
- `jumprelu` (Rajamanoharan et al. 2024, arXiv 2407.14435): relu(pre) where pre is above the feature's threshold;
- `gated` (Rajamanoharan et al. 2024, arXiv 2404.16014): relu(exp(r_mag) x W_enc + b_mag) where x W_enc + b_gate > 0.

In a tie for the last of the k places, the feature with the lower number is taken.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from probing.errors import UserError
from probing.models import CONFIG, DTYPES, PREFIX, Layout, SiteName
from probing.models.anatomy import Anatomy, hidden_states, received_by
from probing.models.examination import (
    LENGTH,
    ModuleCall,
    calls_of,
    examination_inputs,
    hooks,
    run,
    vectors_in,
    vectors_of_tokens,
    vectors_received,
    with_the_same_weights,
)
from probing.runtime.files import DOCUMENT, file_sha256, open_file, regular

if TYPE_CHECKING:
    from torch import nn


@dataclass
class BlockCall:
    """One call of a block: its number from 1, its input and output, and the calls of linear maps in it, in order.

    The tokens of a linear map's input and output may be in one row (OPT).

    `attended` is the number of calls before its first softmax or fused attention; None without any.
    """

    number: int
    module: nn.Module
    states_in: Tensor
    states_out: Tensor | None = None
    calls: list[ModuleCall] = field(default_factory=list)
    attended: int | None = None

    @property
    def rows(self) -> torch.Size:
        """Shape of all tokens, (batch, sequence)."""
        return self.states_in.shape[:2]

    def by_token(self, values: Tensor) -> Tensor | None:
        """Return values of all tokens, shape (batch, sequence, width); None if there is not one vector per token."""
        if values.shape[:-1] not in (self.rows, (self.rows.numel(),)):
            return None
        return values.view(*self.rows, -1)

    def writes_to_the_residual_stream(self, call: ModuleCall) -> bool:
        """Return whether the map's input changes, for each token, the block's output for this token and no other."""
        if (
            self.states_out is None
            or call.states_out.shape[-1] != self.states_in.shape[-1]
            or self.by_token(call.states_in) is None
        ):
            return False
        if sum(other.module is call.module for other in self.calls) > 1:
            return False
        token = self.rows[1] // 2
        (flat,) = gradients(self.states_out[0, token], [call.states_in])
        gradient = flat.view(*self.rows, -1)
        at_token = gradient[0, token].clone()
        gradient[0, token] = 0
        return bool(at_token.any()) and not bool(gradient.any())


def run_blocks(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int) -> list[BlockCall]:
    """Run the encoder on two sequences and record its blocks with the gradients' graph."""
    from probing.models.attention_heads import SoftmaxWatch

    blocks: list[BlockCall] = []
    inside: list[BlockCall] = []  # the block that is running, if any

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        states_in: Any = vectors_received(args, kwargs)
        if not states_in.requires_grad:
            states_in.requires_grad_()
        inside[:] = [BlockCall(len(blocks) + 1, module, states_in)]
        blocks.append(inside[0])

    def leave(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        blocks[-1].states_out = vectors_in(output)
        inside.clear()

    def attend() -> None:
        if inside and inside[0].attended is None:
            inside[0].attended = len(inside[0].calls)

    def note(module: nn.Module, args: Any, kwargs: Any, states_out: Any) -> None:
        states_in: Any = vectors_received(args, kwargs)
        if inside and _is_linear(module, states_in, states_out):
            if not states_out.requires_grad:
                states_out.requires_grad_()
            inside[0].calls.append(ModuleCall(module, states_in, states_out))

    assert anatomy.blocks is not None
    handles = []
    for block in dict.fromkeys(anatomy.blocks):
        handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(block.register_forward_hook(leave, with_kwargs=True))
    matrices = [module for module in encoder.modules() if _weight_of(module) is not None]
    handles += [module.register_forward_hook(note, with_kwargs=True) for module in matrices]
    with hooks(handles), SoftmaxWatch(attend):
        encoder(**examination_inputs(encoder, pad_token_id))
    return blocks


def gradients(value: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a randomly weighted sum; 0 where the value does not depend on an input."""
    if not value.requires_grad:
        return [torch.zeros_like(tensor) for tensor in inputs]
    # With equal weights the gradient through a normalisation would be 0: its outputs always have the same sum.
    total = (value.float() * random_weights(value.shape, value.device)).sum()
    sums = torch.autograd.grad(total, list(inputs), retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(tensor) if gradient is None else gradient.detach().clone()
        for tensor, gradient in zip(inputs, sums, strict=True)
    ]


def random_weights(shape: Sequence[int], device: torch.device) -> Tensor:
    """Return normal random numbers, always the same for a shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(device)


def _weight_of(module: nn.Module) -> Tensor | None:
    """Return a module's weight if it is a matrix."""
    weight = getattr(module, "weight", None)
    return weight if getattr(weight, "ndim", 0) == 2 else None


def _is_linear(module: nn.Module, states_in: Any, states_out: Any) -> bool:
    """Return whether a call applied the module's matrix, of either orientation, to vectors."""
    weight = _weight_of(module)
    tensors = isinstance(states_in, torch.Tensor) and isinstance(states_out, torch.Tensor)
    if weight is None or not tensors or not states_in.is_floating_point() or not states_in.dim():
        return False
    return (
        sorted(weight.shape) == sorted((states_in.shape[-1], states_out.shape[-1]))
        and states_in.shape[:-1] == states_out.shape[:-1]
    )


@dataclass(frozen=True)
class Site:
    """The neurons of a site: the inputs of one linear map per block.

    Args:
        modules: Name of the linear map inside each block, as `encoder.get_submodule` takes it; blocks may share it.
        width: Number of neurons per layer.
        n_heads: Number of heads, which have equally many neurons in order; None if neurons belong to no head.
    """

    modules: tuple[str, ...]
    width: int
    n_heads: int | None


def find_site(encoder: nn.Module, anatomy: Anatomy, site: SiteName, pad_token_id: int = 0, name: str = "") -> Site:
    """Run an encoder on a few tokens and locate the linear map of each block that reads the site's neurons.

    It is in evaluation mode, in float32 or bfloat16 (gradients overflow in float16). Ambiguous sites raise `UserError`.
    """
    config: Any = encoder.config
    n_heads = getattr(config, "num_attention_heads", None) if site == "attention" else None
    try:
        if anatomy.blocks is None:
            raise _MissingSite("its blocks do not pass the hidden states from one to the next")
        with torch.inference_mode(False), torch.enable_grad():
            blocks = run_blocks(encoder, anatomy, pad_token_id)
            if site == "mlp":
                calls = [_mlp(block) for block in blocks]
            else:
                seen = _seen_projections(encoder, anatomy, n_heads, pad_token_id)
                calls = [_attention(block, n_heads, seen) for block in blocks]
        widths = {call.states_in.shape[-1] for call in calls}
        if len(widths) != 1:
            raise _MissingSite(f"its blocks have different numbers of them ({', '.join(map(str, sorted(widths)))})")
    except _MissingSite as error:
        what = {"mlp": "units of an MLP", "attention": "outputs of attention heads"}[site]
        raise UserError(
            f"`--site {site}`: the {what} cannot be told in {name or 'the model'} ({config.model_type}): {error}; "
            "use `--site residual` or another model."
        ) from None
    name_of = {module: path for path, module in encoder.named_modules()}
    return Site(tuple(name_of[call.module] for call in calls), widths.pop(), n_heads)


def activations(encoder: nn.Module, anatomy: Anatomy, layers: Sequence[int], **inputs: Tensor) -> dict[int, Tensor]:
    """Return the neurons of the anatomy's site, shape (batch, sequence, width) for each layer, in the encoder's dtype.

    Layer k of `mlp` and `attention` is inside block k, counted from 1. Inputs have shape (batch, sequence).
    """
    if not anatomy.site_modules:
        return hidden_states(encoder, anatomy, layers, **inputs)
    maps = [_submodule(encoder, name) for name in anatomy.site_modules]
    captured = received_by(maps, [k - 1 for k in layers], encoder, inputs)
    n, length = inputs["input_ids"].shape
    # Some families put all tokens in one row (OPT), and some pad sequences inside (Longformer).
    return {k: captured[k - 1].view(n, -1, captured[k - 1].shape[-1])[:, :length] for k in layers}


def _submodule(encoder: nn.Module, name: str) -> nn.Module:
    try:
        return encoder.get_submodule(name)
    except AttributeError:
        raise UserError(
            f"`--cache`: the activations were cached with another version of transformers, whose model had a part "
            f"{name}; name another folder, or remove this entry."
        ) from None


class _MissingSite(Exception):
    """A block does not have the site; the message gives the reason."""


def _seen_projections(encoder: nn.Module, anatomy: Anatomy, n_heads: int | None, pad_token_id: int) -> list[nn.Module]:
    """Return the map of each block that is seen to read attention times values of `n_heads` heads, if any."""
    from probing.models.attention_heads import find_heads

    try:
        with torch.inference_mode():
            heads = find_heads(encoder, anatomy, pad_token_id)
    except UserError:
        return []
    return [encoder.get_submodule(name) for name in heads.projections or () if heads.n_heads == n_heads]


def _attention(block: BlockCall, n_heads: int | None, seen: Sequence[nn.Module]) -> ModuleCall:
    """Return the call of a block's attention output projection, else raise `_MissingSite`.

    `seen` has the map of each block that is known to read heads, where gradients do not show it: a norm over the
    queries of all heads (OLMo 2) makes each head depend on the maps of all.
    """
    number, call = block.number, _first_mixing(block)
    if call is None or not block.writes_to_the_residual_stream(call):
        what = "the first linear map that reads other tokens is not one that adds its output to the residual stream"
        raise _MissingSite(f"in block {number}, {what}")
    if block.attended is None or block.attended > block.calls.index(call):
        raise _MissingSite(f"block {number} first mixes tokens by something else than attention, a softmax over them")
    earlier = [other.states_out for other in block.calls[: block.calls.index(call)]]
    if not n_heads:
        raise _MissingSite("its configuration has no `num_attention_heads`")
    is_seen = len(seen) >= number and seen[number - 1] is call.module
    if call.states_in.shape[-1] % n_heads or not (is_seen or _are_heads(call.states_in, earlier, n_heads)):
        raise _MissingSite(f"in block {number}, what the output projection reads is not {n_heads} independent heads")
    return call


def _mlp(block: BlockCall) -> ModuleCall:
    """Return the call of the second matrix of a block's MLP; raise `_MissingSite` if there is none or more than one."""
    if any(_is_stack(module) for module in block.module.modules()):
        raise _MissingSite(
            f"block {block.number} has experts, of which each token uses some, and no units that all use"
        )
    attention = _first_mixing(block)
    readers = [
        call
        for i, call in enumerate(block.calls)
        if call is not attention
        and any(_is_activation(block, call.states_in, earlier.states_out) for earlier in block.calls[:i])
    ]
    writers = [call for call in readers if block.writes_to_the_residual_stream(call)]
    if len(readers) > 1 and not writers:  # MobileBERT adds them to a narrower stream inside the block
        raise _MissingSite(
            f"block {block.number} has {len(readers)} linear maps that read units after an activation function, and "
            "none of them adds its output to the residual stream itself"
        )
    if len(writers) != 1:
        raise _MissingSite(
            f"block {block.number} has {len(writers)} linear maps that read units after an activation function and add "
            "their output to the residual stream, where 1 is expected"
        )
    return writers[0]


def _first_mixing(block: BlockCall) -> ModuleCall | None:
    """Return the first call of a linear map whose input for a token depends on other tokens of the block's input."""
    # In a causal model, only the last token can read all others. What a model pads by itself (Longformer) reads none.
    last = min(block.rows[1], LENGTH) - 1
    for call in block.calls:
        if (states_in := block.by_token(call.states_in)) is not None:
            (gradient,) = gradients(states_in[0, last], [block.states_in])
            if gradient[0, :last].any():
                return call
    return None


def _are_heads(values: Tensor, earlier: Sequence[Tensor], n_heads: int) -> bool:
    """Return whether slices of a map's input are heads: both halves of a slice share sources that no other slice has.

    `values` has shape (batch, sequence, n_heads * head width); the sources are outputs of the block's earlier maps.
    """
    width = values.shape[-1] // n_heads
    if width < 2 or not earlier:
        return False
    halves = values.unflatten(-1, (n_heads, width)).split([width // 2, width - width // 2], dim=-1)

    def sources(part: Tensor) -> Tensor:
        """Return a bool for each output of the earlier maps: whether the part depends on it."""
        return torch.cat([(gradient != 0).flatten(0, -2).any(0) for gradient in gradients(part, earlier)])

    first, second = (torch.stack([sources(half[..., head, :]) for head in range(n_heads)]) for half in halves)
    is_only = (first | second).sum(0) == 1
    return bool((first & second & is_only).any(1).all())


def _is_stack(module: nn.Module) -> bool:
    """Return whether a module's direct parameters are stacks of matrices, as of the experts of a mixture."""
    from torch import nn

    parameters = module.parameters(recurse=False)
    return not isinstance(module, nn.Conv1d) and any(
        parameter.ndim == 3 and min(parameter.shape) > 1 for parameter in parameters
    )


def _is_activation(block: BlockCall, units: Tensor, states_out: Tensor) -> bool:
    """Return whether unit i is a nonlinear function of a map's output i, or outputs i and i + width, at the same token.

    `units` is the input of a later map, shape (batch, sequence, width), `states_out` the output of an earlier map.
    """
    width = units.shape[-1]
    by_token = block.by_token(units)
    if by_token is None or states_out.shape[:-1] != units.shape[:-1] or states_out.shape[-1] not in (width, 2 * width):
        return False
    if not units.requires_grad:  # computed from no map, such as angles
        return False
    generator = torch.Generator().manual_seed(0)
    chosen = (torch.rand(width, generator=generator) < 0.5).to(units.device)
    weight = chosen * random_weights((width,), units.device)
    (gradient,) = torch.autograd.grad((units.float() * weight).sum(), states_out, retain_graph=True, allow_unused=True)
    if gradient is None:
        return False
    by_unit = gradient.unflatten(-1, (-1, width)).float()
    slopes_differ = (by_unit != by_unit[:1, :1]).any()
    # A dependence on another token or on another unit cannot come from an activation function.
    token = block.rows[1] // 2
    (flat,) = gradients(by_token[0, token], [states_out])
    at_token = flat.view(*block.rows, -1)
    at_token[0, token] = 0
    return bool(slopes_differ) and not bool(by_unit[..., ~chosen].any()) and not bool(at_token.any())


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
        bias: Bias of the products, shape (n_features,); for `gated`, the bias that decides which features are active.
        normalisation: `none`; `constant_norm_rescale`, to the norm sqrt(d_in); or `layer_norm`, without a gain.
        subtracted: Subtracted from the normalised hidden state, shape (d_in,); None subtracts nothing.
        threshold: For `jumprelu`, shape (n_features,).
        magnitude: For `gated`, the logarithm of each feature's factor, and its bias, shape (2, n_features).
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
        """Return the encoder's input: hidden states, shape (n, d_in), normalised and without the bias."""
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
        """Return row, feature and value of all nonzero activations, in the order of rows; each of shape (n_active,)."""
        active_parts = []
        for first in range(0, len(hidden_states), max(1, _AT_A_TIME // self.n_features)):
            part = self.encode(hidden_states[first : first + max(1, _AT_A_TIME // self.n_features)])
            rows, features = part.nonzero(as_tuple=True)
            active_parts.append((rows + first, features, part[rows, features]))
        if not active_parts:
            none = torch.zeros(0, dtype=torch.int64)
            return none, none, torch.zeros(0)
        rows, features, values = (torch.cat(parts) for parts in zip(*active_parts, strict=True))
        return rows, features, values


def highest(activations: Tensor, k: int) -> Tensor:
    """Return nonnegative activations, shape (n, n_features), with all but the k highest of each row set to 0."""
    if k >= activations.shape[1]:
        return activations
    last = activations.topk(k, dim=1).values[:, -1:]
    is_highest = activations >= last
    # Only where several are equal to the last one are there more than k: the lower numbers are then taken.
    if len(tied := ((is_highest.sum(1) > k) & (last[:, 0] > 0)).nonzero()[:, 0]):
        above, equal = activations[tied] > last[tied], activations[tied] == last[tied]
        is_highest[tied] = above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True)))
    return activations * is_highest


def load_dictionary(layout: Layout) -> Dictionary:
    """Read the weights of a dictionary, which must match its configuration; the dictionary read last is cached."""
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
            raise _weights_mismatch(
                layout, f"{name} is in {tensor.dtype}, or not finite, where {', '.join(DTYPES)} is read"
            )
    n_features = layout.n_features or shapes[encoder][0 if layout.is_of_sparsify else 1]
    of_encoder = (n_features, layout.d_in) if layout.is_of_sparsify else (layout.d_in, n_features)
    expected = {encoder: of_encoder, "W_dec": (n_features, layout.d_in), "b_dec": (layout.d_in,)}
    for name, shape in (expected | dict.fromkeys(biases, (n_features,))).items():
        if shapes[name] != shape:
            raise _weights_mismatch(layout, f"{name} has the shape {shapes[name]}, and {CONFIG} says {shape}")
    if layout.k is not None and layout.k > n_features:
        raise _weights_mismatch(layout, f"k is {layout.k}, more than its {n_features} features")
    arrays = {name: tensor.float() for name, tensor in tensors.items()}
    weight = (arrays[encoder].T if layout.is_of_sparsify else arrays[encoder]).contiguous()
    bias = arrays[biases[0]]
    if layout.by_decoder_norm:
        norms = arrays["W_dec"].norm(dim=1)
        weight, bias = weight * norms, bias * norms
    return Dictionary(
        layout.architecture, weight, bias, layout.normalisation,
        arrays["b_dec"] if layout.subtracts_decoder_bias else None, layout.k, arrays.get("threshold"),
        torch.stack([arrays["r_mag"], arrays["b_mag"]]) if layout.architecture == "gated" else None, fingerprint,
    )  # fmt: skip


def _check_names(layout: Layout, present: dict[str, tuple[int, ...]], expected: set[str]) -> None:
    """Refuse weights with other names than the architecture has, since they may change the features."""
    if missing := sorted(expected - set(present)):
        raise _weights_mismatch(layout, f"{', '.join(missing)} of a {layout.architecture} dictionary is not there")
    if unknown := sorted(set(present) - expected - _OF_THE_DECODER):
        raise _weights_mismatch(layout, f"{', '.join(unknown)} is no part of a {layout.architecture} dictionary")


def _weights_mismatch(layout: Layout, why: str) -> UserError:
    return UserError(f"`--site {PREFIX}{layout.folder}`: in {layout.weights.name}, {why}; give another dictionary.")


def must_run_model(layout: Layout, n_layers: int) -> bool:
    """Return whether the model has to be run to check that its hidden state is the dictionary's input.

    A block's output is the next block's input; only after the last block may there be a norm. In TransformerLens,
    `hook_resid_post` lies before the norm that ends a block of a post-LN model.
    """
    hook = layout.hook or ""
    return hook.endswith("hook_resid_post") or (layout.is_of_outputs and layout.layer == n_layers)


def check_hook(encoder: nn.Module, anatomy: Anatomy, layout: Layout, pad_token_id: int, name: str) -> None:
    """Refuse a dictionary that was trained on other values than the model's hidden states of its layer.

    Copies of the model, in float32, are run. A norm between the two, or an unknown structure, raises `UserError`.
    """
    from probing.models.residual_stream import NotPostNorm, find_blocks

    refused = f"`--site {PREFIX}{layout.folder}`: its hook is {layout.hook}, and "
    if anatomy.blocks is None or layout.layer is None:
        raise UserError(f"{refused}what the blocks of {name} return cannot be told; give another dictionary or model.")
    if (layout.hook or "").endswith("hook_resid_post"):
        try:
            find_blocks(encoder, pad_token_id)
        except NotPostNorm:
            pass
        else:
            raise UserError(
                f"{refused}in {name}, whose blocks end with a norm, that lies before the norm and is no hidden state; "
                "give a dictionary of hook_normalized_resid_post or of the next block's hook_resid_pre."
            )
    copy = with_the_same_weights(encoder)
    path = {module: name_in_encoder for name_in_encoder, module in encoder.named_modules()}[
        anatomy.blocks[layout.layer - 1]
    ]
    inputs = examination_inputs(copy, pad_token_id)
    with torch.inference_mode(), calls_of([copy.get_submodule(path)]) as calls:
        states = run(copy, inputs, output_hidden_states=True).states[layout.layer]
    block_states = vectors_of_tokens(calls[-1].states_out, inputs["input_ids"].shape[1])
    if block_states is None or not torch.equal(block_states, states):
        raise UserError(
            f"{refused}layer {layout.layer} of {name} comes after a final norm, so that it is not what that block "
            "returns; give a dictionary of a lower layer."
        )
