"""Where float64 is computed: on a tensor's own device, or on the processor if the device has no float64, as MPS.

Only small tensors are copied to the processor: one value per token of a block, or the sums of a batch. Products of
activations stay on the device, in float32.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def float64_device(device: torch.device) -> torch.device:
    """Return the device itself if it holds float64, else the processor."""
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except TypeError:  # raised by MPS
        return torch.device("cpu")
    return device


def on_float64_device(tensor: Tensor) -> Tensor:
    """Return a tensor where float64 can be computed: unchanged, or copied to the processor."""
    return tensor.to(float64_device(tensor.device))


def to_float64(tensor: Tensor) -> Tensor:
    """Return a tensor in float64, on the processor if its device has none."""
    # First moved, then converted: MPS refuses to copy into a float64 tensor of the processor.
    return on_float64_device(tensor).double()
