"""Tracking of a run while it is made, and cleaning up if it fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from probing.cli.options import WandbOptions
from probing.errors import UserError
from probing.runs.folder import RunFolder
from probing.runs.resumable import ResumableFolder
from probing.runtime.interrupts import interrupt_behind
from probing.tracking import Tracker


@contextmanager
def tracking(
    folder: RunFolder | ResumableFolder | None, options: WandbOptions, config: Mapping[str, Any], light: bool = False
) -> Iterator[Tracker | None]:
    """Track the run on the first rank; a refused request leaves no folder behind, a failed run leaves a partial one.

    Args:
        folder: Folder of the run; None on other ranks than the first.
        options: Where and how to track the run.
        config: The run's resolved configuration.
        light: Whether it is one of many runs, for which less is logged.
    """
    if folder is None:
        yield None
        return
    from probing.runtime.terminal import say

    tracker = None
    try:
        # Starting the tracker takes seconds and may be interrupted.
        tracker = Tracker(options, folder.path, folder.final.name, config, say, light)
        yield tracker
    except BaseException as error:
        if tracker:
            tracker.finish(exit_code=1)
        if interrupt := interrupt_behind(error):
            raise type(interrupt)(f"the unfinished run is {folder.path}") from None
        if isinstance(error, UserError | OSError):
            folder.discard()
        if isinstance(error, OSError):
            raise UserError(
                f"`--runs {folder.final.parent}`: the results could not be written ({error.strerror or error}); "
                "make room, or name another folder, and run the same command again: the activations are cached."
            ) from error
        raise
    tracker.finish()
