"""Zarr, of format 2 and 3: an array, or a group of arrays by layer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection
from pathlib import Path
from typing import Any

from probing.activations.rows import Source
from probing.errors import UserError
from probing.runtime.files import files_of, parse_json, read_text
from probing.runtime.machine import check_memory

# The files by which a folder is known to be an array or a group.
MARKS = ("zarr.json", ".zarray", ".zgroup")
_METADATA = (*MARKS, ".zattrs", ".zmetadata")


def zarr_arrays(path: Path) -> dict[str, Source]:
    """Return the arrays of a store, whose chunks are read when they are asked for.

    Raises:
        UserError: If chunks are missing.
        ValueError: If it is damaged, or a codec would unpickle chunks, which zarr refuses from 3.1 on.
        OSError: If it cannot be read.
        ImportError: If zarr is not installed.
    """
    import zarr

    files = files_of(path)
    for name in files:
        if name.rpartition("/")[2] in _METADATA:
            parse_json(read_text(path / name, path))
    try:
        store = zarr.open(str(path), mode="r")
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if isinstance(store, zarr.Array):
        arrays = {path.name.removesuffix(".zarr"): store}
    else:
        arrays = {name: item for name, item in store.members(max_depth=None) if isinstance(item, zarr.Array)}
    for name, array in arrays.items():
        _check_chunks(path, name, array, files)
    return dict(arrays)


def _check_chunks(path: Path, name: str, array: Any, files: Collection[str]) -> None:
    """Refuse an array with missing chunks, for which zarr would give its fill value.

    Raises:
        UserError: If chunks are missing, or the memory does not hold one.
    """
    sizes = array.shards or array.chunks
    check_memory(
        math.prod(sizes) * array.dtype.itemsize, f"{path}: chunks of `{name}`", "write it again with smaller chunks"
    )
    numbers = [-(-n // size) for n, size in zip(array.shape, sizes, strict=True)]
    n_chunks = math.prod(numbers)
    # Chunks are looked for one by one only if there are as many files.
    missing = n_chunks - len(files)
    if missing <= 0:
        there = f"{array.path}/" if array.path else ""
        keys = (array.metadata.encode_chunk_key(place) for place in itertools.product(*map(range, numbers)))
        missing = sum(f"{there}{key}" not in files for key in keys)
    if missing > 0 and array.size:
        raise UserError(
            f"{path}: {missing} of {n_chunks} chunks of `{name}` are missing, for which zarr would give "
            f"{array.fill_value}; write it again, and if chunks of that value alone are meant, with "
            "`config={'write_empty_chunks': True}`."
        )
