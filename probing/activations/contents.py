"""What was read of a file or folder, and how named arrays become layers and what stands beside them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from probing.activations.rows import LazyRows, Part, Source, rows_of
from probing.errors import UserError

# What the first axis of a single array of three axes can be.
First = Literal["layers", "sentences"]
Layers = Mapping[Any, "NDArray[Any] | LazyRows"]


class Columns(Mapping[str, NDArray[Any]]):
    """A value for each row under each name, read when it is asked for first."""

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
        path: What was read.
        format: Its format, such as `NeuroX (HDF5)`.
        layers: Rows of each layer number or name, shape (n_rows, d_model): arrays of NumPy (memory maps where the
            format allows), or `LazyRows`, which are read when they are asked for.
        groups: Sentence of each row, shape (n_rows,); None if rows of sentences are not told apart.
        columns: What else the file says of each row by name, such as `tokens` or `token_ids`, shape (n_rows,).
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
        """Place of each row in its sentence, from 0, shape (n_rows,); None if sentences are not known."""
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
        """What was read, in one line."""
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
    """Make activations of arrays by name.

    Arrays with most axes are layers: (n_rows, d_model), or (n_sentences, n_tokens, d_model). Arrays with fewer are
    values of rows, such as token ids of shape (n_sentences, n_tokens), or values of sentences; `groups` is the sentence
    of each row.

    Args:
        path: What is read.
        format: Its format.
        arrays: Arrays by name.
        first: What the first axis of a single array of three axes is.

    Raises:
        UserError: If there are no arrays, they do not fit together, or what an axis is remains open.
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
    return Activations(path, format, rows, groups, Columns({name: _given(values) for name, values in columns.items()}))


def _of_single(path: Path, layers: Mapping[Any, Source], n_axes: int, first: First | None) -> dict[Any, Source]:
    (array,) = layers.values()
    if first == "layers":
        return {layer: Part(array, layer) for layer in range(array.shape[0])}
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
    """Refuse layers of unlike numbers of rows, and of none.

    Args:
        path: What is read.
        rows: Number of rows, or the shape before the last axis, of each layer.

    Raises:
        UserError: If they differ, or are 0.
    """
    (name, first), *others = rows.items()
    for other, there in others:
        if there != first:
            raise UserError(
                f"{path}: the layers {name} and {other} have {_said(first)} and {_said(there)} rows: expected the same "
                "rows in all layers; read layers of other rows from a file of their own."
            )
    if not np.prod(first):
        raise UserError(f"{path} is empty: its layers have no rows.")


def _said(rows: Any) -> str:
    return " x ".join(map(str, rows)) if isinstance(rows, tuple) else str(rows)


def _given(values: NDArray[Any]) -> Callable[[], NDArray[Any]]:
    return lambda: values


def natural(name: str) -> list[tuple[int, str]]:
    """Return what sorts names by the numbers in them: `layer_2` before `layer_10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(name)) if part]


def layer_keys(path: Path, names: Sequence[str]) -> list[int | str]:
    """Return layer numbers if all are named by one (`3`, `layer_3`, `acts-layer3`), or the names.

    A hyphen before a number is a minus (`layer-1`), and such names stay names, unless one of them is of 0.

    Args:
        path: What is read.
        names: The names of its layers.

    Raises:
        UserError: If two names are the same, or of the same number.
    """
    found = [re.fullmatch(r"(?:(.*?)[-_. ]?layers?([-_. ]?))?(\d+)", name, re.IGNORECASE) for name in names]
    matches = [match for match in found if match]
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
