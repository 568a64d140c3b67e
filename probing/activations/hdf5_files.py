"""HDF5: files of NeuroX, with a data set for each sentence, and files with a data set for each layer."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probing.activations.contents import Activations, Bounds, Columns, First, LazyRows, Source, assemble
from probing.errors import UserError
from probing.runtime.files import files_of, most_text, open_file, parse_json, read_text, regular
from probing.runtime.machine import check_memory

if TYPE_CHECKING:
    import h5py

# The data set of NeuroX that names the data set of each sentence, as JSON.
_INDEX = "sentence_to_index"
# What NeuroX adds to a sentence that it has met before.
_AGAIN = re.compile(r" \(Occurrence \d+\)$")


def read_hdf5(path: Path, first: First | None) -> Activations:
    """Return the activations of an HDF5 file; data sets are read when they are asked for.

    Raises:
        UserError: If its data sets do not fit together.
        ValueError: If it is damaged.
        OSError: If it cannot be read.
        ImportError: If h5py is not installed.
    """
    import h5py

    file = h5py.File(regular(path), "r")
    if file.id.links.exists(_INDEX.encode()):
        if first is not None:
            raise UserError(f"`first` does not apply: {path} is of NeuroX, whose axes are layers, words and d_model.")
        return _of_neurox(path, file)
    found: dict[str, Source] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            _refuse_outside(name, item)
            found[name] = item.asstr() if h5py.check_string_dtype(item.dtype) else item

    file.visititems(visit)
    return assemble(path, "HDF5", found, first)


def _of_neurox(path: Path, file: h5py.File) -> Activations:
    sentences = _sentences(path, file)
    if not sentences:
        raise UserError(f"{path} is empty: it names no sentences.")
    data_sets = [_data_set(file, index) for index in sentences]
    # An array of two axes is one of all layers beside each other.
    shapes = [data.shape if len(data.shape) == 3 else (1, *data.shape) for data in data_sets]
    n_layers, _, width = shapes[0]
    for index, shape in zip(sentences, shapes, strict=True):
        if len(shape) != 3 or (shape[0], shape[2]) != (n_layers, width):
            raise UserError(
                f"{path}: the sentences {next(iter(sentences))} and {index} have shapes {shapes[0]} and {shape}: "
                "expected (n_layers, n_words, d_model) with the same layers and width in all sentences."
            )
    lengths = np.array([shape[1] for shape in shapes])
    groups = np.repeat([int(index) for index in sentences], lengths)
    if not len(groups):
        raise UserError(f"{path} is empty: its sentences have no words.")
    layers = {
        layer: LazyRows((len(groups), width), data_sets[0].dtype, _Sentences(data_sets, lengths, layer).read, str(path))
        for layer in range(n_layers)
    }
    texts = [_words(text, length) for text, length in zip(sentences.values(), lengths, strict=True)]
    known = all(len(words) == length for words, length in zip(texts, lengths, strict=True))
    tokens = {"tokens": lambda: np.array([word for words in texts for word in words], dtype=object)} if known else {}
    return Activations(path, "NeuroX (HDF5)", layers, groups, Columns(tokens))


def _sentences(path: Path, file: h5py.File) -> dict[str, str]:
    """Return the text of each data set of a sentence by its name, in the order of their numbers."""
    found = parse_json(_data_set(file, _INDEX).asstr()[0])
    indices = [*found.values()] if isinstance(found, Mapping) else []
    missing = [
        index for index in indices if not str(index).isdecimal() or not file.id.links.exists(str(index).encode())
    ]
    if missing or not isinstance(found, Mapping):
        raise ValueError(f"`{_INDEX}` names a data set {missing[:1] or ''} that is not there")
    return dict(sorted(((str(index), text) for text, index in found.items()), key=lambda pair: int(pair[0])))


def _data_set(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a data set of the file itself; a link could lead to another file.

    Raises:
        ValueError: If it is something else.
    """
    import h5py

    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise ValueError(f"`{name}` is a link, which could lead to another file")
    found = file[name]
    if not isinstance(found, h5py.Dataset):
        raise ValueError(f"`{name}` is no data set")
    _refuse_outside(name, found)
    return found


