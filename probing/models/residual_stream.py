"""Terms added to the residual stream of an encoder, and its norms, located by running the model.

Names of modules and model families play no role. In every block, two modules are sought whose outputs, added to the
block's input, give its output: attention and the feed-forward part. In a post-LN block, each of the two sums passes
through a norm. The embeddings are located in the same way: as tables whose rows add up to layer 0, before a norm or
without. If the terms of a block do not add up, `UnknownParts` is raised; if the terms of the embeddings do not, the
path begins at the first block's input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations, pairwise, product, takewhile
from typing import Any, Literal

import torch
from torch import Tensor, nn

from probing.models.anatomy import Anatomy, word_table
from probing.models.examination import (
    LENGTH,
    ModuleCall,
    calls_of,
    hooks,
    run,
    unpadded_inputs,
    vectors_of_tokens,
    vectors_received,
)

# --------------------------------------------------------------------------------------------------------------------
# The norms of a model, h = gain (x - m) / sigma + bias (m = 0 in an RMS norm), and the parts of post-LN blocks.
# --------------------------------------------------------------------------------------------------------------------

# Largest deviation of a recomputed output from the module's own, in multiples of its root mean square.
_NORM_ROUNDING = 1e-4
# Attributes that hold epsilon in the norms of torch and of transformers.
_EPSILONS = ("eps", "variance_epsilon", "epsilon")


def is_norm(module: nn.Module, d_model: int) -> bool:
    """Return whether a module's direct parameters are a gain over the neurons and at most a bias."""
    parameters = dict(module.named_parameters(recurse=False))
    return (
        "weight" in parameters
        and not set(parameters) - {"weight", "bias"}
        and all(p.shape == (d_model,) for p in parameters.values())
    )


