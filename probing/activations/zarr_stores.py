"""Zarr, of format 2 and 3: an array, or a group of arrays by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from probing.activations.rows import Source
from probing.errors import UserError

# The files by which a folder is known to be an array or a group.
MARKS = ("zarr.json", ".zarray", ".zgroup")


def zarr_arrays(path: Path) -> dict[str, Source]:
    """Return the arrays of a store, whose chunks are read when they are asked for.

    Raises:
        UserError: If chunks are missing.
        ValueError: If it is damaged, or a codec would unpickle chunks, which zarr refuses from 3.1 on.
        OSError: If it cannot be read.
        ImportError: If zarr is not installed.
    """
    import zarr

    try:
        store = zarr.open(str(path), mode="r")
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None
    if isinstance(store, zarr.Array):
        arrays = {path.name.removesuffix(".zarr"): store}
    else:
        arrays = {name: item for name, item in store.members(max_depth=None) if isinstance(item, zarr.Array)}
    for name, array in arrays.items():
        _check_chunks(path, name, array)
    return dict(arrays)


def _check_chunks(path: Path, name: str, array: Any) -> None:
    """Refuse an array with missing chunks, for which zarr would give its fill value.

    Raises:
        UserError: If chunks are missing.
    """
    missing = array.nchunks - array.nchunks_initialized
    if missing and array.size:
        raise UserError(
            f"{path}: {missing} of {array.nchunks} chunks of `{name}` are missing, for which zarr would give "
            f"{array.fill_value}; write it again, and if chunks of that value alone are meant, with "
            "`config={'write_empty_chunks': True}`."
        )
