"""What goes wrong on real machines: full disks, folders that cannot be written, signals, clocks, crowds."""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import BARE_ARGS
from fault_loop import MANIFEST, processes
from probing import Run, WandbOptions, load_run
from probing.activations import ActivationStore
from probing.commands import prune
from probing.errors import UserError
from probing.runs.call import tracking
from probing.runs.folder import RunFolder
from rendering import without_rendering

# Long enough for a busy machine; nothing waits so long unless something is wrong.
PATIENCE_S = 600
NEURONS, ACCURACY = "neurons.csv", "accuracy.csv"


def nothing() -> None:
    """Change nothing."""


def on_faults(messages: str) -> list[str]:
    """Return the lines of messages but those on labels too rare to be classes, which every run of these options has."""
    return [line for line in messages.strip().splitlines() if not line.startswith("tokens are left out, ")]


def fit_here(results: Any, args: list[str], prepare: Callable[[], None] = nothing) -> None:
    """Type `probing fit` in this process and send the exit status and the lines of standard error on faults."""
    import contextlib
    import io

    from probing.__main__ import COMMANDS
    from probing.cli.commandline import run

    without_rendering()
    os.environ["COLUMNS"] = "100000"  # a message is a line
    signal.signal(signal.SIGINT, signal.default_int_handler)
    messages = io.StringIO()
    with contextlib.redirect_stderr(messages):
        prepare()
        status = run(COMMANDS, ["fit", *args])
    results.put((status, on_faults(messages.getvalue())))


def typed(args: list[str], prepare: Callable[[], None] = nothing) -> tuple[int, list[str]]:
    """Type `probing fit` in a process of its own; return the exit status and the lines of standard error."""
    context = processes()
    results = context.Queue()
    process = context.Process(target=fit_here, args=(results, args, prepare))
    process.start()
    status, messages = results.get(timeout=PATIENCE_S)
    process.join(PATIENCE_S)
    assert not any("Traceback" in line for line in messages), messages
    return status, messages


@pytest.fixture(scope="module")
def options(checkpoints: dict[str, Path], corpus_file: Path) -> list[str]:
    model = ["--model", str(checkpoints["bert"]), "--corpus", str(corpus_file)]
    return [
        *model,
        "--layer",
        "0,2",
        "--wandb.mode",
        "disabled",
        "--quiet",
        "--trainer.accelerator",
        "cpu",
        *BARE_ARGS,
    ]


@pytest.fixture(scope="module")
def runs_of_whole(options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs with a run that nothing happened to, and its cache; read only."""
    runs = tmp_path_factory.mktemp("whole") / "runs"
    assert typed([*options, "--runs", str(runs), "--name", "whole"]) == (0, [])
    return runs


@pytest.fixture
def whole(runs_of_whole: Path, tmp_path: Path) -> Run:
    """A run that nothing happened to, in `tmp_path/runs`."""
    shutil.copytree(runs_of_whole, tmp_path / "runs")
    return load_run(tmp_path / "runs" / "whole")


def tables(run: Path) -> tuple[bytes, bytes]:
    return (run / NEURONS).read_bytes(), (run / ACCURACY).read_bytes()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# --- a full disk ---


def only_small_files() -> None:
    """Let the system refuse to make any file longer than 6,000 bytes, as a full disk refuses at some point."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000))


@pytest.mark.slow
def test_a_disk_that_fills_during_the_extraction(options: list[str], tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    status, messages = typed([*options, "--runs", str(runs)], only_small_files)
    assert status == 2
    assert re.search(r"could not be written to .*runs/cache.*File too large.*make room", messages[-1])
    assert names(runs) == {"cache"}
    assert not list(runs.rglob("*.partial*"))
    assert typed([*options, "--runs", str(runs), "--name", "after"]) == (0, [])


@pytest.mark.slow
def test_a_disk_that_fills_while_results_are_written(options: list[str], whole: Run) -> None:
    runs = whole.folder.parent
    status, messages = typed([*options, "--runs", str(runs), "--name", "full"], only_small_files)
    assert status == 2
    assert "the results could not be written" in messages[-1]
    assert "the activations are cached" in messages[-1]
    assert names(runs) == {"cache", "whole"}
    assert typed([*options, "--runs", str(runs), "--name", "full"]) == (0, [])
    assert tables(runs / "full") == tables(whole.folder)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError(28, "No space left"), RuntimeError("[enforce fail at inline_container.cc:6] . unexpected")],
)
def test_a_run_for_which_the_machine_has_no_room_leaves_no_folder(error: Exception, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "full", "x")
    with pytest.raises((MemoryError, UserError)), tracking(folder, WandbOptions(mode="disabled"), {}):
        raise error
    assert names(tmp_path) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "status", "out", "error"),
    [(">&-", 0, "", ""), ("2>&-", 2, "probing cache verify: .* is no folder", ""), (">&- 2>&-", 2, "", "")],
)
def test_a_closed_stream_is_no_failure_and_messages_go_where_they_can(
    closed: str, status: int, out: str, error: str, tmp_path: Path
) -> None:
    command = f"'{sys.executable}' -m probing cache {'ls' if status == 0 else 'verify'} --cache '{tmp_path / 'none'}'"
    ended = subprocess.run(["sh", "-c", f"{command} {closed}"], capture_output=True, encoding="utf-8", check=False)
    assert (ended.returncode, ended.stderr) == (status, error)
    assert re.match(out, ended.stdout)


