"""Finds W_Q and W_K of every head by running the encoder.

Names of modules and model families play no role. The outputs of two linear maps are the queries and the keys of a block
if the softmax of their products equals the block's attention. The scores may also contain a bias of relative positions,
one number for each offset of the key from the query; this bias is then computed from a longer sequence. A model whose
scores contain any other term, or that rotates queries and keys before it multiplies them, has no such maps and is
refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from typing import Any

import torch
from torch import Tensor, nn

from probing.errors import UserError
from probing.models.anatomy import Anatomy, until_enough
from probing.models.attention_heads import AttentionWatch, Heads
from probing.models.examination import examination_inputs, vectors_given
from probing.runtime.arithmetic import to_float64

# Largest difference of two computations of the same attention.
_ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-6, torch.bfloat16: 0.05, torch.float16: 0.01}


@dataclass(frozen=True)
class QueryKey:
    """How the heads of a block make scores of queries and keys: (x W_Q + b_Q) . (x W_K + b_K) + b(offset), x its input.

    Args:
        query: W_Q of each head times the scale of the scores, shape (heads, d_model, d_head), float64.
        query_bias: b_Q times the scale, shape (heads, d_head).
        key: W_K of each head, shape (heads, d_model, d_head).
        norm: The norm between the block's input and x; None if x is that input itself.
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
        """Return the input of the block's attention.

        Args:
            states: What enters the block, shape (n, d_model), float64.
        """
        return states if self.norm is None else self.norm(states)


