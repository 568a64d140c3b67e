"""What the user is told when a run cannot go on."""

from __future__ import annotations


class UserError(Exception):
    """The user asked for something impossible; the message is one sentence with the way out (exit status 2)."""


class RunError(Exception):
    """The run failed through no fault of the request; the message says what is left on disk (exit status 1)."""
