"""What the linear maps of each block receive and make in one forward pass, and which value is computed from which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from probing.models.anatomy import Anatomy
from probing.models.examination import examination_inputs, vectors_given, vectors_in

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


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
