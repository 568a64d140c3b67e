"""`read_activations`: recognition of the format of a file or folder, and its reader."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from probing.activations.contents import (
    MARKS,
    Activations,
    Bounds,
    Columns,
    First,
    LazyArray,
    LazyRows,
    ReadRows,
    Source,
    assemble,
    check_rows,
    is_of_neurox,
    layer_keys,
    natural,
    read_hdf5,
    read_lines,
    zarr_arrays,
)
from probing.errors import UserError, as_clause, in_python, library_errors, spelled
from probing.runtime import check_memory
from probing.runtime.files import files_of, open_file, parse_json, read_text, regular, stored
from probing.runtime.terminal import say

if TYPE_CHECKING:
    from torch import Tensor

# --------------------------------------------------------------------------------------------------------------------
# Files of NumPy: `.npy`, which is memory mapped, and `.npz`, whose stored members are.
# --------------------------------------------------------------------------------------------------------------------

# Length of a local header of a zip file before the name, and the place of the lengths of name and extra field in it.
_LOCAL_HEADER, _LENGTHS = 30, slice(26, 30)
# Most bytes of the header of an array, which could be compressed and say that it is longer.
_LONGEST_HEADER = 2**16


def npy_arrays(path: Path) -> dict[str, Source]:
    """Return the array of a `.npy` file as a memory map, under the file's name; Python objects are refused."""
    with open_file(path) as file:
        _, _, dtype = _header(io.BytesIO(file.read(_LONGEST_HEADER)))
    _refuse_objects(path, dtype)
    return {path.stem: np.load(regular(path), mmap_mode="r", allow_pickle=False)}


def npz_arrays(path: Path) -> dict[str, Source]:
    """Return the arrays of a `.npz` file: memory maps of stored members; compressed members are read on request."""
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
                    arrays[name] = _compressed(path, name, shape, dtype)
    except zipfile.BadZipFile as error:
        raise ValueError(str(error)) from None
    return arrays


