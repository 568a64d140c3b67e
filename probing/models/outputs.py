"""Reads what modules of a model's code receive and return, in whatever form: alone, in a sequence or by name.

Names of arguments and the classes of outputs play no role: vectors are the first floating-point tensor there is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
