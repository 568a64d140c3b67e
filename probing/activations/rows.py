"""Rows of an array that stay where they are until they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from probing.errors import UserError, library_errors

# Rows between two that are asked for, up to which they are read together with them.
_GAP = 8


class Source(Protocol):
    """What is read of: an array whose parts are read when they are asked for, by slices of steps of 1."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""

    @property
    def dtype(self) -> Any:
        """Type of its values, as NumPy has it."""

    def __getitem__(self, key: Any) -> Any:
        """Return a part as an array of NumPy."""


class Bounds:
    """Where sentences begin and end among all rows.

    Args:
        lengths: Number of rows of each sentence.
    """

    def __init__(self, lengths: NDArray[np.int64]) -> None:
        self._ends = np.cumsum(lengths)
        self._starts = self._ends - lengths

    def sentences(self, rows: slice) -> range:
        """Return the sentences that rows belong to."""
        first = int(np.searchsorted(self._ends, rows.start, side="right"))
        return range(first, int(np.searchsorted(self._starts, rows.stop, side="left")))

    def inside(self, rows: slice, sentence: int) -> slice:
        """Return which rows of a sentence are among rows."""
        start, end = int(self._starts[sentence]), int(self._ends[sentence])
        return slice(max(rows.start, start) - start, min(rows.stop, end) - start)


class Part:
    """An array's part at one place of its first axis, as a `Source`."""

    def __init__(self, source: Source, place: int) -> None:
        self._source, self._place = source, place
        self.shape, self.dtype = source.shape[1:], source.dtype

    def __getitem__(self, key: tuple[slice, ...]) -> Any:
        return self._source[(self._place, *key)]


class LazyRows:
    """Rows of an array on disk, shape (n_rows, d_model), which are read when they are asked for.

    `rows[a:b]`, `rows[indices]`, `rows[mask]` and `rows[..., columns]` give arrays of NumPy, as does `np.asarray(rows)`
    of all; indices may come in any order and repeat. `probing.probe` reads them part by part.

    Args:
        shape: Numbers of rows and of columns.
        dtype: Type of the values.
        read: Function of two slices, of rows and of columns, that returns these.
        where: What is read, for messages.
    """

    ndim = 2

    def __init__(
        self, shape: tuple[int, int], dtype: Any, read: Callable[[slice, slice], NDArray[Any]], where: str
    ) -> None:
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
            found = self._slice(start, stop) if step == 1 else self._at(np.arange(start, stop, step))
            return found[(slice(None), *rest)]
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
            found = np.asarray(self._read(slice(start, stop), self._columns))
        if found.shape != (expected := (stop - start, self.shape[1])):
            raise UserError(f"{self._where}: rows have shape {found.shape} instead of {expected}; write it again.")
        return found

    def _at(self, places: NDArray[Any]) -> NDArray[Any]:
        """Return rows in any order; libraries read slices fastest, and some of them nothing else."""
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

    Arrays of NumPy, which can be memory maps, stay what they are.
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
        found = np.asarray(source[first : last + 1, slice(0, n_tokens), columns])
        start = rows.start - first * n_tokens
        return found.reshape(-1, found.shape[-1])[start : start + rows.stop - rows.start]

    return LazyRows(shape, source.dtype, of_two if len(source.shape) == 2 else of_three, where)
