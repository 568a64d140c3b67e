"""A sweep on disk: `NAME.partial` until all trials are finished; an interrupted sweep is continued there."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probing.errors import UserError, as_clause
from probing.runs.folder import PARTIAL, check_plain, rename_whole

_DEFINITION = "definition.json"


class SweepFolder:
    """The folder of a sweep that is new or continued.

    Args:
        runs: The folder of runs.
        name: Name of the sweep.
        definition: Everything that decides which trials there are; a sweep with another definition is another sweep.

    Raises:
        UserError: If the name is taken by something else, or the folder cannot be made.
    """

    def __init__(self, runs: Path, name: str, definition: Mapping[str, Any]) -> None:
        self.final = check_plain(runs, name)
        self.path = self.final.with_name(name + PARTIAL)
        self.trials = self.path / "trials"
        self.definition = json.loads(json.dumps(definition, sort_keys=True, default=str))
        if os.path.lexists(self.final):
            raise UserError(
                f"`--name {name}`: {self.final} exists and runs are never changed; choose another name for the sweep."
            )
        if self.path.exists() and self._stored() not in (None, self.definition):
            raise UserError(
                f"`--name {name}`: {self.path} belongs to another sweep, or to another version of this file; "
                "remove it or choose another name."
            )

    @contextmanager
    def claimed(self) -> Iterator[list[str]]:
        """Lock the folder against other processes, and yield the names of the finished trials.

        Raises:
            UserError: If another process is running the sweep, or the folder cannot be made.
        """
        from filelock import FileLock, Timeout

        try:
            self.trials.mkdir(parents=True, exist_ok=True)
            lock = FileLock(self.path / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"`--name {self.final.name}`: another process is running this sweep ({self.path}); wait for it, or "
                "choose another name."
            ) from None
        except OSError as error:
            raise UserError(
                f"`--runs {self.final.parent}` cannot be written ({as_clause(error)}); name a writable folder."
            ) from None
        try:
            if self._stored() is None:
                temporary = self.path / f"{_DEFINITION}.new"
                temporary.write_text(json.dumps(self.definition, indent=2))
                temporary.replace(self.path / _DEFINITION)
            for torn in self.trials.glob(f"*{PARTIAL}"):
                shutil.rmtree(torn)
            yield sorted(trial.name for trial in self.trials.iterdir())
        finally:
            lock.release()

    def finish(self) -> Path:
        """Rename the folder to its final name and return the new path.

        Raises:
            RunError: If something of that name has been made meanwhile.
        """
        for left in (".lock", "progress.safetensors"):
            (self.path / left).unlink(missing_ok=True)
        return rename_whole(self.path, self.final, "sweep")

    def _stored(self) -> Any:
        """Return the definition in the folder, None if there is none yet."""
        try:
            return json.loads((self.path / _DEFINITION).read_text())
        except FileNotFoundError:
            return None if not any(self.path.glob("trials/*")) else ()
        except (OSError, ValueError):
            return ()
