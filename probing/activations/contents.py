"""Content of files and folders of activations (here HDF5, NeuroX's lines and zarr), and layers from named arrays."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from probing.errors import UserError, library_errors
from probing.runtime import check_memory
from probing.runtime.files import files_of, most_text, open_file, parse_json, read_text, regular

if TYPE_CHECKING:
    import h5py

# Rows between two that are asked for, up to which they are read together with them.
_GAP = 8


class Source(Protocol):
    """An array whose parts are read on request, by slices of step 1."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""

    @property
    def dtype(self) -> Any:
        """NumPy type of the values."""

    def __getitem__(self, key: Any) -> Any:
        """Return a part as an array of NumPy."""


class Bounds:
    """Beginnings and ends of sentences among all rows, from the number of rows of each sentence."""

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths

    def sentences(self, rows: slice) -> range:
        """Return the sentences that rows belong to."""
        first = int(np.searchsorted(self._ends, rows.start, side="right"))
        return range(first, int(np.searchsorted(self._starts, rows.stop, side="left")))

    def inside(self, rows: slice, sentence: int) -> slice:
        """Return the rows within a sentence that are among rows."""
        start, end = int(self._starts[sentence]), int(self._ends[sentence])
        return slice(max(rows.start, start) - start, min(rows.stop, end) - start)


@dataclass(frozen=True, eq=False)
class LazyArray:
    """A `Source` whose parts are what `read` returns for their slices."""

    shape: tuple[int, ...]
    dtype: Any
    read: Callable[[Any], Any]

    def __getitem__(self, key: Any) -> Any:
        return self.read(key)


def _layer_of(array: Source, layer: int) -> LazyArray:
    return LazyArray(array.shape[1:], array.dtype, lambda key: array[(layer, *key)])


ReadRows = Callable[[slice, slice], NDArray[Any]]


class LazyRows:
    """Rows of an array on disk, shape (n_rows, d_model), which are read on request.

    `rows[a:b]`, `rows[indices]`, `rows[mask]` and `rows[..., columns]` give arrays of NumPy, as does `np.asarray(rows)`
    of all; indices may come in any order and repeat. `probing.probe` reads them part by part. `read` is a function of
    two slices, of rows and of columns; `where` names the source in messages.
    """

    ndim = 2

    def __init__(self, shape: tuple[int, int], dtype: Any, read: ReadRows, where: str) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        self._read, self._where, self._columns = read, where, slice(0, shape[1])

    def columns(self, start: int, stop: int) -> LazyRows:
        """Return some columns of the same rows."""
        part = LazyRows((self.shape[0], stop - start), self.dtype, self._read, self._where)
        part._columns = slice(self._columns.start + start, self._columns.start + stop)
        return part

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<{self.shape[0]} rows of {self.shape[1]} {self.dtype} in {self._where}, read when asked for>"

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError("rows on disk cannot be an array without a copy")
        return self[:].astype(dtype or self.dtype, copy=False)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        rows, rest = (key[0], key[1:]) if isinstance(key, tuple) else (key, ())
        if rows is Ellipsis:
            rows = slice(None)
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            selected = self._slice(start, stop) if step == 1 else self._at(np.arange(start, stop, step))
            return selected[(slice(None), *rest)]
        places = np.asarray(rows)
        if places.dtype == np.bool_:
            if places.shape != (len(self),):
                raise IndexError(f"the mask has shape {places.shape}, and there are {len(self)} rows")
            places = np.flatnonzero(places)
        if places.size == 0 and places.dtype.kind == "f":  # an empty list
            places = places.astype(np.int64)
        if places.dtype.kind not in "iu" or places.ndim > 1:
            raise IndexError("rows are asked for by slices, whole numbers or masks of one axis")
        return self._at(np.atleast_1d(places))[(slice(None) if places.ndim else 0, *rest)]

    def _slice(self, start: int, stop: int) -> NDArray[Any]:
        if stop <= start:
            return np.empty((0, self.shape[1]), self.dtype)
        which, again = f"{self._where}: rows {start} to {stop - 1}", "the file is damaged, so copy or write it again"
        with library_errors(lambda reason: f"{which} cannot be read ({reason}); {again}."):
            values = np.asarray(self._read(slice(start, stop), self._columns))
        if values.shape != (expected := (stop - start, self.shape[1])):
            raise UserError(f"{self._where}: rows have shape {values.shape} instead of {expected}; write it again.")
        return values

    def _at(self, places: NDArray[Any]) -> NDArray[Any]:
        """Return rows in any order; libraries read slices fastest, and some read only slices."""
        if not len(places):
            return np.empty((0, self.shape[1]), self.dtype)
        places = places.astype(np.int64)
        if places.min() < -len(self) or places.max() >= len(self):
            raise IndexError(f"row {places.max()} is asked for, and there are {len(self)}")
        unique, inverse = np.unique(places % len(self), return_inverse=True)
        runs = np.split(unique, np.flatnonzero(np.diff(unique) > _GAP) + 1)
        parts = [self._slice(int(run[0]), int(run[-1]) + 1)[run - run[0]] for run in runs]
        return np.concatenate(parts)[inverse]


