"""Numbers that a task gives to be predicted as such, checked and brought into one form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from probing.errors import UserError


def one_number(unit: str) -> str:
    """Return what is expected of a task of numbers, for messages."""
    return f"one finite number for each {unit}, None where there is none"


def numbers_of(values: Any, returned: str, unit: str) -> NDArray[np.float64]:
    """Return the numbers of a task, NaN where there is None, shape (n,).

    Args:
        values: A list, a tuple, an array or a tensor.
        returned: The beginning of messages.
        unit: What has a number, for messages.

    Raises:
        UserError: If a value is something else than a finite number or None, or the shape is wrong.
    """
    expected = one_number(unit)
    if values is None or isinstance(values, str | bytes) or not hasattr(values, "__len__"):
        what = "nothing" if values is None else f"a value of the type {type(values).__name__}"
        raise UserError(f"{returned} {what}; return a list or an array with {expected}.")
    array = np.asarray(values, dtype=object if isinstance(values, list | tuple) else None)
    if array.ndim != 1:
        raise UserError(f"{returned} an array of shape {array.shape}; return {expected}, shape (n_{unit}s,).")
    if array.dtype.kind in "iuf":
        found = array.astype(np.float64)
        missing = np.zeros(len(found), dtype=bool)
    else:
        found = np.full(len(array), np.nan)
        missing = np.array([value is None for value in array.tolist()], dtype=bool)
        for i, value in enumerate(array.tolist()):
            if value is None:
                continue
            if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
                raise UserError(
                    f"{returned} {value!r:.60} of the type {type(value).__name__} for {unit} {i}, counted from 0, and "
                    f"its `numbers` says that labels are numbers; return {expected}."
                )
            found[i] = float(value)
    odd = np.flatnonzero(~np.isfinite(found) & ~missing)
    if len(odd):
        raise UserError(f"{returned} {found[odd[0]]} for {unit} {odd[0]}, counted from 0; return {expected}.")
    return found
