"""The formats that can be read: by what each is recognised, and what reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from probing.activations.contents import Activations, First, assemble
from probing.activations.dataset_folders import read_dataset
from probing.activations.hdf5_files import read_hdf5
from probing.activations.neurox_lines import is_of_neurox, read_lines
from probing.activations.numpy_files import npy_arrays, npz_arrays
from probing.activations.rows import Source
from probing.activations.tensor_files import safetensors_arrays, torch_arrays
from probing.activations.zarr_stores import MARKS, zarr_arrays

Read = Callable[[Path, First | None], Activations]


@dataclass(frozen=True)
class Format:
    """A format of activations.

    Attributes:
        name: What it is called.
        sign: By what it is recognised, for users.
        recognises: Whether a path is of the format.
        read: Returns its activations.
        suffixes: Names of its files end so; of folders none.
        library: Package without which it cannot be read, and the extra that installs it.
        arrays: Returns its arrays by name; formats that say more than this have none.
    """

    name: str
    sign: str
    recognises: Callable[[Path], bool]
    read: Read
    suffixes: tuple[str, ...] = ()
    library: tuple[str, str] | None = None
    arrays: Callable[[Path], Mapping[str, Source]] | None = None


def _is_dataset(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _is_zarr(path: Path) -> bool:
    return any((path / mark).is_file() for mark in MARKS)


def _of_arrays(
    name: str, sign: str, recognises: Callable[[Path], bool], arrays: Callable[[Path], Mapping[str, Source]],
    suffixes: tuple[str, ...] = (), library: tuple[str, str] | None = None,
) -> Format:  # fmt: skip
    def read(path: Path, first: First | None) -> Activations:
        return assemble(path, name, arrays(path), first)

    return Format(name, sign, recognises, read, suffixes, library, arrays)


def _ends(path: Path, suffixes: tuple[str, ...]) -> bool:
    return path.is_file() and path.suffix.lower() in suffixes


def _of_files(name: str, suffixes: tuple[str, ...], arrays: Callable[[Path], Mapping[str, Source]]) -> Format:
    sign = "files " + ", ".join(f"`{suffix}`" for suffix in suffixes)
    return _of_arrays(name, sign, partial(_ends, suffixes=suffixes), arrays, suffixes)


_HDF5, _JSON = (".hdf5", ".h5"), (".json", ".jsonl")
FORMATS = (
    Format("HDF5", "files `.hdf5`, `.h5`; NeuroX's by their data set `sentence_to_index`",
           partial(_ends, suffixes=_HDF5), read_hdf5, _HDF5, ("h5py", "hdf5")),
    Format("NeuroX (JSON lines)", 'files `.json`, `.jsonl` of lines with `"features"`',
           lambda path: _ends(path, _JSON) and is_of_neurox(path), read_lines, _JSON),
    Format("datasets", "folders with `state.json`, as `save_to_disk` and SAELens write them",
           _is_dataset, read_dataset, library=("datasets", "hf")),
    _of_arrays("zarr", "folders with `zarr.json`, `.zarray` or `.zgroup`", _is_zarr, zarr_arrays,
               library=("zarr", "zarr")),
    _of_files("npy", (".npy",), npy_arrays),
    _of_files("npz", (".npz",), npz_arrays),
    _of_files("safetensors", (".safetensors",), safetensors_arrays),
    _of_files("torch", (".pt", ".pth"), torch_arrays),
)  # fmt: skip
