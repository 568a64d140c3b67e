"""Data sets of Hugging Face saved on disk, such as the activations that SAELens caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.activations.contents import Activations, Columns, First, check_rows, layer_keys, natural
from probing.activations.rows import Bounds, LazyRows
from probing.errors import UserError
from probing.runtime.files import files_of, parse_json, read_text, regular

# Rows of the data set whose lengths are read at once.
_BATCH = 10_000


def read_dataset(path: Path, first: First | None) -> Activations:
    """Return the array columns of a data set as layers; rows are read from memory maps when they are asked for.

    A column of vectors has a row of activations in each row; a column of arrays (n_tokens, d_model) has a sentence in
    each, whose rows are its tokens. Other columns are values of rows, of tokens or of sentences.

    Raises:
        UserError: If there is no array column, or columns do not fit together.
        ValueError: If it is damaged.
        OSError: If it cannot be read.
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
    table = load_from_disk(str(_checked(path))).with_format("arrow")
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
            _Reader(table, name, of_rows, n_axes).read, f"{path} ({name})",
        )
        for key, name in zip(layer_keys(path, ordered), ordered, strict=True)
    }  # fmt: skip
    columns = _columns(table, {name: axes for name, (axes, _) in kinds.items() if name not in names}, of_rows, n_axes)
    groups = np.repeat(np.arange(len(table)), of_rows) if n_axes == 2 else None
    if "groups" in columns:
        groups = columns.pop("groups")()
    return Activations(path, "datasets", layers, groups, Columns(columns))


def _checked(path: Path) -> Path:
    """Return the folder of a data set whose files all lie in it, those that its `state.json` names too.

    Raises:
        ValueError: If it is damaged.
        OSError: If a file lies elsewhere, or is none.
    """
    files_of(path)
    state, _ = (parse_json(read_text(path / name, path)) for name in ("state.json", "dataset_info.json"))
    for file in state["_data_files"]:
        regular(path / str(file["filename"]), path)
    return path


def _kind(feature: Any) -> tuple[int, bool]:
    """Return how many axes a value has in each row, and whether it is of fractions."""
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

    found = []
    column = table.select_columns([name])
    for start in range(0, len(table), _BATCH):
        for chunk in _chunks(column[start : start + _BATCH].column(0)):
            found.append(pyarrow.compute.list_value_length(chunk).fill_null(0).to_numpy(zero_copy_only=False))
    return np.concatenate(found).astype(np.int64)


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


class _Reader:
    """Rows of one column of arrays."""

    def __init__(self, table: Any, name: str, lengths: NDArray[np.int64], n_axes: int) -> None:
        self._column, self._n_axes = table.select_columns([name]), n_axes
        self._bounds = Bounds(lengths)

    def read(self, rows: slice, columns: slice) -> NDArray[Any]:
        parts, sentences = [], self._bounds.sentences(rows)
        for chunk in _chunks(self._column[sentences.start : sentences.stop].column(0)):
            # A list's values are those of its part of a buffer, which is not copied.
            for _ in range(self._n_axes):
                if chunk.null_count:
                    raise ValueError("a row has no values")
                n_vectors, chunk = len(chunk), chunk.flatten()
            if chunk.null_count:
                raise ValueError("a value is missing")
            if n_vectors and len(chunk) % n_vectors:
                raise ValueError("vectors have unlike widths")
            parts.append(chunk.to_numpy(zero_copy_only=False).reshape(n_vectors, -1) if n_vectors else None)
        vectors = [part[:, columns] for part in parts if part is not None]
        start = self._bounds.inside(rows, sentences.start).start
        found = vectors[0] if len(vectors) == 1 else np.concatenate(vectors)
        return found[start : start + rows.stop - rows.start]


def _columns(
    table: Any, axes: dict[str, int], lengths: NDArray[np.int64], n_axes: int
) -> dict[str, Callable[[], NDArray[Any]]]:
    """Return what reads values of rows: of each row of the data set or, where these are sentences, of each token."""
    found: dict[str, Callable[[], NDArray[Any]]] = {}
    for name, n in axes.items():
        if n == 0:
            found[name] = partial(_of_sentences, table, name, lengths)
        elif n == 1 and n_axes == 2 and np.array_equal(_lengths(table, name), lengths):
            found[name] = partial(_of_tokens, table, name)
    return found


def _of_sentences(table: Any, name: str, lengths: NDArray[np.int64]) -> NDArray[Any]:
    values = table.select_columns([name])[:].column(0).to_numpy()
    return np.repeat(values, lengths)


def _of_tokens(table: Any, name: str) -> NDArray[Any]:
    chunks = _chunks(table.select_columns([name])[:].column(0))
    return np.concatenate([chunk.flatten().to_numpy(zero_copy_only=False) for chunk in chunks])
