"""The line in a terminal or a notebook that shows how far a command is."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.text import Text

from probing.runtime.notebook import NotebookProgress
from probing.runtime.stages import Overview
from probing.runtime.terminal import in_notebook, visible

# Width of the bar, and times per second that the line is drawn.
_WIDTH, _PER_S = 8, 4


class _TimeLeft(ProgressColumn):
    """The time left, which also falls while no step ends."""

    def __init__(self, of: Overview) -> None:
        super().__init__(Column(no_wrap=True))
        self.of = of

    def render(self, task: Task) -> Text:
        """Return the time left; nothing if it cannot be told."""
        return Text(self.of.time_left().removeprefix("about ") if self.of.open else "")


class ProgressLine:
    """One line for all stages; it vanishes with the stage, so that nothing else that is printed meets it.

    Args:
        of: The stages.
    """

    def __init__(self, of: Overview) -> None:
        name = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        columns: tuple[Any, ...] = (
            TextColumn("{task.description}", markup=False, table_column=name),
            BarColumn(_WIDTH),
            TextColumn("{task.fields[count]}", markup=False, table_column=Column(no_wrap=True)),
            TimeElapsedColumn(Column(no_wrap=True)),
            _TimeLeft(of),
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
        self.task = self.progress.add_task(**self._told())

    def changed(self) -> None:
        """Show what has changed."""
        self.progress.update(self.task, **self._told())

    def stop(self) -> None:
        """Take the line away."""
        self.progress.stop()

    def _told(self) -> dict[str, Any]:
        one = self.of.counting()
        return {
            "description": visible(": ".join([self.of.name(), *self.of.inside()])),
            "total": one.total if one else None, "completed": one.done if one else 0,
            "count": f"{one.done}/{one.total}" if one else "",
        }  # fmt: skip
