"""Signals that end a command, wherever they find it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from probing.runtime.processes import Terminated, interrupts_pass, signals_interrupt


@pytest.fixture(autouse=True)
def listening() -> Iterator[None]:
    """Heed Ctrl-C, which a shell has background processes ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class EndsBySignal:
    """Is finalised at the moment at which a signal arrives."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)
        time.sleep(0.01)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_is_not_lost_while_an_object_is_finalised(number: int, kind: type[BaseException]) -> None:
    went_on = False
    with pytest.raises(kind), signals_interrupt():  # noqa: PT012
        EndsBySignal(number)
        went_on = True
        time.sleep(10)
    assert went_on


def test_a_training_that_ends_by_itself_after_a_signal_is_interrupted() -> None:
    """Lightning ends a training after SIGTERM by a SystemExit, of status 0, where the signal itself raised nothing."""
    with pytest.raises(Terminated), signals_interrupt(), interrupts_pass():  # noqa: PT012
        EndsBySignal(signal.SIGTERM)
        raise SystemExit
    time.sleep(0.1)  # it is not sent again


def test_a_signal_elsewhere_interrupts_at_once() -> None:
    with pytest.raises(Terminated), signals_interrupt():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it went on")
