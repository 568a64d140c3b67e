"""Accelerators that are not there, made of tensors of the processor: one with the ways of CUDA, one with those of MPS.

Between `with pretended("cuda"):` and its end, tensors can be moved to `cuda`, torch and Lightning find one device of
that name, and mistakes are those of PyTorch 2.13 on such a machine: a tensor of the device meets none of the processor,
except a scalar where numbers are allowed too; it draws from no generator of the processor, and does not go to NumPy. On
`mps`, moreover, nothing is float64, nor converted to it while it is copied. The arithmetic is the processor's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytorch_lightning as pl
import torch
from lightning_fabric.accelerators import MPSAccelerator
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Free memory of the device that pretends to be CUDA's: enough for all that tests put there.
_FREE_BYTES = 2**30
# What torch says of a device, or does with it, where it was built for CUDA and finds one.
_OF_CUDA: dict[str, Any] = {
    "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": (7, 0), "set_device": None,
    "synchronize": None, "mem_get_info": (_FREE_BYTES, _FREE_BYTES), "get_rng_state_all": [],
    "get_rng_state": torch.zeros(16, dtype=torch.uint8), "set_rng_state": None, "set_rng_state_all": None,
}  # fmt: skip
_SET_DATA = Tensor.data.__set__  # type: ignore[attr-defined]
# Where a scalar of the processor is refused as any other tensor of it is.
_STRICT = (torch.cat, torch.stack, torch.vstack, torch.hstack)
_FROM_DATA = (torch.tensor, torch.as_tensor)


class OnDevice(Tensor):
    """A tensor of a device that is not there; in memory, one of the processor."""

    holds_float64 = True
    is_cpu = False

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call a function of torch where the mode is not active, as in another thread."""
        return _call(func, args, kwargs or {})


class OnCuda(OnDevice):
    """A tensor of a device that computes what the processor does."""

    device = torch.device("cuda", 0)
    is_cuda = True


class OnMps(OnDevice):
    """A tensor of a device without float64."""

    device = torch.device("mps", 0)
    is_mps = True
    holds_float64 = False


_KINDS: dict[str, type[OnDevice]] = {"cuda": OnCuda, "mps": OnMps}


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
def pretended(name: str) -> Iterator[_Mode]:
    """Offer a device, to torch and to Lightning; yields the mode, whose `n_calls` says how often it computed.

    Args:
        name: `cuda` or `mps`; Lightning finds either under the name `gpu` too.
    """
    with ExitStack() as stack:
        if name == "mps":
            for accelerator in (MPSAccelerator, pl.accelerators.MPSAccelerator):
                stack.enter_context(mock.patch.object(accelerator, "is_available", return_value=True))
        else:
            for function, found in _OF_CUDA.items():
                stack.enter_context(mock.patch.object(torch.cuda, function, return_value=found))
            # A build for CUDA would ask the driver, which is not there, for its stream.
            stack.enter_context(mock.patch.object(torch.accelerator, "current_accelerator", return_value=None))
        yield stack.enter_context(_Mode())


