"""Ctrl-C and SIGTERM: both end a command as a KeyboardInterrupt, wherever it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, as `kill` sends it, and a batch system whose time is up."""


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM raise `Terminated`; Lightning alone would note it and go on to the end of the batch."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is told of signals
        return

    def terminate(signum: int, frame: Any) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def interrupts_pass() -> Iterator[None]:
    """Let an interrupt leave a Trainer as what it was; Lightning makes it the end of the process."""
    try:
        yield
    except SystemExit as stop:
        if isinstance(cause := stop.__context__, KeyboardInterrupt):
            raise type(cause)(*cause.args) from None
        raise
