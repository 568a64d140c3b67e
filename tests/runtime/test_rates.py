"""The rate of this machine, by a clock that is planted."""

from __future__ import annotations

import pytest
import torch

from probing.runtime.machine import rate, undisturbed_rate


@pytest.mark.parametrize("attempts", [1, 3])
def test_a_rate_is_amounts_per_second(attempts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # A clock that goes on with the work and with nothing else: on a busy machine a pause may take any time.
    clock = [0.0]
    monkeypatch.setattr("probing.runtime.machine.time.perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += 0.01

    assert rate(work, 5, attempts) == pytest.approx(500)


def test_the_best_of_several_attempts_leaves_out_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, took = [0.0], iter([0.01, 1.0] + [0.01] * 1000)
    monkeypatch.setattr("probing.runtime.machine.time.perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += next(took)

    assert rate(work, 1, attempts=2) == pytest.approx(100)


def test_an_undisturbed_rate_is_that_of_the_fastest_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, took = [0.0], iter([5.0] + [0.02] * 20 + [0.01] + [3.0] * 1000)
    monkeypatch.setattr("probing.runtime.machine.time.perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += next(took)

    assert undisturbed_rate(work, 1, "cuda") == pytest.approx(100)


def test_a_processors_rate_is_that_of_one_thread_times_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen, before = [0.0], set[int](), torch.get_num_threads()
    monkeypatch.setattr("probing.runtime.machine.time.perf_counter", lambda: clock[0])

    def work() -> None:
        seen.add(torch.get_num_threads())
        clock[0] += 0.01

    torch.set_num_threads(2)
    try:
        assert undisturbed_rate(work, 1) == pytest.approx(200)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert seen == {1}
