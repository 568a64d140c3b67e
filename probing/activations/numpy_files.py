"""Files of NumPy: `.npy`, which is memory mapped, and `.npz`, whose stored members are."""

from __future__ import annotations

import io
import math
import zipfile
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from probing.activations.rows import Source
from probing.errors import UserError
from probing.runtime.files import open_file, regular
from probing.runtime.machine import check_memory

# Length of a local header of a zip file before the name, and the place of the lengths of name and extra field in it.
_LOCAL_HEADER, _LENGTHS = 30, slice(26, 30)
# Most bytes of the header of an array, which could be compressed and say that it is longer.
_LONGEST_HEADER = 2**16


def npy_arrays(path: Path) -> dict[str, Source]:
    """Return the array of a `.npy` file as a memory map, under the file's name.

    Raises:
        UserError: If it holds Python objects.
        ValueError: If it is damaged.
        OSError: If it cannot be read.
    """
    with open_file(path) as file:
        _, _, dtype = _header(io.BytesIO(file.read(_LONGEST_HEADER)))
    _refuse_objects(path, dtype)
    return {path.stem: np.load(regular(path), mmap_mode="r", allow_pickle=False)}


def npz_arrays(path: Path) -> dict[str, Source]:
    """Return the arrays of a `.npz` file: memory maps of stored members; compressed ones are read when asked for.

    Raises:
        UserError: If one holds Python objects.
        ValueError: If it is damaged.
        OSError: If it cannot be read.
    """
    arrays: dict[str, Source] = {}
    try:
        with zipfile.ZipFile(regular(path)) as archive:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                with archive.open(member) as file:
                    begin = io.BytesIO(file.read(_LONGEST_HEADER))
                shape, fortran, dtype = _header(begin)
                start = begin.tell()
                _refuse_objects(path, dtype)
                if member.compress_type == zipfile.ZIP_STORED and np.prod(shape):
                    offset = _offset(path, member) + start
                    order: Any = "F" if fortran else "C"
                    arrays[name] = np.memmap(regular(path), dtype, "r", offset, shape, order)
                else:
                    arrays[name] = _Compressed(path, name, shape, dtype)
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from None
    return arrays


class _Compressed:
    """A compressed member, which is read whole when a part of it is asked for first."""

    def __init__(self, path: Path, name: str, shape: tuple[int, ...], dtype: Any) -> None:
        self._path, self._name, self.shape, self.dtype = path, name, shape, dtype

    @cached_property
    def _values(self) -> NDArray[Any]:
        needed = math.prod(self.shape) * self.dtype.itemsize
        check_memory(needed, f"the values of `{self._name}` in {self._path}", "save them with `np.savez`, unpacked")
        try:
            with np.load(regular(self._path), allow_pickle=False) as archive:
                return archive[self._name]
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from None

    def __getitem__(self, key: Any) -> NDArray[Any]:
        return self._values[key]


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns come first, and dtype; the file then stands at the values."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Return where a stored member's bytes begin."""
    with open_file(path) as file:
        file.seek(member.header_offset)
        lengths = file.read(_LOCAL_HEADER)[_LENGTHS]
    return member.header_offset + _LOCAL_HEADER + sum(np.frombuffer(lengths, "<u2").tolist())


def _refuse_objects(path: Path, dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise UserError(
            f"{path} holds Python objects, which only unpickling could read, and unpickling runs code of the file; "
            "save arrays of numbers or text, each of one shape."
        )
