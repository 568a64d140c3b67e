"""Finds the heads of an encoder by running it, and reads what each head attends to.

A head's attention is seen where torch computes it, in any implementation that transformers selects: as a call of
`scaled_dot_product_attention`, or as a softmax over keys whose result is multiplied by the values. No part of the model
is replaced, so the hidden states are bit-identical to those of a run in which attention is not read, and the masks are
those that the model made for its own attention. (An attention function registered with transformers'
`AttentionInterface` would get no mask unless it is registered with `AttentionMaskInterface` too; padding would then be
attended to without a warning. Some families do not use that interface at all.)

Names of modules and model families play no role. The k-th attention of a forward pass is that of block k. The output
projection of a block is the linear map whose input begins with the heads' outputs, which are known: they are the
attention times the values. This also says which columns of the map belong to which head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from probing.errors import UserError
from probing.models.anatomy import Enough, until_enough
from probing.models.examination import examination_inputs, vectors_given
from probing.models.max_length import telling_the_longest
from probing.runtime.arithmetic import to_float64

if TYPE_CHECKING:
    from probing.models.anatomy import Anatomy

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

    Args:
        matrix: The columns that read each head, shape (heads, d_head, d_model): a head adds its output @ matrix[head].
        bias: What is added once for all heads, shape (d_model,).
    """

    matrix: Tensor
    bias: Tensor

    @cached_property
    def gram(self) -> Tensor:
        """The inner products of the matrix's rows, shape (heads, d_head, d_head), float64: |v matrix|^2 = v gram v."""
        matrix = to_float64(self.matrix)
        return matrix @ matrix.transpose(1, 2)


@dataclass(frozen=True)
class Heads:
    """The heads of an encoder.

    Args:
        n_layers: Number of blocks that have attention, one call in each.
        n_heads: Number of heads of a block.
        d_head: Width of a head's values.
        is_causal: Whether no token attends to a later one.
        projections: Name of each block's output projection, as `encoder.get_submodule` takes it; blocks may share one.
            None if it is not found, because the values pass through something else than a linear map.
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
        found = {name: _projection(encoder.get_submodule(name), self.n_heads, self.d_head) for name in modules}
        return [found[name] for name in self.projections]


def find_heads(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int = 0, name: str = "the model") -> Heads:
    """Run an encoder on a few tokens and find its heads.

    Args:
        encoder: A model in evaluation mode.
        anatomy: Its structure, as `probing.models.anatomy.examine` returns it.
        pad_token_id: Id of the padding token.
        name: The model's name as the user typed it, for messages.

    Raises:
        UserError: If the model has no attention weights, or not exactly one attention, of equally many heads, in each
            block.
    """
    config: Any = encoder.config
    with torch.inference_mode():
        seen, is_flat = _run(encoder, anatomy, examination_inputs(encoder, pad_token_id))
    n_layers = anatomy.n_layers
    shapes = {(len(one.probabilities[0]), one.values.shape[-1]) for one in seen}
    in_order = anatomy.blocks is None or [one.block for one in seen] == list(range(1, n_layers + 1))
    sums_to_one = all(bool(((one.probabilities[0].sum(-1) - 1).abs() < 0.01).all()) for one in seen)
    names = {module: path for path, module in encoder.named_modules()}
    projections = [next(filter(one.feeds, one.calls), None) for one in seen]
    found = tuple(names[call.module] for call in projections if call)
    if not seen or len(seen) != n_layers or len(shapes) != 1 or not (in_order and sums_to_one):
        raise UserError(
            f"`--model {name}` ({config.model_type}) has {n_layers} blocks, and {len(seen)} attentions were seen in a "
            "forward pass, where one is expected in each block, with equally many heads and weights that sum to 1; "
            "choose a model with attention weights, loaded with `attn_implementation` sdpa or eager."
        )
    # Of heads and sentences in one row, only the map that reads the heads tells which are which.
    if is_flat and len(found) != n_layers:
        raise UserError(
            f"`--model {name}` ({config.model_type}): its heads cannot be told from its sentences, because no map is "
            "seen to read them; choose another model."
        )
    ((n_heads, d_head),) = shapes
    is_causal = not any(bool(one.probabilities[0].triu(1).any()) for one in seen)
    return Heads(n_layers, n_heads, d_head, is_causal, found if len(found) == n_layers else None)


def read_heads(
    encoder: nn.Module,
    heads: Heads,
    read: Callable[[int, Tensor, Tensor], None],
    inputs: Mapping[str, Tensor],
    read_mask: Callable[[Tensor | None], None] | None = None,
) -> None:
    """Run an encoder and hand over the attention of one block after another; the pass ends after the last one.

    Args:
        encoder: The encoder.
        heads: Its heads.
        read: Called with the number of the block, from 1, its attention, shape (batch, heads, from, to), in float32 or
            wider, and the heads' values, shape (batch, heads, to, d_head). Rows of padding are not defined.
        inputs: `input_ids` and `attention_mask`, shape (batch, sequence).
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
            raise Enough

    watch = AttentionWatch(see, inputs["input_ids"].shape)
    with telling_the_longest(encoder, inputs), until_enough([]), watch:
        encoder(**inputs)


class SoftmaxWatch(TorchFunctionMode):
    """Sees where torch computes a softmax or a fused attention in this thread.

    Args:
        see: Called before each.
    """

    def __init__(self, see: Callable[[], None]) -> None:
        super().__init__()
        self.see = see

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("softmax", "scaled_dot_product_attention"):
            self.see()
        return func(*args, **(kwargs or {}))


