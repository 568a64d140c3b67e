"""The norms of a model, h = gain (x - m) / sigma + bias (m = 0 in an RMS norm), and the parts of post-LN blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from probing.models.anatomy import Anatomy
from probing.models.examination import run, vectors_given, vectors_in

if TYPE_CHECKING:
    from torch import Tensor, nn


# Largest deviation of a recomputed output from the module's own, in multiples of its root mean square.
_ROUNDING = 1e-4
# Attributes that hold epsilon in the norms of torch and of transformers.
_EPSILONS = ("eps", "variance_epsilon", "epsilon")


def is_norm(module: nn.Module, d_model: int) -> bool:
    """Whether a module's own parameters are a gain over the neurons and at most a bias."""
    own = dict(module.named_parameters(recurse=False))
    return "weight" in own and not set(own) - {"weight", "bias"} and all(p.shape == (d_model,) for p in own.values())


@dataclass(frozen=True)
class Norm:
    """How a module normalises vectors.

    Args:
        gain: Gain of each neuron, shape (d_model,), float64; the module's weight, plus 1 if the module adds 1 to it.
        bias: Bias of each neuron, shape (d_model,), float64; 0 where the module has none.
        centres: Whether the mean of the neurons is subtracted, as in LayerNorm.
        epsilon: What is added to the variance, or to the mean square.
    """

    gain: Tensor
    bias: Tensor
    centres: bool
    epsilon: float

    def parts(self, given: Tensor) -> tuple[Tensor, Tensor]:
        """Return x / sigma and m / sigma of vectors.

        Args:
            given: Vectors, shape (..., d_model), float64.

        Returns:
            Shapes (..., d_model) and (..., 1).
        """
        mean = given.mean(-1, keepdim=True) if self.centres else given.new_zeros((*given.shape[:-1], 1))
        sigma = ((given - mean).square().mean(-1, keepdim=True) + self.epsilon).sqrt()
        return given / sigma, mean / sigma

    def __call__(self, given: Tensor) -> Tensor:
        """Return the output for vectors in float64, shape (..., d_model)."""
        scaled, mean = self.parts(given)
        return self.gain * (scaled - mean) + self.bias


def norm_of(module: Any, given: Tensor, made: Tensor) -> Norm | None:
    """Return how a module has normalised its input; None if it computes anything else.

    Args:
        module: A module for which `is_norm` holds.
        given: Its input, shape (..., d_model), without padding.
        made: Its output for that.
    """
    weight, bias = module.weight.detach().double(), getattr(module, "bias", None)
    bias = weight.new_zeros(weight.shape) if bias is None else bias.detach().double()
    epsilons = [float(getattr(module, name)) for name in _EPSILONS if isinstance(getattr(module, name, None), float)]
    for centres, added, epsilon in product((True, False), (0.0, 1.0), epsilons):  # Gemma's gain is 1 + weight
        norm = Norm(weight + added, bias, centres, epsilon)
        error = (norm(given.double()) - made.double()).abs().max()
        if error <= _ROUNDING * made.double().square().mean().sqrt():
            return norm
    return None


# Length of the two sequences that the model is run on, and number of padding tokens at the end of the second.
_LENGTH, _PADDING = 9, 2
# Range and step in which the largest slope of an activation function is sought; beyond this range, the activation
# functions of transformers are straight lines.
_RANGE, _STEP = 12.0, 1e-3


