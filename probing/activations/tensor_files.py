"""Tensors: `.safetensors` files, and files of `torch.save`, which are read without running code of theirs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from probing.activations.rows import Source
from probing.errors import UserError, as_clause
from probing.runtime.files import regular, stored

if TYPE_CHECKING:
    from torch import Tensor


def safetensors_arrays(path: Path) -> dict[str, Source]:
    """Return the tensors of a `.safetensors` file, of which parts are read when they are asked for.

    Raises:
        ValueError: If it is damaged.
        OSError: If it cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(regular(path), framework="pt")
        return {name: _Slices(file.get_slice(name), file.get_tensor, name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def torch_arrays(path: Path) -> dict[str, Source]:
    """Return the tensors that `torch.save` wrote: one, or a list, tuple or dict of them; a list's names are its places.

    Raises:
        UserError: If it holds anything else, which only running its code could read.
        ValueError: If it is damaged.
        OSError: If it cannot be read.
    """
    found = _loaded(path)
    named: Mapping[Any, Any]
    if isinstance(found, Mapping):
        named = found
    else:
        named = dict(enumerate(found)) if isinstance(found, list | tuple) else {path.stem: found}
    from torch import Tensor

    for name, value in named.items():
        if not isinstance(value, Tensor):
            where = f" under {name!r}" if value is not found else ""
            raise UserError(
                f"{path} holds a value of type {type(value).__name__}{where}: expected a tensor, or a list or dict of "
                "tensors by layer, as `torch.save({6: tensor}, path)` writes it."
            )
    return {str(name): _of_tensor(tensor) for name, tensor in named.items()}


def _loaded(path: Path) -> Any:
    import torch

    try:
        with warnings.catch_warnings():  # torch advises to report that a file is a pickle, which is said below
            warnings.simplefilter("ignore", UserWarning)
            try:
                return torch.load(stored(path), map_location="cpu", weights_only=True, mmap=True)
            except RuntimeError as error:
                if "mmap" not in str(error):
                    raise
                return torch.load(stored(path), map_location="cpu", weights_only=True)  # of torch before 1.6
    except (RuntimeError, EOFError) as error:
        raise ValueError(as_clause(error)) from None
    except Exception as error:
        if type(error).__name__ != "UnpicklingError":
            raise
        if "weights only" not in str(error).lower().replace("_", " "):
            raise ValueError(as_clause(error)) from None
        raise UserError(
            f"{path} holds Python objects beside tensors, which only unpickling could read, and unpickling runs code "
            "of the file; save plain tensors, as `torch.save({6: tensor.detach().cpu()}, path)` does."
        ) from None


def _of_tensor(tensor: Tensor) -> Source:
    import torch

    tensor = tensor.detach()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    return _Bfloat16(tensor) if tensor.dtype == torch.bfloat16 else tensor.numpy()


class _Bfloat16:
    """A tensor of bfloat16, which NumPy does not have: parts that are asked for are of float32."""

    dtype = np.dtype(np.float32)

    def __init__(self, tensor: Tensor) -> None:
        self._tensor, self.shape = tensor, tuple(tensor.shape)

    def __getitem__(self, key: Any) -> Any:
        return self._tensor[key].float().numpy()


class _Slices:
    """A tensor of a `.safetensors` file."""

    def __init__(self, slices: Any, whole: Any, name: str) -> None:
        self._slices, self._whole, self._name = slices, whole, name
        self.shape = tuple(slices.get_shape())
        first = self[tuple(slice(0, 1) for _ in self.shape)] if self.shape else self._array(whole(name))
        self.dtype = first.dtype

    def __getitem__(self, key: Any) -> Any:
        return self._array(self._slices[key])

    def _array(self, tensor: Tensor) -> Any:
        import torch

        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
