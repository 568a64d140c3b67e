"""What the first of two processes computes by itself reaches both, and so does its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fault_loop import in_two_ranks
from probing.errors import RunError, UserError
from probing.runtime import processes
from probing.runtime.processes import alone, are_several, is_main_process, launched, of_first_rank


def test_a_process_by_itself_is_the_first_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    assert not is_main_process()
    assert launched()
    with alone():
        assert is_main_process()
        assert launched() == {}
    with pytest.raises(RunError):
        _ended()
    assert not is_main_process()
    assert of_first_rank(is_main_process) is True  # no process group: it is not divided


def _ended() -> None:
    with alone():
        raise RunError("ended")


def _of_kind(make: Callable[[], Any]) -> Any:
    try:
        return of_first_rank(make)
    except Exception as error:
        return type(error), str(error)


def _tried() -> list[Any]:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rank, seen = distributed.get_rank(), []

    def make() -> list[int]:
        seen.append(rank)
        assert not are_several()
        return [int(processes.sum_over_ranks(torch.ones(1))), *processes.rank_and_world_size()]

    def refuse() -> None:
        raise UserError("so not 9")

    def fail() -> None:
        raise ZeroDivisionError

    return [_of_kind(make), _of_kind(refuse), _of_kind(fail), are_several(), seen]


@pytest.mark.slow
def test_both_processes_have_the_result_or_the_error_of_the_first() -> None:
    first, second = (rank.found for rank in in_two_ranks(_tried))
    assert first == [[1, 0, 1], (UserError, "so not 9"), (ZeroDivisionError, ""), True, [0]]
    assert second == [[1, 0, 1], (UserError, "so not 9"), (RunError, "ZeroDivisionError"), True, []]
