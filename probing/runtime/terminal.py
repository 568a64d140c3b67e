"""Messages and tables in the terminal."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import product
from shutil import get_terminal_size
from textwrap import fill, wrap
from typing import TYPE_CHECKING, Any, TextIO, cast

from probing.errors import RunError, as_clause
from probing.runtime.processes import is_main_process

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Column

# Width of sentences and tables where the output is no terminal and $COLUMNS is not set; wider tables keep all columns.
PROSE_WIDTH = 100

# Name of `_as_bytes_or_escaped` among Python's handlers of encoding errors.
_ESCAPED = "probing.escaped"


@contextmanager
def escaped_output() -> Iterator[None]:
    """Allow any text to be printed: characters that the encoding lacks are escaped, bytes of paths stay unchanged."""
    codecs.register_error(_ESCAPED, _as_bytes_or_escaped)
    with ExitStack() as stack:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors != _ESCAPED:
                stack.callback(_restore, stream, stream.errors)
                stream.reconfigure(errors=_ESCAPED)
        yield


def _restore(stream: io.TextIOWrapper, errors: str | None) -> None:
    """Restore the error handling of a stream; there may be no room left for pending output."""
    with suppress(OSError):
        stream.reconfigure(errors=errors)


def _as_bytes_or_escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return an escape, or a path's bytes that are no text of the locale (lone surrogates in Python)."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def prints_unicode() -> bool:
    """Return whether standard output accepts every character."""
    return codecs.lookup(sys.stdout.encoding or "utf-8").name.startswith("utf-")


# What moves the cursor, or turns the direction of the letters around it: names and words come from anywhere.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""Return a text in which terminal control characters are escaped as in Python: \x1b for an escape character."""
    return _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


class Output:
    """Standard stream that writes text as `visible` returns it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text; raise BrokenPipeError if nobody reads the stream, RunError if writing fails."""
        with _writing():
            return self.stream.write(visible(text))

    def flush(self) -> None:
        """Flush the stream; errors as `write`."""
        with _writing():
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise RunError(
            f"standard output cannot be written ({as_clause(error)}); send it to where there is room"
        ) from error


@contextmanager
def visible_output() -> Iterator[None]:
    """Write everything printed on standard output as `visible` returns it."""
    if (before := sys.stdout) is None:
        yield
        return
    sys.stdout = cast(TextIO, Output(before))
    try:
        yield
    finally:
        try:
            sys.stdout.flush()
        finally:
            sys.stdout = before


@contextmanager
def open_output() -> Iterator[None]:
    """Drop all output if standard output is closed; print messages there if standard error is closed.

    Otherwise the next opened files would take the numbers closed by `>&-` and `2>&-`, and receive libraries' messages.
    """
    with ExitStack() as stack:
        for number in range(3):
            try:
                os.fstat(number)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
        if sys.stdout is None:
            stack.callback(setattr, sys, "stdout", None)
            sys.stdout = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        if sys.stderr is None:
            stack.callback(setattr, sys, "stderr", None)
            sys.stderr = sys.stdout
        yield


def say(message: str) -> None:
    """Print a message on standard error, on the rank-zero process only, wrapped between words."""
    if is_main_process():
        complain(message)


def complain(message: str) -> None:
    """Print a message on standard error, on any rank, wrapped between words."""
    if sys.stderr is None:  # it is closed
        return
    print(_wrapped(visible(message), sys.stderr), file=sys.stderr, flush=True)


def _wrapped(text: str, stream: TextIO) -> str:
    """Return a text wrapped between words at the width of the terminal; in a pipe at $COLUMNS, or else at 100."""
    width = columns() if stream.isatty() else columns_of_environment() or PROSE_WIDTH
    return "\n".join(fill(line, width, break_long_words=False, break_on_hyphens=False) for line in text.split("\n"))


def columns_of_environment() -> int | None:
    """Return $COLUMNS, None if it is not set to a number."""
    try:
        return max(40, int(os.environ["COLUMNS"]))
    except (KeyError, ValueError):
        return None


