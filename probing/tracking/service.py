"""The background process of the W&B client: shared by many runs, stopped if it hangs, closed when no longer needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from subprocess import Popen, TimeoutExpired
from typing import cast

from probing.tracking.environment import variables
from probing.tracking.mode import Mode


@contextmanager
def one_service(mode: Mode) -> Iterator[None]:
    """Share one background process of the client between all offline runs in this context.

    Online runs still have a process each, so that the process can be stopped if the server no longer answers.
    """
    if mode != "offline" or "WANDB_SERVICE" in os.environ:
        yield
        return
    with variables({"WANDB_MODE": mode, "WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}):
        import wandb

        with suppress(Exception):  # otherwise each run starts its own process, or reports the error
            wandb.setup()
    try:
        yield
    finally:
        with suppress(Exception, SystemExit):
            wandb.teardown()


def background_process() -> Popen[bytes] | None:
    """Return the client's background process, which has no public name; None if it is not found."""
    from wandb.sdk import wandb_setup

    try:
        process = attrgetter("_connection._proc._process")(wandb_setup.singleton())
    except AttributeError:
        return None  # another version of the client: rely on its own time limits
    return cast("Popen[bytes]", process)


def close_service() -> None:
    """End the background process, which closes its files and clears its environment variable.

    Raises:
        RuntimeError: If the client reports that the process failed.
    """
    import wandb

    try:
        wandb.teardown()
    except SystemExit as stopped:  # the client reports a failure in this way
        raise RuntimeError("its background process failed") from stopped


def within(seconds: float, service: Popen[bytes] | None, action: Callable[[], None]) -> None:
    """Run an action; if it exceeds a time limit, stop an online run's background process.

    Stopping the process ends the wait with an error. The client's own limits do not always hold: if a server stops
    answering during the upload of an artifact, `finish` with a limit of 9 s takes minutes.

    Args:
        seconds: The time limit.
        service: The background process; without one there is no limit.
        action: The action.

    Raises:
        TimeoutError: If the action took longer.
        Exception: Any other error of the action.
    """
    if service is None:
        return action()
    expired = threading.Event()

    def stop() -> None:
        expired.set()
        service.terminate()
        try:
            service.wait(2)
        except TimeoutExpired:
            service.kill()

    timer = threading.Timer(seconds, stop)
    timer.daemon = True
    timer.start()
    try:
        action()
    except Exception as error:
        if expired.is_set():
            raise TimeoutError("the server answers too slowly") from error
        raise
    finally:
        timer.cancel()