@dataclass(frozen=True)
class Norm:
    """Normalisation of vectors by a module.

    Args:
        gain: Gain of each neuron, shape (d_model,), float64; the module's weight, plus 1 if the module adds 1 to it.
        bias: Bias of each neuron, shape (d_model,), float64; 0 where the module has none.
        centres: Whether the mean of the neurons is subtracted, as in LayerNorm.
        epsilon: Number added to the variance, or to the mean square.
    """

    gain: Tensor
    bias: Tensor
    centres: bool
    epsilon: float

    def parts(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return x / sigma, shape (..., d_model), and m / sigma, shape (..., 1), of vectors in float64."""
        mean = vectors.mean(-1, keepdim=True) if self.centres else vectors.new_zeros((*vectors.shape[:-1], 1))
        sigma = ((vectors - mean).square().mean(-1, keepdim=True) + self.epsilon).sqrt()
        return vectors / sigma, mean / sigma

    def __call__(self, vectors: Tensor) -> Tensor:
        """Return the output for vectors in float64, shape (..., d_model)."""
        scaled, mean = self.parts(vectors)
        return self.gain * (scaled - mean) + self.bias


def norm_of(module: Any, states_in: Tensor, states_out: Tensor) -> Norm | None:
    """Return the normalisation by which a module maps its input to its output; None if it computes anything else.

    `is_norm` holds for the module; the input, shape (..., d_model), has no padding.
    """
    weight, bias = module.weight.detach().double(), getattr(module, "bias", None)
    bias = weight.new_zeros(weight.shape) if bias is None else bias.detach().double()
    epsilons = [float(getattr(module, name)) for name in _EPSILONS if isinstance(getattr(module, name, None), float)]
    for centres, added, epsilon in product((True, False), (0.0, 1.0), epsilons):  # Gemma's gain is 1 + weight
        norm = Norm(weight + added, bias, centres, epsilon)
        error = (norm(states_in.double()) - states_out.double()).abs().max()
        if error <= _NORM_ROUNDING * states_out.double().square().mean().sqrt():
            return norm
    return None


# Range and step in which the largest slope of an activation function is sought; beyond this range, the activation
# functions of transformers are straight lines.
_RANGE, _STEP = 12.0, 1e-3


@dataclass(frozen=True)
class PostNormBlock:
    """One post-LN block: X -> H = LN1(X + sum_k A_k X W_VO,k + b) -> LN2(H + act(H W_1 + b_1) W_2 + b_2).

    Args:
        value: Projection of all heads' values, weight of shape (n_heads d_head, d_model).
        output: Projection of the heads' outputs, weight of shape (d_model, n_heads d_head).
        first: W_1, weight of shape (d_ff, d_model).
        second: W_2, weight of shape (d_model, d_ff).
        slope: Largest slope of the activation function.
    """

    norm_1: nn.LayerNorm
    norm_2: nn.LayerNorm
    value: nn.Linear
    output: nn.Linear
    first: nn.Linear
    second: nn.Linear
    n_heads: int
    slope: float


class NotPostNorm(Exception):
    """The model has blocks that are not post-LN; the message describes the difference."""


@torch.inference_mode()
def find_blocks(encoder: nn.Module, pad_token_id: int = 0) -> list[PostNormBlock]:
    """Return the parts of each block of an encoder in evaluation mode and float32; `NotPostNorm` if it is not post-LN.

    The attention implementation is set to `eager`, the only one that returns attention matrices, and stays so.
    """
    states, attentions, calls = _run(encoder, pad_token_id)
    ends = [-1]
    for layer, state in enumerate(states):
        norm_calls = [
            i
            for i, call in enumerate(calls)
            if isinstance(call.module, nn.LayerNorm) and torch.equal(call.states_out, state)
        ]
        if layer and not norm_calls:
            raise NotPostNorm(f"the output of block {layer} is not the output of a LayerNorm")
        ends.append(norm_calls[-1] if norm_calls else -1)
    return [
        _block_of_norms(calls[start + 1 : end + 1], states[layer - 1], attentions[layer - 1], layer)
        for layer, (start, end) in enumerate(pairwise(ends[1:]), start=1)
    ]


def run_with_attention(encoder: nn.Module, **inputs: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Return an encoder's hidden states and the attention matrices of each block; `NotPostNorm` without matrices."""
    output = run(encoder, inputs, output_hidden_states=True, output_attentions=True)
    states, attentions = output.states, output.attentions
    square = (inputs["input_ids"].shape[1],) * 2  # windowed attention gives matrices of another shape
    whole = all(isinstance(a, Tensor) and a.dim() == 4 and a.shape[2:] == square for a in attentions)
    if len(attentions) != len(states) - 1 or not whole:
        raise NotPostNorm("the model returns no attention matrices")
    return states, attentions


def _run(encoder: nn.Module, pad_token_id: int) -> tuple[Sequence[Tensor], Sequence[Tensor], list[ModuleCall]]:
    """Run the encoder on a few tokens; return hidden states, attention, and module calls in order."""
    modules = [module for module in encoder.modules() if isinstance(module, nn.LayerNorm | nn.Linear)]
    try:
        if hasattr(encoder, "set_attn_implementation"):
            encoder.set_attn_implementation("eager")  # type: ignore[operator]
        with calls_of(modules) as calls:
            outputs = run_with_attention(encoder, **unpadded_inputs(encoder, pad_token_id))
    except NotPostNorm:
        raise
    except Exception as error:  # the errors of families without attention matrices vary
        raise NotPostNorm(f"the model returns no attention matrices ({type(error).__name__})") from None
    known = [call for call in calls if call.states_in is not None and call.states_out is not None]
    return *outputs, [call for call in known if call.states_in.dim() == 3]


def _block_of_norms(calls: Sequence[ModuleCall], entered: Tensor, attention: Tensor, layer: int) -> PostNormBlock:
    """Return the parts of a block among the calls of its modules; the last call is LN2."""
    norms = [i for i, call in enumerate(calls) if isinstance(call.module, nn.LayerNorm)]
    if len(norms) < 2:
        raise NotPostNorm(f"block {layer} has no LayerNorm after attention")
    norm_1, norm_2 = (calls[i] for i in norms[-2:])
    of_attention, of_feed_forward = calls[: norms[-2]], calls[norms[-2] + 1 : -1]
    output = _adding(of_attention, norm_1.states_in - entered, layer, "attention")
    second = _adding(of_feed_forward, norm_2.states_in - norm_1.states_out, layer, "its feed-forward part")
    n_heads = attention.shape[1]

    def heads_of(values: Tensor) -> Tensor:
        parted = values.unflatten(-1, (n_heads, -1)).transpose(1, 2)
        return (attention @ parted).transpose(1, 2).flatten(2)

    value = next(
        (
            call.module
            for call in of_attention
            if isinstance(call.module, nn.Linear)
            and call.states_out.shape == output.states_in.shape and call.states_out.shape[-1] % n_heads == 0
            and _close_norms(call.states_in, entered) and _close_norms(heads_of(call.states_out), output.states_in)
        ),
        None,
    )  # fmt: skip
    if value is None:
        raise NotPostNorm(f"in block {layer} the attention output is not a weighted average of projected values")
    for call in of_feed_forward:
        is_first = isinstance(call.module, nn.Linear) and _close_norms(call.states_in, norm_1.states_out)
        if is_first and (slope := _slope(call.states_out, second.states_in)) is not None:
            first: Any = call.module
            return PostNormBlock(
                norm_1.module, norm_2.module, value, output.module, first, second.module, n_heads, slope
            )
    raise NotPostNorm(f"in block {layer} the feed-forward part is not two matrices around an activation function")


def _adding(calls: Sequence[ModuleCall], added: Tensor, layer: int, what: str) -> ModuleCall:
    """Return the projection whose output is the contribution of a block's part to the residual stream."""
    for call in reversed(calls):
        if isinstance(call.module, nn.Linear) and _close_norms(call.states_out, added):
            return call
    raise NotPostNorm(f"in block {layer} the term that {what} adds is not the output of a projection")


def _slope(states_in: Tensor, states_out: Tensor) -> float | None:
    """Return the largest slope of the activation function that maps `states_in` to `states_out`, if there is one."""
    if states_in.shape != states_out.shape:
        return None
    return next((slope for function, slope in activations() if _close_norms(function(states_in), states_out)), None)


@cache
def activations() -> list[tuple[Callable[[Tensor], Tensor], float]]:
    """Return the activation functions of transformers that have no parameters, each with its largest slope."""
    from transformers.activations import ACT2FN

    functions = []
    for name in ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "silu", "tanh", "mish"):
        if name in ACT2FN:
            function = ACT2FN[name]
            functions.append((function, largest_slope(function)))
    return functions