@pytest.mark.slow
def test_without_docstrings_there_is_a_sentence() -> None:
    command = [sys.executable, "-OO", "-m", "probing", "cache", "ls"]
    ended = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    said = ended.stderr.splitlines()
    assert "Traceback" not in ended.stderr, said
    ended = subprocess.run([*command[:4], "--help"], capture_output=True, encoding="utf-8", check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("probing: python -OO, or PYTHONOPTIMIZE=2, leaves out the docstrings")


# --- folders that cannot be written ---


def heed_permissions() -> None:
    """Give up root's right to pass over permissions (capset(2)), which tests may have; others never had it."""
    import ctypes

    pass_over = 0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; once for each half of the capabilities
    assert libc.capget(header, data) == 0
    data[0] &= ~pass_over
    assert libc.capset(header, data) == 0, os.strerror(ctypes.get_errno())


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], None]]:
    """Take the right to write from a folder and all that is in it, until the test is over."""
    changed: list[Path] = []

    def take(folder: Path) -> None:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
            changed.append(path)

    yield take
    for path in changed:
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.slow
def test_a_cache_that_is_whole_serves_those_who_cannot_write_it(
    options: list[str], whole: Run, tmp_path: Path, read_only: Callable[[Path], None]
) -> None:
    cache, runs = whole.folder.parent / "cache", tmp_path / "theirs"
    read_only(cache)
    args = [*options, "--cache", str(cache), "--runs", str(runs), "--name"]
    assert typed([*args, "theirs"], heed_permissions) == (0, [])
    assert tables(runs / "theirs") == tables(whole.folder)
    status, messages = typed([*args, "more", "--layer", "all"], heed_permissions)
    assert status == 2
    assert re.search(r"`--cache .*` cannot be written \(Permission denied\); name a writable folder", messages[-1])


def test_a_folder_of_runs_that_cannot_be_written(
    options: list[str], whole: Run, tmp_path: Path, read_only: Callable[[Path], None]
) -> None:
    runs, cache = tmp_path / "frozen", whole.folder.parent / "cache"
    runs.mkdir()
    read_only(runs)
    status, messages = typed([*options, "--cache", str(cache), "--runs", str(runs)], heed_permissions)
    assert status == 2
    assert re.search(r"`--runs .*frozen` cannot be written \(.*read-only", messages[-1])
    assert names(runs) == set()


# --- signals ---


