"""How far a command is, in a log, a terminal and a notebook, and the rates and times that this is told by."""

from __future__ import annotations

import atexit
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import BARE, BARE_ARGS, ROOT
from probing import fit
from probing import runtime as stopwatch
from probing.runtime import progress, rate, terminal, undisturbed_rate
from probing.runtime.progress import (
    BRIEF,
    Cost,
    counted,
    disable_progress,
    duration,
    expect,
    messages,
    note,
    overview,
    remark,
    spent,
    stage,
)
from typed import PROGRAM

LINE = re.compile(r"\[(\d)/(\d)\] (.+): (\d.*)")


def command(checkpoints: dict[str, Path], corpus_file: Path, place: Path, *more: str) -> list[str]:
    """Return the command line of a fit whose stages are those of the model, of its probes and of the results."""
    options = ["--model", str(checkpoints["bert"]), "--layer=1,2", "--corpus", str(corpus_file), "--runs", str(place)]
    return [sys.executable, "-c", PROGRAM, "fit", *options, "--name=a", "--wandb.mode=disabled", *BARE_ARGS, *more]


def at_a_terminal(words: list[str]) -> tuple[str, str]:
    """Run a command whose standard error is a terminal; return what it printed there, and on standard output."""
    ours, its = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=its, cwd=ROOT, env=environment) as process:
        os.close(its)
        seen = b""
        while True:
            try:
                seen += os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
        assert process.stdout
        out = process.stdout.read().decode()
    os.close(ours)
    assert process.returncode == 0
    return seen.decode(), out


def screens(seen: str) -> Iterator[list[str]]:
    """Yield what stands on the screen of a terminal after each piece of what was printed there."""
    lines, row = [""], 0
    for piece in re.findall(r"\x1b\[[\d;?]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", seen):
        if piece == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif piece == "\x1b[1A":
            row -= 1
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif piece[0] not in "\r\x1b":
            lines[row] += piece
        yield list(lines)