def largest_slope(function: Callable[[Tensor], Tensor]) -> float:
    """Return the largest magnitude of the slope of an activation function, to 1e-6: 1.1289 for GELU, at sqrt 2."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.arange(-_RANGE, _RANGE, _STEP, dtype=torch.float64).requires_grad_()
        (slopes,) = torch.autograd.grad(function(x).sum(), x)
    return float(slopes.abs().max())


def _close_norms(a: Tensor, b: Tensor) -> bool:
    return _close(a, b, _NORM_ROUNDING)


Side = Literal["given", "made"]
# Largest deviation of a sum from what it should be, in multiples of the latter's root mean square.
_ROUNDING = 1e-5


class UnknownParts(Exception):
    """The parts of this model cannot be identified; the message gives the reason."""


@dataclass(frozen=True)
class HookPoint:
    """A tensor of a forward pass: the input ("given") or output of a module's call, counted in its block from 0.

    `block` is the number of the running block, from 1; 0 before the first and after the last block.
    """

    block: int
    module: nn.Module
    call: int
    side: Side


@dataclass(frozen=True)
class StreamSite:
    """A place on the path of the residual stream.

    Args:
        layer: Number of its block; 0 for the embeddings.
        name: In the embeddings, `word`, `position` and `type`, their `sum`, and `norm`, or only `embeddings` if these
            are unknown; in blocks, `attention`, `sum_attention`, `norm_1`, `feed_forward`, `sum_feed_forward`,
            `norm_2`; after the last block, `final_norm`.
        tap: The tensor of its vectors.
        is_term: Whether it is a term that is added to the stream, and not the stream itself.
    """

    layer: int
    name: str
    tap: HookPoint
    is_term: bool = False


@dataclass(frozen=True)
class BlockNorm:
    """A norm of a block, with its number within the block, from 1 in the order of calls, and the tap of its input."""

    layer: int
    number: int
    name: str
    tap: HookPoint
    norm: Norm


@dataclass(frozen=True)
class _ModuleCall:
    """One call of a module during examination; tensors have shape (sequence, width)."""

    tap: HookPoint
    states_in: Tensor | None
    states_out: Tensor


@dataclass
class _Examined:
    """A forward pass: calls of all modules in order of their ends, layers 0 to n, (sequence, d_model), block ends."""

    calls: list[_ModuleCall] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)
    ends: list[_ModuleCall] = field(default_factory=list)

    def inside(self, block: int) -> list[_ModuleCall]:
        """Return the calls within a block whose outputs have the shape of its hidden states."""
        shape = self.states[0].shape
        return [call for call in self.calls if call.tap.block == block and call.states_out.shape == shape]


Seen = Callable[[HookPoint, Tensor], None]


@contextmanager
def watching(encoder: nn.Module, anatomy: Anatomy, modules: Sequence[nn.Module], see: Seen) -> Iterator[None]:
    """Pass the inputs and outputs of modules to `see` while an encoder runs.

    `see` gets each tensor as soon as it is computed, without the model's padding behind the sentences, of shape (batch,
    sequence, width) if it is of each token; the model may change it in place afterwards.
    """
    block, is_inside, calls, shape = 0, False, dict[nn.Module, int](), torch.Size()

    def start(module: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal block, is_inside, shape
        block, is_inside = 0, False
        shape = (args[0] if args else kwargs["input_ids"]).shape
        calls.clear()

    def enter(*_: Any) -> None:
        nonlocal block, is_inside
        block, is_inside = block + 1, True
        calls.clear()

    def leave(*_: Any) -> None:
        nonlocal is_inside
        is_inside = False
        calls.clear()

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        number = calls.get(module, 0)
        calls[module] = number + 1
        sides: tuple[tuple[Side, Any], ...] = (("given", vectors_received(args, kwargs)), ("made", output))
        for side, vectors in sides:
            if (value := vectors_of_tokens(vectors, shape[1])) is not None:
                if value.dim() == 2 and len(value) == shape.numel():  # all tokens in one row (OPT)
                    value = value.unflatten(0, shape)
                see(HookPoint(block if is_inside else 0, module, number, side), value)

    blocks = list(dict.fromkeys(_blocks(anatomy)))
    handles: list[Any] = [encoder.register_forward_pre_hook(start, with_kwargs=True)]
    handles += [watched.register_forward_pre_hook(enter) for watched in blocks]
    handles += [watched.register_forward_hook(note, with_kwargs=True) for watched in dict.fromkeys(modules)]
    handles += [watched.register_forward_hook(leave) for watched in blocks]  # after the block itself was noted
    with hooks(handles):
        yield


def _blocks(anatomy: Anatomy) -> tuple[nn.Module, ...]:
    if anatomy.blocks is None:
        raise UnknownParts("its blocks do not pass the hidden states from one to the next")
    return anatomy.blocks


@torch.inference_mode()
def _examine(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int) -> _Examined:
    """Run the encoder on a sequence without padding and store the inputs and outputs of its modules."""
    examined, inputs_by_tap = _Examined(), dict[HookPoint, Tensor]()

    def see(tap: HookPoint, value: Tensor) -> None:
        value = value[0] if value.dim() == 3 else value
        if tap.side == "given":
            inputs_by_tap[tap] = value.clone()
        else:
            examined.calls.append(_ModuleCall(tap, inputs_by_tap.pop(replace(tap, side="given"), None), value.clone()))

    blocks = _blocks(anatomy)
    with watching(encoder, anatomy, [module for module in encoder.modules() if module is not encoder], see):
        output = run(encoder, unpadded_inputs(encoder, pad_token_id), output_hidden_states=True)
    examined.states = [state[0] for state in output.states]
    ends = {call.tap.block: call for call in examined.calls if call.tap.module in blocks}
    examined.ends = [ends[number] for number in range(1, anatomy.n_layers + 1)]
    return examined


# --- norms ---


def find_norms(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int = 0) -> list[BlockNorm]:
    """Return the two norms of each block of a float32 model; `UnknownParts` unless they are LayerNorms or RMS norms."""
    seen, block_norms = _examine(encoder, anatomy, pad_token_id), list[BlockNorm]()
    name_of, d_model = {module: name for name, module in encoder.named_modules()}, seen.states[0].shape[-1]
    for layer in range(1, anatomy.n_layers + 1):
        calls = [call for call in seen.inside(layer) if is_norm(call.tap.module, d_model)]
        if len(calls) != 2:
            norms = "1 norm" if len(calls) == 1 else f"{len(calls)} norms"
            raise UnknownParts(f"block {layer} has {norms} as wide as its hidden states, where 2 are expected")
        for number, call in enumerate(calls, start=1):
            norm = None if call.states_in is None else norm_of(call.tap.module, call.states_in, call.states_out)
            name = name_of[call.tap.module]
            if norm is None:
                raise UnknownParts(f"{name} computes something else than gain (x - m) / sigma + bias")
            block_norms.append(BlockNorm(layer, number, name, replace(call.tap, side="given"), norm))
    return block_norms


# --- the path ---


def find_path(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int = 0) -> list[StreamSite]:
    """Return the places that the residual stream passes, and the terms that are added to it, in their order.

    The model is in evaluation mode and in float32. If the terms of a block do not add up to its output, `UnknownParts`
    is raised; if the terms of the embeddings do not, the path begins at the first block's input.
    """
    seen = _examine(encoder, anatomy, pad_token_id)
    sites = _embeddings(encoder, anatomy, seen)
    for layer in range(1, anatomy.n_layers + 1):
        sites += _block(seen, layer)
    last = seen.ends[-1].states_out
    if not _close(last, seen.states[-1]):
        final = [call for call in seen.calls if call.tap.block == 0 and _close(call.states_out, seen.states[-1])]
        sites += [StreamSite(anatomy.n_layers, "final_norm", call.tap) for call in final[-1:]]
    return sites


def _embeddings(encoder: nn.Module, anatomy: Anatomy, seen: _Examined) -> list[StreamSite]:
    """Return the terms of the embeddings, their sum, and their norm where there is one."""
    first, shape = seen.states[0], seen.states[0].shape
    before = [call for call in takewhile(lambda call: not call.tap.block, seen.calls) if call.states_out.shape == shape]
    terms = [call for call in before if isinstance(call.tap.module, nn.Embedding)]
    begin = HookPoint(1, _blocks(anatomy)[0], 0, "given")
    names = {word_table(encoder): "word", anatomy.position_table: "position"}
    named = [StreamSite(0, names.get(call.tap.module, "type"), call.tap, is_term=True) for call in terms]
    total = torch.stack([call.states_out for call in terms]).sum(0) if terms else torch.zeros_like(first)
    if terms and _close(total, first):
        return [*named, StreamSite(0, "sum", begin)]
    for call in before:
        is_normed = (
            is_norm(call.tap.module, shape[-1]) and call.states_in is not None and _close(call.states_out, first)
        )
        if terms and is_normed and call.states_in is not None and _close(total, call.states_in):
            return [*named, StreamSite(0, "sum", replace(call.tap, side="given")), StreamSite(0, "norm", begin)]
    return [StreamSite(0, "embeddings", begin)]


def _block(seen: _Examined, layer: int) -> list[StreamSite]:
    end, entered = seen.ends[layer - 1], seen.states[layer - 1]
    calls = [call for call in seen.inside(layer) if call is not end]
    norms = [call for call in calls if is_norm(call.tap.module, entered.shape[-1]) and call.states_in is not None]
    post = norms[-2:] if len(norms) > 1 and _close(norms[-1].states_out, end.states_out) else []
    taps = _post_norm(calls, entered, *post) if post else _pre_norm(calls, entered, end)
    if not taps:
        raise UnknownParts(f"no two parts of block {layer} add up to what it adds to the residual stream")
    return [StreamSite(layer, name, tap, is_term=name in ("attention", "feed_forward")) for name, tap in taps.items()]


def _post_norm(
    calls: Sequence[_ModuleCall], entered: Tensor, norm_1: _ModuleCall, norm_2: _ModuleCall
) -> dict[str, HookPoint]:
    """Return the sites of a block that normalises the sums; none if they do not add up."""
    assert norm_1.states_in is not None  # only such norms are tried
    assert norm_2.states_in is not None
    attention = next((call for call in calls if _close(entered + call.states_out, norm_1.states_in)), None)
    feed_forward = next((call for call in calls if _close(norm_1.states_out + call.states_out, norm_2.states_in)), None)
    if attention is None or feed_forward is None:
        return {}
    return {
        "attention": attention.tap, "sum_attention": replace(norm_1.tap, side="given"), "norm_1": norm_1.tap,
        "feed_forward": feed_forward.tap, "sum_feed_forward": replace(norm_2.tap, side="given"),
        "norm_2": norm_2.tap,
    }  # fmt: skip


def _pre_norm(calls: Sequence[_ModuleCall], entered: Tensor, end: _ModuleCall) -> dict[str, HookPoint]:
    """Return the sites of a block that adds its parts to the stream, one after the other or both at once."""
    for attention, feed_forward in combinations(calls, 2):
        if not _close(entered + attention.states_out + feed_forward.states_out, end.states_out):
            continue
        between = entered + attention.states_out
        reader = next((call for call in calls if call.states_in is not None and _close(call.states_in, between)), None)
        middle = {} if reader is None else {"sum_attention": replace(reader.tap, side="given")}
        return {
            "attention": attention.tap, **middle, "feed_forward": feed_forward.tap, "sum_feed_forward": end.tap,
        }  # fmt: skip
    return {}


def _close(a: Tensor, b: Tensor, rounding: float = _ROUNDING) -> bool:
    """Return whether two tensors are equal except for rounding."""
    return a.shape == b.shape and bool((a - b).abs().max() <= rounding * b.square().mean().sqrt())


# --------------------------------------------------------------------------------------------------------------------
# The parameters of a model that have one value per neuron: its position, segment and token embeddings, and its norms.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NormModule:
    """A LayerNorm, or an RMS norm, over the model's width, with gain and bias of shape (d_model,).

    `layer` is the number of the layer whose hidden state the norm produces or, if no norm produces this state, is the
    first to read; None for all other norms.
    """

    module: str
    gain: Tensor
    bias: Tensor | None
    layer: int | None


@dataclass(frozen=True)
class Parameters:
    """The parameters of a model that have one value per neuron, with norms in the order of their first call.

    Args:
        position_table: Position embeddings, shape (n_rows, d_model); None where positions are relative or rotary, or
            the table has another width and is projected.
        first_row: Row of position 0: 2 for RoBERTa, whose first two rows are never used.
        mean_token: Mean row of the input embedding, shape (d_model,); None if the embedding has another width.
        segment_table: Segment embeddings (token types), shape (n_types, d_model); None without any of this width.
    """

    position_table: Tensor | None
    first_row: int
    mean_token: Tensor | None
    norms: tuple[NormModule, ...]
    segment_table: Tensor | None = None

    @property
    def output_norms(self) -> list[NormModule]:
        """The norms that belong to layers from 1 on, at most one per layer; the norm of the embeddings is left out."""
        return [norm for norm in self.norms if norm.layer]


@torch.inference_mode()
def find_parameters(encoder: nn.Module, anatomy: Anatomy) -> Parameters:
    """Return the parameters of an encoder in evaluation mode that have one value per neuron.

    A norm belongs to layer k if it produces that hidden state (BERT: the norm after a block). If no norm produces it,
    the first norm that reads it belongs to layer k (GPT-2: the first norm of the next block). A norm that blocks share
    is listed once, with the first layer it serves.
    """
    config: Any = encoder.config
    d_model, table, words = int(config.hidden_size), anatomy.position_table, word_table(encoder)
    norms = {module: name for name, module in encoder.named_modules() if is_norm(module, d_model)}
    tables = [module for module in encoder.modules() if isinstance(module, nn.Embedding) and module is not words]
    with calls_of(norms) as of_norms, calls_of(tables) as of_tables:
        inputs = unpadded_inputs(encoder, getattr(config, "pad_token_id", None) or 0)
        states = run(encoder, inputs, output_hidden_states=True).states
    # What a model pads by itself (Longformer) is not handed out.
    calls = [ModuleCall(module, *(vectors_of_tokens(side, LENGTH) for side in sides)) for module, *sides in of_norms]
    calls = [call for call in calls if call.states_in is not None and call.states_out is not None]
    of_layer = _layers_of(calls, states)
    rows = [call.states_out for call in of_tables if call.module is table]
    segments = (call for call in of_tables if call.module is not table)
    embedding: Any = words.weight
    block_norms = [
        NormModule(norms[norm], _values(norm, "weight"), _values(norm, "bias"), of_layer.get(norm))
        for norm in dict.fromkeys(call.module for call in calls)
    ]
    weight = _values(table, "weight") if table is not None and rows else None
    if weight is not None and weight.shape[1] != d_model:
        weight = None
    return Parameters(
        weight,
        0 if weight is None else _first_row(weight, rows[0].float().cpu()),
        embedding.detach().float().mean(0).cpu() if embedding.shape[1] == d_model else None,
        tuple(block_norms),
        next((_values(call.module, "weight") for call in segments if _tells_segments(call.states_out, d_model)), None),
    )


def _tells_segments(out: Tensor, d_model: int) -> bool:
    """Check whether an embedding gives all tokens of a sentence the same vector of the model's width."""
    same = out.reshape(-1, out.shape[-1])
    return out.shape[-1] == d_model and len(same) >= LENGTH and bool((same == same[0]).all())


def _values(module: nn.Module, name: str) -> Any:
    """Return a parameter in float32; None if the module has none of that name."""
    values = getattr(module, name, None)
    return values.detach().float().cpu() if isinstance(values, Tensor) else None


def _layers_of(calls: Sequence[ModuleCall], states: Sequence[Tensor]) -> dict[nn.Module, int]:
    """Return, for each norm that produces or reads a layer's hidden state, the first such layer's number."""
    norm_layers: dict[nn.Module, int] = {}
    for layer, state in enumerate(states):
        makers = [call.module for call in calls if torch.equal(call.states_out, state)]
        readers = [call.module for call in calls if torch.equal(call.states_in, state)]
        for norm in (makers or readers)[:1]:
            norm_layers.setdefault(norm, layer)
    return norm_layers


def _first_row(table: Tensor, rows: Tensor) -> int:
    first = rows.reshape(-1, rows.shape[-1])[0]
    return int((table == first).all(1).nonzero()[0])
