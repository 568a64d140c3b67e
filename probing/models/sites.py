"""Finds the units of the MLP and the outputs of the heads inside the blocks of an encoder, by running it.

Names play no role; the number of heads is read from the configuration, and checked. Both sites are the input of a
linear map, and what a map computes is read from gradients during one forward pass. A gradient is exactly 0 where there
is no path, so the rules are about structure and need no tolerance:

- The attention output projection is the first linear map of a block whose input for a token depends on other tokens,
  after a softmax: recurrent blocks (RecurrentGemma, Mamba 2) have no attention. The inputs of the maps before it
  (queries, keys, values) depend on their own token only. The projection is accepted only if its input is a
  concatenation of heads. The query of a head decides which tokens all neurons of this head read, and it affects no
  other head. So both halves of every slice, one slice per head, must be computed from outputs of earlier maps that the
  two halves share and from which no other slice is computed. A norm over the queries of all heads (OLMo 2) makes every
  head depend on all queries; then the input must be attention times values.
- The second matrix of the MLP is the linear map whose input has, as its i-th unit, a nonlinear function of the i-th
  output of an earlier map (of two outputs where there is a gate) at the same token and of nothing else that this map
  computes. Blocks with experts, stacks of matrices of which each token uses some, have none.

Either must write to the residual stream: its output has the width of the hidden state, and for each token its input
changes the block's output for this token alone. Where no map or more than one fits, the model is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from probing.errors import UserError
from probing.models.anatomy import Anatomy, Enough, hidden_states, until_enough
from probing.models.examination import LENGTH, examination_inputs, telling_the_longest, vectors_given, vectors_in
from probing.models.layers import SiteName

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# --------------------------------------------------------------------------------------------------------------------
# What the linear maps of each block receive and make in one forward pass, and which value is computed from which.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call of a linear map, with its input and its output, whose tokens may be in one row (OPT)."""

    module: nn.Module
    given: Tensor
    made: Tensor


@dataclass
class Block:
    """One call of a block: its number from 1, its input and output, and the calls of linear maps in it, in order.

    `attended` is the number of calls before its first softmax or fused attention; None without any.
    """

    number: int
    module: nn.Module
    given: Tensor
    made: Tensor | None = None
    calls: list[Call] = field(default_factory=list)
    attended: int | None = None

    @property
    def rows(self) -> torch.Size:
        """Shape of all tokens, (batch, sequence)."""
        return self.given.shape[:2]

    def by_token(self, values: Tensor) -> Tensor | None:
        """Return values of all tokens, shape (batch, sequence, width); None if there is not one vector per token."""
        if values.shape[:-1] not in (self.rows, (self.rows.numel(),)):
            return None
        return values.view(*self.rows, -1)

    def writes_to_the_residual_stream(self, call: Call) -> bool:
        """Whether the map's input changes, for each token, the block's output for this token and for no other."""
        if self.made is None or call.made.shape[-1] != self.given.shape[-1] or self.by_token(call.given) is None:
            return False
        if sum(other.module is call.module for other in self.calls) > 1:
            return False
        token = self.rows[1] // 2
        (flat,) = gradients(self.made[0, token], [call.given])
        gradient = flat.view(*self.rows, -1)
        here = gradient[0, token].clone()
        gradient[0, token] = 0
        return bool(here.any()) and not bool(gradient.any())


