"""Large products of float32 matrices on the processor, and where float64 is computed."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Fewest multiplications of a product, and fewest weights of a linear map, for which oneDNN's preparation is worthwhile.
LEAST, LEAST_WEIGHTS = 2**24, 2**16
# Largest accepted error of a product, relative to its largest entry. With float32 it is below 1e-6, with bfloat16 above
# 1e-3.
_ERROR = 1e-5


def product(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the product of two matrices, of shapes (n, k) and (k, m), or of as many of each, stacked.

    Args:
        a: The first one.
        b: The second one, on the same device.
        out: Where the product is written, if given.
    """
    with _fastest(a, b):
        return torch.matmul(a, b, out=out)


def add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add the product of two matrices, of shapes (n, k) and (k, m), to a third one.

    Args:
        total: The one that is changed, shape (n, m).
        a: The first factor.
        b: The second one, on the same device.
    """
    with _fastest(a, b):
        total.addmm_(a, b)


def _fastest(a: Tensor, b: Tensor) -> AbstractContextManager[None]:
    """Return the context in which the product of two matrices is computed."""
    is_large = a.numel() * b.shape[-1] >= LEAST
    return _by_onednn() if is_large and _is_for_onednn(a) else nullcontext()


@contextmanager
def fast_linear_maps() -> Iterator[None]:
    """Let oneDNN compute the large linear maps of a model's forward pass, where it is faster."""
    if not is_onednn_faster():
        yield
        return
    with _LinearMaps():
        yield


class _LinearMaps(TorchFunctionMode):
    """Sees the linear maps of a forward pass; what attention computes is left to torch's own kernels.

    Maps are chosen by their weights, not by the number of tokens, so that a token's states do not depend on how many
    others are in its batch.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # BERT and most others call the first; GPT-2 calls the second with the bias before both factors.
        place, name = {functional.linear: (1, "weight"), torch.addmm: (2, "mat2")}.get(func, (0, ""))
        weight = (args[place] if place < len(args) else kwargs.get(name)) if name else None
        if weight is None or weight.numel() < LEAST_WEIGHTS or not _is_for_onednn(weight):
            return func(*args, **kwargs)
        with _by_onednn():
            return func(*args, **kwargs)


def _is_for_onednn(factor: Tensor) -> bool:
    return factor.dtype == torch.float32 and factor.device.type == "cpu" and is_onednn_faster()


@cache
def is_onednn_faster() -> bool:
    """Return whether oneDNN is faster than torch's own products and as exact: on AMD's processors with AVX-512."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or "AuthenticAMD" not in _processor():
        return False
    if not hasattr(torch.backends.mkldnn, "matmul"):  # versions of torch before 2.9
        return False
    a, b = (torch.rand(size, generator=torch.Generator().manual_seed(0)) for size in ((256, 512), (512, 256)))
    with _by_onednn():
        found = a @ b
    expected = a.double() @ b.double()
    return bool((found - expected).abs().max() <= _ERROR * expected.max())


@contextmanager
def _by_onednn() -> Iterator[None]:
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = settings.fp32_precision
    settings.fp32_precision = "bf16"
    try:
        yield
    finally:
        settings.fp32_precision = before


def _processor() -> str:
    """Return what the system says of the processor."""
    said = Path("/proc/cpuinfo")
    try:
        return said.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()


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
