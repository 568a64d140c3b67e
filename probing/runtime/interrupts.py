"""Ctrl-C and SIGTERM: both end a command by a KeyboardInterrupt."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType


class Terminated(KeyboardInterrupt):
    """Raised on SIGTERM, which `kill` sends, and a batch system at the end of a job's time."""


# Seconds after which a signal that arrived while an object was finalised is sent again.
AGAIN_S = 0.05
_KINDS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}
# The last interrupt: an exception raised while C code runs may be replaced by another exception.
_received: type[KeyboardInterrupt] | None = None
# Timer that sends such a signal again.
_again: threading.Timer | None = None


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise an exception on both signals; Lightning by itself would continue after SIGTERM to the end of the batch.

    A process that ignores Ctrl-C, as a shell sets up background processes, continues to ignore it.
    """
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():  # other threads cannot handle signals
            for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
                if signal.getsignal(number) == usual:
                    stack.callback(signal.signal, number, signal.signal(number, _interrupt))
        try:
            yield
        finally:
            _forget()


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _received, _again
    _received = _KINDS[signal.Signals(number)]
    if _is_in_finaliser(frame):  # an exception there would be printed and lost
        _again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
        _again.daemon = True
        _again.start()
        return
    raise _received


def _forget() -> None:
    global _received, _again
    if _again is not None:
        _again.cancel()
    _received = _again = None


def _is_in_finaliser(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the interrupt that an error is or was caused by; None without an interrupt."""
    if isinstance(error, KeyboardInterrupt):
        return error
    return _received() if _received else None


@contextmanager
def interrupts_pass() -> Iterator[None]:
    """Raise the interrupt again if Lightning's Trainer has turned it into a SystemExit, whose status may be 0."""
    try:
        yield
    except SystemExit as stop:
        if isinstance(cause := stop.__context__, KeyboardInterrupt):
            raise type(cause)(*cause.args) from None
        if kind := _received:
            _forget()
            raise kind() from None
        raise