def _refuse_outside(name: str, data_set: h5py.Dataset) -> None:
    """Refuse a data set whose values lie in other files.

    Raises:
        ValueError: If they do.
    """
    if data_set.is_virtual or data_set.external:
        raise ValueError(f"the values of `{name}` lie in other files, which are not read: copy them into this one")


def _words(sentence: str, n_words: int) -> list[str]:
    """Return the words of a sentence, which is joined by single spaces."""
    words = sentence.split(" ")
    return words if len(words) == n_words else _AGAIN.sub("", sentence).split(" ")


class _Sentences:
    """Rows of one layer, which lie in one data set for each sentence."""

    def __init__(self, data_sets: list[Any], lengths: NDArray[np.int64], layer: int) -> None:
        self._data_sets, self._layer = data_sets, layer
        self._bounds = Bounds(lengths)

    def read(self, rows: slice, columns: slice) -> NDArray[Any]:
        parts = []
        for sentence in self._bounds.sentences(rows):
            words, data = self._bounds.inside(rows, sentence), self._data_sets[sentence]
            parts.append(data[self._layer, words, columns] if len(data.shape) == 3 else data[words, columns])
        return np.concatenate(parts)


# --------------------------------------------------------------------------------------------------------------------
# NeuroX's JSON lines: a sentence a line, with its tokens and the values of each layer.
# --------------------------------------------------------------------------------------------------------------------


def is_of_neurox(path: Path) -> bool:
    """Return whether a file begins like a line of NeuroX."""
    with open_file(path, "r", encoding="utf-8", errors="replace") as file:
        return '"features"' in file.read(1000)


def read_lines(path: Path, first: First | None) -> Activations:
    """Return the activations of NeuroX's JSON lines, which are text and so read whole, in float32.

    Raises:
        UserError: If sentences do not fit together.
        ValueError: If it is damaged.
        OSError: If it cannot be read.
    """
    if first is not None:
        raise UserError(f"`first` does not apply: {path} is of NeuroX, which says which values are of which layer.")
    parts: list[NDArray[np.float32]] = []
    groups: list[int] = []
    tokens: list[str] = []
    layers: list[int] = []
    with open_file(path, "r", most=most_text(), encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                sentence, words, there, values = _sentence(parse_json(line))
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
                raise UserError(
                    f"{path}: line {number} is no sentence of NeuroX ({type(error).__name__}: {error}); the file is "
                    "damaged or truncated, so copy or write it again."
                ) from None
            if not words:
                continue
            layers = layers or there
            if layers != there or values.shape[1:] != (parts or [values])[0].shape[1:]:
                raise UserError(
                    f"{path}: line {number} has the layers {there} and the width {values.shape[-1]}, and an earlier "
                    f"one {layers} and {parts[0].shape[-1]}: expected the same in all sentences."
                )
            parts.append(values)
            groups += [sentence] * len(words)
            tokens += words
    if not parts:
        raise UserError(f"{path} is empty: it has no tokens.")
    values = np.concatenate(parts)
    columns = Columns({"tokens": lambda: np.array(tokens, dtype=object)})
    by_layer = {layer: np.ascontiguousarray(values[:, place]) for place, layer in enumerate(layers)}
    return Activations(path, "NeuroX (JSON lines)", by_layer, np.array(groups), columns)


def _sentence(line: Any) -> tuple[int, list[str], list[int], NDArray[np.float32]]:
    """Return a sentence's number, its words, its layers and the values, shape (n_words, n_layers, d_model)."""
    features = line["features"]
    layers = [int(layer["index"]) for layer in features[0]["layers"]] if features else []
    for word in features:
        if [layer["index"] for layer in word["layers"]] != layers:
            raise ValueError(f"the token {word['token']!r} has other layers than the first")
    values = np.array([[layer["values"] for layer in word["layers"]] for word in features], dtype=np.float32)
    if features and values.ndim != 3:
        raise ValueError("values have no shape (n_words, n_layers, d_model)")
    return int(line["linex_index"]), [str(word["token"]) for word in features], layers, values


# --------------------------------------------------------------------------------------------------------------------
# Zarr, of format 2 and 3: an array, or a group of arrays by layer.
# --------------------------------------------------------------------------------------------------------------------

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
