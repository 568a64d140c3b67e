"""Progress bars in a notebook, below the cell that runs; they need nothing but the notebook itself."""

from __future__ import annotations

import time
from typing import Any

from rich.progress import Progress

# Seconds between two messages to the notebook, which draws the bar again at each.
PAUSE_S = 0.1

# Identifiers of the outputs that hold bars: one for each cell that was run, whatever the number of its bars.
_outputs: set[str] = set()


class NotebookProgress(Progress):
    """Shows the bars that rich shows in a terminal, as an output below the cell; each step replaces this output.

    rich's own way into notebooks needs ipywidgets, both in the kernel and in the browser. The output is empty once the
    bar is at its end, so that a saved notebook has no bars.
    """

    _last = -float("inf")

    def start(self) -> None:
        """Show the bar with the first task."""

    def add_task(self, *args: Any, **options: Any) -> Any:
        """Add a task and show it at once."""
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
        """Show all tasks, unless they were shown a moment ago."""
        if time.monotonic() - self._last >= PAUSE_S:
            self._last = time.monotonic()
            _show(self)

    def stop(self) -> None:
        """Empty the output."""
        _show({"text/plain": ""}, raw=True)


def _show(what: Any, raw: bool = False) -> None:
    """Show something in the output of bars of the cell that runs."""
    from IPython import get_ipython
    from IPython.display import display

    output = f"probing-progress-{getattr(get_ipython(), 'execution_count', 0)}"
    display(what, raw=raw, display_id=output, update=output in _outputs)
    _outputs.add(output)
