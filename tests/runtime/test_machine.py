"""What several processes, signals, the memory and files of a machine do to a command."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from fault_loop import in_two_ranks
from probing import runtime as memory
from probing.cli.commandline import command, run
from probing.cli.options import Options
from probing.errors import RunError, UserError
from probing.probes.rankings import MagnitudeAccumulator
from probing.runtime import processes
from probing.runtime.files import write_tensors
from probing.runtime.processes import (
    HungUp,
    Terminated,
    alone,
    are_several,
    interrupts_pass,
    is_main_process,
    launched,
    lost_rank,
    rank_and_world_size,
    run_on_rank_zero,
    signals_interrupt,
    sum_over_ranks,
)
from probing.statistics.label_scores import EtaSquaredAccumulator, LabelCodes
from probing.statistics.moments import CovarianceAccumulator, MomentsAccumulator

N, D, CLASSES = 300, 5, 4
LABELS = torch.randint(-1, CLASSES, (N,), generator=torch.Generator().manual_seed(1))
SENTENCES = torch.arange(N) // 10
# What each of three processes reads, in whole sentences; the second has no shard.
PARTS = (slice(0, 110), slice(110, 110), slice(110, N))


def together(accumulators: list[Any]) -> list[Any]:
    """Gather, each in its own thread, and return what every one then has."""
    barrier, sent = threading.Barrier(len(accumulators), timeout=600), [torch.empty(0)] * len(accumulators)

    def gather(rank: int) -> Any:
        def total(tensor: Tensor) -> Tensor:
            sent[rank] = tensor
            barrier.wait()
            found = torch.stack(list(sent)).sum(0)
            barrier.wait()
            return found

        accumulators[rank].all_reduce(total)
        return accumulators[rank].result()

    with ThreadPoolExecutor(len(accumulators)) as pool:
        return list(pool.map(gather, range(len(accumulators))))


@pytest.fixture
def states() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    # Far from 0 and drifting, so that the processes' means differ.
    return torch.randn(N, D, generator=generator) + 50 + torch.linspace(0, 3, N)[:, None]


def moments() -> tuple[Any, Callable[..., None]]:
    accumulator = MomentsAccumulator(D)
    return accumulator, lambda states, labels, sentences: accumulator.update(states)


def covariance() -> tuple[Any, Callable[..., None]]:
    accumulator = CovarianceAccumulator(D)
    return accumulator, lambda states, labels, sentences: accumulator.update(states)


def separation() -> tuple[Any, Callable[..., None]]:
    sizes = LABELS[LABELS >= 0].bincount()
    codes = LabelCodes.of_classes(sizes)
    accumulator = EtaSquaredAccumulator(torch.full((D,), 50.0).double(), torch.ones(D).double(), codes, 0.25)
    return accumulator, accumulator.update


def magnitudes() -> tuple[Any, Callable[..., None]]:
    accumulator = MagnitudeAccumulator(torch.full((D,), 50.0).double(), CLASSES)
    return accumulator, lambda states, labels, sentences: accumulator.update(states, labels)


@pytest.mark.parametrize("make", [moments, covariance, separation, magnitudes])
def test_what_processes_gather_is_what_one_adds(make: Any, states: Tensor) -> None:
    one, add = make()
    add(states, LABELS, SENTENCES)
    several = []
    for part in PARTS:
        accumulator, add = make()
        if len(states[part]):
            add(states[part], LABELS[part], SENTENCES[part])
        several.append(accumulator)
    expected = vars(one.result())
    for found in together(several):
        assert vars(found).keys() == expected.keys()
        for name, value in expected.items():
            if name == "axes":  # computed when they are asked for
                assert value == getattr(found, name) == {}
                continue
            if value is None:
                assert getattr(found, name) is None
                continue
            # Squares and products of batches are in float32.
            torch.testing.assert_close(
                torch.as_tensor(getattr(found, name)), torch.as_tensor(value), rtol=1e-5, atol=1e-6
            )


def test_alone_a_sum_is_what_it_is_and_no_rank_is_lost() -> None:
    tensor = torch.ones(2)
    assert rank_and_world_size() == (0, 1)
    assert sum_over_ranks(tensor) is tensor
    assert lost_rank(RuntimeError("gloo: Connection closed by peer")) is None


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
    assert run_on_rank_zero(is_main_process) is True  # no process group: it is not divided


def _ended() -> None:
    with alone():
        raise RunError("ended")


def _of_kind(make: Callable[[], Any]) -> Any:
    try:
        return run_on_rank_zero(make)
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


@pytest.fixture
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


@pytest.mark.usefixtures("listening")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_is_not_lost_while_an_object_is_finalised(number: int, kind: type[BaseException]) -> None:
    went_on = False
    with pytest.raises(kind), signals_interrupt():  # noqa: PT012
        EndsBySignal(number)
        went_on = True
        time.sleep(10)
    assert went_on


@pytest.mark.usefixtures("listening")
def test_a_training_that_ends_by_itself_after_a_signal_is_interrupted() -> None:
    """Lightning ends a training after SIGTERM by a SystemExit, of status 0, where the signal itself raised nothing."""
    with pytest.raises(Terminated), signals_interrupt(), interrupts_pass():  # noqa: PT012
        EndsBySignal(signal.SIGTERM)
        raise SystemExit
    time.sleep(0.1)  # it is not sent again


@pytest.mark.usefixtures("listening")
def test_a_signal_elsewhere_interrupts_at_once() -> None:
    with pytest.raises(Terminated), signals_interrupt():  # noqa: PT012
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it went on")


@pytest.mark.usefixtures("listening")
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


@pytest.mark.usefixtures("listening")
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


@dataclass(frozen=True)
class NoOptions(Options):
    """Options of a command without any."""


@command(NoOptions)
def interrupted(options: NoOptions) -> None:
    """Be interrupted three times."""
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)


@command(NoOptions)
def hung_up(options: NoOptions) -> None:
    """Lose the terminal."""
    os.kill(os.getpid(), signal.SIGHUP)


@command(NoOptions)
def without_memory(options: NoOptions) -> None:
    """Ask for more memory than there is."""
    import numpy as np

    np.empty(2**58)


@pytest.mark.usefixtures("listening")
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


def test_a_container_has_no_more_memory_than_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(memory, "LIMITS", (limit, tmp_path / "not there"))
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory.memory_bytes() == machine
    limit.write_text("max\n", encoding="utf-8")
    assert memory.memory_bytes() == machine
    limit.write_text("1048576\n", encoding="utf-8")
    assert memory.memory_bytes() == 2**20


class Knot:
    """Refers to itself, so that only a search for garbage frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_searches_for_garbage_read_what_is_new_alone_and_old_garbage_is_freed_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gc.unfreeze()
    monkeypatch.setattr(memory, "_is_set_aside", False)
    try:
        old = weakref.ref(Knot())
        with memory.heap_set_aside():
            assert old() is None
            set_aside = gc.get_freeze_count()
            assert set_aside > 10_000
            assert len(gc.get_objects()) < set_aside / 10
            with memory.heap_set_aside():  # a command that calls another one
                new = weakref.ref(Knot())
            assert gc.get_freeze_count() > 0
            gc.collect()
            assert new() is None
        assert gc.get_freeze_count() == 0
    finally:
        gc.freeze()  # as tests have it


