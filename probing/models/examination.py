"""What an encoder is examined with, and what the modules of its code receive and return."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

from probing.errors import UserError
from probing.models.max_length import telling_the_longest
from probing.runtime.machine import memory_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class Unreadable(Exception):
    """A model returns something else than one vector per token; the message says what, after the model's name."""


@dataclass(frozen=True)
class Output:
    """What an encoder has returned for a batch.

    Args:
        last: Its last hidden state, shape (batch, sequence, d_model).
        states: The hidden states of its layers, shape (batch, sequence, d_model) each; empty if it returned none.
        attentions: What it returned as the attention of each block; empty if it returned nothing.
    """

    last: Tensor
    states: tuple[Tensor, ...] = ()
    attentions: tuple[Any, ...] = ()


def run(encoder: nn.Module, inputs: Mapping[str, Tensor], **options: bool) -> Output:
    """Run an encoder and read what it returns: an output with names, or a tuple that begins with the last hidden state.

    Args:
        encoder: The encoder.
        inputs: `input_ids` and `attention_mask`, shape (batch, sequence).
        options: What it is asked for besides the last hidden state, such as `output_hidden_states=True`.

    Raises:
        Unreadable: If it returns no last hidden state.
    """
    if "return_dict" in signature(encoder.forward).parameters:
        options["return_dict"] = True  # where it is an argument, it may be false by default
    made = encoder(**inputs, **options)
    if isinstance(made, tuple | list):
        # Only the hidden states of all layers are a sequence of their own.
        last, states = vectors_in(made), next((one for one in made if isinstance(one, tuple | list)), None)
        attentions = None
    else:
        last, states = getattr(made, "last_hidden_state", None), getattr(made, "hidden_states", None)
        attentions = getattr(made, "attentions", None)
    if last is None:
        raise Unreadable(f"returns {type(made).__name__} without a last hidden state")
    length = inputs["input_ids"].shape[1]
    read = [vectors_of_tokens(state, length) for state in states or ()]
    return Output(last, tuple(state for state in read if state is not None), tuple(attentions or ()))


def vectors_of_tokens(value: Any, length: int) -> Tensor | None:
    """Return the vectors in a value without those behind the sequence, which some families append inside blocks.

    Args:
        value: Anything that a module receives or returns.
        length: Number of tokens of a sequence.
    """
    found = vectors_in(value)
    return found[:, :length] if found is not None and found.dim() == 3 else found


def vectors_in(value: Any) -> Tensor | None:
    """Return the first floating-point tensor in a value, such as a sequence or a mapping; None without any."""
    import torch

    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() else None
    if isinstance(value, Mapping):  # such as the outputs of transformers
        value = tuple(value.values())
    if not isinstance(value, tuple | list):
        return None
    return next((found for one in value if (found := vectors_in(one)) is not None), None)