def columns() -> int:
    """Return the width of the terminal, or $COLUMNS, in characters, at least 40; 80 without a terminal."""
    return max(40, get_terminal_size().columns)


def silence(message: str) -> None:
    """Print nothing."""


def once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that prints each message only once."""
    return cache(say)


def render(*tables: Any) -> str:
    """Return tables as plain text, fitted to a terminal, without blanks at the ends of lines."""
    # In a notebook, rich would also display what it has not captured: nothing, in another output.
    return _captured(_plain_console(tables, force_jupyter=False), tables)


def _captured(console: Console, tables: Sequence[Any]) -> str:
    with console.capture() as capture:
        for table in tables:
            console.print(table, crop=False)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def show(*tables: Any, whole_lines: bool = False) -> None:
    """Print tables, fitted to a terminal or to $COLUMNS, otherwise with all columns; `whole_lines` never wraps rows."""
    console = _console() if sys.stdout.isatty() else _plain_console(tables, whole_lines)
    if sys.stdout.isatty() or console.is_jupyter:
        for table in tables:
            console.print(table, crop=False)
    else:
        print(_captured(console, tables), end="")


# Lines that a command prints of its results in a terminal, and the sentences and tables among them; `--verbose` prints
# all. Elsewhere all sentences are printed, and so many lines of each table.
MOST_PRINTED, MOST_SENTENCES, MOST_TABLES, MOST_OF_TABLE = 35, 6, 2, 80
# Lines of the sentences before one table, and before two; the fewest lines of a table that is still worth showing; and
# the rows that the first of two tables keeps, if the other one can then have so many lines.
MOST_BEFORE_ONE, MOST_BEFORE_TWO, LEAST_SHOWN, ROWS_OF_FIRST, OF_SECOND = 16, 8, 8, 3, 12


def brief(sentences: Sequence[str], tables: Sequence[Any], reserved: int) -> bool:
    """Print the first sentences and tables; return whether anything is left out.

    A terminal shows what has room in `MOST_PRINTED` lines. Elsewhere, as in a file, no sentence is left out.

    Args:
        sentences: Sentences, the answer first.
        tables: Tables, the most important first; the rows that have no room are left out.
        reserved: Lines that are printed elsewhere.
    """
    room, shown = MOST_PRINTED - reserved, 0
    tables_shown = tables[:MOST_TABLES]
    if not sys.stdout.isatty():
        whole = [_with_first_rows(table, MOST_OF_TABLE) for table in tables_shown]
        tell(*sentences[:MOST_SENTENCES])
        show(*whole)
        tell(*sentences[MOST_SENTENCES:])
        return len(tables) > MOST_TABLES or whole != [*tables_shown]
    most = (room, MOST_BEFORE_ONE, MOST_BEFORE_TWO)[len(tables_shown)]
    for sentence in sentences[:MOST_SENTENCES]:
        n_lines = len(_wrapped(sentence, sys.stdout).split("\n"))
        if shown and n_lines > most:
            break
        tell(sentence)
        shown, room, most = shown + 1, room - n_lines, most - n_lines
    has_more = shown < len(sentences) or len(tables) > MOST_TABLES
    for i, table in enumerate(tables_shown):
        below = sum(min(OF_SECOND, _height(other)) for other in tables_shown[i + 1 :])
        fitted = _with_first_rows(table, room - below)
        if below and (fitted is None or fitted.row_count < min(ROWS_OF_FIRST, table.row_count)):
            fitted = _with_first_rows(table, room)
        if fitted is None or room < LEAST_SHOWN:
            return True
        show(fitted)
        has_more, room = has_more or fitted is not table, room - _height(fitted)
    return has_more


def _height(table: Any) -> int:
    """Return the number of lines that `show` prints of a table."""
    return len(_captured(_plain_console([table]), [table]).splitlines())


def _with_first_rows(table: Any, n_lines: int) -> Any | None:
    """Return a table with as many of its first rows as fit into some lines, and how many these are; None for none."""
    from copy import copy

    n_rows, fitted = table.row_count, table
    while (excess := _height(fitted) - n_lines) > 0:
        n_rows -= excess
        if n_rows < 1:
            return None
        fitted = copy(table)
        fitted.rows = table.rows[:n_rows]
        fitted.columns = [replace(column, _cells=[*column.cells][:n_rows]) for column in table.columns]
        note = f"the first {n_rows} of {table.row_count} rows"
        fitted.caption = "\n".join(filter(None, [str(table.caption or ""), note]))
    return fitted


def _plain_console(tables: Sequence[Any], whole_lines: bool = False, **options: Any) -> Any:
    width = columns() if sys.stdout.isatty() else columns_of_environment()
    if whole_lines or width is None:
        widths = [table.width_of_all(_console(color_system=None), whole_lines) for table in tables]
        width = max([PROSE_WIDTH, *widths])
    return _console(width=width, color_system=None, **options)


def tell(*sentences: str) -> None:
    """Print sentences, each beginning a line, wrapped between words."""
    for sentence in sentences:
        print(_wrapped(sentence, sys.stdout))


def _console(**options: Any) -> Any:
    from rich.console import Console

    stream = sys.stdout.stream if isinstance(sys.stdout, Output) else None
    return Console(file=stream, markup=False, emoji=False, **options)


def in_notebook() -> bool:
    """Return whether the code runs in a notebook cell: IPython is then imported and has a kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None