def run_blocks(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int) -> list[Block]:
    """Run the encoder on two sequences and record its blocks with the gradients' graph."""
    from probing.models.attention_heads import SoftmaxWatch

    blocks: list[Block] = []
    inside: list[Block] = []  # the block that is running, if any

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        given: Any = vectors_given(args, kwargs)
        if not given.requires_grad:
            given.requires_grad_()
        inside[:] = [Block(len(blocks) + 1, module, given)]
        blocks.append(inside[0])

    def leave(module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        blocks[-1].made = vectors_in(made)
        inside.clear()

    def attend() -> None:
        if inside and inside[0].attended is None:
            inside[0].attended = len(inside[0].calls)

    def note(module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        given: Any = vectors_given(args, kwargs)
        if inside and _is_linear(module, given, made):
            if not made.requires_grad:
                made.requires_grad_()
            inside[0].calls.append(Call(module, given, made))

    assert anatomy.blocks is not None
    handles = []
    for block in dict.fromkeys(anatomy.blocks):
        handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
        handles.append(block.register_forward_hook(leave, with_kwargs=True))
    matrices = [module for module in encoder.modules() if _weight_of(module) is not None]
    handles += [module.register_forward_hook(note, with_kwargs=True) for module in matrices]
    try:
        with SoftmaxWatch(attend):
            encoder(**examination_inputs(encoder, pad_token_id))
    finally:
        for handle in handles:
            handle.remove()
    return blocks


def gradients(value: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of a randomly weighted sum; 0 where the value does not depend on an input."""
    import torch

    if not value.requires_grad:
        return [torch.zeros_like(one) for one in inputs]
    # With equal weights the gradient through a normalisation would be 0: its outputs always have the same sum.
    total = (value.float() * random_weights(value.shape, value.device)).sum()
    found = torch.autograd.grad(total, list(inputs), retain_graph=True, allow_unused=True)
    return [
        torch.zeros_like(one) if gradient is None else gradient.detach().clone()
        for one, gradient in zip(inputs, found, strict=True)
    ]


def random_weights(shape: Sequence[int], device: torch.device) -> Tensor:
    """Return normal random numbers, always the same for a shape."""
    import torch

    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(device)


def _weight_of(module: nn.Module) -> Tensor | None:
    """Return a module's weight if it is a matrix."""
    weight = getattr(module, "weight", None)
    return weight if getattr(weight, "ndim", 0) == 2 else None


def _is_linear(module: nn.Module, given: Any, made: Any) -> bool:
    """Whether a call applied the module's matrix, of either orientation, to vectors."""
    import torch

    weight = _weight_of(module)
    tensors = isinstance(given, torch.Tensor) and isinstance(made, torch.Tensor)
    if weight is None or not tensors or not given.is_floating_point() or not given.dim():
        return False
    return sorted(weight.shape) == sorted((given.shape[-1], made.shape[-1])) and given.shape[:-1] == made.shape[:-1]


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
    """Run an encoder on a few tokens and find the linear map of each block that reads the site's neurons.

    Args:
        encoder: A model in evaluation mode, in float32 or bfloat16 (gradients overflow in float16).
        anatomy: Its structure, as `probing.models.anatomy.examine` returns it.
        site: `mlp` or `attention`.
        pad_token_id: Id of the padding token.
        name: The model's name as the user typed it, for messages.

    Raises:
        UserError: If the model has no such site, or if it cannot be told without guessing.
    """
    import torch

    config: Any = encoder.config
    n_heads = getattr(config, "num_attention_heads", None) if site == "attention" else None
    try:
        if anatomy.blocks is None:
            raise _NotFound("its blocks do not pass the hidden states from one to the next")
        with torch.inference_mode(False), torch.enable_grad():
            blocks = run_blocks(encoder, anatomy, pad_token_id)
            if site == "mlp":
                calls = [_mlp(block) for block in blocks]
            else:
                seen = _seen_projections(encoder, anatomy, n_heads, pad_token_id)
                calls = [_attention(block, n_heads, seen) for block in blocks]
        widths = {call.given.shape[-1] for call in calls}
        if len(widths) != 1:
            raise _NotFound(f"its blocks have different numbers of them ({', '.join(map(str, sorted(widths)))})")
    except _NotFound as error:
        what = {"mlp": "units of an MLP", "attention": "outputs of attention heads"}[site]
        raise UserError(
            f"`--site {site}`: the {what} cannot be told in {name or 'the model'} ({config.model_type}): {error}; "
            "use `--site residual` or another model."
        ) from None
    name_of = {module: path for path, module in encoder.named_modules()}
    return Site(tuple(name_of[call.module] for call in calls), widths.pop(), n_heads)


def activations(encoder: nn.Module, anatomy: Anatomy, layers: Sequence[int], **inputs: Tensor) -> dict[int, Tensor]:
    """Run the blocks up to the highest layer and return the neurons of the anatomy's site.

    Args:
        encoder: The encoder.
        anatomy: Its structure; `site_modules` names the maps whose inputs are read, none for hidden states.
        layers: Layer numbers; layer k of `mlp` and `attention` is inside block k, counted from 1.
        inputs: `input_ids` and `attention_mask`, shape (batch, sequence).

    Returns:
        For each layer, shape (batch, sequence, width), in the encoder's dtype.
    """
    if not anatomy.site_modules:
        return hidden_states(encoder, anatomy, layers, **inputs)
    found = [_submodule(encoder, name) for name in anatomy.site_modules]
    highest, block = max(layers), 0
    captured: dict[int, Any] = {}

    def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
        nonlocal block
        block += 1

    def capture(module: nn.Module, args: Any, kwargs: Any) -> None:
        if block in layers and module is found[block - 1]:
            captured[block] = vectors_given(args, kwargs)
            if block == highest:
                raise Enough

    assert anatomy.blocks is not None
    handles = [one.register_forward_pre_hook(enter, with_kwargs=True) for one in dict.fromkeys(anatomy.blocks)]
    handles += [one.register_forward_pre_hook(capture, with_kwargs=True) for one in dict.fromkeys(found)]
    with telling_the_longest(encoder, inputs), until_enough(handles):
        encoder(**inputs)
    n, length = inputs["input_ids"].shape
    # Some families put all tokens in one row (OPT), and some pad sequences inside (Longformer).
    return {k: captured[k].view(n, -1, captured[k].shape[-1])[:, :length] for k in layers}


def _submodule(encoder: nn.Module, name: str) -> nn.Module:
    try:
        return encoder.get_submodule(name)
    except AttributeError:
        raise UserError(
            f"`--cache`: the activations were cached with another version of transformers, whose model had a part "
            f"{name}; name another folder, or remove this entry."
        ) from None


class _NotFound(Exception):
    """A block does not have the site; the message says why."""


def _seen_projections(encoder: nn.Module, anatomy: Anatomy, n_heads: int | None, pad_token_id: int) -> list[nn.Module]:
    """Return the map of each block that is seen to read attention times values, in so many heads; none if not seen."""
    import torch

    from probing.models.attention_heads import find_heads

    try:
        with torch.inference_mode():
            heads = find_heads(encoder, anatomy, pad_token_id)
    except UserError:
        return []
    return [encoder.get_submodule(name) for name in heads.projections or () if heads.n_heads == n_heads]


def _attention(block: Block, n_heads: int | None, seen: Sequence[nn.Module]) -> Call:
    """Return the call of a block's attention output projection.

    Args:
        block: The block.
        n_heads: Number of heads.
        seen: The map of each block that is known to read heads, where gradients do not tell them: a norm over the
            queries of all heads (OLMo 2) makes each head depend on the maps of all.

    Raises:
        _NotFound: If there is none, or if its input is not a concatenation of heads.
    """
    number, call = block.number, _first_mixing(block)
    if call is None or not block.writes_to_the_residual_stream(call):
        what = "the first linear map that reads other tokens is not one that adds its output to the residual stream"
        raise _NotFound(f"in block {number}, {what}")
    if block.attended is None or block.attended > block.calls.index(call):
        raise _NotFound(f"block {number} first mixes tokens by something else than attention, a softmax over them")
    earlier = [other.made for other in block.calls[: block.calls.index(call)]]
    if not n_heads:
        raise _NotFound("its configuration has no `num_attention_heads`")
    is_seen = len(seen) >= number and seen[number - 1] is call.module
    if call.given.shape[-1] % n_heads or not (is_seen or _are_heads(call.given, earlier, n_heads)):
        raise _NotFound(f"in block {number}, what the output projection reads is not {n_heads} independent heads")
    return call


def _mlp(block: Block) -> Call:
    """Return the call of the second matrix of a block's MLP.

    Raises:
        _NotFound: If there is none or more than one.
    """
    if any(_is_stack(module) for module in block.module.modules()):
        raise _NotFound(f"block {block.number} has experts, of which each token uses some, and no units that all use")
    attention = _first_mixing(block)
    readers = [
        call
        for i, call in enumerate(block.calls)
        if call is not attention and any(_is_activation(block, call.given, earlier.made) for earlier in block.calls[:i])
    ]
    found = [call for call in readers if block.writes_to_the_residual_stream(call)]
    if len(readers) > 1 and not found:  # MobileBERT adds them to a narrower stream inside the block
        raise _NotFound(
            f"block {block.number} has {len(readers)} linear maps that read units after an activation function, and "
            "none of them adds its output to the residual stream itself"
        )
    if len(found) != 1:
        raise _NotFound(
            f"block {block.number} has {len(found)} linear maps that read units after an activation function and add "
            "their output to the residual stream, where 1 is expected"
        )
    return found[0]


def _first_mixing(block: Block) -> Call | None:
    """Return the first call of a linear map that reads other tokens of the block's input than its own."""
    # In a causal model, only the last token can read all others. What a model pads by itself (Longformer) reads none.
    last = min(block.rows[1], LENGTH) - 1
    for call in block.calls:
        if (given := block.by_token(call.given)) is not None:
            (gradient,) = gradients(given[0, last], [block.given])
            if gradient[0, :last].any():
                return call
    return None


def _are_heads(values: Tensor, earlier: Sequence[Tensor], n_heads: int) -> bool:
    """Whether slices of a map's input are heads: both halves of a slice share sources that no other slice has.

    Args:
        values: The map's input, shape (batch, sequence, n_heads * head width).
        earlier: Outputs of the earlier maps of the block, of any shape: the sources.
        n_heads: Number of slices.
    """
    import torch

    width = values.shape[-1] // n_heads
    if width < 2 or not earlier:
        return False
    halves = values.unflatten(-1, (n_heads, width)).split([width // 2, width - width // 2], dim=-1)

    def sources(part: Tensor) -> Tensor:
        """Return which outputs of the earlier maps a part is computed from, one mark for each, bool."""
        return torch.cat([(gradient != 0).flatten(0, -2).any(0) for gradient in gradients(part, earlier)])

    first, second = (torch.stack([sources(half[..., head, :]) for head in range(n_heads)]) for half in halves)
    is_only = (first | second).sum(0) == 1
    return bool((first & second & is_only).any(1).all())


def _is_stack(module: nn.Module) -> bool:
    """Whether a module's own parameters are stacks of matrices, as those of the experts of a mixture are."""
    from torch import nn

    own = module.parameters(recurse=False)
    return not isinstance(module, nn.Conv1d) and any(one.ndim == 3 and min(one.shape) > 1 for one in own)


def _is_activation(block: Block, units: Tensor, made: Tensor) -> bool:
    """Whether unit i is a nonlinear function of output i of a map, or of outputs i and i + width, at the same token.

    Args:
        block: The block that is running.
        units: Input of a later map, shape (batch, sequence, width).
        made: Output of an earlier map.
    """
    import torch

    width = units.shape[-1]
    by_token = block.by_token(units)
    if by_token is None or made.shape[:-1] != units.shape[:-1] or made.shape[-1] not in (width, 2 * width):
        return False
    if not units.requires_grad:  # computed from no map, such as angles
        return False
    generator = torch.Generator().manual_seed(0)
    chosen = (torch.rand(width, generator=generator) < 0.5).to(units.device)
    weight = chosen * random_weights((width,), units.device)
    (gradient,) = torch.autograd.grad((units.float() * weight).sum(), made, retain_graph=True, allow_unused=True)
    if gradient is None:
        return False
    by_unit = gradient.unflatten(-1, (-1, width)).float()
    slopes_differ = (by_unit != by_unit[:1, :1]).any()
    # A dependence on another token or on another unit cannot come from an activation function.
    token = block.rows[1] // 2
    (flat,) = gradients(by_token[0, token], [made])
    at_token = flat.view(*block.rows, -1)
    at_token[0, token] = 0
    return bool(slopes_differ) and not bool(by_unit[..., ~chosen].any()) and not bool(at_token.any())