class AttentionWatch(TorchFunctionMode):
    """Sees each attention that torch computes in this thread, before it is used.

    Args:
        see: Called with the attention and the values.
        shape: The batch's (batch, sequence), by which an attention is recognised.
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
        made = func(*args, **kwargs)
        if name == "softmax" and (found := self._attention(made)) is not None:
            self.weights, self.address, self.scores = found, made.data_ptr(), args[0].reshape(found.shape)
        elif self.weights is not None and isinstance(made, Tensor) and self._reads(args):
            # In another shape or dtype, or after dropout, it is still the same attention.
            self.address = made.data_ptr() if made.numel() == self.weights.numel() else self.address
        return made

    def visible(self) -> Tensor | None:
        """Return whether each query of the attention that is being seen may see a key, in some head.

        That an attention is 0 does not tell: it may be too small for the precision. So the mask that the model gives is
        read, or recognised by the scores that it lowers.

        Returns:
            Shape (batch or 1, from, to); None if there is no mask.
        """
        if self.scores is not None:
            highest = self.scores.amax(-1, keepdim=True)
            return (self.scores > highest - _MASKED).any(1)
        if self.mask is None:
            return None
        shown = self.mask if self.mask.dtype == torch.bool else self.mask > -_MASKED
        return shown.expand(*(1,) * (4 - shown.dim()), *shown.shape).any(1)

    def _attention(self, made: Any) -> Tensor | None:
        """Return a softmax as attention, shape (batch, heads, from, to); None if it is none."""
        if not isinstance(made, Tensor) or made.shape[-2:] != (self.length, self.length):
            return None
        if made.dim() == 3 and made.shape[0] % self.n == 0:  # the heads of all sequences in one row, as in XGLM
            self.is_flat = True
            return made.view(self.n, -1, self.length, self.length)
        return made if made.dim() == 4 and made.shape[0] == self.n else None

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
        key, value = (one.repeat_interleave(n_heads // one.shape[1], dim=1) for one in (key, value))
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
    """Return the values that the attention is multiplied by, shape (batch, heads, to, d_head).

    Args:
        weights: The attention, shape (batch, heads, from, to).
        factor: The second factor of the product.
        equation: That of `einsum`, whose first term names the axes of the attention; empty for a matrix product.
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
class _Call:
    module: nn.Module
    given: Tensor


@dataclass(frozen=True)
class _Seen:
    """The attention of a block, and the calls of modules after it and before the next one."""

    block: int
    probabilities: Tensor
    values: Tensor
    calls: list[_Call]

    def feeds(self, call: _Call) -> bool:
        """Whether the module's input begins with the concatenated outputs of the heads."""
        n_heads, d_head = self.values.shape[1], self.values.shape[3]
        if call.given.dim() != 3 or call.given.shape[-1] < n_heads * d_head:
            return False
        # The first sequence has no padding.
        expected = (self.probabilities[0].to(self.values.dtype) @ self.values[0]).transpose(0, 1).flatten(1)
        found = call.given[0, :, : n_heads * d_head]
        if found.shape != expected.shape or call.given.shape[-1] % d_head:
            return False
        error = (found - expected).abs().max()
        return bool(error <= _ROUNDING[found.dtype] * expected.abs().max())


def _run(encoder: nn.Module, anatomy: Anatomy, inputs: Mapping[str, Tensor]) -> tuple[list[_Seen], bool]:
    """Run the encoder and note each attention with the calls of modules that have a matrix and come after it.

    Also return whether some attention had sequences and heads on one axis.
    """
    seen: list[_Seen] = []
    block = 0

    def enter(module: nn.Module, args: Any) -> None:
        nonlocal block
        block += 1

    def see(probabilities: Tensor, values: Tensor) -> None:
        seen.append(_Seen(block, probabilities.clone(), values.clone(), []))

    def note(module: nn.Module, args: Any, kwargs: Any) -> None:
        if seen and (given := vectors_given(args, kwargs)) is not None:
            seen[-1].calls.append(_Call(module, given.clone()))

    handles = [one.register_forward_pre_hook(enter) for one in dict.fromkeys(anatomy.blocks or ())]
    matrices = [module for module in encoder.modules() if getattr(getattr(module, "weight", None), "ndim", 0) == 2]
    handles += [module.register_forward_pre_hook(note, with_kwargs=True) for module in matrices]
    with until_enough(handles), AttentionWatch(see, inputs["input_ids"].shape) as watch:
        encoder(**inputs)
    return seen, watch.is_flat


@torch.no_grad()
def _projection(module: nn.Module, n_heads: int, d_head: int) -> OutputProjection:
    """Return the part of a linear map that reads the heads."""
    weight: Any = module.weight
    for matrix in (weight.t(), weight):  # stored by outputs, as in `nn.Linear`, or by inputs, as in GPT-2
        given = torch.ones(1, matrix.shape[0], dtype=weight.dtype, device=weight.device).cumsum(-1) / matrix.shape[0]
        zero = module(torch.zeros_like(given))
        made, expected = module(given) - zero, given @ matrix
        if made.shape == expected.shape and (made - expected).abs().max() <= _ROUNDING[weight.dtype] * (
            expected.abs().max()
        ):
            break
    else:  # an adapter beside the matrix, for example
        identity = torch.eye(weight.shape[0], dtype=weight.dtype, device=weight.device)
        matrix = module(identity) - zero
    return OutputProjection(matrix[: n_heads * d_head].unflatten(0, (n_heads, d_head)), zero[0])
