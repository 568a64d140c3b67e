"""The folder of a run that is being written: either whole or visibly partial."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from pathlib import Path

from probing.errors import RunError, UserError

PARTIAL = ".partial"


class RunFolder:
    """A run being written: `NAME.partial` until `finish` renames it.

    Args:
        runs: The folder of runs.
        name: Explicit name, refused if it exists or would leave the folder of runs.
        default: Start of the name if none is given; the time is added.
        figures: Whether to make a folder for figures.

    Raises:
        UserError: If the name cannot be used or the folder cannot be made.
    """

    def __init__(self, runs: Path, name: str | None, default: str, figures: bool = True) -> None:
        try:
            runs.mkdir(parents=True, exist_ok=True)
            self.final = self._claim(check_name(runs, name)) if name is not None else self._claim_free(runs, default)
            if figures:
                (self.path / "figures").mkdir()
        except OSError as error:
            raise UserError(f"`--runs {runs}` cannot be written ({error.strerror}); name a writable folder.") from None

    @property
    def path(self) -> Path:
        """Where the run is being written."""
        return self.final.with_name(self.final.name + PARTIAL)

    @staticmethod
    def _claim(final: Path) -> Path:
        """Make the partial folder, which only one process can do."""
        try:
            final.with_name(final.name + PARTIAL).mkdir()
        except FileExistsError:
            raise _is_partial(final) from None
        return final

    @classmethod
    def _claim_free(cls, runs: Path, default: str) -> Path:
        """Claim the first default name that no run has, neither a finished one nor one under way."""
        stem = f"{default}-{time.strftime('%Y%m%d-%H%M%S')}"
        for suffix in ["", *(f"-{i}" for i in range(2, 1000))]:
            if not (runs / (stem + suffix)).exists():
                with suppress(UserError):
                    return cls._claim(runs / (stem + suffix))
        raise UserError(f"`--runs {runs}` holds a thousand runs named {stem}; give one with --name.")

    def finish(self) -> Path:
        """Rename the folder to its final name and return the new path.

        Raises:
            RunError: If something of that name has been made meanwhile.
        """
        return rename_whole(self.path, self.final, "run")

    def discard(self) -> None:
        """Remove the folder with everything written so far."""
        shutil.rmtree(self.path, ignore_errors=True)


def rename_whole(partial: Path, final: Path, what: str) -> Path:
    """Rename a complete folder to its final name and return the new path.

    Raises:
        RunError: If something of that name has been made meanwhile.
    """
    try:
        partial.rename(final)
    except OSError as error:
        raise RunError(
            f"the {what} is complete but still in {partial}: it could not be renamed to {final.name} ({error.strerror})"
        ) from None
    return final


def check_name(runs: Path, name: str) -> Path:
    """Return the folder of a run of this name.

    Raises:
        UserError: If the name is taken, also by a run under way, or is not a plain name inside the folder of runs.
    """
    final = check_plain(runs, name)
    if os.path.lexists(final):  # a broken link also takes the name
        raise UserError(f"`--name {name}`: {final} exists and runs are never changed; choose another name.")
    if os.path.lexists(final.with_name(name + PARTIAL)):
        raise _is_partial(final)
    return final


def check_plain(runs: Path, name: str) -> Path:
    """Return the folder of that name in the folder of runs.

    Raises:
        UserError: If it is not a plain name inside the folder of runs.
    """
    if not re.fullmatch(r"[\w][\w.+=@-]{0,199}", name) or name.endswith(PARTIAL):
        raise UserError(
            f"`--name {name}` is not a plain name inside {runs}: use letters, digits and - _ . + = @, "
            f"beginning with a letter or digit and not ending in {PARTIAL}."
        )
    return runs / name


def _is_partial(final: Path) -> UserError:
    return UserError(
        f"`--name {final.name}`: {final.with_name(final.name + PARTIAL)} exists: a run of this name is under way "
        "or was interrupted; remove that folder or choose another name."
    )
