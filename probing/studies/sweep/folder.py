"""A sweep on disk: `NAME.partial` until all trials are finished; an interrupted sweep is continued there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probing.runs.folder import PARTIAL, ResumableFolder


class SweepFolder(ResumableFolder):
    """The folder of a sweep that is new or continued.

    Args:
        runs: The folder of runs.
        name: Name of the sweep.
        definition: Everything that decides which trials there are; a sweep with another definition is another sweep.

    Raises:
        UserError: If the name is taken by something else, or the folder cannot be made.
    """

    what, other = "sweep", "another sweep, or to another version of this file"
    work = "trials"
    temporary = ("progress.safetensors",)

    def __init__(self, runs: Path, name: str, definition: Mapping[str, Any]) -> None:
        super().__init__(runs, name, definition)
        self.trials = self.path / self.work

    @contextmanager
    def claimed(self) -> Iterator[list[str]]:
        """Lock the folder against other processes, and yield the names of the finished trials.

        Raises:
            UserError: If another process is running the sweep, or the folder cannot be made.
        """
        with self.locked():
            for torn in self.trials.glob(f"*{PARTIAL}"):
                shutil.rmtree(torn)
            yield sorted(trial.name for trial in self.trials.iterdir())
