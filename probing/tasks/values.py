"""Labels that a task or an array gives, checked and brought into one form: text, whole numbers, or true and false."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from probing.corpus.cells import check_label, label_of, text_of
from probing.errors import UserError

# Kinds of numpy arrays in words, for messages.
_KINDS = {"c": "complex numbers", "S": "bytes", "M": "dates", "m": "durations"}
# Whole numbers from here on do not fit into 64 bits.
_TOO_HIGH = 2**63


class Given(NamedTuple):
    """Where labels come from, for messages.

    Args:
        subject: The beginning of a sentence that ends in what was found: "the task X: `labels` returned", "`y` has".
        verb: What the user is to do instead: return, give.
        unit: What has a label: token, sentence, row.
        way_out: What else to do if labels have a fraction.
    """

    subject: str
    verb: str
    unit: str
    way_out: str

    @property
    def expected(self) -> str:
        """What is expected, for messages."""
        return f"{self.verb} one label for each {self.unit}: text, whole numbers, or true and false"


def class_values(values: Any, given: Given) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return labels as one array of int64, bool, or strings as objects, and where there is one.

    What is missing is told by `probing.corpus.cells`: None, NaN, blank text, whole numbers below 0 and masked values.
    Whole numbers are the same with and without a fraction of 0.

    Args:
        values: A list, a tuple, an array, a masked array or a tensor.
        given: Where it comes from.

    Raises:
        UserError: If it is something else, has another shape than (n,), or holds other values or several kinds.
    """
    if isinstance(values, np.ma.MaskedArray):
        values = values.tolist()
    if isinstance(values, list | tuple):
        return _of_list(values, given)
    if values is None or isinstance(values, str | bytes) or not hasattr(values, "__array__"):
        what = "nothing" if values is None else f"a value of the type {type(values).__name__}"
        raise UserError(f"{given.subject} {what}; {given.verb} a list or an array with {_after_verb(given)}.")
    array = np.asarray(values)
    if array.ndim != 1:
        raise UserError(f"{given.subject} an array of shape {array.shape}; {given.expected}, shape (n_{given.unit}s,).")
    kind = array.dtype.kind
    if kind in "OU":
        return _of_list(array.tolist(), given)
    if kind == "b":
        return array, np.ones(len(array), dtype=bool)
    if kind in "iuf":
        return _whole_numbers(array, given)
    raise UserError(f"{given.subject} {_KINDS.get(kind, f'an array of {array.dtype}')}; {given.expected}.")


def _after_verb(given: Given) -> str:
    return given.expected.removeprefix(f"{given.verb} ")


def _whole_numbers(array: NDArray[Any], given: Given) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    is_known = np.isfinite(array) & (array >= 0)
    known = array[is_known]
    if array.dtype.kind == "f" and len(odd := known[known != np.round(known)]):
        raise UserError(
            f"{given.subject} numbers with a fraction, such as {odd[0]}; {given.expected}, {given.way_out}."
        )
    if len(known) and known.max() >= _TOO_HIGH:
        raise _too_high(known.max(), given)
    found = np.full(len(array), -1, dtype=np.int64)
    found[is_known] = known.astype(np.int64)
    return found, is_known


def _too_high(number: Any, given: Given) -> UserError:
    return UserError(f"{given.subject} {number!s:.60}, and whole numbers have to be below 2^63; {given.expected}.")


def _of_list(values: Sequence[Any], given: Given) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    is_known = np.array([text_of(value) is not None for value in values], dtype=bool)
    known = [value for value, there in zip(values, is_known.tolist(), strict=True) if there]
    kinds = {_kind(value) for value in known}
    if kinds <= {str}:
        labels = np.full(len(values), "", dtype=object)
        labels[is_known] = [label_of(value) for value in known]
        for label in set(labels.tolist()):
            check_label(label, f"{given.subject} a label that")
        return labels, labels != ""
    if kinds == {bool}:
        found = np.zeros(len(values), dtype=bool)
        found[is_known] = known
        return found, is_known
    if kinds <= {int, float}:
        numbers = np.full(len(values), -1, dtype=np.float64 if float in kinds else object)
        numbers[is_known] = known
        if float in kinds:
            return _whole_numbers(numbers, given)
        if (highest := max(known)) >= _TOO_HIGH:
            raise _too_high(highest, given)
        found = np.array([max(int(number), -1) for number in numbers.tolist()], dtype=np.int64)
        return found, found >= 0
    usual = _kind(known[0])
    at = next(i for i, value in enumerate(values) if is_known[i] and (_kind(value) is not usual or usual is None))
    odd = values[at]
    mixed = f", where others are {type(known[0]).__name__}" if usual is not None else ""
    raise UserError(
        f"{given.subject} {odd!r:.60} of the type {type(odd).__name__} for {given.unit} {at}, counted from 0{mixed}; "
        f"{given.expected}."
    )


def _kind(value: Any) -> type | None:
    """Return the kind of a label, str, bool, int or float; None if it can be none."""
    if isinstance(value, str):
        return str
    if isinstance(value, bool | np.bool_):
        return bool
    if isinstance(value, int | np.integer):
        return int
    return float if isinstance(value, float | np.floating) else None