# --------------------------------------------------------------------------------------------------------------------
# Tables in the style of this project, which never cut a number: what has no room is left out and named.
# --------------------------------------------------------------------------------------------------------------------

# A column with a cell of more characters than this holds text, which is broken between words where there is no room.
LONGEST_NUMBER = 24
# A column of text is at least this wide, or as wide as its longest cell.
LEAST_TEXT = 16
# More characters than any table has in a line.
_ENDLESS = 100_000
# This many columns at the left say what a row is of; they stay.
OF_THE_ROW = 2


def plain_table(title: str | None, leave_out: Sequence[str] = (), **options: Any) -> Any:
    """Return an empty rich table in the style of this project, whose cells are escaped by `visible`.

    Without enough room, headings are wrapped first, then columns are omitted and named below the table: the columns in
    `leave_out`, in this order, then from the right, except the first two and the last. A table that still does not fit
    exceeds the width. A repeated heading, such as an interval, never appears without the column to its left.
    """
    from rich import box
    from rich.table import Table

    class PlainTable(Table):
        leave_out: Sequence[str]

        def __repr__(self) -> str:
            return render(self)

        def add_column(self, header: Any = "", *args: Any, **options: Any) -> None:
            super().add_column(visible(header), *args, **options)

        def add_row(self, *cells: Any, **options: Any) -> None:
            super().add_row(*(visible(cell) if isinstance(cell, str) else cell for cell in cells), **options)

        def width_of_all(self, console: Console, whole_lines: bool = False) -> int:
            """Return the line width of all columns in characters, with cells wrapped where possible."""
            from rich.measure import Measurement

            table = self if whole_lines else _with(self, self.columns, broken=True)
            width = Measurement.get(console, console.options.update(width=_ENDLESS), table)
            return width.maximum if whole_lines else width.minimum

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            from copy import copy

            from rich.text import Text

            fitted, width = _fitted(self, console, options)
            fitted = copy(fitted)
            # rich would break title and caption at the width of the table, which may be narrow.
            above, below, fitted.title, fitted.caption = fitted.title, fitted.caption, None, None
            prose = options.update(width=min(options.max_width, columns_of_environment() or PROSE_WIDTH))
            if above:
                yield from console.render(Text(str(above), "table.title"), prose)
            yield from Table.__rich_console__(fitted, console, options.update(width=max(width, options.max_width)))
            if below:
                yield from console.render(Text(str(below), "table.caption"), prose)

    shown = title and visible(title)
    table = PlainTable(title=shown, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, **options)
    table.leave_out = leave_out
    return table


