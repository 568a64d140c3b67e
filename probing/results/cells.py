"""Cells of tables: the ends of intervals, and numbers as text."""

from __future__ import annotations

import math
from typing import Any

from probing.results.schema import Row


def is_end(column: str) -> bool:
    """Return whether a column holds an end of an interval; its cell is empty where there is no interval."""
    return column.split("_")[-1] in ("low", "high")


def without_nan(row: Row) -> dict[str, Any]:
    """Return a row with None in place of NaN, which JSON does not have."""
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in row.items()}


def ends(row: Row, of: str = "") -> tuple[float, float] | None:
    """Return both ends of an interval, or None where the row has none.

    Args:
        row: A row, from memory or from a file.
        of: Name of the quantity; the columns are `OF_low` and `OF_high`, or `low` and `high` without a name.
    """
    low, high = (row.get(f"{of}_{end}".lstrip("_")) for end in ("low", "high"))
    there = all(isinstance(end, int | float) and math.isfinite(end) for end in (low, high))
    return (float(low), float(high)) if there else None  # type: ignore[arg-type]


def interval(row: Row, of: str = "", between: str = "-", form: str = ".3f", times: float = 1) -> str:
    """Return an interval as text, empty where the row has none.

    Args:
        row: A row, from memory or from a file.
        of: Name of the quantity, as in `ends`.
        between: Text between the ends.
        form: Format of each end.
        times: Factor by which each end is multiplied; below 0 the ends change places.
    """
    found = sorted(times * end for end in ends(row, of) or ())
    return between.join(shown(end, form) for end in found)


def shown(value: float, form: str) -> str:
    """Return a number as text; one that is not 0 never looks like 0: it has as many digits as show its first one.

    So an interval that leaves out 0 is seen to do so, such as `2e-05 to 0.0036` in place of `0.0000 to 0.0036`.

    Args:
        value: The number.
        form: Its format, such as `.4f`.
    """
    text = format(value + 0.0 if value else 0.0, form)
    if value and math.isfinite(value) and not set(text) & set("123456789"):
        return format(value, f"{form[0] if form[0] == '+' else ''}.1g")
    return text


def in_brackets(*parts: str) -> str:
    """Return the parts that are not empty in brackets after a space; an empty text if all are empty."""
    said = "; ".join(part for part in parts if part)
    return f" ({said})" if said else ""
