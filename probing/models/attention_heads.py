"""Heads of an encoder, located by running it, and the attention of each head.

Attention is observed where torch computes it, in any implementation that transformers selects: as a call of
`scaled_dot_product_attention`, or as a softmax over keys whose result is multiplied by the values. No part of the model
is replaced, so the hidden states are bit-identical to a run without reading attention, and the masks are the model's.
(A function registered with transformers' `AttentionInterface` gets no mask unless also registered with
`AttentionMaskInterface`, so that padding is attended to without a warning; some families do not use that interface at
all.)

Names of modules and model families play no role. The k-th attention of a forward pass belongs to block k. The output
projection of a block is the linear map whose input begins with the heads' outputs, attention times values, which also
assigns the columns of the map to heads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, BertConfig, BertForMaskedLM, BertModel
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from probing.errors import UserError
from probing.models.anatomy import Anatomy, StopForward, stop_at_layer
from probing.models.examination import ModuleCall, examination_inputs, vectors_received, with_max_length_hint
from probing.runtime.trainer import to_float64

# Receives the attention of the next block, shape (batch, heads, from, to), and the values, (batch, heads, to, d_head).
See = Callable[[Tensor, Tensor], None]
_PRODUCTS = ("matmul", "bmm", "einsum")
# A score of attention that is this far below others was put there by a mask: models add at least 10,000.
_MASKED = 5000
# Largest difference, relative to the largest value, of two ways to compute the same vectors.
_ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.01}


@dataclass(frozen=True)
class OutputProjection:
    """The linear map that adds the outputs of a block's heads to the residual stream.

    A head adds its output @ matrix[head]; `matrix` has shape (heads, d_head, d_model), `bias`, added once, (d_model,).
    """

    matrix: Tensor
    bias: Tensor

    @cached_property
    def gram(self) -> Tensor:
        """Inner products of the matrix's rows, shape (heads, d_head, d_head), float64: |v matrix|^2 = v gram v."""
        matrix = to_float64(self.matrix)
        return matrix @ matrix.transpose(1, 2)


@dataclass(frozen=True)
class Heads:
    """The heads of an encoder.

    Args:
        n_layers: Number of blocks that have attention, a single call in each.
        n_heads: Number of heads of a block.
        d_head: Width of a head's values.
        is_causal: Whether no token attends to a later token.
        projections: Name of each block's output projection, as `encoder.get_submodule` takes it; blocks may share it.
            None if unknown, because the values pass through something other than a linear map.
    """

    n_layers: int
    n_heads: int
    d_head: int
    is_causal: bool
    projections: tuple[str, ...] | None

    def output_projections(self, encoder: nn.Module) -> list[OutputProjection] | None:
        """Return the output projection of each block; its matrix shares the memory of the encoder's parameter."""
        if self.projections is None:
            return None
        modules = dict.fromkeys(self.projections)
        by_name = {name: _projection(encoder.get_submodule(name), self.n_heads, self.d_head) for name in modules}
        return [by_name[name] for name in self.projections]