def _compressed(path: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> LazyArray:
    """Return a compressed member, which is read whole on the first request for a part."""

    @cache
    def values() -> NDArray[Any]:
        needed = math.prod(shape) * dtype.itemsize
        check_memory(needed, f"the values of `{name}` in {path}", "save them with `np.savez`, unpacked")
        try:
            with np.load(regular(path), allow_pickle=False) as archive:
                return archive[name]
        except zipfile.BadZipFile as error:
            raise ValueError(str(error)) from None

    return LazyArray(shape, dtype, lambda key: values()[key])


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns come first, and dtype; the file is then at the position of the values."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def _offset(path: Path, member: zipfile.ZipInfo) -> int:
    """Return the position of a stored member's bytes."""
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


# --------------------------------------------------------------------------------------------------------------------
# Tensors: `.safetensors` files, and files of `torch.save`, which are read without running code of theirs.
# --------------------------------------------------------------------------------------------------------------------


def safetensors_arrays(path: Path) -> dict[str, Source]:
    """Return the tensors of a `.safetensors` file, of which parts are read on request."""
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(regular(path), framework="pt")
        return {name: _slices(file, name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def torch_arrays(path: Path) -> dict[str, Source]:
    """Return the tensors that `torch.save` wrote: one, or a list, tuple or dict; a list's names are its indices.

    Anything else, which only running its code could read, raises `UserError`.
    """
    loaded = _loaded(path)
    named: Mapping[Any, Any]
    if isinstance(loaded, Mapping):
        named = loaded
    else:
        named = dict(enumerate(loaded)) if isinstance(loaded, list | tuple) else {path.stem: loaded}
    from torch import Tensor

    for name, value in named.items():
        if not isinstance(value, Tensor):
            where = f" under {name!r}" if value is not loaded else ""
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
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return LazyArray(tuple(tensor.shape), np.dtype(np.float32), lambda key: _in_numpy(tensor[key]))


def _slices(file: Any, name: str) -> LazyArray:
    """Return a tensor of a safetensors file, of which parts are read."""
    slices = file.get_slice(name)
    shape = tuple(slices.get_shape())
    first = slices[tuple(slice(0, 1) for _ in shape)] if shape else file.get_tensor(name)
    return LazyArray(shape, _in_numpy(first).dtype, lambda key: _in_numpy(slices[key]))


def _in_numpy(tensor: Tensor) -> NDArray[Any]:
    """Return a tensor as an array; of bfloat16, which NumPy does not have, in float32."""
    import torch

    array: NDArray[Any] = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    return array


# --------------------------------------------------------------------------------------------------------------------
# Data sets of Hugging Face saved on disk, such as the activations that SAELens caches.
# --------------------------------------------------------------------------------------------------------------------

# Rows of the data set whose lengths are read at once.
_BATCH = 10_000


def read_dataset(path: Path, first: First | None) -> Activations:
    """Return the array columns of a data set as layers; rows are read from memory maps on request.

    A column of vectors has a row of activations in each row; a column of arrays (n_tokens, d_model) has a sentence in
    each, whose rows are its tokens. Other columns are values of rows, of tokens or of sentences.

    Raises:
        UserError: If there is no array column, or columns do not match.
        ImportError: If the package datasets is not installed.
    """
    from datasets import load_from_disk

    if first is not None:
        raise UserError(f"`first` does not apply: {path} is a data set, whose columns say what their axes are.")
    if (path / "dataset_dict.json").is_file():
        splits = sorted(folder.name for folder in path.iterdir() if (folder / "state.json").is_file())
        raise UserError(
            f"{path} holds the data sets {', '.join(splits)}: name one, such as {path / (splits or ['train'])[0]}."
        )
    table = load_from_disk(str(_checked_folder(path))).with_format("arrow")
    kinds = {name: _kind(feature) for name, feature in table.features.items()}
    n_axes = max((axes for axes, is_float in kinds.values() if is_float), default=0)
    names = [name for name, kind in kinds.items() if kind == (n_axes, True)]
    if n_axes not in (1, 2):
        raise UserError(
            f"{path} has no column of activations, but {', '.join(kinds)}: expected a column of vectors (a token a "
            "row) or of arrays of shape (n_tokens, d_model) (a sentence a row)."
        )
    if not len(table):
        raise UserError(f"{path} is empty: the data set has no rows.")
    lengths = {name: _lengths(table, name) if n_axes == 2 else np.ones(len(table), np.int64) for name in names}
    check_rows(path, {name: int(of_rows.sum()) for name, of_rows in lengths.items()})
    of_rows, ordered = lengths[names[0]], sorted(names, key=natural)
    for name, others in lengths.items():
        if not np.array_equal(of_rows, others):
            raise UserError(f"{path}: `{names[0]}` and `{name}` have unlike numbers of tokens in some rows.")
    layers = {
        key: LazyRows(
            (int(of_rows.sum()), _width(table, name, n_axes)), _dtype(table.features[name]),
            _reader_of_column(table, name, of_rows, n_axes), f"{path} ({name})",
        )
        for key, name in zip(layer_keys(path, ordered), ordered, strict=True)
    }  # fmt: skip
    columns = _columns(table, {name: axes for name, (axes, _) in kinds.items() if name not in names}, of_rows, n_axes)
    groups = np.repeat(np.arange(len(table)), of_rows) if n_axes == 2 else None
    if "groups" in columns:
        groups = columns.pop("groups")()
    return Activations(path, "datasets", layers, groups, Columns(columns))


def _checked_folder(path: Path) -> Path:
    """Return the folder of a data set whose files all lie in it, including the files of its `state.json`."""
    files_of(path)
    state, _ = (parse_json(read_text(path / name, path)) for name in ("state.json", "dataset_info.json"))
    for file in state["_data_files"]:
        regular(path / str(file["filename"]), path)
    return path


def _kind(feature: Any) -> tuple[int, bool]:
    """Return the number of axes of a value in each row, and whether it is of floats."""
    axes = 0
    while True:
        if shape := getattr(feature, "shape", None):  # Array2D
            return axes + len(shape), feature.dtype.startswith(("float", "bfloat"))
        inner = feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)
        if inner is None:
            return axes, str(getattr(feature, "dtype", "")).startswith("float")
        feature, axes = inner, axes + 1


def _dtype(feature: Any) -> np.dtype[Any]:
    while (inner := feature[0] if isinstance(feature, list) else getattr(feature, "feature", None)) is not None:
        feature = inner
    return np.dtype(feature.dtype)


def _chunks(column: Any) -> list[Any]:
    """Return the arrays of Arrow of a column, without the type of an extension."""
    return [getattr(chunk, "storage", chunk) for chunk in column.chunks]


def _lengths(table: Any, name: str) -> NDArray[np.int64]:
    """Return the number of values of each row of a column of lists, of which only the offsets are read."""
    import pyarrow.compute

    lengths = []
    column = table.select_columns([name])
    for start in range(0, len(table), _BATCH):
        for chunk in _chunks(column[start : start + _BATCH].column(0)):
            lengths.append(pyarrow.compute.list_value_length(chunk).fill_null(0).to_numpy(zero_copy_only=False))
    return np.concatenate(lengths).astype(np.int64)


def _width(table: Any, name: str, n_axes: int) -> int:
    """Return the width of the first vector of a column."""
    column = table.select_columns([name])
    for row in range(len(table)):
        values = column[row : row + 1].column(0)[0].as_py()
        if n_axes == 1:
            return len(values)
        if values:
            return len(values[0])
    return 0


def _reader_of_column(table: Any, name: str, lengths: NDArray[np.int64], n_axes: int) -> ReadRows:
    """Return the reader of the rows of one column of arrays."""
    arrays, bounds = table.select_columns([name]), Bounds(lengths)

    def read(rows: slice, columns: slice) -> NDArray[Any]:
        parts, sentences = [], bounds.sentences(rows)
        for chunk in _chunks(arrays[sentences.start : sentences.stop].column(0)):
            # A list's values are those of its part of a buffer, which is not copied.
            for _ in range(n_axes):
                if chunk.null_count:
                    raise ValueError("a row has no values")
                n_vectors, chunk = len(chunk), chunk.flatten()
            if chunk.null_count:
                raise ValueError("a value is missing")
            if n_vectors and len(chunk) % n_vectors:
                raise ValueError("vectors have unlike widths")
            parts.append(chunk.to_numpy(zero_copy_only=False).reshape(n_vectors, -1) if n_vectors else None)
        vectors = [part[:, columns] for part in parts if part is not None]
        start = bounds.inside(rows, sentences.start).start
        rows_read = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        return rows_read[start : start + rows.stop - rows.start]

    return read


def _columns(
    table: Any, axes: dict[str, int], lengths: NDArray[np.int64], n_axes: int
) -> dict[str, Callable[[], NDArray[Any]]]:
    """Return readers of values of rows: of each row of the data set or, where these are sentences, of each token."""
    readers: dict[str, Callable[[], NDArray[Any]]] = {}
    for name, n in axes.items():
        if n == 0:
            readers[name] = partial(_of_sentences, table, name, lengths)
        elif n == 1 and n_axes == 2 and np.array_equal(_lengths(table, name), lengths):
            readers[name] = partial(_of_tokens, table, name)
    return readers


def _of_sentences(table: Any, name: str, lengths: NDArray[np.int64]) -> NDArray[Any]:
    values = table.select_columns([name])[:].column(0).to_numpy()
    return np.repeat(values, lengths)


def _of_tokens(table: Any, name: str) -> NDArray[Any]:
    chunks = _chunks(table.select_columns([name])[:].column(0))
    return np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunks])