@pytest.mark.usefixtures("in_a_folder")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_umask_says_who_may_read(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_tensors(path := tmp_path / "x.safetensors", {"x": torch.ones(3)})
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
    assert torch.equal(load_file(path)["x"], torch.ones(3))


@pytest.mark.usefixtures("in_a_folder")
def test_a_file_that_cannot_be_written_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        write_tensors(tmp_path / "missing" / "x.safetensors", {"x": torch.ones(3)})
    with pytest.raises(OSError, match="directory"):
        write_tensors(tmp_path, {"x": torch.ones(3)})


@pytest.mark.slow
@pytest.mark.usefixtures("in_a_folder")
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=6))
def test_metadata_of_any_text_come_back_and_are_in_order(metadata: dict[str, str]) -> None:
    path, again = Path("x.safetensors"), Path("again.safetensors")
    for array in (np.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(2, 3)):
        write_tensors(path, {"b": array, "a": array + 1}, metadata)
        write_tensors(again, {"a": array + 1, "b": array}, dict(reversed(metadata.items())))
        assert path.read_bytes() == again.read_bytes()
        with safe_open(path, "np") as file:
            assert (file.metadata() or {}) == metadata
            assert np.array_equal(file.get_tensor("a"), np.asarray(array) + 1)
            assert np.array_equal(file.get_tensor("b"), np.asarray(array))


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


MAKE = """
import os, sys, tempfile
sys.modules.pop("wandb", None)
from probing.tracking.client import temporary_client_folder
with temporary_client_folder():
    left = tempfile.mkdtemp("wandb-media")
assert tempfile.gettempdir() == os.environ["TMPDIR"]
print(left)
"""
KILL = "sys.stdout.flush(); os.kill(os.getpid(), 9)"


def made(place: Path, then: str = "") -> Path:
    """Make a temporary folder in a process of its own, and return it."""
    ended = subprocess.run(
        [sys.executable, "-c", MAKE + then], env={"TMPDIR": str(place), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    return Path(ended.stdout.strip())


def test_what_a_killed_process_leaves_is_removed_by_the_next_and_what_is_in_use_is_not(tmp_path: Path) -> None:
    left = made(tmp_path, KILL)
    assert left.is_dir()
    with subprocess.Popen(
        [sys.executable, "-c", MAKE + "sys.stdout.flush(); input()"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}, encoding="utf-8",
    ) as process:  # fmt: skip
        assert process.stdout
        used = Path(process.stdout.readline().strip())
        assert not left.parent.exists()
        made(tmp_path)
        assert used.is_dir()
        process.communicate("\n")
    assert not list(tmp_path.iterdir())