def _call(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with torch._C.DisableTorchFunction():
        if func in (Tensor.to, Tensor.cpu, Tensor.cuda):
            named = {Tensor.cpu: "cpu", Tensor.cuda: "cuda"}.get(func)
            device, dtype = (named, None) if named else _destination(*args[1:], **kwargs)
            source = args[0].clone() if kwargs.get("copy") else args[0]
            return _moved(source, torch.device(device or source.device), dtype)
        if func is torch._has_compatible_shallow_copy_type:
            return True
        if func == _SET_DATA:  # the wrapper of a slot is made anew each time
            return _set_data(*args)
        if func is Tensor.__deepcopy__:
            return _copied(*args)
        if func is Tensor.register_hook and isinstance(args[0], OnDevice):
            return func(args[0], lambda gradient: args[1](_placed(gradient, type(args[0]))))
        tensors = list(_tensors([args, kwargs]))
        kind = next((type(tensor) for tensor in tensors if isinstance(tensor, OnDevice)), None)
        if kind is not None:
            _check(func, args, kwargs, tensors)
        if func in _FROM_DATA and not isinstance(args[0], Tensor):
            kind = None  # numbers that were tensors, in a list
        if kwargs.get("device") is not None:
            kind = _KINDS.get(torch.device(kwargs["device"]).type)
            kwargs = kwargs if kind is None else {**kwargs, "device": "cpu"}
        if kind is not None:
            _check_generators([*args, *kwargs.values()], kind)
        found = func(*args, **kwargs)
        return found if kind is None else _placed(found, kind)


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
    kind = _KINDS.get(device.type)
    if tensor.device.type == device.type:
        found = tensor if dtype == tensor.dtype else Tensor.to(tensor, dtype)
        return found if kind is None else _placed(found, kind)
    if dtype == torch.float64 and (tensor.dtype != dtype or (kind is not None and not kind.holds_float64)):
        for one in (kind, type(tensor)):
            _refuse_float64(one)
    copied = tensor.as_subclass(Tensor).to(dtype, copy=True)
    return copied if kind is None else _placed(copied, kind)


def _set_data(parameter: Tensor, data: Tensor) -> None:
    """Move a tensor itself, as modules move their parameters: who holds them, such as an optimiser, keeps them."""
    is_parameter = isinstance(parameter, nn.Parameter)
    _SET_DATA(parameter, data.as_subclass(Tensor))
    if isinstance(data, OnDevice):
        parameter.__class__ = type(data)
        parameter._is_param = is_parameter
    elif isinstance(parameter, OnDevice):
        parameter.__class__ = nn.Parameter if is_parameter else Tensor  # type: ignore[assignment]


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Any:
    """Return a deep copy of a tensor."""
    if id(tensor) not in memo:
        copied: Any = tensor.detach().as_subclass(Tensor).clone()
        copied = _placed(copied, type(tensor)) if isinstance(tensor, OnDevice) else copied
        copied._is_param = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = copied.requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


def _placed(found: Any, kind: type[OnDevice]) -> Any:
    """Return a result with its tensors on the device."""
    if isinstance(found, list | tuple):
        parts = [_placed(part, kind) for part in found]
        return parts if isinstance(found, list) else type(found)(parts)
    if not isinstance(found, Tensor) or isinstance(found, OnDevice):
        return found
    if found.dtype == torch.float64:
        _refuse_float64(kind)
    return found.as_subclass(kind)


def _refuse_float64(kind: type | None) -> None:
    """Raise what a device raises that has no float64."""
    if kind is not None and issubclass(kind, OnDevice) and not kind.holds_float64:
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
            "Please use float32 instead."
        )


def _check(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
    """Raise what the device raises for arguments of which some are on it."""
    first = args[0] if args else None
    there = next(tensor.device for tensor in tensors if isinstance(tensor, OnDevice))
    if func in (Tensor.numpy, Tensor.__array__):
        raise TypeError(
            f"can't convert {there} device type tensor to numpy. Use Tensor.cpu() to copy it to host memory."
        )
    if func is Tensor.copy_ or (func is Tensor.__setitem__ and not _is_advanced(args[1])):
        if isinstance(first, Tensor) and not isinstance(first, OnDevice) and first.dtype == torch.float64:
            _refuse_float64(_KINDS[there.type])
        return
    if func is Tensor.__setitem__ and isinstance(first, OnDevice):
        tensors = [one for one in _tensors(args[2:]) if one.numel() > 1]  # any index is copied to the device
    elif func is Tensor.__getitem__ and isinstance(first, OnDevice):
        return
    here = [tensor for tensor in tensors if not isinstance(tensor, OnDevice)]
    if any(tensor.dim() or func in _STRICT or tensor is kwargs.get("out") for tensor in here) or (
        _is_in_place(func) and isinstance(first, Tensor) and not isinstance(first, OnDevice)
    ):
        raise RuntimeError(f"Expected all tensors to be on the same device, but found at least two, {there} and cpu!")


def _is_advanced(index: Any) -> bool:
    """Return whether an index has more than numbers and slices."""
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, list | np.ndarray) or (isinstance(part, Tensor) and part.dim() > 0) for part in parts)


def _is_in_place(func: Callable[..., Any]) -> bool:
    name = getattr(func, "__name__", "")
    return name in ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__setitem__") or (
        name.endswith("_") and not name.endswith("__") and name != "requires_grad_"
    )


def _check_generators(values: Sequence[Any], kind: type[OnDevice]) -> None:
    """Refuse to draw numbers of a device from the processor's generator."""
    if any(isinstance(value, torch.Generator) for value in values):
        raise RuntimeError(f"Expected a '{kind.device.type}' device type for generator but found 'cpu'")