def in_a_process(args: list[str], when: Callable[[], bool], number: int) -> tuple[int, list[str]]:
    """Run the real command, send it a signal at a moment, and return how it ended and lines of standard error."""
    command = [sys.executable, "-m", "probing", "fit", *args]
    listening = "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    command = [sys.executable, "-c", f"{listening}; os.execv(sys.argv[1], sys.argv[1:])", *command]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, encoding="utf-8")
    end = time.monotonic() + PATIENCE_S
    while not when():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.002)
    process.send_signal(number)
    _, messages = process.communicate(timeout=PATIENCE_S)
    return process.returncode, on_faults(messages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "word"),
    [(signal.SIGINT, "interrupted"), pytest.param(signal.SIGTERM, "terminated", marks=pytest.mark.several)],
)
def test_an_interrupt_during_training_leaves_a_visible_partial_run(
    options: list[str], whole: Run, number: int, word: str
) -> None:
    runs = whole.folder.parent
    # Adam with a minute rate never stops by itself.
    forever = ["--probe.solver", "adam", "--trainer.max_epochs", "100000", "--probe.patience", "100000"]
    partial = runs / "stopped.partial"
    figures = partial / "figures"
    ended, messages = in_a_process(
        [*options, *forever, "--runs", str(runs), "--name", "stopped"],
        lambda: figures.is_dir() and time.time() > figures.stat().st_mtime + 1,
        number,
    )
    assert ended == -number, "\n".join(messages)
    begins = f"probing fit: {word}; the unfinished run is {partial}, which is not continued: the same command begins"
    assert messages == [f"{begins} it again, and `cache prune` removes it; the cached activations are kept."]
    assert names(runs) == {"cache", "whole", "stopped.partial"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_during_the_extraction_keeps_what_is_done(
    checkpoints: dict[str, Path], tmp_path: Path, number: int
) -> None:
    runs = tmp_path / "runs"
    args = [
        "--model",
        str(checkpoints["bert"]),
        "--wandb.mode",
        "disabled",
        "--runs",
        str(runs),
        "--batch_tokens",
        "1",
        *BARE_ARGS,
    ]
    context = processes()
    results = context.Queue()
    process = context.Process(target=fit_here, args=(results, args))
    process.start()
    end = time.monotonic() + PATIENCE_S
    while not list(runs.glob(f"cache/*/{MANIFEST}")):
        assert process.is_alive()
        assert time.monotonic() < end
        time.sleep(0.002)
    assert process.pid
    os.kill(process.pid, number)
    status, messages = results.get(timeout=PATIENCE_S)
    process.join(PATIENCE_S)
    assert status == 128 + number, "\n".join(messages)
    assert len(messages) == 1
    assert "the cached activations are kept" in messages[0]
    assert names(runs) == {"cache"}


# --- clocks ---


@pytest.mark.slow
def test_a_clock_that_goes_back(options: list[str], whole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = whole.folder.parent
    (entry,) = (runs / "cache").glob("*/")
    tomorrow = time.time() + 86_400
    for path in (entry, *entry.rglob("*"), whole.folder):
        os.utime(path, (tomorrow, tomorrow))
    assert typed([*options, "--runs", str(runs), "--name", "earlier"]) == (0, [])
    assert tables(runs / "earlier") == tables(whole.folder)
    # The same second twice, or a second time.
    monkeypatch.setattr(time, "strftime", lambda *_: "20200101-000000")
    first = RunFolder(runs, None, "tiny").finish()
    second, third = RunFolder(runs, None, "tiny"), RunFolder(runs, None, "tiny")
    assert [first.name, second.final.name, third.final.name] == [
        "tiny-20200101-000000", "tiny-20200101-000000-2", "tiny-20200101-000000-3",
    ]  # fmt: skip


# --- crowds ---


@pytest.mark.slow
def test_eight_at_once_share_one_extraction_and_agree(options: list[str], tmp_path: Path) -> None:
    context, runs = processes(), tmp_path / "runs"
    results = context.Queue()
    args = [*options, "--runs", str(runs)]
    jobs = [context.Process(target=fit_here, args=(results, args)) for _ in range(8)]
    for job in jobs:
        job.start()
    assert [results.get(timeout=PATIENCE_S)[0] for _ in jobs] == [0] * 8
    for job in jobs:
        job.join(PATIENCE_S)
    made = [path for path in runs.iterdir() if path.name != "cache"]
    assert len(made) == 8
    assert not any(path.name.endswith(".partial") for path in made)
    assert len({tables(path) for path in made}) == 1
    (entry,) = (runs / "cache").glob("*/")
    store = ActivationStore(entry)
    assert len((entry / MANIFEST).read_text(encoding="utf-8").splitlines()) == 1 + 2 * len(
        store.plan.shards
    )  # nobody did it twice
    assert store.damaged([0, 2]) == []


@pytest.mark.slow
def test_no_run_fails_while_the_cache_is_pruned_again_and_again(
    options: list[str], whole: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    context, runs = processes(), whole.folder.parent
    results = context.Queue()
    args = [*options, "--runs", str(runs)]
    jobs = [context.Process(target=fit_here, args=(results, args)) for _ in range(3)]
    for job in jobs:
        job.start()
    while any(job.is_alive() for job in jobs):
        prune(cache=str(runs / "cache"), unused_days=0, yes=True)
        time.sleep(0.001)
    # A run may say that it waits for another one that extracts what was removed.
    assert [results.get(timeout=PATIENCE_S)[0] for _ in jobs] == [0, 0, 0]
    assert len({tables(path) for path in runs.iterdir() if path.name != "cache"}) == 1
    assert ": a job is using it" in capsys.readouterr().out


@pytest.mark.slow
def test_two_runs_of_one_name_are_one_run(options: list[str], whole: Run) -> None:
    context, runs = processes(), whole.folder.parent
    results = context.Queue()
    args = [*options, "--runs", str(runs), "--name", "same"]
    jobs = [context.Process(target=fit_here, args=(results, args)) for _ in range(3)]
    for job in jobs:
        job.start()
    ended = sorted(results.get(timeout=PATIENCE_S) for _ in jobs)
    for job in jobs:
        job.join(PATIENCE_S)
    assert [status for status, _ in ended] == [0, 2, 2]
    assert all("`--name same`" in messages[-1] for _, messages in ended[1:])
    assert names(runs) == {"cache", "whole", "same"}
    assert tables(runs / "same") == tables(whole.folder)
