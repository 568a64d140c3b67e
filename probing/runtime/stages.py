"""The stages of a command and what is told of them: the count inside a stage, and the time left where it is known."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Protocol

from probing.runtime.terminal import say

# Seconds from the beginning of a stage to the first line that says how far it is, and from each line to the next one;
# the last pause is repeated.
PAUSES_S = (60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0)
# Seconds that a count must have gone on before it tells the time left, and the share that must be done by then.
SURE_AFTER_S, SURE_SHARE = 5.0, 0.05


@dataclass(frozen=True)
class Cost:
    """What a stage takes, compared with other stages of its kind.

    Args:
        kind: What the cost is counted in; how long one of these takes is known once a stage of the kind has ended.
        amount: How many of these the stage takes.
    """

    kind: str
    amount: float


# What a stage takes that is short beside the others, such as writing tables.
BRIEF = Cost("", 0.0)


class Stage:
    """A stage that has begun, or something that is counted inside it.

    Args:
        name: What is done.
        total: Number of steps; None if that is not known.
        done: Number of steps that were done before.
        is_even: Whether steps take about as long as each other, so that they tell the time left.
    """

    def __init__(self, name: str, total: int | None = None, done: int = 0, is_even: bool = True) -> None:
        self.name, self.total, self.done, self.is_even = name, total, done, is_even
        self.note = ""
        self._done_before, self._begun = done, time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._begun

    def left(self) -> float | None:
        """Return about how many seconds the remaining steps take, None if that cannot be told."""
        steps, seconds = self.done - self._done_before, self.seconds
        if not self.is_even or not self.total or not steps or seconds < SURE_AFTER_S:
            return None
        if steps < SURE_SHARE * (self.total - self._done_before):
            return None
        return seconds / steps * (self.total - self.done)


class Line(Protocol):
    """Shows a stage while it goes on."""

    def changed(self) -> None:
        """Show what has changed."""

    def stop(self) -> None:
        """Show nothing any more."""


class Overview:
    """The stages of a command.

    Args:
        line: Begins to show a stage while it goes on, if stages are shown so.
        said: Whether stages are said, one line each.
        briefly: Whether a stage is said only if it was long, as for a call from Python.
    """

    def __init__(
        self, line: Callable[[Overview], Line] | None = None, said: bool = False, briefly: bool = False
    ) -> None:
        self.line, self.said, self.briefly = line, said, briefly
        self.n_begun = 0
        self._is_numbered = False
        self.costs: Sequence[Cost | None] = ()
        self.open: list[Stage] = []
        self.told: set[str] = set()  # what was said once
        self._spent: dict[str, list[tuple[float, float]]] = {}  # amount and seconds of each stage, by kind
        self._shown: Line | None = None
        self._timer: Timer | None = None
        self._n_lines = 0
        self._speaking = Lock()

    def begin(self, one: Stage, is_stage: bool) -> None:
        """Note that a stage, or a count, has begun."""
        is_first = not self.open
        self.open.append(one)
        if is_first:
            self.n_begun += is_stage
            self._is_numbered = is_stage
            self._n_lines = 0
            if self.line:
                self._shown = self.line(self)
            elif self.said and is_stage:
                self._wait()
        self.changed()

    def end(self, one: Stage, has_failed: bool) -> None:
        """Note that a stage or count has ended, and with it what began inside it and was interrupted."""
        if one not in self.open:
            return
        if one is self.open[0]:
            self._stop()
            if self._is_numbered and not has_failed:
                self._ended(one)
        del self.open[self.open.index(one) :]
        self.changed()

    def _ended(self, one: Stage) -> None:
        if (cost := self._cost(self.n_begun)) and cost.amount:
            self._spent.setdefault(cost.kind, []).append((cost.amount, one.seconds))
        if self.said and (not self.briefly or self._n_lines):
            with self._speaking:
                say(f"{self.name()}: {spent(one.seconds)}")

    def changed(self) -> None:
        """Show what has changed, where it is not shown again at intervals."""
        if self._shown and self.open:
            self._shown.changed()

    # --- lines at intervals ---

    def _wait(self) -> None:
        self._timer = Timer(PAUSES_S[min(self._n_lines, len(PAUSES_S) - 1)], self._say_how_far)
        self._timer.daemon = True
        self._timer.start()

    def _say_how_far(self) -> None:
        with self._speaking:
            if self._timer is None or not self.open:
                return
            parts = [*self.inside(), self.count(), f"{duration(self.open[0].seconds)} so far", self.time_left()]
            with suppress(OSError, ValueError):  # nobody reads it any more
                say(f"{self.name()}: {', '.join(filter(None, parts))}")
            self._n_lines += 1
            self._wait()

    def _stop(self) -> None:
        """End what shows the stage."""
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
        """Return the names of what goes on inside the stage."""
        first, *others = tuple(self.open)
        return [text for text in (first.note, *(text for one in others for text in (one.name, one.note))) if text]

    def counting(self) -> Stage | None:
        """Return what is counted: by the stage itself, or else inside it."""
        return next((one for one in tuple(self.open) if one.total), None)

    def count(self) -> str:
        """Return how far the count is, such as `14 of 40`."""
        one = self.counting()
        return f"{one.done} of {one.total}" if one else ""

    def time_left(self) -> str:
        """Return the time left as far as it can be told: of the command, or else of what is counted."""
        one = self.counting()
        left = one.left() if one else None
        of_stage = left if one is self.open[0] else None
        of_stage, later = self._left_by_cost() if of_stage is None else of_stage, self._later()
        if of_stage is not None and later is not None:
            return f"about {duration(of_stage + later)} left"
        return "" if left is None else f"about {duration(left)} for the others"

    def _cost(self, number: int) -> Cost | None:
        return self.costs[number - 1] if 0 < number <= len(self.costs) else None

    def _seconds(self, cost: Cost) -> float | None:
        """Return about how many seconds a stage takes, by those of its kind that have ended."""
        if not cost.amount:
            return 0.0
        if not (spent := self._spent.get(cost.kind)):
            return None
        return cost.amount * sum(seconds for _, seconds in spent) / sum(amount for amount, _ in spent)

    def _left_by_cost(self) -> float | None:
        """Return about how many seconds are left of this stage; None if it takes longer than it should, too."""
        cost = self._cost(self.n_begun)
        seconds = self._seconds(cost) if cost else None
        left = (seconds or 0.0) - self.open[0].seconds
        return left if left > 0 else None

    def _later(self) -> float | None:
        """Return about how many seconds the later stages take; None if that is not known of one of them."""
        if len(self.costs) < self.n_begun:
            return None
        known = [self._seconds(cost) if cost else None for cost in self.costs[self.n_begun :]]
        return None if None in known else sum(seconds for seconds in known if seconds)


def spent(seconds: float) -> str:
    """Return a duration that was measured in words: below ten seconds with a decimal, below an hour with seconds."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 60 or seconds >= 3600:
        return duration(seconds)
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def duration(seconds: float) -> str:
    """Return a duration in words, to two digits at most."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"