def rows_of(source: Source, where: str) -> NDArray[Any] | LazyRows:
    """Return an array of two axes, or of three (sentences, tokens, d_model), as rows of tokens.

    NumPy arrays, also memory maps, stay NumPy arrays, except for three axes that are not C-contiguous.
    """
    n_tokens, width = (1, source.shape[1]) if len(source.shape) == 2 else source.shape[1:]
    shape = (source.shape[0] * n_tokens, width)
    if isinstance(source, np.ndarray) and (source.ndim == 2 or source.flags.c_contiguous):
        return source.reshape(shape)

    def of_two(rows: slice, columns: slice) -> NDArray[Any]:
        return np.asarray(source[rows, columns])

    def of_three(rows: slice, columns: slice) -> NDArray[Any]:
        first, last = rows.start // n_tokens, (rows.stop - 1) // n_tokens
        if first == last:  # within a sentence
            tokens = slice(rows.start - first * n_tokens, rows.stop - first * n_tokens)
            return np.asarray(source[first : first + 1, tokens, columns])[0]
        values = np.asarray(source[first : last + 1, slice(0, n_tokens), columns])
        start = rows.start - first * n_tokens
        return values.reshape(-1, values.shape[-1])[start : start + rows.stop - rows.start]

    return LazyRows(shape, source.dtype, of_two if len(source.shape) == 2 else of_three, where)


# What the first axis of a single array of three axes can be.
First = Literal["layers", "sentences"]

Layers = Mapping[Any, "NDArray[Any] | LazyRows"]


