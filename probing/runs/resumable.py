"""A folder that is continued after an interruption: `NAME.partial` until everything in it is whole."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probing.errors import UserError, as_clause
from probing.runs.folder import PARTIAL, check_plain, rename_whole

_DEFINITION = "definition.json"


class ResumableFolder:
    """A folder that is new or continued.

    Args:
        runs: The folder of runs.
        name: Its name.
        definition: Everything that decides what is written into it.

    Raises:
        UserError: If the name is taken by something else, or the folder cannot be made.
    """

    # What the folder holds, and what it may belong to instead, for messages.
    what, other = "run", "a run with other options, or of another text"
    # The part of it without which nothing would be lost.
    work = "checkpoints"
    # What is removed when everything is whole.
    temporary: tuple[str, ...] = (_DEFINITION,)

    def __init__(self, runs: Path, name: str, definition: Mapping[str, Any]) -> None:
        self.final = check_plain(runs, name)
        self.path = self.final.with_name(name + PARTIAL)
        self.definition = json.loads(json.dumps(definition, sort_keys=True, default=str))
        if os.path.lexists(self.final):
            raise UserError(
                f"`--name {name}`: {self.final} exists and runs are never changed; choose another name for the "
                f"{self.what}."
            )
        if self.path.exists() and self._stored() not in (None, self.definition):
            raise UserError(f"`--name {name}`: {self.path} belongs to {self.other}; remove it or choose another name.")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes.

        Raises:
            UserError: If another process is writing it, or the folder cannot be made.
        """
        from filelock import FileLock, Timeout

        try:
            self.begin()
            lock = FileLock(self.path / ".lock")
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(
                f"`--name {self.final.name}`: another process is running this {self.what} ({self.path}); wait for it, "
                "or choose another name."
            ) from None
        except OSError as error:
            raise UserError(
                f"`--runs {self.final.parent}` cannot be written ({as_clause(error)}); name a writable folder."
            ) from None
        try:
            if self._stored() is None:
                temporary = self.path / f"{_DEFINITION}.new"
                temporary.write_text(json.dumps(self.definition, indent=2), encoding="utf-8")
                temporary.replace(self.path / _DEFINITION)
            yield
        finally:
            lock.release()

    def begin(self) -> None:
        """Make the folder."""
        (self.path / self.work).mkdir(parents=True, exist_ok=True)

    def discard(self) -> None:
        """Remove the folder if there is no work in it; otherwise the same command continues it."""
        if self.is_empty():
            shutil.rmtree(self.path, ignore_errors=True)

    def finish(self) -> Path:
        """Rename the folder to its final name and return the new path.

        Raises:
            RunError: If something of that name has been made meanwhile.
        """
        for left in (".lock", *self.temporary):
            (self.path / left).unlink(missing_ok=True)
        return rename_whole(self.path, self.final, self.what)

    def is_empty(self) -> bool:
        """Return whether there is no work in the folder yet."""
        return not any((self.path / self.work).glob("*"))

    def _stored(self) -> Any:
        """Return the definition in the folder, None if there is none yet."""
        try:
            return json.loads((self.path / _DEFINITION).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None if self.is_empty() else ()
        except (OSError, ValueError):
            return ()


def free_name(runs: Path, stem: str) -> str:
    """Return a name with the time that nothing in the folder of runs has."""
    stem = f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = (stem, *(f"{stem}-{i}" for i in range(2, 1000)))
    return next(name for name in names if not any(os.path.lexists(runs / (name + end)) for end in ("", PARTIAL)))
