"""Tables as Python has them: a list of rows, each a dict by column."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probing.errors import UserError, as_clause
from probing.results.cells import is_end
from probing.results.schema import Row, Schema
from probing.runtime.replaced_files import replacing


class Table(list[dict[str, Any]]):
    """Rows of a table, in order; each is a dict by column.

    Args:
        rows: The rows.
        schema: Its columns with their types; without it, a column is what its cells are.
    """

    def __init__(self, rows: Iterable[Row] = (), schema: Schema | None = None) -> None:
        super().__init__(row if isinstance(row, dict) else dict(row) for row in rows)
        self.schema = schema

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame, each column by its type; missing numbers are NaN.

        Raises:
            UserError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("`to_pandas` needs pandas, which is not installed; `pip install pandas`.") from None

        def series(column: str) -> Any:
            cells, kind = self._cells(column)
            if kind is str:
                return pandas.Series(cells)
            return pandas.Series(cells, dtype=float if kind is float or None in cells else int)

        return pandas.DataFrame({column: series(column) for column in self._columns()})

    def to_parquet(self, path: str | Path) -> None:
        """Write the table as a Parquet file, each column by its type; an existing file is replaced.

        A cell is null where its row does not have the column, where a number is missing, and at the ends of an interval
        where there is none. Columns of whole numbers and of words, such as classes, are text.

        Args:
            path: The file.

        Raises:
            UserError: If pyarrow is not installed, or the file cannot be written.
        """
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise UserError(
                "`to_parquet` needs pyarrow, which is not installed; `pip install pyarrow`, or read the CSV file."
            ) from None
        table = pyarrow.table({column: self._array(column, pyarrow) for column in self._columns()})
        try:
            with replacing(Path(path)) as partial, partial.open("wb") as file:
                parquet.write_table(table, file)
        except OSError as error:
            raise UserError(f"`{path}` cannot be written ({as_clause(error)}); name a writable file.") from None

    def _columns(self) -> list[str]:
        return list(dict.fromkeys(column for row in self for column in row))

    def _array(self, column: str, pyarrow: Any) -> Any:
        """Return a column as an Arrow array."""
        cells, kind = self._cells(column)
        if kind is str:
            return pyarrow.array([None if cell is None else str(cell) for cell in cells], pyarrow.string())
        return pyarrow.array(cells, pyarrow.float64() if kind is float else pyarrow.int64())

    def _cells(self, column: str) -> tuple[list[Any], type]:
        """Return the cells of a column, None where one is missing, and their type: text if any of them is text."""
        cells = [row.get(column) for row in self]
        if (self.schema.type_of(column) if self.schema else None) is str:
            return cells, str
        known = [None if _is_missing(column, cell) else cell for cell in cells]
        if any(isinstance(cell, str) for cell in known):
            return known if self.schema else cells, str
        is_whole = all(isinstance(cell, int) for cell in known if cell is not None)
        declared = self.schema.type_of(column) if self.schema else None
        return known, int if is_whole and declared is not float and any(cell is not None for cell in known) else float


def _is_missing(column: str, cell: Any) -> bool:
    """Whether a cell of numbers holds none: it is empty, or the end of an interval that there is not."""
    return cell is None or cell == "" or (is_end(column) and isinstance(cell, float) and math.isnan(cell))