@pytest.mark.slow
def test_a_log_has_a_line_for_each_stage_and_a_terminal_one_line_which_vanishes(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    words = command(checkpoints, corpus_file, tmp_path / "runs", "--controls=permuted_positions")
    done = subprocess.run(words, capture_output=True, encoding="utf-8", cwd=ROOT, check=True)
    found = [LINE.fullmatch(line) for line in done.stderr.splitlines() if line.startswith("[")]
    assert all(found)
    stages = [
        "hidden states of layers 1 and 2",
        "hidden states for 1 control",
        "probes of layers 1 and 2",
        "probes of 1 control",
        "evidence for the ranking",
        "tables, figures and page",
    ]
    assert [(one[1], one[2], one[3]) for one in found if one] == [(str(n), "6", of) for n, of in enumerate(stages, 1)]
    assert all(re.fullmatch(r"[\d.]+ s", one[4]) for one in found if one)
    for name in ("a", "cache"):
        (tmp_path / "runs" / name).rename(tmp_path / name)
    seen, out = at_a_terminal(words)
    assert out.split() == done.stdout.split()  # lines are broken at the widths of both
    # The first line is there before what takes longest of a start.
    assert 0 <= seen.find("loading PyTorch, Lightning") < seen.find("[1/6]")
    for number, name in enumerate(stages, 1):
        assert f"[{number}/6] {name[:20]}" in seen
    assert max(len([line for line in screen if "/6]" in line]) for screen in screens(seen)) == 1
    assert not any("/6]" in line for line in list(screens(seen))[-1])


@pytest.mark.slow
def test_quiet_says_what_was_left_out_at_a_terminal_and_not_how_far_it_is(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path
) -> None:
    seen, _ = at_a_terminal(command(checkpoints, corpus_file, tmp_path, "--quiet"))
    assert "are too rare to be classes" in " ".join(seen.split())
    assert "\x1b" not in seen
    assert "/6]" not in seen


# --- what is told, by a clock of our own ---


class Clock:
    """A clock that a test turns, and timers that go off while it does."""

    def __init__(self) -> None:
        self.now, self.waiting = 0.0, list[tuple[float, Callable[[], None]]]()

    def monotonic(self) -> float:
        return self.now

    def turn(self, seconds: float) -> None:
        until = self.now + seconds
        while due := sorted((one for one in self.waiting if one[0] <= until), key=lambda one: one[0])[:1]:
            self.now = due[0][0]
            self.waiting.remove(due[0])
            due[0][1]()
        self.now = until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """The clock of all stages."""
    made = Clock()

    class Timer:
        def __init__(self, seconds: float, call: Callable[[], None]) -> None:
            self.due, self.daemon = (made.now + seconds, call), False

        def start(self) -> None:
            made.waiting.append(self.due)

        def cancel(self) -> None:
            if self.due in made.waiting:
                made.waiting.remove(self.due)

    monkeypatch.setattr(progress, "Timer", Timer)
    monkeypatch.setattr(progress.time, "monotonic", made.monotonic)
    yield made
    assert made.waiting == []


def test_a_long_stage_says_every_two_minutes_how_far_it_is(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with overview(quiet=False):
        expect([None, BRIEF])
        with stage("passes", 40) as advance:
            for _ in range(40):
                clock.turn(15)
                advance(1)
        with stage("tables"):
            clock.turn(2)
    assert capsys.readouterr().err.splitlines() == [
        "[1/2] passes: 3 of 40, 60 s so far, about 12 min left",
        "[1/2] passes: 11 of 40, 3 min so far, about 8 min left",
        "[1/2] passes: 19 of 40, 5 min so far, about 6 min left",
        "[1/2] passes: 27 of 40, 7 min so far, about 3 min left",
        "[1/2] passes: 35 of 40, 9 min so far, about 77 s left",
        "[1/2] passes: 10 min 0 s",
        "[2/2] tables: 2.0 s",
    ]


def test_the_time_left_of_all_stages_is_told_once_their_kinds_are_known(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with overview(quiet=False):
        expect([Cost("reading", 1), Cost("pass", 10), Cost("pass", 30), BRIEF])
        with stage("texts"), counted("", 4) as advance:
            for _ in range(4):
                clock.turn(20)
                advance(1)
        with stage("probes"), counted("solved", 3, is_even=False):
            note("first")
            clock.turn(70)
        with stage("more probes"):
            clock.turn(70)
            clock.turn(200)
        with stage("tables"):
            pass
    assert capsys.readouterr().err.splitlines() == [
        # What comes later is not known, and the count inside the stage tells of itself alone.
        "[1/4] texts: 2 of 4, 60 s so far, about 60 s for the others",
        "[1/4] texts: 1 min 20 s",
        "[2/4] probes: solved, first, 0 of 3, 60 s so far",
        "[2/4] probes: 1 min 10 s",
        "[3/4] more probes: 60 s so far, about 2 min left",
        "[3/4] more probes: 3 min so far, about 30 s left",
        "[3/4] more probes: 4 min 30 s",
        "[4/4] tables: 0.0 s",
    ]


def test_a_stage_that_takes_longer_than_it_should_tells_no_time(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with overview(quiet=False):
        expect([Cost("pass", 1), Cost("pass", 1)])
        for name in ("first", "second"):
            with stage(name):
                clock.turn(40 if name == "first" else 70)
    assert "[2/2] second: 60 s so far\n" in capsys.readouterr().err


def test_steps_that_were_done_before_are_not_taken_for_fast_ones(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with overview(quiet=False):
        with stage("passes", 10, done=5) as advance:
            clock.turn(59)
            advance(1)
            clock.turn(1)
        with stage("another"), pytest.raises(ValueError, match="no line"), stage("inside"):
            raise ValueError("no line")
    assert capsys.readouterr().err.splitlines() == [
        "[1] passes: 6 of 10, 60 s so far, about 4 min for the others",
        "[1] passes: 1 min 0 s",
        "[2] another: 0.0 s",
    ]


def test_a_call_from_python_says_long_stages_only_and_a_command_inside_another_is_a_part(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with overview(quiet=False, briefly=True):
        with stage("short"):
            clock.turn(59)
        with stage("long", 3) as advance:
            for _ in range(3):
                with overview(quiet=False):
                    expect([None] * 7)  # is not heard
                    with stage("of its own"):
                        clock.turn(31)
                advance(1)
    assert capsys.readouterr().err.splitlines() == [
        "[2] long: of its own, 1 of 3, 60 s so far, about 2 min for the others",
        "[2] long: 1 min 33 s",
    ]


@pytest.mark.parametrize("quiet", [False, True])
def test_quiet_drops_remarks_but_messages_only_of_a_part(quiet: bool, capsys: pytest.CaptureFixture[str]) -> None:
    with overview(quiet):
        messages(quiet)("3 rows are left out")
        remark("1 of 2 trials")
        with overview(quiet=False):
            messages(True)("3 rows are left out of a trial")
    assert capsys.readouterr().err.splitlines() == ["3 rows are left out", *["1 of 2 trials"] * (not quiet)]


@pytest.mark.parametrize("way", ["quiet", "hushed", "another rank", "no command", "failed"])
def test_nothing_is_said(
    way: str, clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "another rank":
        monkeypatch.setenv("RANK", "1")
    if way == "no command":
        with stage("passes", 3) as advance:
            advance(1)
            clock.turn(100)
    elif way == "failed":
        with pytest.raises(ValueError, match="it"), overview(quiet=False), stage("passes"):
            raise ValueError("it")
    else:
        with overview(quiet=way == "quiet"):
            if way == "hushed":
                disable_progress()
            with stage("passes"):
                clock.turn(100)
    assert capsys.readouterr().err == ""


def test_timers_of_the_clock_speak(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSES_S", (0.01, 60.0))
    with overview(quiet=False), stage("passes"):
        deadline = time.monotonic() + 20
        said = ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said = capsys.readouterr().err
    assert said.startswith("[1] passes: 1 s so far")


@pytest.mark.parametrize(
    ("seconds", "measured", "told"),
    [
        (0.04, "0.0 s", "1 s"),
        (9.94, "9.9 s", "10 s"),
        (9.96, "10 s", "10 s"),
        (61, "1 min 1 s", "61 s"),
        (3540, "59 min 0 s", "59 min"),
        (7200, "2.0 h", "2.0 h"),
    ],
)
def test_durations(seconds: float, measured: str, told: str) -> None:
    assert spent(seconds) == measured
    assert duration(seconds) == told


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What a shell with a kernel, as a notebook has one, sends to be shown."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shells = pytest.importorskip("IPython.core.interactiveshell")
    publishers = pytest.importorskip("IPython.core.displaypub")
    hooks = sys.displayhook, sys.excepthook
    shell = shells.InteractiveShell.instance(display_pub_class=publishers.CapturingDisplayPublisher)
    shell.history_manager.enabled = False
    shell.kernel = object()
    yield shell.display_pub.outputs
    shells.InteractiveShell.clear_instance()
    shell.atexit_operations()
    atexit.unregister(shell.atexit_operations)
    sys.displayhook, sys.excepthook = hooks


def fitted(checkpoints: dict[str, Path], corpus_file: Path, place: Path, quiet: bool) -> None:
    options: dict[str, Any] = {**BARE, "quiet": quiet, "wandb": {"mode": "disabled"}}
    fit(model=checkpoints["bert"], corpus=corpus_file, runs=str(place), layer=2, **options)


def test_a_notebook_shows_bars_in_one_output_that_is_empty_at_the_end(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, shown: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(progress, "PAUSE_S", 0.0)
    monkeypatch.setattr(progress, "_outputs", set())
    fitted(checkpoints, corpus_file, tmp_path, quiet=False)
    bars = [one for one in shown if (one.get("transient") or {}).get("display_id", "").startswith("probing-progress-")]
    assert [one["update"] for one in bars] == [False] + [True] * (len(bars) - 1)
    assert len({one["transient"]["display_id"] for one in bars}) == 1
    html = [one["data"].get("text/html", "") for one in bars]
    (extracted,) = (text for text in html if "hidden states" in text and "1/1" in text)
    assert extracted.startswith("<pre")
    assert any("probes, pass 2" in text for text in html)
    assert bars[-1]["data"] == {"text/plain": ""}


def test_a_quiet_command_shows_nothing_in_a_notebook(
    checkpoints: dict[str, Path], corpus_file: Path, tmp_path: Path, shown: list[dict[str, Any]]
) -> None:
    assert terminal.in_notebook()
    fitted(checkpoints, corpus_file, tmp_path, quiet=True)
    assert shown == []


def test_outside_a_notebook_there_is_none() -> None:
    assert not terminal.in_notebook()


@pytest.mark.parametrize(
    ("measured", "times_s", "expected"),
    [
        (lambda work: rate(work, 5, attempts=1), [0.01] * 1000, 500),
        (lambda work: rate(work, 5, attempts=3), [0.01] * 1000, 500),
        (lambda work: rate(work, 1, attempts=2), [0.01, 1.0] + [0.01] * 1000, 100),
        (lambda work: undisturbed_rate(work, 1, "cuda"), [5.0] + [0.02] * 20 + [0.01] + [3.0] * 1000, 100),
    ],
    ids=["a rate", "of equal attempts", "the best attempt has no pause", "the fastest call is undisturbed"],
)
def test_a_rate_is_amounts_per_second(
    measured: Callable[..., float], times_s: list[float], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A clock that goes on with the work and with nothing else: on a busy machine a pause may take any time.
    clock, took = [0.0], iter(times_s)
    monkeypatch.setattr("probing.runtime.time.perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += next(took)

    assert measured(work) == pytest.approx(expected)


def test_a_processors_rate_is_that_of_one_thread_times_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen, before = [0.0], set[int](), torch.get_num_threads()
    monkeypatch.setattr("probing.runtime.time.perf_counter", lambda: clock[0])

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


def test_stages_follow_one_another_and_the_total_is_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([10.0, 12.5, 13.0, 20.0])
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: next(times))
    watch = stopwatch.Stopwatch()
    watch.end("extract")
    watch.end("probe")
    assert watch.timings() == {"extract_s": 2.5, "probe_s": 0.5, "total_s": 3.0}
    watch.end("rank")
    found = watch.timings()
    assert list(found) == ["extract_s", "probe_s", "rank_s", "total_s"]
    assert found["total_s"] == pytest.approx(sum(seconds for name, seconds in found.items() if name != "total_s"))
