"""Large products of float32 matrices on the processor, and where float64 is computed."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter, functional
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
    """Let oneDNN compute the large linear maps of a forward pass without gradients, where it is faster."""
    if not is_onednn_faster():
        yield
        return
    with _LinearMaps():
        yield


class _LinearMaps(TorchFunctionMode):
    """Sees the linear maps of a forward pass; what attention computes is left to torch's own kernels.

    Maps are chosen by their weights, not by the number of tokens, so that a token's states do not depend on how many
    others are in its batch. oneDNN is called for a map, and no setting of the process is changed: several threads run
    passes at the same time, and a setting that another thread changed would reach the small products of attention,
    which then take seven times as long.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func is functional.linear:  # as BERT and most others call it
            x, weight, bias = _linear_arguments(*args, **kwargs)
        elif func is torch.addmm and len(args) == 3 and not kwargs:  # as GPT-2 does: the bias before both factors
            bias, x, weight = args[0], args[1], args[2].T
        else:
            return func(*args, **kwargs)
        if weight.numel() < LEAST_WEIGHTS or not all(map(_is_for_onednn, (x, weight))) or _is_other_bias(bias, weight):
            return func(*args, **kwargs)
        return _linear(x, weight, bias)


_Map = tuple[Tensor, Tensor, Tensor | None]


def _linear_arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> _Map:
    """Return the arguments of `torch.nn.functional.linear`, however they are passed."""
    return input, weight, bias


def _is_other_bias(bias: Tensor | None, weight: Tensor) -> bool:
    """Return whether what is added is not a vector of float32 with an entry for each output."""
    return bias is not None and (bias.shape != weight.shape[:1] or not _is_for_onednn(bias))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a linear map by oneDNN; it has no gradient."""
    found: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return found


def _is_for_onednn(factor: Tensor) -> bool:
    """Return whether oneDNN takes it and is faster: a dense matrix of float32 on the processor, of no other kind.

    Quantised weights, for example, are of a class of their own, which says float32 and computes products itself.
    """
    is_plain = type(factor) in (Tensor, Parameter) and factor.layout == torch.strided and not factor.is_nested
    return is_plain and factor.dtype == torch.float32 and factor.device.type == "cpu" and is_onednn_faster()


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
    both = torch.stack([found, _linear(a, b.T, None)])
    return bool((both - expected).abs().max() <= _ERROR * expected.max())


# How many products, in several threads, are being computed by oneDNN, and the setting that was there before the first.
_switch, _using, _before = Lock(), 0, "none"


@contextmanager
def _by_onednn() -> Iterator[None]:
    """Compute products by oneDNN; the setting is the process's, and is set back when no thread uses it any more."""
    global _using, _before
    settings: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with _switch:
        if not _using:
            _before, settings.fp32_precision = settings.fp32_precision, "bf16"
        _using += 1
    try:
        yield
    finally:
        with _switch:
            _using -= 1
            if not _using:
                settings.fp32_precision = _before


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


# --------------------------------------------------------------------------------------------------------------------
# Seeds and generators that depend on what they are named by, and on nothing that was drawn before.
# --------------------------------------------------------------------------------------------------------------------


def seed_of(*parts: int | str) -> int:
    """Return a seed that depends on these parts alone."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator_of(*parts: int | str) -> torch.Generator:
    """Return a generator whose draws depend on these parts alone."""
    return torch.Generator().manual_seed(seed_of(*parts))