def vectors_given(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the vectors that a call of a module receives; None without any."""
    return vectors_in((*args, *kwargs.values()))


def with_vectors(args: tuple[Any, ...], kwargs: Mapping[str, Any], value: Tensor) -> tuple[Any, dict[str, Any]]:
    """Return the arguments of a call with other vectors in the place of those that it receives."""
    for i, one in enumerate(args):
        if vectors_in(one) is not None:
            return (*args[:i], value, *args[i + 1 :]), dict(kwargs)
    name = next(name for name, one in kwargs.items() if vectors_in(one) is not None)
    return args, {**kwargs, name: value}


def with_the_same_weights(encoder: nn.Module) -> nn.Module:
    """Return a copy that shares the parameters, which another thread can run with its own hooks.

    Buffers are copied: some families write to them in a forward pass, such as rotary frequencies that depend on the
    longest sentence of a batch.
    """
    shared: dict[int, Tensor] = {id(parameter): parameter for parameter in encoder.parameters()}
    return deepcopy(encoder, shared | {id(buffer): buffer.clone() for buffer in encoder.buffers()})


def in_float32(encoder: nn.Module) -> nn.Module | None:
    """Return a copy in float32, which shares the parameters that are in float32 already; None if it does not fit."""
    import torch
    from torch import nn

    parameters = list(encoder.parameters())
    further = sum(4 * one.numel() for one in parameters if one.dtype != torch.float32)
    room, device = _room(parameters[0].device), parameters[0].device
    here = 0 if device.type == "cuda" else sum(one.nbytes for one in parameters)
    if room is not None and here + further > room:
        return None
    made: dict[int, Tensor] = {}
    for one in parameters:
        is_wider = one.is_floating_point() and one.dtype != torch.float32
        made[id(one)] = nn.Parameter(one.float(), requires_grad=False) if is_wider else one
    for buffer in encoder.buffers():
        is_wider = buffer.is_floating_point() and buffer.dtype != torch.float32
        made[id(buffer)] = buffer.float() if is_wider else buffer.clone()
    copy = deepcopy(encoder, made)
    copy.config.dtype = torch.float32
    return copy


def _room(device: torch.device) -> int | None:
    """Return the bytes of memory that are free on an accelerator, or all of the machine's; None if unknown."""
    import torch

    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else memory_bytes()


# Length of the two sequences that an encoder is examined with, and number of padding tokens in the second one. The
# length is odd to reveal families that pad their input to a multiple of some number.
LENGTH, PADDING = 11, 4
# Largest mean change of those sequences' hidden states, relative to their mean, that counts as rounding in float32.
_ROUNDING = 1e-5
# Largest change of any token's hidden state, relative to its norm, that counts as rounding in float32. The same
# sentence in other batches differs by up to 3e-6 in the families that are tested and in trained models, and by 1e-2 and
# more where padding is mixed in or another kind of attention is chosen.
SAME = 1e-3
# Entries of a configuration that may limit a kind of attention or of positions, and the most limits that are crossed.
_NAMES_A_LIMIT = re.compile("position|window|block|chunk|context|length|local")
_MOST_LIMITS = 4


def examination_inputs(encoder: nn.Module, pad_token_id: int) -> dict[str, Tensor]:
    """Return two sequences of ordinary tokens, the second one padded."""
    import torch

    config: Any = encoder.config
    device = next(encoder.parameters()).device
    # Most families give special tokens the lowest ids; any other id will do.
    input_ids = (pad_token_id + 5 + torch.arange(2 * LENGTH, device=device).view(2, LENGTH)) % config.vocab_size
    attention_mask = torch.ones_like(input_ids)
    input_ids[1, -PADDING:], attention_mask[1, -PADDING:] = pad_token_id, 0
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def padding_is_neutral(encoder: nn.Module, inputs: Mapping[str, Tensor], states: Sequence[Tensor]) -> bool:
    """Whether the padded sequence has the same hidden states without padding, in every layer.

    Args:
        encoder: The encoder, in float32.
        inputs: What `examination_inputs` returns.
        states: The hidden states for both sequences.
    """
    alone = {name: values[1:, :-PADDING] for name, values in inputs.items()}
    by_itself = run(encoder, alone, output_hidden_states=True).states
    changes = (_mean_change(state[1:, :-PADDING], own) for state, own in zip(states, by_itself, strict=True))
    return max(changes) <= _ROUNDING


def lengths_are_neutral(encoder: nn.Module, lengths: Sequence[int], pad_token_id: int, name: str) -> bool:
    """Whether sentences have the same last hidden states beside the longest one as alone.

    Some families choose the kind of attention, or the frequencies of their positions, by the longest sentence of the
    batch. Examined are the shortest and the longest sentence, and lengths on both sides of each limit that the
    configuration names between them.

    Args:
        encoder: An encoder in float32 that has not been run yet; only copies of it are run.
        lengths: Number of tokens of each sentence that will be read, shape (n_sentences,).
        pad_token_id: Id of the padding token.
        name: The model's name as the user typed it, for messages.

    Raises:
        UserError: If the states of a sentence depend on the sentences read before, or on chance, or if the model does
            not run on the longest sentence.
    """
    rows = _examined_lengths(encoder.config, lengths)

    def read(model: nn.Module, *together: int) -> Tensor:
        inputs = _sequences(encoder, together, pad_token_id)
        with telling_the_longest(model, inputs):
            return run(model, inputs).last

    # A kind of attention that was chosen once may stay: so each order begins with a model that has read nothing.
    upwards, downwards = with_the_same_weights(encoder), with_the_same_weights(encoder)
    alone = {n: read(upwards, n)[0] for n in rows}
    for n in reversed(rows):
        if (change := largest_change(read(downwards, n)[0], alone[n])) > SAME:
            limits = ", ".join(map(str, sorted(_limits(encoder.config)))) or "none"
            raise UserError(
                f"`--model {name}` ({encoder.config.model_type}) gives a sentence of {n} tokens hidden states that "  # type: ignore[union-attr]
                f"depend on what it read before, or on chance (they differ by {change:.1%}); choose another model, or "
                f"by `--max_length` sentences on one side of its limits (its configuration names {limits})."
            )
    longest = rows[-1]
    beside = ((n, read(upwards, n, longest)) for n in rows[:-1])
    return all(
        largest_change(both[0, :n], alone[n]) <= SAME and largest_change(both[1], alone[longest]) <= SAME
        for n, both in beside
    )


def relative_changes(found: Tensor, expected: Tensor) -> Tensor:
    """Return the distance of the two states of each token, relative to the norm of the one expected."""
    found, expected = found.float(), expected.float()
    return (found - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)


def largest_change(found: Tensor, expected: Tensor) -> float:
    """Return the largest of the relative changes."""
    return float(relative_changes(found, expected).max())


def _examined_lengths(config: Any, lengths: Sequence[int]) -> list[int]:
    """Return the lengths to be examined, ascending."""
    there = [int(n) for n in lengths if n > 0]
    first, last = min(there, default=1), max(there, default=1)
    limits = sorted(n for n in _limits(config) if first <= n < last)[-_MOST_LIMITS:]
    return sorted({first, last, *limits, *(n + 1 for n in limits)})


def _limits(config: Any) -> set[int]:
    """Return the numbers that a configuration gives under a name that may be that of a limit."""
    entries = config.to_dict() if hasattr(config, "to_dict") else vars(config)
    return {n for name, n in _numbers(entries) if n > 1 and _NAMES_A_LIMIT.search(name)}


def _numbers(entries: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for name, value in entries.items():
        if isinstance(value, Mapping):
            yield from _numbers({f"{name} {inner}": one for inner, one in value.items()})
        for one in value if isinstance(value, list | tuple) else [value]:
            if type(one) is int:
                yield str(name), one


def _sequences(encoder: nn.Module, lengths: Sequence[int], pad_token_id: int) -> dict[str, Tensor]:
    """Return sequences of these lengths as one batch, padded at the end."""
    import torch

    config: Any = encoder.config
    device = next(encoder.parameters()).device
    columns = torch.arange(max(lengths), device=device)
    ids = (pad_token_id + 5 + columns) % config.vocab_size
    ids = torch.where(ids == pad_token_id, (pad_token_id + 5) % config.vocab_size, ids)
    mask = columns < torch.tensor(lengths, device=device)[:, None]
    return {"input_ids": torch.where(mask, ids, pad_token_id), "attention_mask": mask.long()}


def _mean_change(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().float().mean() / expected.abs().float().mean().clamp_min(1e-30))
