"""Ctrl-C and SIGTERM: both end a command as a KeyboardInterrupt, wherever it is."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class Terminated(KeyboardInterrupt):
    """SIGTERM, as `kill` sends it, and a batch system whose time is up."""


_KINDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
# What came last: an exception that is raised while C code runs may come out of it as another one.
_received: type[KeyboardInterrupt] | None = None


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let both signals raise; Lightning alone would note SIGTERM and go on to the end of the batch.

    A process that was told to ignore Ctrl-C, as a shell tells those in the background, goes on ignoring it.
    """
    global _received
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # no other is told of signals
            for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) == usual:
                    stack.callback(signal.signal, number, signal.signal(number, _interrupt))
        try:
            yield
        finally:
            _received = None


def _interrupt(number: int, frame: Any) -> None:
    global _received
    _received = _KINDS[signal.Signals(number)]
    raise _received


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt that an error is or comes from, None where nobody interrupted."""
    if isinstance(error, KeyboardInterrupt):
        return error
    return _received() if _received else None


@contextmanager
def interrupts_pass() -> Iterator[None]:
    """Let an interrupt leave a Trainer as what it was; Lightning makes it the end of the process."""
    try:
        yield
    except SystemExit as stop:
        if isinstance(cause := stop.__context__, KeyboardInterrupt):
            raise type(cause)(*cause.args) from None
        raise
