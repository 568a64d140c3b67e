"""Environment variables that libraries read deep inside a run, checked before it."""

from __future__ import annotations

import os

from probing.errors import UserError

# A date of more digits is after the year 9999, which is Python's last.
_LONGEST = 11


def check_variables() -> None:
    """Refuse a value at which a library would fail once all is computed.

    Raises:
        UserError: If there is one.
    """
    # matplotlib writes it into PDF files as their date.
    date = os.environ.get("SOURCE_DATE_EPOCH")
    if date and not (date.isascii() and date.isdecimal() and len(date) <= _LONGEST):
        raise UserError(
            f"SOURCE_DATE_EPOCH is {date!r}: expected a date in seconds since 1970; correct it or unset it."
        )


def without_display() -> None:
    """Let matplotlib not look for the window system that `MPLBACKEND` names: figures are drawn into files alone."""
    os.environ.pop("MPLBACKEND", None)
