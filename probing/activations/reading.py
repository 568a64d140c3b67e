"""`read_activations`: finds out which format a file or folder is, and reads it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from probing.activations.contents import Activations, First, assemble, check_rows, layer_keys, natural
from probing.activations.formats import FORMATS, Format
from probing.activations.rows import LazyRows, Source
from probing.errors import UserError, as_clause, library_errors
from probing.runtime.files import open_file
from probing.runtime.terminal import say

Made = TypeVar("Made")
# Files that only unpickling could read.
_PICKLES = (".pkl", ".pickle", ".acts", ".joblib")


def read_activations(path: str | Path, first: First | None = None, n_layers: int | None = None) -> Activations:
    """Read activations that another tool has written; rows stay on the disk until they are needed, where possible.

    Args:
        path: File or folder of one of the formats of docs/activations.md; or a folder of such files, one a layer.
        first: What the first axis of a file with a single array of three axes is: `layers` (then tokens, d_model) or
            `sentences` (then tokens, d_model); of a single array of four axes, `layers`.
        n_layers: Number of layers that stand beside each other in each row of a single array, as NeuroX concatenates
            them.

    Returns:
        The layers, and what the format says of each row: `probing.probe(found.layers, y, groups=found.groups)`.

    Raises:
        UserError: If the format is unknown, needs a package that is not installed, or could only be unpickled; or if
            the file is damaged or empty, layers have unlike numbers of rows, or what an axis is remains open.
    """
    path = Path(path)
    if first not in (None, "layers", "sentences"):
        raise UserError(f"`first` is {first!r}: expected layers or sentences.")
    if not path.exists():
        raise UserError(f"{path} does not exist: expected a file or folder of activations.")
    if path.is_file() and not path.stat().st_size:
        raise UserError(f"{path} is empty: the file has no bytes; write it again.")
    found = _read(path, first)
    found = found if n_layers is None else _divided(found, n_layers)
    say(found.summary)
    return found


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


def _checked(form: Format, path: Path, read: Callable[[], Made]) -> Made:
    """Return what is read, and turn what libraries say of it into one sentence.

    Raises:
        UserError: If a package is missing, or the file is damaged or empty.
    """
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
    """Return what a folder holds of formats that can be read, in the order of the numbers in their names."""
    there = sorted(
        (path for path in folder.iterdir() if not path.name.startswith(".")), key=lambda path: natural(path.name)
    )
    return [path for path in there if _format_of(path)]


def _of_files(folder: Path, files: list[Path], first: First | None) -> Activations:
    """Join files of one layer each.

    Raises:
        UserError: If they are of several formats, have several layers, or do not fit together.
    """
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
            there = _checked(form, file, partial(arrays_of, file))
            if len(there) != 1:
                raise _several(file, len(there))
            arrays[stem] = next(iter(there.values()))
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


def _same(one: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def _several(file: Path, n: int) -> UserError:
    return UserError(
        f"{file} has {n} arrays: expected one layer in each file of a folder; or read this file by itself."
    )


def _divided(found: Activations, n_layers: int) -> Activations:
    """Divide the columns of a single array into layers.

    Raises:
        UserError: If there are several layers, or the width is no multiple of their number.
    """
    if len(found.layers) != 1:
        raise UserError(
            f"`n_layers` divides the columns of a single array, and {found.path} has {len(found.layers)} layers."
        )
    (rows,) = found.layers.values()
    width, rest = divmod(rows.shape[1], n_layers) if n_layers > 0 else (0, 1)
    if rest or not width:
        raise UserError(
            f"`n_layers={n_layers}`: {found.path} has {rows.shape[1]} columns, which are no multiple of it."
        )
    layers = {
        layer: rows.columns(layer * width, (layer + 1) * width)
        if isinstance(rows, LazyRows)
        else rows[:, layer * width : (layer + 1) * width]
        for layer in range(n_layers)
    }
    return Activations(found.path, found.format, layers, found.groups, found.columns)
