"""Copies of an encoder that can be run without leaving a trace in it: with the same weights, or in float32."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

from probing.runtime.memory import memory_bytes

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


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
