"""Progress of a command: its stage, the count inside the stage, and the remaining time where it is known.

A stage is declared where its work is done, `with stage("hidden states of 7 layers"):`, and so is a count inside it,
`with counted("texts", 40) as advance:`. What is shown of them is decided once, by the `overview` of the command: at a
terminal and in a notebook one line that is replaced and vanishes at the end; elsewhere, such as in the log of a batch
job, a line for each stage that has ended, and in a long stage a line every two minutes.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from probing.runtime.processes import is_main_process
from probing.runtime.terminal import in_notebook, say, silence, visible

# --------------------------------------------------------------------------------------------------------------------
# The stages of a command and what is told of them: the count inside a stage, and the time left where it is known.
# --------------------------------------------------------------------------------------------------------------------

# Seconds from the beginning of a stage to the first line that reports its progress, and from each line to the next.
PAUSES_S = (60.0, 120.0)
# Seconds that a count must have gone on before it tells the time left, and the share that must be done by then.
SURE_AFTER_S, SURE_SHARE = 5.0, 0.05


@dataclass(frozen=True)
class Cost:
    """Cost of a stage, in units of its kind; the time per unit is known once a stage of the kind has ended."""

    kind: str
    amount: float


# What a stage takes that is short beside the others, such as writing tables.
BRIEF = Cost("", 0.0)


class Stage:
    """Open stage, or open count inside a stage, with `done` steps done before and a total of None if unknown.

    `is_even`: whether steps take about equally long, so that they determine the remaining time.
    """

    def __init__(self, name: str, total: int | None = None, done: int = 0, is_even: bool = True) -> None:
        self.name, self.total, self.done, self.is_even = name, total, done, is_even
        self.note = ""
        self._done_before, self._begun = done, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begun

    def remaining_seconds(self) -> float | None:
        """Return the estimated seconds of the remaining steps; None if there is no estimate."""
        steps, seconds = self.done - self._done_before, self.seconds
        if not self.is_even or not self.total or not steps or seconds < SURE_AFTER_S:
            return None
        if steps < SURE_SHARE * (self.total - self._done_before):
            return None
        return seconds / steps * (self.total - self.done)


class Overview:
    """Stages of a command, shown by the display `line`, printed, or if `briefly` printed only if long."""

    def __init__(
        self, line: Callable[[Overview], ProgressLine] | None = None, prints_lines: bool = False, briefly: bool = False
    ) -> None:
        self.line, self.prints_lines, self.briefly = line, prints_lines, briefly
        self.n_begun = 0
        self._is_numbered = False
        self.costs: Sequence[Cost | None] = ()
        self.open: list[Stage] = []
        self.printed: set[str] = set()  # what was said once
        self._spent: dict[str, list[tuple[float, float]]] = {}  # amount and seconds of each stage, by kind
        self._shown: ProgressLine | None = None
        self._timer: Timer | None = None
        self._n_lines = 0
        self._speaking = Lock()

    def begin(self, open_stage: Stage, is_stage: bool) -> None:
        """Record that a stage or count has begun."""
        is_first = not self.open
        self.open.append(open_stage)
        if is_first:
            self.n_begun += is_stage
            self._is_numbered = is_stage
            self._n_lines = 0
            if self.line:
                self._shown = self.line(self)
            elif self.prints_lines and is_stage:
                self._wait()
        self.changed()

    def end(self, open_stage: Stage, has_failed: bool) -> None:
        """Record that a stage or count has ended, together with interrupted parts inside it."""
        if open_stage not in self.open:
            return
        if open_stage is self.open[0]:
            self._stop()
            if self._is_numbered and not has_failed:
                self._ended(open_stage)
        del self.open[self.open.index(open_stage) :]
        self.changed()

    def _ended(self, open_stage: Stage) -> None:
        if (cost := self._cost(self.n_begun)) and cost.amount:
            self._spent.setdefault(cost.kind, []).append((cost.amount, open_stage.seconds))
        if self.prints_lines and (not self.briefly or self._n_lines):
            with self._speaking:
                say(f"{self.name()}: {spent(open_stage.seconds)}")

    def changed(self) -> None:
        """Update the display, if any."""
        if self._shown and self.open:
            self._shown.changed()

    # --- lines at intervals ---

    def _wait(self) -> None:
        self._timer = Timer(PAUSES_S[min(self._n_lines, 1)], self._say_how_far)
        self._timer.daemon = True
        self._timer.start()

    def _say_how_far(self) -> None:
        with self._speaking:
            if self._timer is None or not self.open:
                return
            parts = [*self.inside(), self.count(), f"{duration(self.open[0].seconds)} so far", self.remaining_time()]
            with suppress(OSError, ValueError):  # nobody reads it any more
                say(f"{self.name()}: {', '.join(filter(None, parts))}")
            self._n_lines += 1
            self._wait()

    def _stop(self) -> None:
        with self._speaking:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
        if self._shown:
            self._shown.stop()
        self._shown = None

    # --- what is told ---

    def name(self) -> str:
        """Return the number and the name of the stage, such as `[2/6] hidden states of 7 layers`."""
        of = f"/{len(self.costs)}" if len(self.costs) >= self.n_begun else ""
        return (f"[{self.n_begun}{of}] " if self._is_numbered else "") + self.open[0].name

    def inside(self) -> list[str]:
        """Return the names and notes of the parts inside the stage."""
        first, *others = tuple(self.open)
        return [
            text
            for text in (first.note, *(text for inner_stage in others for text in (inner_stage.name, inner_stage.note)))
            if text
        ]

    def counting(self) -> Stage | None:
        """Return the outermost open stage or count that has a total."""
        return next((open_stage for open_stage in tuple(self.open) if open_stage.total), None)

    def count(self) -> str:
        """Return the progress of the count, such as `14 of 40`."""
        counter = self.counting()
        return f"{counter.done} of {counter.total}" if counter else ""

    def remaining_time(self) -> str:
        """Return the remaining time of the command, or else of the count; empty if unknown."""
        counter = self.counting()
        remaining = counter.remaining_seconds() if counter else None
        of_stage = remaining if counter is self.open[0] else None
        of_stage, later = self._remaining_by_cost() if of_stage is None else of_stage, self._later()
        if of_stage is not None and later is not None:
            return f"about {duration(of_stage + later)} left"
        return "" if remaining is None else f"about {duration(remaining)} for the others"

    def _cost(self, number: int) -> Cost | None:
        return self.costs[number - 1] if 0 < number <= len(self.costs) else None

    def _seconds(self, cost: Cost) -> float | None:
        if not cost.amount:
            return 0.0
        if not (spent := self._spent.get(cost.kind)):
            return None
        return cost.amount * sum(seconds for _, seconds in spent) / sum(amount for amount, _ in spent)

    def _remaining_by_cost(self) -> float | None:
        """Return the estimated remaining seconds of this stage; None also if the estimate is exceeded."""
        cost = self._cost(self.n_begun)
        seconds = self._seconds(cost) if cost else None
        remaining = (seconds or 0.0) - self.open[0].seconds
        return remaining if remaining > 0 else None

    def _later(self) -> float | None:
        if len(self.costs) < self.n_begun:
            return None
        known = [self._seconds(cost) if cost else None for cost in self.costs[self.n_begun :]]
        return None if None in known else sum(seconds for seconds in known if seconds)


def spent(seconds: float) -> str:
    """Return a measured duration in words: with a decimal below ten seconds, with seconds below an hour."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 60 or seconds >= 3600:
        return duration(seconds)
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def duration(seconds: float) -> str:
    """Return a duration in words, to at most two digits."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


_overview: ContextVar[Overview | None] = ContextVar("overview", default=None)
_is_part: ContextVar[bool] = ContextVar("is_part", default=False)


@contextmanager
def overview(quiet: bool, briefly: bool = False) -> Iterator[None]:
    """Show or print the stages of a command, unless quiet; a nested command is part of the outer command's stage.

    `briefly` prints only long stages where there is no display.
    """
    if _overview.get() is not None:
        is_part = _is_part.set(True)
        try:
            yield
        finally:
            _is_part.reset(is_part)
        return
    speaks = is_main_process() and not quiet
    line = _line() if speaks else None
    before = _overview.set(Overview(line, speaks and line is None, briefly))
    try:
        yield
    finally:
        _overview.reset(before)


def is_part() -> bool:
    """Return whether the current command runs inside another command."""
    return _is_part.get()


def messages(quiet: bool) -> Callable[[str], None]:
    """Return a printer of messages that are needed to trust the results: only a quiet nested command drops them."""
    return silence if quiet and is_part() else say


def remark(message: str) -> None:
    """Print a line about the progress of a command, unless it is quiet."""
    if (current := _overview.get()) and (current.line or current.prints_lines):
        say(message)


def _line() -> Any:
    is_terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    if not is_terminal and not in_notebook():
        return None

    return ProgressLine


def disable_progress() -> None:
    """Stop showing the stages of this command, for commands that a file sets to quiet."""
    if current := _overview.get():
        current.line, current.prints_lines = None, False


def say_once(message: str) -> None:
    """Print a message, also with `--quiet`, unless this command or its outer command has printed it."""
    printed = current.printed if (current := _overview.get()) else set[str]()
    if message not in printed:
        printed.add(message)
        say(message)


def expect(stages: Sequence[Cost | None]) -> None:
    """Set the costs of a command's stages in order, None if not comparable; ignored inside another command's stage."""
    current = _overview.get()
    if current and not current.n_begun and not current.open:
        current.costs = list(stages)


class Advance(Protocol):
    """Callback that takes the number of finished steps and, if it changes, the name of the current work."""

    def __call__(self, n: int, name: str | None = None) -> None:
        """Record finished steps."""


@contextmanager
def stage(name: str, total: int | None = None, done: int = 0) -> Iterator[Advance]:
    """Open a stage, such as "hidden states of 7 layers", or a part of the open stage; yield the callback of steps.

    `total` is the number of steps, if counted, of which `done` were done before.
    """
    with _begun(Stage(name, total, done), is_stage=True) as advance:
        yield advance


@contextmanager
def counted(name: str, total: int | None, done: int = 0, is_even: bool = True) -> Iterator[Advance]:
    """Open a count inside a stage, with arguments as of `Stage`; yield the callback of finished steps."""
    with _begun(Stage(name, total, done, is_even), is_stage=False) as advance:
        yield advance


def note(what: str) -> None:
    """Show the current work inside a stage."""
    if (current := _overview.get()) and current.open:
        current.open[-1].note = what
        current.changed()


def _unheard(n: int, name: str | None = None) -> None:
    """Ignore steps outside of commands."""


@contextmanager
def _begun(open_stage: Stage, is_stage: bool) -> Iterator[Advance]:
    current = _overview.get()
    if current is None:
        yield _unheard
        return

    def advance(n: int, name: str | None = None) -> None:
        open_stage.done += n
        open_stage.name = open_stage.name if name is None else name
        current.changed()

    current.begin(open_stage, is_stage)
    try:
        yield advance
    except BaseException:
        current.end(open_stage, has_failed=True)
        raise
    current.end(open_stage, has_failed=False)


# --------------------------------------------------------------------------------------------------------------------
# Progress bars in a notebook, below the cell that runs; they need nothing but the notebook itself.
# --------------------------------------------------------------------------------------------------------------------

# Seconds between two messages to the notebook, which draws the bar again at each.
PAUSE_S = 0.1

# Identifiers of the outputs that hold bars: one for each cell that was run, whatever the number of its bars.
_outputs: set[str] = set()


class NotebookProgress(Progress):
    """Progress bars of rich as an output below the cell, empty at the end; rich's notebook bars need ipywidgets."""

    _last = -float("inf")

    def start(self) -> None:
        """Do nothing; the first task shows the bar."""

    def add_task(self, *args: Any, **options: Any) -> Any:
        """Add a task and show it immediately."""
        self._last = -float("inf")
        return super().add_task(*args, **options)

    def advance(self, *args: Any, **options: Any) -> None:
        """Advance a task and show it."""
        super().advance(*args, **options)
        self.refresh()

    def update(self, *args: Any, **options: Any) -> None:
        """Change a task and show it."""
        super().update(*args, **options)
        self.refresh()

    def refresh(self) -> None:
        """Show all tasks, at most once per `PAUSE_S`."""
        if time.monotonic() - self._last >= PAUSE_S:
            self._last = time.monotonic()
            _show(self)

    def stop(self) -> None:
        """Empty the output."""
        _show({"text/plain": ""}, raw=True)


