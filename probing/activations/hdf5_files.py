"""HDF5: files of NeuroX, with a data set for each sentence, and files with a data set for each layer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from probing.activations.contents import Activations, Columns, First, assemble
from probing.activations.rows import Bounds, LazyRows, Source
from probing.errors import UserError
from probing.runtime.files import parse_json, regular

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