def find_heads(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int = 0, name: str = "the model") -> Heads:
    """Run an encoder, in evaluation mode, on a few tokens and locate its heads.

    Raises:
        UserError: If not every block has exactly one attention with weights, of equally many heads.
    """
    config: Any = encoder.config
    with torch.inference_mode():
        seen, is_flat = _run(encoder, anatomy, examination_inputs(encoder, pad_token_id))
    n_layers = anatomy.n_layers
    shapes = {(len(attention.probabilities[0]), attention.values.shape[-1]) for attention in seen}
    in_order = anatomy.blocks is None or [attention.block for attention in seen] == list(range(1, n_layers + 1))
    is_normalised = all(bool(((attention.probabilities[0].sum(-1) - 1).abs() < 0.01).all()) for attention in seen)
    names = {module: path for path, module in encoder.named_modules()}
    projections = [next(filter(attention.feeds, attention.calls), None) for attention in seen]
    projection_names = tuple(names[call.module] for call in projections if call)
    if not seen or len(seen) != n_layers or len(shapes) != 1 or not (in_order and is_normalised):
        raise UserError(
            f"`--model {name}` ({config.model_type}) has {n_layers} blocks, and {len(seen)} attentions were seen in a "
            "forward pass, where one is expected in each block, with equally many heads and weights that sum to 1; "
            "choose a model with attention weights, loaded with `attn_implementation` sdpa or eager."
        )
    # Of heads and sentences in one row, only the map that reads the heads tells which are which.
    if is_flat and len(projection_names) != n_layers:
        raise UserError(
            f"`--model {name}` ({config.model_type}): its heads cannot be told from its sentences, because no map is "
            "seen to read them; choose another model."
        )
    ((n_heads, d_head),) = shapes
    is_causal = not any(bool(attention.probabilities[0].triu(1).any()) for attention in seen)
    return Heads(n_layers, n_heads, d_head, is_causal, projection_names if len(projection_names) == n_layers else None)


def read_heads(
    encoder: nn.Module,
    heads: Heads,
    read: Callable[[int, Tensor, Tensor], None],
    inputs: Mapping[str, Tensor],
    read_mask: Callable[[Tensor | None], None] | None = None,
) -> None:
    """Run an encoder and pass the attention of each block to `read`; the pass ends after the last block.

    Args:
        read: Called with the number of the block, from 1, its attention, shape (batch, heads, from, to), in float32 or
            wider, and the heads' values, shape (batch, heads, to, d_head). Rows of padding are not defined.
        read_mask: Called before `read` with the mask of the block: whether a query may see a key in some head, shape
            (batch or 1, from, to); None if it may see all.
    """
    n_seen = 0

    def see(probabilities: Tensor, values: Tensor) -> None:
        nonlocal n_seen
        n_seen += 1
        if read_mask is not None:
            read_mask(watch.visible())
        read(n_seen, probabilities, values)
        if n_seen == heads.n_layers:
            raise StopForward

    watch = AttentionWatch(see, inputs["input_ids"].shape)
    with with_max_length_hint(encoder, inputs), stop_at_layer([]), watch:
        encoder(**inputs)


class SoftmaxWatch(TorchFunctionMode):
    """Mode that calls `see` before each softmax or fused attention of torch in this thread."""

    def __init__(self, see: Callable[[], None]) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("softmax", "scaled_dot_product_attention"):
            self.see()
        return func(*args, **(kwargs or {}))


