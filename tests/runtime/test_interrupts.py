"""Signals that end a command, wherever they find it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from probing.cli.commandline import run
from probing.runtime import processes
from probing.runtime.processes import HungUp, Terminated, interrupts_pass, signals_interrupt


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


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated), (signal.SIGHUP, HungUp)]
)
def test_further_signals_at_once_do_not_interrupt_what_is_cleaned_up(
    number: int, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "SAME_S", 60.0)  # a busy machine may take longer for what is at once
    cleaned = []
    with pytest.raises(kind) as caught, signals_interrupt():  # noqa: PT012
        try:
            os.kill(os.getpid(), number)
        finally:
            for again in (number, signal.SIGINT, signal.SIGTERM):
                os.kill(os.getpid(), again)
                cleaned.append(again)
    assert type(caught.value) is kind
    assert len(cleaned) == 3


def test_a_later_signal_interrupts_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SAME_S", 0.0)
    with pytest.raises(Terminated), signals_interrupt():  # noqa: PT012
        try:
            os.kill(os.getpid(), signal.SIGINT)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("it went on")
    with pytest.raises(KeyboardInterrupt), signals_interrupt():
        os.kill(os.getpid(), signal.SIGINT)


def interrupted() -> None:
    """Be interrupted three times."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)


def hung_up() -> None:
    """Lose the terminal."""
    os.kill(os.getpid(), signal.SIGHUP)


def without_memory() -> None:
    """Ask for more memory than there is."""
    import numpy as np

    np.empty(2**58)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("interrupted", 130, "probing interrupted: interrupted; the cached activations are kept."),
        ("hung_up", 129, "probing hung_up: ended because the terminal was closed; the cached activations are kept."),
        ("without_memory", 1, "probing without_memory: memory ran out (Unable to allocate 2.00 EiB"),
    ],
)
def test_a_command_ends_with_a_sentence(name: str, status: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run({name: f"{__name__}:{name}"}, [name]) == status
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(words)
