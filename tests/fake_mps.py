"""A device that refuses float64, as Apple's MPS does, made of tensors of the processor.

Between `with fake_mps():` and its end, tensors can be moved to `mps`, Lightning finds an accelerator of that name, and
mistakes are those of PyTorch 2.13 on a Mac: no tensor of the device is float64, none is converted to it while it is
copied, none goes to NumPy, and none meets a tensor of the processor, except a scalar. The arithmetic is the
processor's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytorch_lightning as pl
import torch
from lightning_fabric.accelerators import MPSAccelerator
from torch import Tensor
from torch.overrides import TorchFunctionMode

DEVICE = torch.device("mps", 0)
_REFUSED = (
    "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
    "Please use float32 instead."
)
# What may have tensors of both devices among its arguments: copies, and choosing rows of a tensor of the device.
_COPIES = (Tensor.copy_, Tensor.__setitem__)
_MOVES = (Tensor.to, Tensor.cpu)


class OnDevice(Tensor):
    """A tensor of the device; in memory, one of the processor."""

    device = DEVICE

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch where the mode is not active, as in another thread."""
        return _call(func, args, kwargs or {})


class _Mode(TorchFunctionMode):
    """Calls functions of torch as the device would; counts those on the device."""

    n_calls = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = _call(func, args, kwargs or {})
        self.n_calls += any(isinstance(tensor, OnDevice) for tensor in _tensors(found))
        return found


@contextmanager
def fake_mps() -> Iterator[_Mode]:
    """Offer the device, to torch and to Lightning; yields the mode, whose `n_calls` says how often it computed."""
    with (
        mock.patch.object(MPSAccelerator, "is_available", return_value=True),
        mock.patch.object(pl.accelerators.MPSAccelerator, "is_available", return_value=True),
        _Mode() as mode,
    ):
        yield mode


def _call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with torch._C.DisableTorchFunction():
        if func in _MOVES:
            device, dtype = ("cpu", None) if func is Tensor.cpu else _destination(*args[1:], **kwargs)
            return _moved(args[0], torch.device(device or args[0].device), dtype)
        if func is torch._has_compatible_shallow_copy_type:
            return args[0].device == args[1].device
        tensors = list(_tensors([args, kwargs]))
        on_device = any(isinstance(tensor, OnDevice) for tensor in tensors)
        if on_device:
            _check(func, args, tensors)
        if kwargs.get("device") is not None and (on_device := torch.device(kwargs["device"]).type == DEVICE.type):
            kwargs = {**kwargs, "device": "cpu"}
        found = func(*args, **kwargs)
        return _placed(found) if on_device else found


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in arguments or results."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)


def _destination(*args: Any, **kwargs: Any) -> tuple[Any, torch.dtype | None]:
    """Return device and dtype among the arguments of `Tensor.to`; None where they stay."""
    if args and isinstance(args[0], Tensor):
        return args[0].device, args[0].dtype
    return torch._C._nn._parse_to(*args, **{k: v for k, v in kwargs.items() if k != "copy"})[:2]


def _moved(tensor: Tensor, device: torch.device, dtype: torch.dtype | None) -> Tensor:
    """Return a tensor on a device, itself if there is nothing to do."""
    dtype = tensor.dtype if dtype is None else dtype
    if tensor.device.type == device.type:
        return tensor if dtype == tensor.dtype else _like(tensor, Tensor.to(tensor, dtype))
    if dtype == torch.float64 and (device.type == DEVICE.type or tensor.dtype != dtype):
        raise TypeError(_REFUSED)
    copied = tensor.as_subclass(Tensor).to(dtype, copy=True)
    return _placed(copied) if device.type == DEVICE.type else copied


def _like(tensor: Tensor, found: Tensor) -> Tensor:
    return _placed(found) if isinstance(tensor, OnDevice) else found


def _placed(found: Any) -> Any:
    """Return a result with its tensors on the device."""
    if isinstance(found, list | tuple):
        return type(found)([_placed(part) for part in found])
    if not isinstance(found, Tensor) or isinstance(found, OnDevice):
        return found
    if found.dtype == torch.float64:
        raise TypeError(_REFUSED)
    return found.as_subclass(OnDevice)


def _check(func: Callable[..., Any], args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Raise what the device raises for arguments of which some are on it."""
    first = args[0] if args else None
    if func in (Tensor.numpy, Tensor.__array__):
        raise TypeError("can't convert mps:0 device type tensor to numpy. Use Tensor.cpu() to copy it to host memory.")
    if func in _COPIES and not isinstance(first, OnDevice):
        if first.dtype == torch.float64:  # type: ignore[union-attr]
            raise TypeError(_REFUSED)
        return
    if func in _COPIES or (func is Tensor.__getitem__ and isinstance(first, OnDevice)):
        return
    if any(tensor.dim() and not isinstance(tensor, OnDevice) for tensor in tensors):
        raise RuntimeError("Expected all tensors to be on the same device, but found at least two, mps:0 and cpu!")