class AttentionWatch(TorchFunctionMode):
    """Mode that passes each attention of torch in this thread, with the values, to `see` before it is used.

    An attention is recognised by `shape`, the batch's (batch, sequence).
    """

    def __init__(self, see: See, shape: torch.Size) -> None:
        super().__init__()
        self.see, (self.n, self.length) = see, shape
        self.weights: Tensor | None = None  # a softmax that has not been multiplied by values yet
        self.is_flat = False  # whether some attention had sequences and heads on one axis
        self.scores: Tensor | None = None  # what this softmax was computed from
        self.mask: Tensor | None = None  # of the fused call that is seen
        self.address = 0  # data address of the tensor that now holds this softmax, possibly reshaped

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is functional.scaled_dot_product_attention:
            self._see_fused(*args, **kwargs)
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if self.weights is not None and name in _PRODUCTS and (factors := self._factors(args)):
            weights, self.weights = self.weights, None
            self.see(_wide(weights), _values(weights, factors[1], factors[0]))
            self.scores = None
        output = func(*args, **kwargs)
        if name == "softmax" and (attention := self._attention(output)) is not None:
            self.weights, self.address, self.scores = attention, output.data_ptr(), args[0].reshape(attention.shape)
        elif self.weights is not None and isinstance(output, Tensor) and self._reads(args):
            # In another shape or dtype, or after dropout, it is still the same attention.
            self.address = output.data_ptr() if output.numel() == self.weights.numel() else self.address
        return output

    def visible(self) -> Tensor | None:
        """Return whether each query may see a key in some head, shape (batch or 1, from, to); None if there is no mask.

        An attention of 0 does not show this: it may be too small for the precision. So the model's mask is read, or
        recognised by the scores that it lowers.
        """
        if self.scores is not None:
            highest = self.scores.amax(-1, keepdim=True)
            return (self.scores > highest - _MASKED).any(1)
        if self.mask is None:
            return None
        shown = self.mask if self.mask.dtype == torch.bool else self.mask > -_MASKED
        return shown.expand(*(1,) * (4 - shown.dim()), *shown.shape).any(1)

    def _attention(self, softmax: Any) -> Tensor | None:
        """Return a softmax as attention, shape (batch, heads, from, to); None if it is none."""
        if not isinstance(softmax, Tensor) or softmax.shape[-2:] != (self.length, self.length):
            return None
        if softmax.dim() == 3 and softmax.shape[0] % self.n == 0:  # the heads of all sequences in one row, as in XGLM
            self.is_flat = True
            return softmax.view(self.n, -1, self.length, self.length)
        return softmax if softmax.dim() == 4 and softmax.shape[0] == self.n else None

    def _reads(self, args: Sequence[Any]) -> bool:
        return bool(args) and isinstance(args[0], Tensor) and args[0].data_ptr() == self.address

    def _factors(self, args: Sequence[Any]) -> tuple[str, Tensor] | None:
        """Return the equation, if any, and the second factor of a product whose first factor is the attention."""
        equation, args = (args[0], args[1:]) if args and isinstance(args[0], str) else ("", args)
        return (equation, args[1]) if len(args) == 2 and self._reads(args) else None

    def _see_fused(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> None:  # fmt: skip
        """Compute the attention of a fused call, in float32 or wider."""
        if query.dim() != 4 or (query.shape[0], query.shape[2], key.shape[2]) != (self.n, self.length, self.length):
            return
        n_heads = query.shape[1]
        # Several query heads share one head of keys and values.
        key, value = (
            heads_tensor.repeat_interleave(n_heads // heads_tensor.shape[1], dim=1) for heads_tensor in (key, value)
        )
        scores = torch.matmul(query, key.transpose(2, 3)).to(torch.promote_types(query.dtype, torch.float32))
        scores *= query.shape[-1] ** -0.5 if scale is None else scale
        if is_causal:
            attn_mask = torch.ones(self.length, self.length, dtype=torch.bool, device=query.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores.masked_fill_(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores += attn_mask
        self.mask = attn_mask
        self.see(scores.softmax(-1), value)
        self.mask = None


def _wide(weights: Tensor) -> Tensor:
    return weights.to(torch.promote_types(weights.dtype, torch.float32))


def _values(weights: Tensor, factor: Tensor, equation: str) -> Tensor:
    """Return the values multiplied by the attention `weights`, (batch, heads, from, to), as (batch, heads, to, d_head).

    `equation` is of `einsum`, its first term the axes of the attention; empty for a matrix product.
    """
    if equation:
        first, second = equation.replace(" ", "").split("->")[0].split(",")
        axes = [first[0], first[1], first[3], *(set(second) - set(first))]
        return factor.permute([second.index(axis) for axis in axes])
    batch, heads, _, length = weights.shape
    if factor.dim() == 4:
        return factor.expand(batch, heads, length, factor.shape[-1])
    return factor.reshape(batch, heads, length, factor.shape[-1])


# --- which linear map reads the heads ---


@dataclass(frozen=True)
class _BlockAttention:
    """The attention of a block, and the calls of modules between it and the next attention."""

    block: int
    probabilities: Tensor
    values: Tensor
    calls: list[ModuleCall]

    def feeds(self, call: ModuleCall) -> bool:
        """Return whether the module's input begins with the concatenated outputs of the heads."""
        n_heads, d_head = self.values.shape[1], self.values.shape[3]
        if call.states_in.dim() != 3 or call.states_in.shape[-1] < n_heads * d_head:
            return False
        # The first sequence has no padding.
        expected = (self.probabilities[0].to(self.values.dtype) @ self.values[0]).transpose(0, 1).flatten(1)
        actual = call.states_in[0, :, : n_heads * d_head]
        if actual.shape != expected.shape or call.states_in.shape[-1] % d_head:
            return False
        error = (actual - expected).abs().max()
        return bool(error <= _ROUNDING[actual.dtype] * expected.abs().max())


def _run(encoder: nn.Module, anatomy: Anatomy, inputs: Mapping[str, Tensor]) -> tuple[list[_BlockAttention], bool]:
    """Run the encoder; return attentions with later calls of matrix modules, and whether an axis was batch x heads."""
    seen: list[_BlockAttention] = []
    block = 0

    def enter(module: nn.Module, args: Any) -> None:
        nonlocal block
        block += 1

    def see(probabilities: Tensor, values: Tensor) -> None:
        seen.append(_BlockAttention(block, probabilities.clone(), values.clone(), []))

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        if seen and (states_in := vectors_received(args, kwargs)) is not None:
            seen[-1].calls.append(ModuleCall(module, states_in.clone(), None))

    handles = [watched.register_forward_pre_hook(enter) for watched in dict.fromkeys(anatomy.blocks or ())]
    matrices = [module for module in encoder.modules() if getattr(getattr(module, "weight", None), "ndim", 0) == 2]
    handles += [module.register_forward_pre_hook(note, with_kwargs=True) for module in matrices]
    with stop_at_layer(handles), AttentionWatch(see, inputs["input_ids"].shape) as watch:
        encoder(**inputs)
    return seen, watch.is_flat


@torch.no_grad()
def _projection(module: nn.Module, n_heads: int, d_head: int) -> OutputProjection:
    """Return the part of a linear map that reads the heads."""
    weight: Any = module.weight
    for matrix in (weight.t(), weight):  # stored by outputs, as in `nn.Linear`, or by inputs, as in GPT-2
        probe_input = (
            torch.ones(1, matrix.shape[0], dtype=weight.dtype, device=weight.device).cumsum(-1) / matrix.shape[0]
        )
        zero = module(torch.zeros_like(probe_input))
        actual, expected = module(probe_input) - zero, probe_input @ matrix
        if actual.shape == expected.shape and (actual - expected).abs().max() <= _ROUNDING[weight.dtype] * (
            expected.abs().max()
        ):
            break
    else:  # an adapter beside the matrix, for example
        identity = torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)
        matrix = module(identity) - zero
    return OutputProjection(matrix[: n_heads * d_head].unflatten(0, (n_heads, d_head)), zero[0])


# --------------------------------------------------------------------------------------------------------------------
# Finds W_Q and W_K of every head by running the encoder.
# --------------------------------------------------------------------------------------------------------------------

# Largest difference of two computations of the same attention.
_QUERY_KEY_ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-6, torch.bfloat16: 0.05, torch.float16: 0.01}


@dataclass(frozen=True)
class QueryKey:
    """Scores of a block's heads: (x W_Q + b_Q) . (x W_K + b_K) + b(offset), with x the attention's input.

    Args:
        query: W_Q of each head times the scale of the scores, shape (heads, d_model, d_head), float64.
        query_bias: b_Q times the scale, shape (heads, d_head).
        key: W_K of each head, shape (heads, d_model, d_head).
        norm: The norm between the block's input and x; None if x is the block's input.
        biases: The bias at each offset minus the bias at offset 0, shape (heads, 2 * longest - 1), float64; offsets
            ascend, with 0 in the middle. NaN at offsets where no key is attended to. None if there is no bias.
    """

    query: Tensor
    query_bias: Tensor
    key: Tensor
    norm: nn.Module | None
    biases: Tensor | None = None

    def biases_at(self, offsets: Tensor) -> Tensor:
        """Return the bias of a key at each offset from its query, shape (heads, *offsets.shape); 0 if there is none."""
        if self.biases is None:
            return self.query.new_zeros(len(self.query), *offsets.shape)
        return self.biases[:, offsets + self.biases.shape[1] // 2]

    @torch.inference_mode()
    def inputs(self, states: Tensor) -> Tensor:
        """Return the input of the block's attention for the block's input, shape (n, d_model), float64."""
        return states if self.norm is None else self.norm(states)


@torch.inference_mode()
def find_query_keys(
    encoder: nn.Module, anatomy: Anatomy, heads: Heads, pad_token_id: int = 0, longest: int = 1
) -> list[QueryKey]:
    """Run an encoder, in evaluation mode, on a few tokens and locate the queries and the keys of each block.

    `longest` is the length of the longest sequence whose biases of relative positions are needed. `UserError` is raised
    if a block has no queries and keys whose products, with a bias for each offset, give its attention.
    """
    inputs = examination_inputs(encoder, pad_token_id)
    query_keys = [_query_key(block, heads) for block in _observe(encoder, anatomy, inputs)]
    if not query_keys or len(query_keys) != heads.n_layers:
        raise UserError("its blocks do not pass hidden states from one to the next, so that their inputs are not known")
    if None in query_keys:
        raise UserError(
            f"the attention of its block {query_keys.index(None) + 1} is not that of products of queries and keys "
            "that are "
            "linear in the block's input: its queries and keys are rotated or normalised, or its scores have another "
            "term than a bias for each offset"
        )
    known = [query_key for query_key in query_keys if query_key is not None]
    if not any(has_bias for _, has_bias in known):
        return [query_key for query_key, _ in known]
    # Any ordinary tokens will do.
    input_ids = inputs["input_ids"][0].repeat(-(-longest // inputs["input_ids"].shape[1]))[None, :longest]
    long = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    blocks = iter(_observe(encoder, anatomy, long, keeps_calls=False))
    return [replace(query_key, biases=_biases_of(next(blocks), query_key, heads)) for query_key, _ in known]


@dataclass
class _BlockRecord:
    """A block's input, the calls of modules without submodules before its attention, and the attention."""

    states_in: Tensor
    calls: list[ModuleCall] = field(default_factory=list)
    probabilities: Tensor | None = None


def _observe(
    encoder: nn.Module, anatomy: Anatomy, inputs: dict[str, Tensor], keeps_calls: bool = True
) -> list[_BlockRecord]:
    blocks: list[_BlockRecord] = []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        states_in: Any = vectors_received(args, kwargs)
        blocks.append(_BlockRecord(states_in.clone()))

    def see(probabilities: Tensor, values: Tensor) -> None:
        if blocks:
            blocks[-1].probabilities = probabilities.clone()

    def note(module: nn.Module, args: Any, kwargs: Any, states_out: Any) -> None:
        states_in = vectors_received(args, kwargs)
        if not blocks or blocks[-1].probabilities is not None:
            return
        # Copy only outputs with one vector per token: if the attention itself were copied here, `AttentionWatch` would
        # follow the copy instead.
        is_of_tokens = isinstance(states_out, Tensor) and states_out.shape[:-1] == blocks[-1].states_in.shape[:-1]
        if is_of_tokens and states_in is not None:
            blocks[-1].calls.append(ModuleCall(module, states_in.clone(), states_out.clone()))

    handles = [
        block.register_forward_pre_hook(enter, with_kwargs=True) for block in dict.fromkeys(anatomy.blocks or ())
    ]
    leaves = [module for module in encoder.modules() if keeps_calls and not any(True for _ in module.children())]
    handles += [module.register_forward_hook(note, with_kwargs=True) for module in leaves]
    with stop_at_layer(handles), AttentionWatch(see, inputs["input_ids"].shape):
        encoder(**inputs)
    return blocks


def _query_key(block: _BlockRecord, heads: Heads) -> tuple[QueryKey, bool] | None:
    """Return the queries and keys of a block, and whether there is a bias of relative positions."""
    for has_bias, (first, second) in product((False, True), permutations(_candidates(block, heads), 2)):
        (a, columns_a), (b, columns_b) = first, second
        width = columns_a.stop - columns_a.start
        if width != columns_b.stop - columns_b.start or a.states_in.shape != b.states_in.shape:
            continue
        if not torch.equal(a.states_in, b.states_in):
            continue
        for scale in ((width // heads.n_heads) ** -0.5, 1.0):
            if _is_attention(block, a.states_out[..., columns_a], b.states_out[..., columns_b], scale, heads, has_bias):
                reached, norm = _norm_before(block, a)
                if not reached:
                    return None
                (query, query_bias), (key, _) = (
                    _of_heads(call, columns, heads.n_heads) for call, columns in (first, second)
                )
                return QueryKey(query * scale, query_bias * scale, key, norm), has_bias
    return None


def _candidates(block: _BlockRecord, heads: Heads) -> Iterator[tuple[ModuleCall, slice]]:
    """Yield columns of outputs of linear maps that may be all queries or all keys of a block."""
    if block.probabilities is None:
        return
    for call in block.calls:
        if getattr(getattr(call.module, "weight", None), "ndim", 0) != 2:
            continue
        width, of_heads = call.states_out.shape[-1], heads.n_heads * heads.d_head
        if width % of_heads == 0:
            yield from ((call, slice(first, first + of_heads)) for first in range(0, width, of_heads))
        elif width % heads.n_heads == 0:
            yield call, slice(0, width)


def _is_attention(
    block: _BlockRecord, queries: Tensor, keys: Tensor, scale: float, heads: Heads, has_bias: bool
) -> bool:  # fmt: skip
    assert block.probabilities is not None
    # The first sequence has no padding.
    query, key = (
        to_float64(projected[0]).unflatten(-1, (heads.n_heads, -1)).transpose(0, 1) for projected in (queries, keys)
    )
    scores, probabilities = scale * (query @ key.transpose(1, 2)), to_float64(block.probabilities[0])
    if has_bias:
        index = torch.arange(scores.shape[1], device=scores.device)
        scores = scores + _biases(probabilities, scores)[:, index - index[:, None] + len(index) - 1]
    if heads.is_causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    error = (scores.softmax(-1) - probabilities).abs().max()
    return bool(error <= _QUERY_KEY_ROUNDING[queries.dtype])


def _biases_of(block: _BlockRecord, query_key: QueryKey, heads: Heads) -> Tensor:
    """Return the biases of a block, from the attention of one long sequence."""
    assert block.probabilities is not None
    x = query_key.inputs(block.states_in[0].cpu().double())
    scores = (x @ query_key.query + query_key.query_bias[:, None]) @ (x @ query_key.key).transpose(1, 2)
    return _biases(block.probabilities[0].cpu().double(), scores)


def _biases(probabilities: Tensor, scores: Tensor) -> Tensor:
    """Return the log of the attention minus the scores, as a mean at each offset, relative to offset 0.

    Both have shape (heads, length, length). The result has shape (heads, 2 * length - 1), NaN where no key is seen.
    """
    beyond = probabilities.log() - scores
    # The softmax shifts all logs of a query's attention by the same constant, which this subtraction removes.
    beyond = beyond - beyond.diagonal(0, 1, 2)[..., None]
    beyond = beyond.where(beyond.isfinite(), torch.nan)
    length = scores.shape[1]
    return torch.stack([beyond.diagonal(at, 1, 2).nanmean(1) for at in range(1 - length, length)], dim=1)


def _norm_before(block: _BlockRecord, call: ModuleCall) -> tuple[bool, nn.Module | None]:
    """Return whether a map reads the block's input, directly or after one norm, and this norm, if any."""
    if torch.equal(call.states_in, block.states_in):
        return True, None
    for other in block.calls:
        same = other.states_in.shape == block.states_in.shape == other.states_out.shape
        if same and torch.equal(other.states_in, block.states_in) and torch.equal(other.states_out, call.states_in):
            return True, _in_float64(other.module)
    return False, None


def _of_heads(call: ModuleCall, columns: slice, n_heads: int) -> tuple[Tensor, Tensor]:
    """Return the matrix of each head, shape (heads, d_model, d_head), and its bias, shape (heads, d_head), float64."""
    module, width = _in_float64(call.module), call.states_in.shape[-1]
    bias = module(torch.zeros(1, width, dtype=torch.float64))[0]
    matrix = module(torch.eye(width, dtype=torch.float64)) - bias
    return (
        matrix[:, columns].unflatten(1, (n_heads, -1)).transpose(0, 1).contiguous(),
        bias[columns].unflatten(0, (n_heads, -1)),
    )


def _in_float64(module: nn.Module) -> nn.Module:
    return deepcopy(module).cpu().double()


# --------------------------------------------------------------------------------------------------------------------
# BERT with linear biases in place of positions (ALiBi), a family of encoders that transformers does not have.
# --------------------------------------------------------------------------------------------------------------------


class AlibiBertConfig(BertConfig):
    """The configuration of BERT, under the name of another family."""

    model_type = "probing-alibi-bert"


class AlibiBertModel(BertModel):
    """BERT in which the score of a key falls linearly with its distance from the query.

    Press, Smith & Lewis (2022, arXiv 2108.12409) have causal models. Here later and earlier keys are treated alike: a
    head with slope m adds -m |i - j| to the score of query i and key j, after the division by the root of the head
    width.
    """

    config_class = AlibiBertConfig
    # Its mask has numbers.
    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config: AlibiBertConfig, add_pooling_layer: bool = True) -> None:
        if config.is_decoder:
            raise ValueError("`is_decoder` is true; expected false: this family has no causal mask")
        super().__init__(config, add_pooling_layer)

    def forward(  # noqa: D102
        self, input_ids: Tensor | None = None, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        read = options["inputs_embeds"] if input_ids is None else input_ids
        dtype = self.embeddings.word_embeddings.weight.dtype
        bias = linear_bias(self.config.num_attention_heads, read.shape[1]).to(read.device, dtype)
        mask = bias.expand(len(read), -1, -1, -1)
        if attention_mask is not None:
            if attention_mask.dim() != 2:
                raise ValueError(
                    f"the attention mask has {attention_mask.dim()} dimensions; expected 2: (batch, sequence)"
                )
            mask = mask.masked_fill(attention_mask[:, None, None, :] == 0, torch.finfo(dtype).min)
        return super().forward(input_ids=input_ids, attention_mask=mask, **options)


class AlibiBertForMaskedLM(BertForMaskedLM):
    """The same with BERT's masked-language-model head."""

    config_class = AlibiBertConfig

    def __init__(self, config: AlibiBertConfig) -> None:
        super().__init__(config)
        self.bert = AlibiBertModel(config, add_pooling_layer=False)
        self.post_init()


def linear_bias(n_heads: int, length: int) -> Tensor:
    """Return the bias that each head adds to its scores, shape (1, n_heads, length, length), float32.

    The slopes are the paper's, as in transformers for Bloom, where the bias is slope times position of the key.
    """
    by_distance = -build_alibi_tensor(torch.ones(1, length, dtype=torch.long), n_heads, torch.float32)[:, 0]
    place = torch.arange(length)
    return by_distance[:, (place[:, None] - place).abs()][None]


AutoConfig.register(AlibiBertConfig.model_type, AlibiBertConfig, exist_ok=True)
AutoModel.register(AlibiBertConfig, AlibiBertModel, exist_ok=True)
AutoModelForMaskedLM.register(AlibiBertConfig, AlibiBertForMaskedLM, exist_ok=True)
