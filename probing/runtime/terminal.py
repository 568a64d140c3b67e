"""Terminal output: messages and tables."""

from __future__ import annotations

import codecs
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from shutil import get_terminal_size
from textwrap import fill
from typing import Any, TextIO, cast

from probing.errors import RunError, as_clause
from probing.runtime.processes import is_main_process

# Width of tables where the output is not a terminal.
PLAIN_WIDTH = 110

# Name of `_as_bytes_or_escaped` among Python's handlers of encoding errors.
_ESCAPED = "probing.escaped"


@contextmanager
def escaped_output() -> Iterator[None]:
    """Let any text be printed: what the terminal's encoding lacks is escaped, and bytes of paths stay as they are."""
    codecs.register_error(_ESCAPED, _as_bytes_or_escaped)
    with ExitStack() as stack:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors != _ESCAPED:
                stack.callback(_restore, stream, stream.errors)
                stream.reconfigure(errors=_ESCAPED)
        yield


def _restore(stream: io.TextIOWrapper, errors: str | None) -> None:
    """Give a stream back its handling of errors; what is left to be written may find no room there any more."""
    with suppress(OSError):
        stream.reconfigure(errors=errors)


def _as_bytes_or_escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    """Return a path's bytes that are no text of the locale, which Python has as lone surrogates, or an escape."""
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


def prints_unicode() -> bool:
    """Whether standard output takes every character."""
    return codecs.lookup(sys.stdout.encoding or "utf-8").name.startswith("utf-")


# What moves the cursor, or turns the direction of the letters around it: names and words come from anywhere.
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def visible(text: str) -> str:
    r"""Return a text with what would steer the terminal written as Python writes it: \x1b for an escape character."""
    return _HIDDEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Output:
    """A standard stream to which text is written as `visible` returns it.

    Args:
        stream: The stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Write a text.

        Raises:
            BrokenPipeError: If nobody reads the stream any more.
            RunError: If the text cannot be written.
        """
        with _writing():
            return self.stream.write(visible(text))

    def flush(self) -> None:
        """Send what was written; the same is raised as by `write`."""
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
    """Write all that is printed on standard output as `visible` returns it."""
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
    """Drop what is printed if standard output is closed; if standard error is closed, messages are printed there.

    A shell closes them by `>&-` and `2>&-`. The next files that are opened would take their numbers, and libraries
    would write messages into them.
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
    """Print a message on standard error, on the first rank only; in a terminal, broken between words."""
    if is_main_process():
        complain(message)


def complain(message: str) -> None:
    """Print a message on standard error, on any rank; in a terminal, broken between words."""
    if sys.stderr is None:  # it is closed
        return
    print(_broken(visible(message), sys.stderr), file=sys.stderr, flush=True)


def _broken(text: str, stream: TextIO) -> str:
    """Return a text broken between words where the stream is a terminal; a longer word is left whole."""
    if not stream.isatty():
        return text
    return fill(text, columns(), break_long_words=False, break_on_hyphens=False)


def columns() -> int:
    """Return the width of the terminal, or $COLUMNS, in characters; 80 where there is none."""
    return max(40, get_terminal_size().columns)


def silence(message: str) -> None:
    """Print nothing."""


def once(say: Callable[[str], None]) -> Callable[[str], None]:
    """Return a function that says each message the first time only."""
    said: set[str] = set()

    def say_new(message: str) -> None:
        if message not in said:
            said.add(message)
            say(message)

    return say_new


def render(*tables: Any) -> str:
    """Return tables as plain text."""
    # In a notebook, rich would also display what it has not captured: nothing, in a cell of its own.
    console = _plain_console(tables, force_jupyter=False)
    with console.capture() as capture:
        for table in tables:
            console.print(table, crop=False)
    return capture.get()


def show(*tables: Any, whole_lines: bool = False) -> None:
    """Print tables; in a terminal, with colours and as wide as the window, otherwise with all their columns.

    Args:
        tables: The tables.
        whole_lines: Whether no row is broken over lines, however long, where the output is not a terminal.
    """
    console = _console() if sys.stdout.isatty() else _plain_console(tables, whole_lines)
    for table in tables:
        console.print(table, crop=False)


def _plain_console(tables: Sequence[Any], whole_lines: bool = False, **options: Any) -> Any:
    """Return a console in which tables have all of their columns."""
    widths = [table.width_of_all(_console(color_system=None), whole_lines) for table in tables]
    return _console(width=max([PLAIN_WIDTH, *widths]), color_system=None, **options)


def tell(*sentences: str) -> None:
    """Print sentences, each beginning a line; in a terminal, broken between words."""
    for sentence in sentences:
        print(_broken(sentence, sys.stdout))


def _console(**options: Any) -> Any:
    """Return a rich console for which brackets and colons in names are letters; colours pass to the terminal."""
    from rich.console import Console

    stream = sys.stdout.stream if isinstance(sys.stdout, Output) else None
    return Console(file=stream, markup=False, emoji=False, **options)


def in_notebook() -> bool:
    """Whether the code runs in a cell of a notebook: IPython, which is imported then, has a kernel."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return getattr(shell, "kernel", None) is not None
