"""Tables as CSV files, in full precision."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from probing.tables.columns import Row, is_end


def write_csv(path: Path, rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Write rows in full precision, leaving out columns that no row has; without rows, the columns alone.

    Where there is no interval, the cells of its ends are empty.
    """
    present = [column for column in columns if any(column in row for row in rows) or not rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, present, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(name, value) for name, value in row.items()} for row in rows)


def read_csv(path: Path) -> list[dict[str, Any]]:
    """Read rows, with numbers as numbers; where there is no interval, its ends are NaN."""
    with path.open(newline="") as file:
        return [{name: _value(name, text) for name, text in row.items()} for row in csv.DictReader(file)]


def _cell(column: str, value: Any) -> Any:
    return "" if is_end(column) and isinstance(value, float) and math.isnan(value) else value


def _value(column: str, text: str) -> int | float | str:
    return math.nan if is_end(column) and text == "" else _number(text)


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