@torch.inference_mode()
def find_query_keys(
    encoder: nn.Module, anatomy: Anatomy, heads: Heads, pad_token_id: int = 0, longest: int = 1
) -> list[QueryKey]:
    """Run an encoder on a few tokens and find the queries and the keys of each block.

    Args:
        encoder: A model in evaluation mode.
        anatomy: Its structure.
        heads: Its heads.
        pad_token_id: Id of the padding token.
        longest: Length of the longest sequence whose biases of relative positions are needed.

    Raises:
        UserError: If a block has no queries and keys whose products, with a bias for each offset, give its attention.
    """
    inputs = examination_inputs(encoder, pad_token_id)
    found = [_query_key(block, heads) for block in _observe(encoder, anatomy, inputs)]
    if not found or len(found) != heads.n_layers:
        raise UserError("its blocks do not pass hidden states from one to the next, so that their inputs are not known")
    if None in found:
        raise UserError(
            f"the attention of its block {found.index(None) + 1} is not that of products of queries and keys that are "
            "linear in the block's input: its queries and keys are rotated or normalised, or its scores have another "
            "term than a bias for each offset"
        )
    there = [one for one in found if one is not None]
    if not any(has_bias for _, has_bias in there):
        return [one for one, _ in there]
    # Any ordinary tokens will do.
    input_ids = inputs["input_ids"][0].repeat(-(-longest // inputs["input_ids"].shape[1]))[None, :longest]
    long = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    blocks = iter(_observe(encoder, anatomy, long, keeps_calls=False))
    return [replace(one, biases=_biases_of(next(blocks), one, heads)) for one, _ in there]


@dataclass(frozen=True)
class _Call:
    module: nn.Module
    given: Tensor
    made: Tensor


@dataclass
class _Block:
    """A block's input, the calls of modules without submodules before its attention, and the attention."""

    given: Tensor
    calls: list[_Call] = field(default_factory=list)
    probabilities: Tensor | None = None


def _observe(encoder: nn.Module, anatomy: Anatomy, inputs: dict[str, Tensor], keeps_calls: bool = True) -> list[_Block]:
    blocks: list[_Block] = []

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        given: Any = vectors_given(args, kwargs)
        blocks.append(_Block(given.clone()))

    def see(probabilities: Tensor, values: Tensor) -> None:
        if blocks:
            blocks[-1].probabilities = probabilities.clone()

    def note(module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        given = vectors_given(args, kwargs)
        if not blocks or blocks[-1].probabilities is not None:
            return
        # Copy only outputs with one vector per token: if the attention itself were copied here, `AttentionWatch` would
        # follow the copy instead.
        is_of_tokens = isinstance(made, Tensor) and made.shape[:-1] == blocks[-1].given.shape[:-1]
        if is_of_tokens and given is not None:
            blocks[-1].calls.append(_Call(module, given.clone(), made.clone()))

    handles = [one.register_forward_pre_hook(enter, with_kwargs=True) for one in dict.fromkeys(anatomy.blocks or ())]
    leaves = [module for module in encoder.modules() if keeps_calls and not any(True for _ in module.children())]
    handles += [module.register_forward_hook(note, with_kwargs=True) for module in leaves]
    with until_enough(handles), AttentionWatch(see, inputs["input_ids"].shape):
        encoder(**inputs)
    return blocks


def _query_key(block: _Block, heads: Heads) -> tuple[QueryKey, bool] | None:
    """Return the queries and keys of a block, and whether there is a bias of relative positions."""
    for has_bias, (one, other) in product((False, True), permutations(_candidates(block, heads), 2)):
        (a, columns_a), (b, columns_b) = one, other
        width = columns_a.stop - columns_a.start
        if width != columns_b.stop - columns_b.start or a.given.shape != b.given.shape:
            continue
        if not torch.equal(a.given, b.given):
            continue
        for scale in ((width // heads.n_heads) ** -0.5, 1.0):
            if _is_attention(block, a.made[..., columns_a], b.made[..., columns_b], scale, heads, has_bias):
                reached, norm = _norm_before(block, a)
                if not reached:
                    return None
                (query, query_bias), (key, _) = (
                    _of_heads(call, columns, heads.n_heads) for call, columns in (one, other)
                )
                return QueryKey(query * scale, query_bias * scale, key, norm), has_bias
    return None


def _candidates(block: _Block, heads: Heads) -> Iterator[tuple[_Call, slice]]:
    """Yield columns of outputs of linear maps that may be all queries or all keys of a block."""
    if block.probabilities is None:
        return
    for call in block.calls:
        if getattr(getattr(call.module, "weight", None), "ndim", 0) != 2:
            continue
        width, of_heads = call.made.shape[-1], heads.n_heads * heads.d_head
        if width % of_heads == 0:
            yield from ((call, slice(first, first + of_heads)) for first in range(0, width, of_heads))
        elif width % heads.n_heads == 0:
            yield call, slice(0, width)


def _is_attention(
    block: _Block, queries: Tensor, keys: Tensor, scale: float, heads: Heads, has_bias: bool
) -> bool:  # fmt: skip
    assert block.probabilities is not None
    # The first sequence has no padding.
    query, key = (to_float64(one[0]).unflatten(-1, (heads.n_heads, -1)).transpose(0, 1) for one in (queries, keys))
    scores, probabilities = scale * (query @ key.transpose(1, 2)), to_float64(block.probabilities[0])
    if has_bias:
        index = torch.arange(scores.shape[1], device=scores.device)
        scores = scores + _biases(probabilities, scores)[:, index - index[:, None] + len(index) - 1]
    if heads.is_causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    error = (scores.softmax(-1) - probabilities).abs().max()
    return bool(error <= _ROUNDING[queries.dtype])


def _biases_of(block: _Block, found: QueryKey, heads: Heads) -> Tensor:
    """Return the biases of a block, from the attention of one long sequence."""
    assert block.probabilities is not None
    x = found.inputs(block.given[0].cpu().double())
    scores = (x @ found.query + found.query_bias[:, None]) @ (x @ found.key).transpose(1, 2)
    return _biases(block.probabilities[0].cpu().double(), scores)


def _biases(probabilities: Tensor, scores: Tensor) -> Tensor:
    """Return the log of the attention minus the scores, as a mean at each offset, relative to offset 0.

    Args:
        probabilities: Attention, shape (heads, length, length).
        scores: Products of queries and keys, likewise.

    Returns:
        Shape (heads, 2 * length - 1); NaN where no key is seen.
    """
    beyond = probabilities.log() - scores
    # The softmax shifts all logs of a query's attention by the same constant, which this subtraction removes.
    beyond = beyond - beyond.diagonal(0, 1, 2)[..., None]
    beyond = beyond.where(beyond.isfinite(), torch.nan)
    length = scores.shape[1]
    return torch.stack([beyond.diagonal(at, 1, 2).nanmean(1) for at in range(1 - length, length)], dim=1)


def _norm_before(block: _Block, call: _Call) -> tuple[bool, nn.Module | None]:
    """Return whether a map reads the block's input, either directly or after one norm, and this norm, if any."""
    if torch.equal(call.given, block.given):
        return True, None
    for other in block.calls:
        same = other.given.shape == block.given.shape == other.made.shape
        if same and torch.equal(other.given, block.given) and torch.equal(other.made, call.given):
            return True, _in_float64(other.module)
    return False, None


def _of_heads(call: _Call, columns: slice, n_heads: int) -> tuple[Tensor, Tensor]:
    """Return the matrix of each head, shape (heads, d_model, d_head), and its bias, shape (heads, d_head), float64."""
    module, width = _in_float64(call.module), call.given.shape[-1]
    bias = module(torch.zeros(1, width, dtype=torch.float64))[0]
    matrix = module(torch.eye(width, dtype=torch.float64)) - bias
    return (
        matrix[:, columns].unflatten(1, (n_heads, -1)).transpose(0, 1).contiguous(),
        bias[columns].unflatten(0, (n_heads, -1)),
    )


def _in_float64(module: nn.Module) -> nn.Module:
    return deepcopy(module).cpu().double()