def _fitted(table: Any, console: Console, options: ConsoleOptions) -> tuple[Any, int]:
    """Return a table that fits into the width, or is as narrow as possible, and its minimal width."""
    from rich.measure import Measurement

    endless = options.update(width=_ENDLESS)
    if Measurement.get(console, endless, table).maximum <= options.max_width:
        return table, 0
    columns: list[Column] = list(table.columns)
    for gone, broken in product(columns_to_leave_out(table), (False, True)):
        fitted = _with(table, [column for k, column in enumerate(columns) if k not in gone], broken)
        width = Measurement.get(console, endless, fitted).minimum
        if width <= options.max_width:
            break
    else:  # no choice of columns fits: all of them, over the width
        gone, fitted, width = [], _with(table, columns, broken=True), table.width_of_all(console)
    if gone:
        dropped = names_of_columns(table, gone)
        note = f"left out for lack of room: {', '.join(dropped)}"
        fitted.caption = "\n".join([*_legend(str(fitted.caption or ""), dropped), note])
    return fitted, width


def columns_to_leave_out(table: Any) -> Iterator[list[int]]:
    """Yield the columns to leave out of a table that does not fit, none at first, then one more at a time."""
    names = [str(column.header) for column in table.columns]
    first_out = [names.index(name) for name in table.leave_out if name in names]
    others = [i for i in range(len(names) - 2, OF_THE_ROW - 1, -1) if i not in first_out]
    out = [*first_out, *others]
    for n_gone in range(len(out) + 1):
        gone = out[:n_gone]
        for k in range(1, len(names)):  # a heading that recurs says what it is by the column to its left
            if names.count(names[k]) > 1 and k - 1 in gone and k not in gone:
                gone.append(k)
        yield gone


def names_of_columns(table: Any, which: Iterable[int]) -> list[str]:
    """Return the headings of some columns, in their order; one that recurs with that of the column that it is of."""
    names = [str(column.header) for column in table.columns]
    of = {k: next((name for name in reversed(names[:k]) if names.count(name) == 1), "") for k in which}
    return [f"{names[k]} of {of[k]}" if names.count(names[k]) > 1 and of[k] else names[k] for k in sorted(of)]


def _legend(caption: str, dropped: Sequence[str]) -> list[str]:
    prefixes = tuple(f"{name}: " for name in dropped)
    lines = [
        "; ".join(part for part in line.split("; ") if not part.startswith(prefixes)) for line in caption.splitlines()
    ]
    return [line for line in lines if line]


def _with(table: Any, columns: Sequence[Column], broken: bool) -> Any:
    """Return a table of these columns, none narrower than its numbers; `broken` wraps headings."""
    from copy import copy

    copied = copy(table)
    copied.columns = [
        replace(column, header=header, min_width=_least(header, column), no_wrap=_is_of_numbers(column), _index=i)
        for i, column in enumerate(columns)
        for header in [wrapped_heading(str(column.header), column) if broken else str(column.header)]
    ]
    return copied


# Most lines of a heading, if its words are short enough for so few.
MOST_LINES = 4


def wrapped_heading(header: str, column: Column) -> str:
    """Return a heading wrapped between words, no wider than the column's numbers need unless it has many lines."""
    words = header.split()
    cells = max((len(str(cell)) for cell in column.cells), default=0) if _is_of_numbers(column) else 0
    width = max([1, cells, *map(len, words)])
    while len(lines := wrap(header, width, break_long_words=False, break_on_hyphens=False)) > MOST_LINES:
        width += 1
    return "\n".join(lines)


def _is_of_numbers(column: Column) -> bool:
    return max((len(str(cell)) for cell in column.cells), default=0) <= LONGEST_NUMBER


def _least(header: str, column: Column) -> int:
    """Return the width below which rich, which shrinks the widest text columns, would cut a number or a word."""
    from rich.cells import cell_len

    lines = [line for cell in column.cells for line in str(cell).splitlines()]
    whole = lines if _is_of_numbers(column) else [word for line in lines for word in line.split()]
    longest = max(map(cell_len, lines), default=1)
    return max(*map(cell_len, (*header.splitlines(), *whole, "x")), min(LEAST_TEXT, longest))
