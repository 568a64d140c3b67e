"""Finds the layers of an encoder by running it, and runs it up to the highest layer requested."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from probing.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.utils.hooks import RemovableHandle

# Length of the two sequences that an encoder is examined with, and number of padding tokens in the second one. The
# length is odd to reveal families that pad their input to a multiple of some number.
_LENGTH, _PADDING = 11, 4
# Largest relative change of hidden states through padding that still counts as rounding.
_ROUNDING = {"float32": 1e-5, "bfloat16": 0.03, "float16": 0.005}
# Number of token type ids that is assumed if the configuration gives none. XLNet needs no limit: it only compares
# whether two tokens have the same type.
_ANY_TYPE = 2**7


@dataclass(frozen=True)
class Anatomy:
    """The structure of an encoder, as far as it concerns hidden states.

    Args:
        blocks: Modules whose k-th call, counted over all of them, receives layer k: a list of blocks, or a single block
            that is called repeatedly. None if the model has no such list; a forward pass then runs to the end.
        n_layers: Number of blocks; layers are numbered 0..n_layers.
        padding_is_neutral: Whether a sentence has the same hidden states with and without padding. Families that mix
            neighbouring tokens by a convolution or a Fourier transform do not.
        position_table: The absolute position embedding; None if positions are relative or rotary.
        site_modules: Name of the linear map inside each block whose input is read in place of hidden states; empty for
            hidden states. See `probing.models.sites`.
    """

    blocks: tuple[nn.Module, ...] | None
    n_layers: int
    padding_is_neutral: bool
    position_table: nn.Module | None = None
    site_modules: tuple[str, ...] = ()


def examine(encoder: nn.Module, pad_token_id: int = 0, name: str = "the model") -> Anatomy:
    """Run an encoder on a few tokens and find its layers.

    A list of modules counts as the blocks if their inputs, call by call, equal the hidden states that the model
    returns. Names and model families play no role.

    Args:
        encoder: A model in evaluation mode, on any device.
        pad_token_id: Id of the padding token.
        name: The model's name as the user typed it, for messages.

    Raises:
        UserError: If the model does not run on tokens alone, or does not return hidden states of a single width, one
            for the embeddings and one per block.
    """
    import torch

    with torch.inference_mode():
        inputs = examination_inputs(encoder, pad_token_id)
        received, handles = _record_calls(encoder)
        embedded, more_handles = _record_embeddings(encoder)
        try:
            output = encoder(**inputs, output_hidden_states=True)
        except Exception as error:  # for example a model that needs images, or returns no hidden states
            raise UserError(
                f"`--model {name}` ({encoder.config.model_type}) does not run on `input_ids` and `attention_mask` "  # type: ignore[union-attr]
                f"({type(error).__name__}: {error}); choose a text model."
            ) from None
        finally:
            for handle in handles + more_handles:
                handle.remove()
        states = getattr(output, "hidden_states", None)
        config: Any = encoder.config
        n_layers = int(config.num_hidden_layers)
        if not states or len(states) != n_layers + 1 or len({state.shape for state in states}) > 1:
            shapes = sorted({tuple(state.shape[2:]) for state in states or ()})
            raise UserError(
                f"`--model {name}` ({config.model_type}) has {n_layers} blocks and returns {len(states or ())} "
                f"hidden states of widths {shapes}, where {n_layers + 1} of one width are expected; choose another."
            )
        last = torch.equal(output.last_hidden_state, states[-1])
        found = (calls for calls in received if last and _receives(calls, states))
        blocks = next((tuple(module for module, _ in calls) for calls in found), None)
        position_table = next((module for module, rows in embedded if _tells_positions(rows)), None)
        return Anatomy(blocks, n_layers, _padding_is_neutral(encoder, inputs, states), position_table)


def hidden_states(encoder: nn.Module, anatomy: Anatomy, layers: Sequence[int], **inputs: Tensor) -> dict[int, Tensor]:
    """Run the blocks below the highest layer and return the requested hidden states.

    Layer 0 is the embedding output, layer k < n_layers the residual stream that enters block k + 1, and layer n_layers
    the model's `last_hidden_state` (after a final norm if the family has one).

    Args:
        encoder: The encoder.
        anatomy: Its structure, as `examine` returns it.
        layers: Layer numbers.
        inputs: `input_ids` and `attention_mask`, shape (batch, sequence).

    Returns:
        For each layer, shape (batch, sequence, d_model), in the encoder's dtype.
    """
    if anatomy.blocks is None:
        states = encoder(**inputs, output_hidden_states=True).hidden_states
        return {k: states[k] for k in layers}
    highest, n_calls = max(layers), 0
    captured: dict[int, Tensor] = {}

    def capture(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal n_calls
        if n_calls in layers:
            captured[n_calls] = _first_input(args, kwargs)
        if n_calls == highest:
            raise Enough
        n_calls += 1

    handles = [block.register_forward_pre_hook(capture, with_kwargs=True) for block in dict.fromkeys(anatomy.blocks)]
    with until_enough(handles):
        captured[anatomy.n_layers] = encoder(**inputs).last_hidden_state
    return {k: captured[k] for k in layers}


class Enough(Exception):
    """Ends a forward pass once the highest layer requested is known."""


@contextmanager
def until_enough(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Run a forward pass that a hook may end by raising `Enough`, and remove the hooks.

    Args:
        handles: The hooks of the pass.
    """
    from probing.runtime.products import fast_linear_maps

    try:
        with fast_linear_maps():
            yield
    except Enough:
        pass
    finally:
        for handle in handles:
            handle.remove()


