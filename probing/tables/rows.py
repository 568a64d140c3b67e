"""Tables as Python has them: a list of rows, each a dict by column."""

from __future__ import annotations

from typing import Any

from probing.errors import UserError


class Table(list[dict[str, Any]]):
    """Rows of a table, in order; each is a dict by column."""

    def to_pandas(self) -> Any:
        """Return the table as a pandas DataFrame.

        Raises:
            UserError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise UserError("`to_pandas` needs pandas, which is not installed; `pip install pandas`.") from None
        return pandas.DataFrame(self)