def _show(what: Any, raw: bool = False) -> None:
    from IPython import get_ipython
    from IPython.display import display

    output = f"probing-progress-{getattr(get_ipython(), 'execution_count', 0)}"
    display(what, raw=raw, display_id=output, update=output in _outputs)
    _outputs.add(output)


# --------------------------------------------------------------------------------------------------------------------
# The line in a terminal or a notebook that shows how far a command is.
# --------------------------------------------------------------------------------------------------------------------

# Width of the bar, and times per second that the line is drawn.
_WIDTH, _PER_S = 8, 4


class _RemainingTime(ProgressColumn):
    """Remaining time, which also decreases while no step ends."""

    def __init__(self, of: Overview) -> None:
        super().__init__(Column(no_wrap=True))
        self.of = of

    def render(self, task: Task) -> Text:
        return Text(self.of.remaining_time().removeprefix("about ") if self.of.open else "")


class ProgressLine:
    """Line for all stages; it vanishes with the stage, so that it does not mix with printed text."""

    def __init__(self, of: Overview) -> None:
        name = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        columns: tuple[Any, ...] = (
            TextColumn("{task.description}", markup=False, table_column=name),
            BarColumn(_WIDTH),
            TextColumn("{task.fields[count]}", markup=False, table_column=Column(no_wrap=True)),
            TimeElapsedColumn(Column(no_wrap=True)),
            _RemainingTime(of),
        )
        self.of = of
        self.progress: Progress
        if in_notebook():
            self.progress = NotebookProgress(*columns, auto_refresh=False)
        else:
            # What a command prints goes where it was sent, and not above the line.
            console = Console(stderr=True, emoji=False)
            self.progress = Progress(
                *columns, console=console, transient=True, redirect_stdout=False, expand=True, refresh_per_second=_PER_S
            )

        self.progress.start()
        self.task = self.progress.add_task(**self._task_fields())

    def changed(self) -> None:
        """Show changes."""
        self.progress.update(self.task, **self._task_fields())

    def stop(self) -> None:
        """Remove the line."""
        self.progress.stop()

    def _task_fields(self) -> dict[str, Any]:
        counter = self.of.counting()
        return {
            "description": visible(": ".join([self.of.name(), *self.of.inside()])),
            "total": counter.total if counter else None, "completed": counter.done if counter else 0,
            "count": f"{counter.done}/{counter.total}" if counter else "",
        }  # fmt: skip
