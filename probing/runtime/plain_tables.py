"""Tables in the style of this project, which never cut a number: what has no room is left out and named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from probing.runtime.terminal import visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Column

# A column with a cell of more characters than this holds text, which is broken between words where there is no room.
LONGEST_NUMBER = 24
# A column of text is at least this wide, or as wide as its longest cell.
LEAST_TEXT = 16
# More characters than any table has in a line.
_ENDLESS = 100_000
# This many columns at the left say what a row is of; they stay.
OF_THE_ROW = 2


def plain_table(title: str | None, leave_out: Sequence[str] = (), **options: Any) -> Any:
    """Return an empty rich table in the style of all tables of this project, whose cells are made visible.

    Where there is no room for all of it, headings are broken between words, and then columns are left out and named
    below the table; what still has no room goes over the width. A column whose heading recurs, such as an interval, is
    never without the column to its left.

    Args:
        title: Its title.
        leave_out: Headings of the columns that are left out first, in this order; then those at the right, except the
            first two columns and the last one.
        options: Further options of rich's table.
    """
    from rich import box
    from rich.table import Table

    class PlainTable(Table):
        def add_column(self, header: Any = "", *args: Any, **options: Any) -> None:
            super().add_column(visible(header), *args, **options)

        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in cells), **options)

        def width_of_all(self, console: Console, whole_lines: bool = False) -> int:
            """Return the number of characters a line of all columns has; cells are broken where they can be."""
            from rich.measure import Measurement

            table = self if whole_lines else _with(self, self.columns, broken=True)
            width = Measurement.get(console, console.options.update(width=_ENDLESS), table)
            return width.maximum if whole_lines else width.minimum

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            fitted, width = _fitted(self, console, options, leave_out)
            yield from Table.__rich_console__(fitted, console, options.update(width=max(width, options.max_width)))

    shown = title and visible(title)
    return PlainTable(title=shown, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, **options)


def _fitted(table: Any, console: Console, options: ConsoleOptions, leave_out: Sequence[str]) -> tuple[Any, int]:
    """Return a table that fits into the width, or is as narrow as it can be, and its least width."""
    from rich.measure import Measurement

    endless = options.update(width=_ENDLESS)
    if Measurement.get(console, endless, table).maximum <= options.max_width:
        return table, 0
    columns: list[Column] = list(table.columns)
    names = [str(column.header) for column in columns]
    first_out = [names.index(name) for name in leave_out if name in names]
    others = [i for i in range(len(names) - 2, OF_THE_ROW - 1, -1) if i not in first_out]
    out = [*first_out, *others]
    for n_gone, broken in product(range(len(out) + 1), (False, True)):
        gone = out[:n_gone]
        for k in range(1, len(names)):  # a heading that recurs says what it is by the column to its left
            if names.count(names[k]) > 1 and k - 1 in gone and k not in gone:
                gone.append(k)
        fitted = _with(table, [column for k, column in enumerate(columns) if k not in gone], broken)
        width = Measurement.get(console, endless, fitted).minimum
        if width <= options.max_width:
            break
    else:  # no choice of columns fits: all of them, over the width
        gone, fitted, width = [], _with(table, columns, broken=True), table.width_of_all(console)
    if gone:
        left_out = [_called(names, k) for k in sorted(gone)]
        said = f"left out for lack of room: {', '.join(left_out)}"
        fitted.caption = "\n".join([*_legend(str(fitted.caption or ""), left_out), said])
        fitted.caption_justify = "left"
    return fitted, width


def _called(names: Sequence[str], k: int) -> str:
    """Return what a column is called below its table."""
    return f"{names[k]} of {names[k - 1]}" if names.count(names[k]) > 1 and k else names[k]


def _legend(caption: str, left_out: Sequence[str]) -> list[str]:
    """Return the lines of a caption without what they say of columns that are left out."""
    own = tuple(f"{name}: " for name in left_out)
    lines = ["; ".join(part for part in line.split("; ") if not part.startswith(own)) for line in caption.splitlines()]
    return [line for line in lines if line]


def _with(table: Any, columns: Sequence[Column], broken: bool) -> Any:
    """Return the table with these columns alone, none narrower than its numbers; headings are broken if asked for."""
    from copy import copy

    made = copy(table)
    made.columns = [
        replace(column, header=header, min_width=_least(header, column), no_wrap=_is_of_numbers(column), _index=i)
        for i, column in enumerate(columns)
        for header in [str(column.header).replace(" ", "\n") if broken else str(column.header)]
    ]
    return made


def _is_of_numbers(column: Column) -> bool:
    return max((len(str(cell)) for cell in column.cells), default=0) <= LONGEST_NUMBER


def _least(header: str, column: Column) -> int:
    """Return the number of characters below which something of a column would be cut: a number, or a word of a text.

    rich takes width from the widest columns of text, whatever their longest word, and cuts that.
    """
    from rich.cells import cell_len

    lines = [line for cell in column.cells for line in str(cell).splitlines()]
    whole = lines if _is_of_numbers(column) else [word for line in lines for word in line.split()]
    longest = max(map(cell_len, lines), default=1)
    return max(*map(cell_len, (*header.splitlines(), *whole, "x")), min(LEAST_TEXT, longest))