@dataclass(frozen=True)
class Block:
    """One post-LN block: X -> H = LN1(X + sum_k A_k X W_VO,k + b) -> LN2(H + act(H W_1 + b_1) W_2 + b_2).

    Args:
        norm_1: LN1, after attention.
        norm_2: LN2, whose output is the output of the block.
        value: Projection of all heads' values, weight of shape (n_heads d_head, d_model).
        output: Projection of the heads' outputs, weight of shape (d_model, n_heads d_head).
        first: W_1, weight of shape (d_ff, d_model).
        second: W_2, weight of shape (d_model, d_ff).
        n_heads: Number of heads.
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
    """The model has blocks that are not post-LN; the message says how they differ."""


@dataclass(frozen=True)
class _Call:
    """Input and output of one call of a module, for both sequences, shape (2, length, width)."""

    module: Any
    given: Tensor
    made: Tensor


@torch.inference_mode()
def find_blocks(encoder: nn.Module, anatomy: Anatomy, pad_token_id: int = 0) -> list[Block]:
    """Find the parts of each block of a post-LN encoder.

    Args:
        encoder: The model, in evaluation mode and in float32. Its attention implementation is set to `eager`, the only
            one that returns attention matrices, and stays so.
        anatomy: Its structure, as `probing.models.anatomy.examine` returns it.
        pad_token_id: Id of the padding token.

    Raises:
        NotPostNorm: If a block computes anything else.
    """
    states, attentions, calls = _run(encoder, pad_token_id)
    ends = [-1]
    for layer, state in enumerate(states):
        made = [i for i, call in enumerate(calls) if isinstance(call.module, nn.LayerNorm) and _same(call.made, state)]
        if layer and not made:
            raise NotPostNorm(f"the output of block {layer} is not the output of a LayerNorm")
        ends.append(made[-1] if made else -1)
    return [
        _block(calls[start + 1 : end + 1], states[layer - 1], attentions[layer - 1], layer)
        for layer, (start, end) in enumerate(pairwise(ends[1:]), start=1)
    ]


def run_with_attention(encoder: nn.Module, **inputs: Tensor) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    """Run an encoder and return its hidden states and the attention matrices of each block.

    Raises:
        NotPostNorm: If the encoder returns no attention matrices.
    """
    output = run(encoder, inputs, output_hidden_states=True, output_attentions=True)
    states, attentions = output.states, output.attentions
    square = (inputs["input_ids"].shape[1],) * 2  # windowed attention gives matrices of another shape
    whole = all(isinstance(a, Tensor) and a.dim() == 4 and a.shape[2:] == square for a in attentions)
    if len(attentions) != len(states) - 1 or not whole:
        raise NotPostNorm("the model returns no attention matrices")
    return states, attentions


def _run(encoder: nn.Module, pad_token_id: int) -> tuple[Sequence[Tensor], Sequence[Tensor], list[_Call]]:
    """Run the encoder on two sequences, one padded; return hidden states, attention, and module calls in order."""
    config: Any = encoder.config
    device = next(encoder.parameters()).device
    input_ids = (pad_token_id + 5 + torch.arange(2 * _LENGTH, device=device).view(2, _LENGTH)) % config.vocab_size
    mask = torch.ones_like(input_ids)
    input_ids[1, -_PADDING:], mask[1, -_PADDING:] = pad_token_id, 0
    calls: list[_Call] = []
    handles = [
        module.register_forward_hook(_noting(calls), with_kwargs=True)
        for module in encoder.modules()
        if isinstance(module, nn.LayerNorm | nn.Linear)
    ]
    try:
        if hasattr(encoder, "set_attn_implementation"):
            encoder.set_attn_implementation("eager")  # type: ignore[operator]
        return *run_with_attention(encoder, input_ids=input_ids, attention_mask=mask), calls
    except NotPostNorm:
        raise
    except Exception as error:  # the errors of families without attention matrices vary
        raise NotPostNorm(f"the model returns no attention matrices ({type(error).__name__})") from None
    finally:
        for handle in handles:
            handle.remove()


def _noting(calls: list[_Call]) -> Callable[..., None]:
    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        given, made = vectors_given(args, kwargs), vectors_in(output)
        if given is not None and made is not None and given.dim() == 3:
            calls.append(_Call(module, given, made))

    return note


def _block(calls: Sequence[_Call], entered: Tensor, attention: Tensor, layer: int) -> Block:
    """Find the parts of a block among the calls of its modules; the last call is LN2."""
    norms = [i for i, call in enumerate(calls) if isinstance(call.module, nn.LayerNorm)]
    if len(norms) < 2:
        raise NotPostNorm(f"block {layer} has no LayerNorm after attention")
    norm_1, norm_2 = (calls[i] for i in norms[-2:])
    of_attention, of_feed_forward = calls[: norms[-2]], calls[norms[-2] + 1 : -1]
    output = _adding(of_attention, norm_1.given - entered, layer, "attention")
    second = _adding(of_feed_forward, norm_2.given - norm_1.made, layer, "its feed-forward part")
    n_heads = attention.shape[1]

    def heads_of(values: Tensor) -> Tensor:
        """Return the outputs of the heads for these values."""
        parted = values.unflatten(-1, (n_heads, -1)).transpose(1, 2)
        return (attention @ parted).transpose(1, 2).flatten(2)

    value = next(
        (
            call.module
            for call in of_attention
            if isinstance(call.module, nn.Linear)
            and call.made.shape == output.given.shape and call.made.shape[-1] % n_heads == 0
            and _close(call.given, entered) and _close(heads_of(call.made), output.given)
        ),
        None,
    )  # fmt: skip
    if value is None:
        raise NotPostNorm(f"in block {layer} the attention output is not a weighted average of projected values")
    for call in of_feed_forward:
        is_first = isinstance(call.module, nn.Linear) and _close(call.given, norm_1.made)
        if is_first and (slope := _slope(call.made, second.given)) is not None:
            first: Any = call.module
            return Block(norm_1.module, norm_2.module, value, output.module, first, second.module, n_heads, slope)
    raise NotPostNorm(f"in block {layer} the feed-forward part is not two matrices around an activation function")


def _adding(calls: Sequence[_Call], added: Tensor, layer: int, what: str) -> _Call:
    """Return the projection whose output is what a part of a block adds to the residual stream."""
    for call in reversed(calls):
        if isinstance(call.module, nn.Linear) and _close(call.made, added):
            return call
    raise NotPostNorm(f"in block {layer} the term that {what} adds is not the output of a projection")


def _slope(given: Tensor, made: Tensor) -> float | None:
    """Return the largest slope of the activation function that maps `given` to `made`; None if there is none."""
    if given.shape != made.shape:
        return None
    return next((slope for function, slope in activations() if _close(function(given), made)), None)


@cache
def activations() -> list[tuple[Callable[[Tensor], Tensor], float]]:
    """Return the activation functions of transformers that have no parameters, each with its largest slope."""
    from transformers.activations import ACT2FN

    found = []
    for name in ("gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "quick_gelu", "relu", "silu", "tanh", "mish"):
        if name in ACT2FN:
            function = ACT2FN[name]
            found.append((function, largest_slope(function)))
    return found


def largest_slope(function: Callable[[Tensor], Tensor]) -> float:
    """Return the largest magnitude of the slope of an activation function, to 1e-6: 1.1289 for GELU, at sqrt 2."""
    with torch.inference_mode(False), torch.enable_grad():
        x = torch.arange(-_RANGE, _RANGE, _STEP, dtype=torch.float64).requires_grad_()
        (slopes,) = torch.autograd.grad(function(x).sum(), x)
    return float(slopes.abs().max())


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


def _close(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal except for rounding, outside padding."""
    if a.shape != b.shape:
        return False
    kept = torch.ones(a.shape[:2], dtype=torch.bool, device=a.device)
    kept[1, -_PADDING:] = False
    return bool((a[kept] - b[kept]).abs().max() <= _ROUNDING * b[kept].square().mean().sqrt())