# --------------------------------------------------------------------------------------------------------------------
# The formats that can be read: by what each is recognised, and what reads it.
# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Format:
    """A format of activations.

    Attributes:
        sign: Description of its mark, for users.
        arrays: Function that returns its arrays by name; None for formats with more information.
        activations: Function that returns its activations, where it has more information than arrays.
        library: Package that is required, and the extra that installs it.
    """

    name: str
    sign: str
    recognises: Callable[[Path], bool]
    arrays: Callable[[Path], Mapping[str, Source]] | None = None
    activations: Callable[[Path, First | None], Activations] | None = None
    library: tuple[str, str] | None = None

    def read(self, path: Path, first: First | None) -> Activations:
        """Return the activations of a file or folder; `first` is as for `read_activations`."""
        if self.activations is not None:
            return self.activations(path, first)
        assert self.arrays is not None
        return assemble(path, self.name, self.arrays(path), first)


def _ends(*suffixes: str) -> Callable[[Path], bool]:
    return lambda path: path.is_file() and path.suffix.lower() in suffixes


def _is_dataset(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _is_zarr(path: Path) -> bool:
    return any((path / mark).is_file() for mark in MARKS)


FORMATS = (
    Format("HDF5", "files `.hdf5`, `.h5`; NeuroX's by their data set `sentence_to_index`",
           _ends(".hdf5", ".h5"), activations=read_hdf5, library=("h5py", "hdf5")),
    Format("NeuroX (JSON lines)", 'files `.json`, `.jsonl` of lines with `"features"`',
           lambda path: _ends(".json", ".jsonl")(path) and is_of_neurox(path), activations=read_lines),
    Format("datasets", "folders with `state.json`, as `save_to_disk` and SAELens write them",
           _is_dataset, activations=read_dataset, library=("datasets", "hf")),
    Format("zarr", "folders with `zarr.json`, `.zarray` or `.zgroup`", _is_zarr, zarr_arrays, library=("zarr", "zarr")),
    Format("npy", "files `.npy`", _ends(".npy"), npy_arrays),
    Format("npz", "files `.npz`", _ends(".npz"), npz_arrays),
    Format("safetensors", "files `.safetensors`", _ends(".safetensors"), safetensors_arrays),
    Format("torch", "files `.pt`, `.pth`", _ends(".pt", ".pth"), torch_arrays),
)  # fmt: skip

Loaded = TypeVar("Loaded")
# Files that only unpickling could read.
_PICKLES = (".pkl", ".pickle", ".acts", ".joblib")


@spelled(in_python)
def read_activations(path: str | Path, first: First | None = None, n_layers: int | None = None) -> Activations:
    """Read activations that another tool has written; rows stay on the disk until needed, where possible.

    Args:
        path: File or folder of one of the formats of docs/activations.md; or a folder of such files, one a layer.
        first: Meaning of the first axis of a single array of three axes: `layers` (then tokens, d_model) or `sentences`
            (then tokens, d_model); of a single array of four axes, `layers`.
        n_layers: Number of layers in each row of a single array, as NeuroX concatenates them.

    Returns:
        The layers, and further values of each row: `probing.probe(found.layers, y, groups=found.groups)`.

    Raises:
        UserError: If the format is unknown, needs a package that is not installed, or could only be unpickled; or if
            the file is damaged or empty, layers have different numbers of rows, or the meaning of an axis is ambiguous.
    """
    path = Path(path)
    if first not in (None, "layers", "sentences"):
        raise UserError(f"`first` is {first!r}: expected layers or sentences.")
    if not path.exists():
        raise UserError(f"{path} does not exist: expected a file or folder of activations.")
    if path.is_file() and not path.stat().st_size:
        raise UserError(f"{path} is empty: the file has no bytes; write it again.")
    activations = _read(path, first)
    activations = activations if n_layers is None else _divided(activations, n_layers)
    say(activations.summary)
    return activations


def _read(path: Path, first: First | None) -> Activations:
    form = _format_of(path)
    if form:
        return _checked(form, path, partial(form.read, path, first))
    if path.is_dir() and (files := _files(path)):
        return _of_files(path, files, first)
    if path.is_dir() and not any(path.iterdir()):
        raise UserError(f"{path} is an empty folder: expected files of activations, one a layer.")
    _refuse_pickle(path)
    taken = "; ".join(f"{form.name} ({form.sign})" for form in FORMATS)
    raise UserError(f"{path} is of no known format; taken are {taken}; or a folder of such files, one a layer.")


def _format_of(path: Path) -> Format | None:
    return next((form for form in FORMATS if form.recognises(path)), None)


def _checked(form: Format, path: Path, read: Callable[[], Loaded]) -> Loaded:
    """Return the content, and turn errors of libraries, also missing packages, into `UserError` of one sentence."""
    again = "the file is damaged or truncated, so copy or write it again"
    with library_errors(lambda reason: f"{path} cannot be read as {form.name} ({reason}); {again}."):
        try:
            return read()
        except ImportError as error:
            if form.library is None:
                raise
            package, extra = form.library
            raise UserError(
                f"{path} needs the package {package}, which is not installed ({as_clause(error)}); it comes with "
                f"`pip install 'neuron-probing[{extra}]'`."
            ) from None


def _refuse_pickle(path: Path) -> None:
    if not path.is_file():
        return
    with open_file(path) as file:
        begin = file.read(2)
    if path.suffix.lower() in _PICKLES or (begin[:1] == b"\x80" and begin[1:] <= b"\x05"):
        raise UserError(
            f"{path} is a pickle, and unpickling runs code of the file; load it where you trust it, and save its "
            "arrays with `np.savez`."
        )


def _files(folder: Path) -> list[Path]:
    """Return the files of readable formats in a folder, in the order of the numbers in their names."""
    paths = sorted(
        (path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: natural(path.name)
    )
    return [path for path in paths if _format_of(path)]


def _of_files(folder: Path, files: list[Path], first: First | None) -> Activations:
    """Join files of one layer each, of a single format and with the same rows."""
    forms = {form.name: form for file in files if (form := _format_of(file))}
    if len(forms) > 1:
        raise UserError(
            f"{folder} has files of several formats ({', '.join(forms)}): expected one format, a layer a file."
        )
    (form,) = forms.values()
    stems = [file.name.removesuffix(file.suffix) for file in files]
    keys = layer_keys(folder, stems)
    if arrays_of := form.arrays:
        arrays: dict[str, Source] = {}
        for file, stem in zip(files, stems, strict=True):
            file_arrays = _checked(form, file, partial(arrays_of, file))
            if len(file_arrays) != 1:
                raise _several(file, len(file_arrays))
            arrays[stem] = next(iter(file_arrays.values()))
        return assemble(folder, f"folder of {form.name}", arrays, first)
    parts = [_checked(form, file, partial(form.read, file, first)) for file in files]
    for file, part in zip(files, parts, strict=True):
        if len(part.layers) != 1:
            raise _several(file, len(part.layers))
    layers = {key: next(iter(part.layers.values())) for key, part in zip(keys, parts, strict=True)}
    check_rows(folder, {key: len(rows) for key, rows in layers.items()})
    for file, part in zip(files, parts, strict=True):
        if not _same(parts[0].groups, part.groups):
            raise UserError(f"{folder}: {files[0].name} and {file.name} have other sentences: expected the same rows.")
    return Activations(folder, f"folder of {parts[0].format}", layers, parts[0].groups, parts[0].columns)


def _same(first: NDArray[Any] | None, second: NDArray[Any] | None) -> bool:
    return first is second if first is None or second is None else np.array_equal(first, second)


def _several(file: Path, n: int) -> UserError:
    return UserError(
        f"{file} has {n} arrays: expected one layer in each file of a folder; or read this file by itself."
    )


def _divided(activations: Activations, n_layers: int) -> Activations:
    """Divide the columns of a single array into `n_layers` layers of equal width."""
    if len(activations.layers) != 1:
        raise UserError(
            f"`n_layers` divides the columns of a single array, and {activations.path} has {len(activations.layers)} "
            "layers."
        )
    (rows,) = activations.layers.values()
    width, rest = divmod(rows.shape[1], n_layers) if n_layers > 0 else (0, 1)
    if rest or not width:
        raise UserError(
            f"`n_layers={n_layers}`: {activations.path} has {rows.shape[1]} columns, which are no multiple of it."
        )
    layers = {
        layer: rows.columns(layer * width, (layer + 1) * width)
        if isinstance(rows, LazyRows)
        else rows[:, layer * width : (layer + 1) * width]
        for layer in range(n_layers)
    }
    return Activations(activations.path, activations.format, layers, activations.groups, activations.columns)