_Call = tuple["nn.Module", Any]


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replace a module's `forward`; on exit the module has the attributes that it had."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


def examination_inputs(encoder: nn.Module, pad_token_id: int) -> dict[str, Tensor]:
    """Return two sequences of ordinary tokens, the second one padded."""
    import torch

    config: Any = encoder.config
    device = next(encoder.parameters()).device
    # Most families give special tokens the lowest ids; any other id will do.
    input_ids = (pad_token_id + 5 + torch.arange(2 * _LENGTH, device=device).view(2, _LENGTH)) % config.vocab_size
    attention_mask = torch.ones_like(input_ids)
    input_ids[1, -_PADDING:], attention_mask[1, -_PADDING:] = pad_token_id, 0
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def n_token_types(encoder: nn.Module, pad_token_id: int = 0) -> int:
    """Return how many token type ids an encoder tells apart, for the two sentences of a pair; 0 if it takes none.

    The argument `token_type_ids` alone does not show this: RoBERTa has a single type, and GPT-2 treats a type as a
    token id, whose embedding it adds. So the encoder is also run with all types 0, which must give the same hidden
    states as no types.

    Args:
        encoder: A model in evaluation mode, on any device.
        pad_token_id: Id of the padding token.
    """
    import torch

    config: Any = encoder.config
    n_types = int(getattr(config, "type_vocab_size", _ANY_TYPE))
    if "token_type_ids" not in signature(encoder.forward).parameters or n_types < 2:
        return 0
    inputs = examination_inputs(encoder, pad_token_id)
    alone = {name: values[:1] for name, values in inputs.items()}  # the first sequence has no padding
    with torch.inference_mode():
        plain = encoder(**alone).last_hidden_state
        zeros = encoder(**alone, token_type_ids=torch.zeros_like(alone["input_ids"])).last_hidden_state
    return n_types if _change(zeros, plain) <= _ROUNDING[str(plain.dtype).removeprefix("torch.")] else 0


def _record_calls(encoder: nn.Module) -> tuple[list[list[_Call]], list[Any]]:
    """Record the inputs of the members of every list of modules; return the calls of each list, outermost first."""
    from torch import nn

    received: list[list[_Call]] = []
    handles = []
    for modules in encoder.modules():
        if isinstance(modules, nn.ModuleList):
            calls: list[_Call] = []

            def note(module: nn.Module, args: Any, kwargs: Any, calls: list[_Call] = calls) -> None:
                calls.append((module, _first_input(args, kwargs)))

            handles += [module.register_forward_pre_hook(note, with_kwargs=True) for module in modules]
            received.append(calls)
    return received, handles


def _record_embeddings(encoder: nn.Module) -> tuple[list[tuple[nn.Module, Tensor]], list[Any]]:
    """Record the output of every embedding."""
    from torch import nn

    embedded: list[tuple[nn.Module, Tensor]] = []
    embeddings = [module for module in encoder.modules() if isinstance(module, nn.Embedding)]

    def note(module: nn.Module, args: Any, rows: Tensor) -> None:
        embedded.append((module, rows))

    return embedded, [module.register_forward_hook(note) for module in embeddings]


def _tells_positions(rows: Tensor) -> bool:
    """Whether the rows for two sequences of different tokens are the same in both and differ between positions."""
    if rows.shape[:-1] not in ((_LENGTH,), (1, _LENGTH), (2, _LENGTH)):
        return False
    first, last = rows.view(-1, *rows.shape[-2:])[[0, -1], : _LENGTH - _PADDING]
    return bool((first == last).all() and (first[0] != first[1]).any())


def _first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0] if args else kwargs.get("hidden_states")


def _receives(calls: Sequence[_Call], states: Sequence[Tensor]) -> bool:
    """Whether the inputs of a list of modules are, call by call, all hidden states but the last."""
    import torch

    return len(calls) == len(states) - 1 and all(
        isinstance(value, torch.Tensor) and value.shape == state.shape and torch.equal(value, state)
        for (_, value), state in zip(calls, states, strict=False)
    )


def _padding_is_neutral(encoder: nn.Module, inputs: dict[str, Tensor], states: Sequence[Tensor]) -> bool:
    """Whether the padded sequence has the same hidden states without padding, in every layer."""
    alone = {name: values[1:, :-_PADDING] for name, values in inputs.items()}
    by_itself = encoder(**alone, output_hidden_states=True).hidden_states
    changes = (_change(state[1:, :-_PADDING], own) for state, own in zip(states, by_itself, strict=True))
    return max(changes) <= _ROUNDING[str(states[0].dtype).removeprefix("torch.")]


def _change(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().float().mean() / expected.abs().float().mean().clamp_min(1e-30))
