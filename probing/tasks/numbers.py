"""Numbers that a task gives to be predicted as such, checked and brought into one form."""

from __future__ import annotations

from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.corpus.cells import text_of
from probing.errors import UserError
from probing.tasks.values import Given


def one_number(unit: str) -> str:
    """Return what is expected of a task of numbers, for messages."""
    return f"one finite number for each {unit}, None where there is none"


def numbers_of(values: Any, given: Given) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return the numbers to predict, shape (n,), and where there is one; a number that is not finite is missing.

    Args:
        values: A list, a tuple, an array, a masked array or a tensor.
        given: Where it comes from.

    Raises:
        UserError: If a value is something else than a number or None, or the shape is wrong.
    """
    expected = f"{given.verb} {one_number(given.unit)}"
    if values is None or isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        what = "nothing" if values is None else f"a value of the type {type(values).__name__}"
        raise UserError(f"{given.subject} {what}; {given.verb} a list or an array with {one_number(given.unit)}.")
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if array.ndim != 1:
        raise UserError(f"{given.subject} an array of shape {array.shape}; {expected}, shape (n_{given.unit}s,).")
    if array.dtype.kind not in "iuf":
        cells = array.tolist()
        for i, value in enumerate(cells):
            if text_of(value) is None:
                cells[i] = None
            elif isinstance(value, bool | np.bool_) or not isinstance(value, Real):
                raise UserError(
                    f"{given.subject} {value!r:.60} of the type {type(value).__name__} for {given.unit} {i}, counted "
                    f"from 0, and `numbers` says that labels are numbers; {expected}."
                )
        array = np.array(cells, dtype=object)
    found = array.astype(np.float64)
    return found, np.isfinite(found)