class Columns(Mapping[str, NDArray[Any]]):
    """A value for each row under each name, read on first request."""

    def __init__(self, read: Mapping[str, Callable[[], NDArray[Any]]]) -> None:
        self._read = {name: cache(function) for name, function in read.items()}

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._read:
            raise KeyError(f"{name!r}; there are: {', '.join(self._read) or 'none'}")
        return self._read[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


@dataclass(frozen=True, eq=False)
class Activations:
    """Activations of a file or folder that another tool has written, for `probing.probe`.

    Attributes:
        path: The file or folder.
        format: Its format, such as `NeuroX (HDF5)`.
        layers: Rows of each layer number or name, shape (n_rows, d_model): arrays of NumPy (memory maps where the
            format allows), or `LazyRows`, which are read on request.
        groups: Sentence of each row, shape (n_rows,); None if sentences are unknown.
        columns: Further values of each row by name, such as `tokens` or `token_ids`, shape (n_rows,).
    """

    path: Path
    format: str
    layers: Layers
    groups: NDArray[Any] | None
    columns: Mapping[str, NDArray[Any]]

    @property
    def n_rows(self) -> int:
        """Number of rows of every layer."""
        return len(next(iter(self.layers.values())))

    @property
    def tokens(self) -> NDArray[Any] | None:
        """Text of each row's token, shape (n_rows,); None if the file has none."""
        return self.columns.get("tokens")

    @property
    def positions(self) -> NDArray[np.int64] | None:
        """Index of each row in its sentence, from 0, shape (n_rows,); None if sentences are unknown."""
        if self.groups is None:
            return None
        _, of_row = np.unique(self.groups, return_inverse=True)
        order = np.argsort(of_row, kind="stable")
        starts = np.cumsum(np.bincount(of_row)) - np.bincount(of_row)
        positions = np.empty(len(order), dtype=np.int64)
        positions[order] = np.arange(len(order)) - starts[of_row[order]]
        return positions

    @property
    def summary(self) -> str:
        """Summary of path, format, layers and shape, in one line."""
        widths = sorted({rows.shape[1] for rows in self.layers.values()})
        width = f"{widths[0]:,}" if len(widths) == 1 else f"{widths[0]:,} to {widths[-1]:,}"
        return f"read {self.path} as {self.format}: {self._layers()}, {self.n_rows:,} rows, {width} columns"

    def _layers(self) -> str:
        names = [*self.layers]
        shown = ", ".join(map(str, names if len(names) < 5 else [*names[:2], "...", names[-1]]))
        return f"{len(names)} {'layer' if len(names) == 1 else 'layers'} ({shown})"

    def __repr__(self) -> str:
        beside = "".join(f", {name}" for name in ("groups" if self.groups is not None else "", *self.columns) if name)
        return f"<{self.format}: {self.n_rows} rows, {self._layers()}{beside}>"


def assemble(path: Path, format: str, arrays: Mapping[str, Source], first: First | None) -> Activations:
    """Build activations from arrays by name.

    Arrays with most axes are layers: (n_rows, d_model), or (n_sentences, n_tokens, d_model). Arrays with fewer are
    values of rows, such as token ids of shape (n_sentences, n_tokens), or values of sentences; `groups` is the sentence
    of each row. `first` is the meaning of the first axis of a single array of three axes.

    Raises:
        UserError: If there are no arrays, they do not match, or the meaning of an axis is ambiguous.
    """
    if not arrays:
        raise UserError(f"{path} has no arrays: expected activations of shape (n_rows, d_model).")
    n_axes = max(len(array.shape) for array in arrays.values())
    named = {name: array for name, array in arrays.items() if len(array.shape) == n_axes}
    names = sorted(named, key=natural)
    layers: dict[Any, Source] = dict(zip(layer_keys(path, names), (named[name] for name in names), strict=True))
    if len(named) == 1 and n_axes > 2:
        layers = _of_single(path, layers, n_axes, first)
    elif first is not None:
        raise UserError(f"`first` says what the first axis of one array of three axes is; {path} has no such array.")
    if n_axes < 2 or any(len(array.shape) not in (2, 3) for array in layers.values()):
        shape = next(iter(named.values())).shape
        raise UserError(
            f"{path} has arrays of shape {tuple(shape)}: expected (n_rows, d_model) or (n_sentences, n_tokens, d_model)"
            " for each layer."
        )
    for name, array in layers.items():
        if np.dtype(array.dtype).kind not in "iuf":
            raise UserError(
                f"{path}: the layer {name} has values of type {array.dtype}: expected numbers; write activations as "
                "floats."
            )
        if min(array.shape) < 0:
            raise UserError(f"{path} is damaged: its layer {name} has the shape {tuple(array.shape)}; write it again.")
    axes = {name: tuple(array.shape[:-1]) for name, array in layers.items()}
    check_rows(path, axes)
    shape = next(iter(axes.values()))
    others = {name: array for name, array in arrays.items() if name not in named}
    columns = {name: _column(path, name, array, shape) for name, array in others.items()}
    groups = columns.pop("groups", None)
    if len(shape) == 2 and groups is None:
        groups = np.repeat(np.arange(shape[0]), shape[1])
    rows = {name: rows_of(array, f"{path} ({name})") for name, array in layers.items()}
    lazy_columns = Columns({name: partial(np.asarray, values) for name, values in columns.items()})
    return Activations(path, format, rows, groups, lazy_columns)


def _of_single(path: Path, layers: Mapping[Any, Source], n_axes: int, first: First | None) -> dict[Any, Source]:
    (array,) = layers.values()
    if first == "layers":
        return {layer: _layer_of(array, layer) for layer in range(array.shape[0])}
    if n_axes == 3 and first == "sentences":
        return dict(layers)
    if n_axes == 3:
        raise UserError(
            f"{path} is one array of shape {tuple(array.shape)}, and its first axis can be layers or sentences: give "
            '`first="layers"` or `first="sentences"`.'
        )
    raise UserError(
        f"{path} is one array of shape {tuple(array.shape)}: expected (n_rows, d_model); where the axes are layers, "
        'sentences, tokens and d_model, give `first="layers"`.'
    )


def _column(path: Path, name: str, array: Source, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return a value for each row."""
    if tuple(array.shape) == shape:
        return np.asarray(array[tuple(slice(0, n) for n in shape)]).reshape(-1)
    if len(shape) == 2 and tuple(array.shape) == shape[:1]:
        return np.repeat(np.asarray(array[slice(0, shape[0])]), shape[1])
    raise UserError(
        f"{path}: `{name}` has shape {tuple(array.shape)}, and layers have {shape} before the last axis: expected a "
        "layer of the same rows, or a value for each row; leave it out of the file."
    )


def check_rows(path: Path, rows: Mapping[Any, Any]) -> None:
    """Refuse layers of different numbers of rows (or shapes before the last axis), and of none."""
    (name, first), *others = rows.items()
    for other, other_rows in others:
        if other_rows != first:
            raise UserError(
                f"{path}: the layers {name} and {other} have {_shape_text(first)} and {_shape_text(other_rows)} rows: "
                "expected the same rows in all layers; read layers of other rows from a file of their own."
            )
    if not np.prod(first):
        raise UserError(f"{path} is empty: its layers have no rows.")


def _shape_text(rows: Any) -> str:
    return " x ".join(map(str, rows)) if isinstance(rows, tuple) else str(rows)


def natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names by the numbers in them: `layer_2` before `layer_10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(name)) if part]


def layer_keys(path: Path, names: Sequence[str]) -> list[int | str]:
    """Return layer numbers if all names have a number (`3`, `layer_3`, `acts-layer3`), else the names; all differ.

    A hyphen before a number is a minus (`layer-1`), and such names stay names, unless one of them is of 0.
    """
    parsed = [re.fullmatch(r"(?:(.*?)[-_. ]?layers?([-_. ]?))?(\d+)", name, re.IGNORECASE) for name in names]
    matches = [match for match in parsed if match]
    is_minus = any(match[2] == "-" for match in matches) and not all(match[2] == "-" for match in matches)
    is_minus |= all(match[2] == "-" and int(match[3]) > 0 for match in matches)
    numbered = len(matches) == len(names) and len({match[1] for match in matches}) == 1 and not is_minus
    keys: list[int | str] = [int(match[3]) for match in matches] if numbered else [*names]
    first: dict[int | str, str] = {}
    for key, name in zip(keys, names, strict=True):
        if key in first:
            raise UserError(
                f"{path}: {first[key]!r} and {name!r} are two names of one layer, {key}; rename one of them, or leave "
                "it out."
            )
        first[key] = name
    return keys


# The data set of NeuroX that names the data set of each sentence, as JSON.
_INDEX = "sentence_to_index"

# What NeuroX adds to a sentence that it has met before.
_AGAIN = re.compile(r" \(Occurrence \d+\)$")


def read_hdf5(path: Path, first: First | None) -> Activations:
    """Return the activations of an HDF5 file; data sets are read on request.

    Raises:
        UserError: If its data sets do not match.
        ImportError: If h5py is not installed.
    """
    import h5py

    file = h5py.File(regular(path), "r")
    if file.id.links.exists(_INDEX.encode()):
        if first is not None:
            raise UserError(f"`first` does not apply: {path} is of NeuroX, whose axes are layers, words and d_model.")
        return _of_neurox(path, file)
    data_sets: dict[str, Source] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset):
            _refuse_outside(name, item)
            data_sets[name] = item.asstr() if h5py.check_string_dtype(item.dtype) else item

    file.visititems(visit)
    return assemble(path, "HDF5", data_sets, first)


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
    shape, dtype = (len(groups), width), data_sets[0].dtype
    layers = {
        layer: LazyRows(shape, dtype, _reader_of_layer(data_sets, lengths, layer), str(path))
        for layer in range(n_layers)
    }
    texts = [_words(text, length) for text, length in zip(sentences.values(), lengths, strict=True)]
    known = all(len(words) == length for words, length in zip(texts, lengths, strict=True))
    tokens = {"tokens": lambda: np.array([word for words in texts for word in words], dtype=object)} if known else {}
    return Activations(path, "NeuroX (HDF5)", layers, groups, Columns(tokens))


def _sentences(path: Path, file: h5py.File) -> dict[str, str]:
    """Return the text of each sentence's data set by its name, in the order of their numbers."""
    index_of_text = parse_json(_data_set(file, _INDEX).asstr()[0])
    indices = [*index_of_text.values()] if isinstance(index_of_text, Mapping) else []
    missing = [
        index for index in indices if not str(index).isdecimal() or not file.id.links.exists(str(index).encode())
    ]
    if missing or not isinstance(index_of_text, Mapping):
        raise ValueError(f"`{_INDEX}` names a data set {missing[:1] or ''} that is not there")
    return dict(sorted(((str(index), text) for text, index in index_of_text.items()), key=lambda pair: int(pair[0])))


def _data_set(file: h5py.File, name: str) -> h5py.Dataset:
    """Return a data set of the file itself; a link, which could lead to another file, is refused."""
    import h5py

    if file.id.links.get_info(name.encode()).type != h5py.h5l.TYPE_HARD:
        raise ValueError(f"`{name}` is a link, which could lead to another file")
    data_set = file[name]
    if not isinstance(data_set, h5py.Dataset):
        raise ValueError(f"`{name}` is no data set")
    _refuse_outside(name, data_set)
    return data_set


def _refuse_outside(name: str, data_set: h5py.Dataset) -> None:
    """Refuse a data set whose values lie in other files."""
    if data_set.is_virtual or data_set.external:
        raise ValueError(f"the values of `{name}` lie in other files, which are not read: copy them into this one")


def _words(sentence: str, n_words: int) -> list[str]:
    """Return the words of a sentence, which is joined by single spaces."""
    words = sentence.split(" ")
    return words if len(words) == n_words else _AGAIN.sub("", sentence).split(" ")


def _reader_of_layer(data_sets: list[Any], lengths: NDArray[np.int64], layer: int) -> ReadRows:
    """Return the reader of the rows of one layer, in a data set for each sentence."""
    bounds = Bounds(lengths)

    def read(rows: slice, columns: slice) -> NDArray[Any]:
        parts = []
        for sentence in bounds.sentences(rows):
            words, data = bounds.inside(rows, sentence), data_sets[sentence]
            parts.append(data[layer, words, columns] if len(data.shape) == 3 else data[words, columns])
        return np.concatenate(parts)

    return read


def is_of_neurox(path: Path) -> bool:
    """Return whether a file begins like a line of NeuroX."""
    with open_file(path, "r", encoding="utf-8", errors="replace") as file:
        return '"features"' in file.read(1000)


def read_lines(path: Path, first: First | None) -> Activations:
    """Return the activations of NeuroX's JSON lines, which are text and so read whole, in float32."""
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
                sentence, words, line_layers, values = _sentence(parse_json(line))
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
                raise UserError(
                    f"{path}: line {number} is no sentence of NeuroX ({type(error).__name__}: {error}); the file is "
                    "damaged or truncated, so copy or write it again."
                ) from None
            if not words:
                continue
            layers = layers or line_layers
            if layers != line_layers or values.shape[1:] != (parts or [values])[0].shape[1:]:
                raise UserError(
                    f"{path}: line {number} has the layers {line_layers} and the width {values.shape[-1]}, and an "
                    f"earlier one {layers} and {parts[0].shape[-1]}: expected the same in all sentences."
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


# The files by which a folder is known to be an array or a group.
MARKS = ("zarr.json", ".zarray", ".zgroup")

_METADATA = (*MARKS, ".zattrs", ".zmetadata")


def zarr_arrays(path: Path) -> dict[str, Source]:
    """Return the arrays of a store, whose chunks are read on request.

    Raises:
        UserError: If chunks are missing.
        ValueError: If it is damaged, or a codec would unpickle chunks, which zarr refuses from 3.1 on.
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
    """Refuse an array with missing chunks, for which zarr would give its fill value, or too large chunks."""
    sizes = array.shards or array.chunks
    check_memory(
        math.prod(sizes) * array.dtype.itemsize, f"{path}: chunks of `{name}`", "write it again with smaller chunks"
    )
    numbers = [-(-n // size) for n, size in zip(array.shape, sizes, strict=True)]
    n_chunks = math.prod(numbers)
    # Chunks are looked for one by one only if there are as many files.
    missing = n_chunks - len(files)
    if missing <= 0:
        prefix = f"{array.path}/" if array.path else ""
        keys = (array.metadata.encode_chunk_key(place) for place in itertools.product(*map(range, numbers)))
        missing = sum(f"{prefix}{key}" not in files for key in keys)
    if missing > 0 and array.size:
        raise UserError(
            f"{path}: {missing} of {n_chunks} chunks of `{name}` are missing, for which zarr would give "
            f"{array.fill_value}; write it again, and if chunks of that value alone are meant, with "
            "`config={'write_empty_chunks': True}`."
        )
